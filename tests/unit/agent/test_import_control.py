"""What the importing side makes of control: budgets over exporters, numbers, the control log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pe_agent.agent.state.control_log import ControlLogTwiceError
from streambroker_core.control.tuples import MAX_BYTES, MAX_TUPLES
from streambroker_core.ledger.losses import DataLossError
from streambroker_core.ledger.offset import Offset, ranges
from support.agents.imports import A, B, Bench, answer, bench, plan
from support.agents.rpc import ask

CONTROL: dict[str, Any] = {"control": ["wm"]}
LOG: dict[str, Any] = {**CONTROL, "log": True}


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return bench(tmp_path, monkeypatch)


def put(made: Bench, request: str) -> None:
    made.host.state.control_log.append(request, {"type": "set", "payload": request})


def test_a_reader_of_rows_says_nothing_of_control(made: Bench) -> None:
    made.connect(A)
    made.replies[A] = lambda _: answer(plan("s", 0, 1))
    made.offset()
    _, body = made.asked[-1]
    assert not {"control", "tuples", "payload"} & set(body)


def test_exporters_of_one_import_share_the_room_of_a_window(made: Bench) -> None:
    made.connect(A, B)
    made.replies[A] = lambda _: {**answer(plan("s", 0, 1), size=9), "tuples": 7, "payload": 70}
    made.replies[B] = lambda _: answer(plan("t", 0, 1), size=9)
    made.next(None, **CONTROL)
    reported = [
        (b["export"], b["control"], b["tuples"], b["payload"], b["one"]) for _, b in made.asked
    ]
    assert reported == [
        (A, ["wm"], MAX_TUPLES, MAX_BYTES, True),
        (B, ["wm"], MAX_TUPLES - 7, MAX_BYTES - 70, False),
    ]


def test_where_there_are_no_rows_an_exporter_is_not_asked_again_until_there_are(
    made: Bench,
) -> None:
    made.connect(A)
    made.replies[A] = lambda _: {**answer(plan("s", 0, 2)), "quiet": {"s": 4}}
    made.known[A] = {"s": 4}
    first = made.offset()
    made.replies[A] = lambda _: {**answer(plan("s", 2, 2)), "quiet": {"s": 4}}
    assert made.next(first) == {"offset": None}
    asked = len(made.asked)
    assert made.next(first) == {"offset": None}
    assert len(made.asked) == asked
    reader = made.host.status()["readers"][first["reader"]]
    assert reader["lagEpochs"] == 0
    made.known[A] = {"s": 5}
    made.replies[A] = lambda _: answer(plan("s", 2, 5))
    assert made.offset(first)["streams"]["s"]["next"] == 5


def cut_of(made: Bench, **more: Any) -> list[dict[str, Any]]:
    """Cut a batch of two exporters; A has two streams, the later one first by name."""
    made.connect(A, B)
    made.replies[A] = lambda _: answer(plan("b-old", 3, 5), plan("a-new", 0, 1))
    made.replies[B] = lambda _: answer(plan("c", 0, 1))
    end = made.next(None, **CONTROL)["offset"]
    blocks_of_a = {"a-new": {"0": [[5, 9]]}, "b-old": {"3": [[2, 9], [3, 9]], "4": [[4, 9]]}}
    made.replies[A] = lambda _: {
        "blocks": blocks_of_a,
        "order": ["b-old", "a-new"],
        "control": {"b-old": [4], "a-new": []},
    }
    made.replies[B] = lambda _: {"blocks": {"c": {"0": [[1, 9]]}}, "control": {"c": [0]}}
    found: list[dict[str, Any]] = made.cut(None, end, **more)["slices"]
    return found


def test_rows_are_numbered_by_stream_in_the_order_of_each_exporter(made: Bench) -> None:
    slices = cut_of(made, control=True)
    reported = [(s["stream"], s["part"], s["before"], bool(s.get("control"))) for s in slices]
    assert reported == [
        ("b-old", 0, [0, 2, 5], False),
        ("b-old", 0, [5], True),
        ("a-new", 1, [0], False),
        ("c", 2, [0], False),
        ("c", 2, [0], True),
    ]
    assert [s["pieces"] for s in slices if s.get("control")] == [[[4, 0, 1]], [[0, 0, 1]]]
    assert all(b["control"] == [] for a, b in made.asked if a == "peer.replan")


def test_a_batch_of_rows_alone_is_cut_as_before(made: Bench) -> None:
    slices = cut_of(made)
    assert [s["stream"] for s in slices] == ["b-old", "a-new", "c"]
    assert not any({"part", "before", "numbered", "control"} & set(s) for s in slices)
    assert not any("control" in b for a, b in made.asked if a == "peer.replan")


# ---- the control log -------------------------------------------------------------------------


def test_a_new_reader_begins_at_the_end_of_the_log_and_reads_from_there(made: Bench) -> None:
    made.connect(A)
    put(made, "before")
    import_ = made.routes.find_import("in")
    assert import_ is not None
    made.replies[A] = lambda _: answer()
    log = made.host.state.control_log.id
    first = made.next(None, **LOG)["offset"]
    assert first["control"] == {log: 0}, "start is earliest: at the first entry"
    second = made.next(first, **LOG)["offset"]
    assert second["control"] == {log: 1}
    assert made.next(second, **LOG) == {"offset": None}
    put(made, "after")
    third = made.next(second, **LOG)["offset"]
    assert third == {**second, "control": {log: 2}}
    (one,) = made.cut(second, third, control=True)["slices"]
    assert [t[1]["payload"] for t in one["tuples"]] == ["after"]
    assert made.cut(None, first, control=True)["slices"] == []
    assert ranges(Offset.decode(second), Offset.decode(third)) == {}


def test_what_the_log_has_before_a_reader_begins_comes_before_its_first_rows(made: Bench) -> None:
    made.connect(A)
    put(made, "before")
    made.replies[A] = lambda _: answer(plan("s", 0, 2))
    log = made.host.state.control_log.id
    first = made.next(None, **LOG)["offset"]
    assert (first["control"], first["streams"]) == ({log: 0}, {})
    second = made.next(first, **LOG)["offset"]
    assert second["control"] == {log: 1}
    assert set(second["streams"]) == {"s"}


def test_a_reader_that_begins_with_nothing_in_the_log_reads_at_once(made: Bench) -> None:
    made.connect(A)
    made.replies[A] = lambda _: answer(plan("s", 0, 2))
    first = made.next(None, **LOG)["offset"]
    assert first["control"] == {made.host.state.control_log.id: 0}
    assert set(first["streams"]) == {"s"}


def test_entries_behind_the_end_of_a_run_do_not_hold_up_its_first_rows(made: Bench) -> None:
    made.connect(A)
    put(made, "later")
    made.replies[A] = lambda _: answer(plan("s", 0, 2))
    first = made.next(None, **LOG, limit={"s": 2}, log_limit=0)["offset"]
    assert set(first["streams"]) == {"s"}


def test_an_import_without_routes_begins_at_the_end_and_an_old_log_is_replaced(
    made: Bench,
) -> None:
    made.declared.add("in")
    put(made, "before")
    log = made.host.state.control_log.id
    first = made.next(None, **LOG)["offset"]
    assert first["control"] == {log: 1}
    lost = {**first, "control": {"lost": 7}}
    second = made.next(lost, **LOG)["offset"]
    assert second["control"] == {log: 0}
    assert made.cut(lost, second, control=True)["slices"] == []
    with pytest.raises(DataLossError, match="control log lost"):
        made.cut({**lost, "control": {"lost": 5}}, lost, control=True)
    assert made.cut({**lost, "control": {"lost": 5}}, lost, control=True, lossy=True) == {
        "slices": [],
        "lost": {},
    }


def test_a_run_up_to_a_limit_reads_the_log_up_to_it(made: Bench) -> None:
    made.declared.add("in")
    log = made.host.state.control_log.id
    first = made.next(None, **LOG)["offset"]
    for n in range(3):
        put(made, str(n))
    asked = {**LOG, "limit": {}, "log_limit": 2}
    second = made.next(first, **asked)["offset"]
    assert second["control"] == {log: 2}
    assert made.next(second, **asked) == {"offset": None}


def test_a_reader_that_does_not_carry_the_log_keeps_what_its_offset_has(made: Bench) -> None:
    made.declared.add("in")
    first = made.next(None, **LOG)["offset"]
    put(made, "x")
    assert made.next(first, **CONTROL) == {"offset": None}
    readers = made.host.state.control_log.entry(0)["readers"]
    assert readers == [{"reader": first["reader"], "applied": False}]
    second = made.next(first, **LOG)["offset"]
    made.next(second, **LOG)
    assert made.host.state.control_log.entry(0)["applied"] is True


def test_what_the_log_takes_of_a_window_exporters_do_not_get(made: Bench) -> None:
    made.connect(A)
    made.replies[A] = lambda _: answer()
    first = made.next(None, **LOG)["offset"]
    put(made, "x")
    size = made.host.state.control_log.size(0, 1)
    made.next(first, **LOG)
    _, body = made.asked[-1]
    assert (body["tuples"], body["payload"]) == (MAX_TUPLES - 1, MAX_BYTES - size)


def test_one_source_of_a_query_carries_the_log(made: Bench) -> None:
    made.declared |= {"in", "other"}
    frames = {"query": "q", "run": "r", "exports": [], "frames": ["a", "b"], "foreign": False}
    ask(made.host.begin_query, frames)
    first = made.next(None, frame="a", **LOG)["offset"]
    more = {"import": "other", "session": "two", "frame": "b"}
    with pytest.raises(ControlLogTwiceError, match="alerts/0/in and default/alerts/0/other"):
        made.next(None, **more, **LOG)
    other = made.next(None, **more, **CONTROL)["offset"]
    assert other["control"] == {}
    made.next(first, frame="a", **CONTROL)
    assert made.next(other, **more, **LOG)["offset"]["control"] != {}
