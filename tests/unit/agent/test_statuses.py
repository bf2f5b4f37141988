"""Statuses: attributes for people, and the JSON of the agent for programs."""

from __future__ import annotations

import json
import pickle
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from streambroker import ControlStatus, PeStatus, Route

READER = {
    "import": "default/alerts/0/in", "alive": True, "policy": "drop", "lagRows": 7,
    "lagSeconds": 1.5, "congestion": 40, "delivered": 90, "dropped": [1, 10], "lost": [0, 0],
}  # fmt: skip
STATUS: dict[str, Any] = {
    "pe": "default/feed/0",
    "view": "abc",
    "exports": {
        "default/feed/0/out": {
            "publishedRows": 100, "held": 5, "limit": 1000, "waiting_for": ["default/alerts/0/in"],
            "ended": False, "readers": {"r1": READER},
        }
    },
    "imports": {
        "readers": {"r2": {"import": "default/feed/0/in", "alive": True, "lost": [1, 3]}},
        "away": {"grpc+tcp://h:1": "closed"},
    },
    "declarations": {"export/out": None},
}  # fmt: skip


def test_a_status_has_attributes_and_is_the_json_of_the_agent() -> None:
    status = PeStatus.from_json(STATUS)
    out = status.exports["out"]
    assert (out.published_rows, out.held_bytes, out.waiting_for) == (
        100,
        5,
        ("default/alerts/0/in",),
    )
    assert (out.readers["r1"].lag_rows, out.readers["r1"].dropped_rows) == (7, 10)
    assert (status.imports["r2"].import_, status.imports["r2"].lost_rows) == (
        "default/feed/0/in",
        3,
    )
    assert status.away == {"grpc+tcp://h:1": "closed"}
    assert status["declarations"] == {"export/out": None}
    assert status == STATUS
    assert json.loads(json.dumps(status)) == status.to_json() == STATUS
    assert pickle.loads(pickle.dumps(status)).exports["out"].readers["r1"] == READER
    with pytest.raises(FrozenInstanceError):
        status.pe = "other"  # type: ignore[misc]


def test_a_status_shows_its_attributes_as_text_and_as_a_table() -> None:
    route = Route.from_json(
        {"import": "a/b/0/<in>", "filter": "x < 1", "policy": "wait", "uid": "u"}
    )
    assert repr(route) == ("Route(peer='a/b/0/<in>', filter='x < 1', policy='wait', location=None)")
    table = route._repr_html_()
    assert "<th>peer</th><td>a/b/0/&lt;in&gt;</td>" in table
    assert "uid" not in table
    assert "<caption>ReaderStatus</caption>" in PeStatus.from_json(STATUS)._repr_html_()


@pytest.mark.compatibility(
    "status of a PE",
    "absent fields are read as zero",
)
def test_a_status_of_another_release_lacks_numbers_only() -> None:
    status = PeStatus.from_json({"pe": "default/feed/0", "exports": {"default/feed/0/out": {}}})
    assert (status.view, status.imports, status.exports["out"].published_rows) == (None, {}, 0)
    sent = {"id": "log/4", "seq": 4, "applied": True, "readers": [{"reader": "r", "applied": True}]}
    assert ControlStatus.from_json(sent).readers == {"r": True}
