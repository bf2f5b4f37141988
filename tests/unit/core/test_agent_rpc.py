"""Requests and responses of agents as JSON: what is left out, ignored and refused."""

from __future__ import annotations

from typing import Any

import pytest

from streambroker_core.wire.agent_rpc.codec import (
    Actions,
    MessageInvalidError,
    decode,
    decode_response,
    to_json,
)
from streambroker_core.wire.agent_rpc.peer import ExportHead, Heads, PeerWatch, RefusedHead
from streambroker_core.wire.agent_rpc.publisher import Admitted, Occupied, PublisherAdmit
from streambroker_core.wire.agent_rpc.reader import (
    Busy,
    NextOffset,
    ReaderLeave,
    ReaderNext,
    ReaderRenew,
    Renewed,
)

NEXT: dict[str, Any] = {
    "import": "in",
    "session": "one",
    "start": None,
    "columns": ["n"],
    "max_bytes": 100,
    "wait": 0,
}


def test_a_field_of_a_newer_release_is_ignored_and_an_absent_or_null_one_has_its_default() -> None:
    read = decode(ReaderNext, {**NEXT, "newer": 1, "lossy": None})
    assert (read.import_, read.lossy, read.control, read.limit) == ("in", False, None, None)


def test_an_optional_field_is_written_only_if_it_differs_from_its_default() -> None:
    written = to_json(decode(ReaderNext, NEXT))
    assert written == {**NEXT, "limit": None, "renewals": None, "lossy": False, "frame": None}
    assert to_json(decode(ReaderNext, {**NEXT, "control": []}))["control"] == []
    assert to_json(NextOffset(offset=None, behind=[], refused={})) == {"offset": None}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("session", None),
        ("session", 7),
        ("session", "\ud800"),
        ("columns", "n"),
        ("columns", [1]),
        ("max_bytes", True),
        ("max_bytes", 1 << 63),
        ("wait", float("nan")),
        ("limit", {"s": "one"}),
        ("log", 1),
        ("rules", {"log": "l"}),
    ],
)
def test_a_wrong_field_is_named(field: str, value: object) -> None:
    with pytest.raises(MessageInvalidError, match=field):
        decode(ReaderNext, {**NEXT, field: value})


def test_a_response_is_of_the_type_whose_fields_it_has() -> None:
    lease = {"holder": "q", "renewed": 3, "seconds": 1.5}
    assert isinstance(decode_response(PublisherAdmit, {"occupied": lease}), Occupied)
    assert isinstance(decode_response(PublisherAdmit, {"admitted": True}), Admitted)
    busy = decode_response(ReaderNext, {"busy": {"seconds": 1, "renewals": 2}})
    assert isinstance(busy, Busy)
    heads = decode_response(
        PeerWatch,
        {"exports": {"a": {"heads": None, "ended": False}, "b": {"error": "no", "code": "C"}}},
    )
    assert heads == Heads(
        exports={"a": ExportHead(heads=None), "b": RefusedHead(error="no", code="C")}
    )
    assert decode_response(ReaderLeave, {}) is None


def test_an_action_reads_its_request_and_writes_its_response() -> None:
    actions = Actions()
    actions.on(ReaderRenew, lambda r: Renewed(renewed=r.session == "one"))
    actions.on(ReaderLeave, lambda _: None)
    body = {"reader": "r", "session": "one", "token": "t"}
    assert list(actions) == ["reader.renew", "reader.leave"]
    assert actions.handle("reader.renew", body) == {"renewed": True}
    assert actions.handle("reader.leave", body) == {}
    with pytest.raises(MessageInvalidError, match="session is required"):
        actions.handle("reader.renew", {"reader": "r"})
