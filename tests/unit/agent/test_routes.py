"""The route table: only a view replaces a view."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pe_agent.agent.broker.routes import RouteFileError, RouteTable
from streambroker_core.model import PeKey
from streambroker_core.wire.view import ExportPort, ImportPort, View, encode, seal


def view(uid: str = "e", point: tuple[int, int] = (1, 1)) -> View:
    return seal(
        View(
            pe=PeKey.parse("default/feed/0"),
            point=point,
            exports={"trades": ExportPort(uid=uid, stream_id="x")},
            imports={"in": ImportPort(uid="i")},
        )
    )


def test_a_view_is_on_disk_before_anybody_hears_of_it(tmp_path: Path) -> None:
    path = tmp_path / "routes.json"
    table = RouteTable(path)
    seen: list[tuple[str, bool]] = []
    table.listen(lambda v: seen.append((v.version, path.exists())))
    table.apply(view())
    assert seen == [(view().version, True)]
    again = RouteTable(path)
    again.load()
    assert again.view == view()
    assert again.exported("trades") == view().exports["trades"]
    assert again.imported("in") == view().imports["in"]
    assert again.imported("out") is None


def test_an_equal_view_is_told_to_nobody_but_moves_the_point(tmp_path: Path) -> None:
    table = RouteTable(tmp_path / "routes.json")
    table.apply(view())
    seen: list[View] = []
    table.listen(seen.append)
    table.apply(view(point=(2, 2)))
    assert [v.point for v in seen] == [(1, 1)]
    assert table.view is not None
    assert table.view.point == (2, 2)


def test_without_a_file_there_is_no_view(tmp_path: Path) -> None:
    table = RouteTable(tmp_path / "routes.json")
    table.load()
    assert table.view is None
    assert table.exported("trades") is None


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", '"x"', "null", '{"v": 99}', json.dumps({**encode(view()), "exports": 5})],
)
def test_a_file_that_is_no_view_is_refused_with_its_path(tmp_path: Path, text: str) -> None:
    path = tmp_path / "routes.json"
    path.write_text(text)
    with pytest.raises(RouteFileError, match=r"routes\.json cannot be read"):
        RouteTable(path).load()
    assert path.read_text() == text


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "routes.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RouteFileError):
        RouteTable(path).load()
