"""What is refused says what to do, and doing that succeeds."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from streambroker_core.side import Enrich, SideInput, SideJoin, fixed, sessions
from streambroker_core.side.errors import SideDefinitionError
from streambroker_core.side.state.layout import build_layout

TIME = pa.timestamp("us", "UTC")
SIDE = {
    "name": "x",
    "kind": "map",
    "key": ("k",),
    "schema": pa.schema([("k", pa.string()), ("v", pa.int64()), ("t", TIME)]),
}
MAIN = {"schema": pa.schema([("id", pa.string()), ("k", pa.string()), ("t", TIME)])}
ENRICH = {"input": "x", "on": ("k",)}
SINGLE = {"kind": "singleton", "key": ()}


def shaped(side: dict[str, Any], join: dict[str, Any], enrich: dict[str, Any] | None) -> None:
    added = () if enrich is None else (Enrich(**{**ENRICH, **enrich}),)
    one = SideInput(**{**SIDE, **side})
    build_layout(SideJoin(**{**MAIN, "inputs": (one,), "enrich": added, **join}))


@pytest.mark.parametrize(
    ("side", "join", "enrich", "says", "then"),
    [
        ({"update": "latest"}, {}, None, "event_time=", {"side": {"event_time": "t"}}),
        ({}, {"order": "event time", "event_time": "t"}, None, "with_watermark",
         {"side": {"event_time": "t"}}),
        ({"windows": fixed(1)}, {"event_time": "t"}, None, "event_time=",
         {"side": {"event_time": "t"}}),
        ({"windows": fixed(1), "event_time": "t"}, {}, None, "main stream",
         {"join": {"event_time": "t"}}),
        ({}, {"windows": fixed(1)}, None, "main stream", {"join": {"event_time": "t"}}),
        ({"windows": sessions(1), "event_time": "t"}, {"event_time": "t"}, None, "fixed or sliding",
         {"side": {"windows": fixed(1)}}),
        ({"ready": "watermark"}, {}, None, "ready='first data' or 'complete'",
         {"side": {"ready": "complete"}}),
        ({"ready": "watermark", "event_time": "t"}, {"event_time": "t"}, None, "windows=fixed",
         {"side": {"windows": fixed(1)}}),
        ({"kind": "multimap", "update": "replace"}, {}, None, "SideComplete",
         {"side": {"ready": "complete"}}),
        ({"kind": "list", "key": ()}, {}, {"on": ()}, "a multimap",
         {"side": {"kind": "multimap", "key": ("k",)}, "enrich": {"on": ("k",)}}),
        ({"kind": "list"}, {}, None, "use a multimap", {"side": {"kind": "multimap"}}),
        ({"kind": "singleton"}, {"key": ("k",)}, None, "make it keyed", {"side": {"keyed": True}}),
        ({"key": ()}, {}, None, "name the key's columns", {"side": {"key": ("k",)}}),
        ({"keyed": True}, {}, None, r"call key_by\('k'\)", {"join": {"key": ("k",)}}),
        ({"keyed": True}, {}, None, "leave keyed out", {"side": {"keyed": False}}),
        ({"keyed": True}, {"key": ("id", "k")}, None, "name as many", {"join": {"key": ("k",)}}),
        ({"keyed": True}, {"key": ("id",)}, {"on": ("k",)}, r"use on=\('id',\)",
         {"enrich": {"on": ("id",)}}),
        ({"timeout": 0.0}, {}, {}, "leave it out", {"side": {"timeout": None}}),
        ({"timeout": 0.0}, {}, {}, "more than 0 seconds", {"side": {"timeout": 0.1}}),
        (SINGLE, {}, {"on": (), "missing": "wait"}, "leave missing out",
         {"enrich": {"missing": None}}),
        ({"static": True, "update": "latest"}, {}, None, "set replace",
         {"side": {"update": "replace"}}),
        ({}, {"grouped": True}, None, "windows= in core",
         {"join": {"windows": fixed(1), "event_time": "t"}}),
        ({}, {"grouped": True, "windows": fixed(1), "event_time": "t"}, {"missing": "wait"},
         "missing='null' or 'error'", {"enrich": {"missing": "null"}}),
        ({"value": "v"}, {}, {"names": (("v", "id"),)}, "another name: names=",
         {"enrich": {"names": (("v", "w"),)}}),
        ({}, {}, {"columns": ("w",)}, "there are: v, t", {"enrich": {"columns": ("v",)}}),
    ],
)  # fmt: skip
def test_what_a_refusal_says_to_do_succeeds(
    side: dict[str, Any],
    join: dict[str, Any],
    enrich: dict[str, Any] | None,
    says: str,
    then: dict[str, dict[str, Any]],
) -> None:
    if enrich is not None and "columns" not in enrich:  # not its time, which main rows have, too
        enrich = {"columns": ("v",), **enrich}
    with pytest.raises(SideDefinitionError, match=says):
        shaped(side, join, enrich)
    added = None if enrich is None and "enrich" not in then else enrich or {}
    mended = None if added is None else {**added, **then.get("enrich", {})}
    shaped({**side, **then.get("side", {})}, {**join, **then.get("join", {})}, mended)
