"""The route table: only a view replaces a view."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pe_agent.agent.state.route_table import RouteFileError, RouteTable, RuleGate
from streambroker_core.model import PeKey, PortKey
from streambroker_core.wire.broker.hints import STALE_S
from streambroker_core.wire.broker.view import (
    ExportPort,
    ExportRoute,
    ImportPort,
    ImportRoute,
    View,
    encode,
    with_version,
)
from streambroker_core.wire.broker.view_rules import ViewRule, ViewRules, make_view_rules


def view(uid: str = "e", point: tuple[int, int] = (1, 1)) -> View:
    return with_version(
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
    table.add_listener(lambda v: seen.append((v.version, path.exists())))
    table.apply(view())
    assert seen == [(view().version, True)]
    again = RouteTable(path)
    again.load()
    assert again.view == view()
    assert again.find_export("trades") == view().exports["trades"]
    assert again.find_import("in") == view().imports["in"]
    assert again.find_import("out") is None


def test_an_equal_view_is_reported_to_nobody_but_moves_the_point(tmp_path: Path) -> None:
    table = RouteTable(tmp_path / "routes.json")
    table.apply(view())
    seen: list[View] = []
    table.add_listener(seen.append)
    table.apply(view(point=(2, 2)))
    assert [v.point for v in seen] == [(1, 1)]
    assert table.view is not None
    assert table.view.point == (2, 2)


def test_without_a_file_there_is_no_view(tmp_path: Path) -> None:
    table = RouteTable(tmp_path / "routes.json")
    table.load()
    assert table.view is None
    assert table.find_export("trades") is None


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


def test_routes_of_a_held_import_stay_at_both_ends_until_it_is_held_no_more(tmp_path: Path) -> None:
    """Also over a restart of the agent, and while other routes come and go."""
    port = PortKey.parse("default/alerts/0/in")
    reader = ExportRoute(import_=port, uid="far")
    source = ImportRoute(export=PortKey.parse("default/feed/0/trades"), uid="x")
    here, gone = view().exports["trades"], view().imports["in"]
    exports = {"trades": replace(here, routes=(reader,))}
    imports = {"in": replace(gone, routes=(source,))}
    table = RouteTable(tmp_path / "routes.json")
    table.apply(with_version(replace(view(), exports=exports, imports=imports)))

    other = replace(reader, uid="other", filter="price > 1")
    held = replace(view(), exports={"trades": replace(here, routes=(other,))}, imports={})
    held = replace(held, version="", held=("far", "i"))
    table.apply(with_version(held))
    again = RouteTable(tmp_path / "routes.json")
    again.load()
    for found in (table, again):
        trades = found.find_export("trades")
        assert trades is not None
        assert {route.uid for route in trades.routes} == {"far", "other"}
        assert found.find_import("in") == imports["in"]

    table.apply(with_version(replace(held, held=("far",))))
    assert table.find_import("in") is None
    table.apply(with_version(replace(held, held=())))
    trades = table.find_export("trades")
    assert trades is not None
    assert trades.routes == (other,)


def test_a_port_that_is_another_by_now_is_not_kept(tmp_path: Path) -> None:
    table = RouteTable(tmp_path / "routes.json")
    table.apply(view())
    table.apply(with_version(replace(view(), imports={"in": ImportPort(uid="new")}, held=("i",))))
    assert table.find_import("in") == ImportPort(uid="new")


def with_rules(at: int, *names: str) -> View:
    rules = make_view_rules(ViewRule(id=name, document={"id": name}) for name in names)
    return with_version(replace(view(), rules=rules, rules_version=at))


def rules_of(found: View | None) -> list[str]:
    assert found is not None
    return [rule.id for rule in (found.rules or ViewRules()).rules]


def test_rules_of_a_replica_that_is_behind_are_left_out_and_the_rest_is_taken(
    tmp_path: Path,
) -> None:
    table, gate = RouteTable(tmp_path / "routes.json"), RuleGate()
    for answer in (with_rules(5, "old"), with_rules(7, "old", "new")):
        table.apply(gate.drop_stale_rules(answer, table.view))
    moved = replace(with_rules(6, "old"), exports={"quotes": ExportPort(uid="q", stream_id="q")})
    table.apply(gate.drop_stale_rules(moved, table.view))

    assert gate.needs_full_view
    assert rules_of(table.view) == ["new", "old"]
    assert table.find_export("quotes") is not None
    again = RouteTable(tmp_path / "routes.json")
    again.load()
    assert again.view is not None
    assert (rules_of(again.view), again.view.rules_version) == (["new", "old"], 7)
    table.apply(gate.drop_stale_rules(with_rules(8), table.view))
    assert (rules_of(table.view), gate.needs_full_view) == ([], False)


def test_older_rules_are_taken_where_nothing_else_comes_for_a_while(tmp_path: Path) -> None:
    now = [100.0]
    table, gate = RouteTable(tmp_path / "routes.json"), RuleGate(lambda: now[0])
    table.apply(with_rules(7, "lost"))
    for later in (0.0, STALE_S - 1.0):
        now[0] = 100.0 + later
        table.apply(gate.drop_stale_rules(with_rules(3, "restored"), table.view))
        assert rules_of(table.view) == ["lost"]
    now[0] = 100.0 + STALE_S
    table.apply(gate.drop_stale_rules(with_rules(3, "restored"), table.view))

    assert (rules_of(table.view), gate.needs_full_view) == (["restored"], False)
