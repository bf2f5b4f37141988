"""What an importing agent tells of its readers: duplicates, successors, how far they are behind."""

from __future__ import annotations

import logging

import pytest

from pe_agent.agent.imports.receive_counts import ReceiveCounts
from streambroker_core.ledger.offset import Offset, Position
from streambroker_core.wire.agent_rpc.peer import PlannedRange

FEED = "default/feed/0/trades"
START = Offset(
    reader="r", streams={"a": Position(from_=0, next=5)}, last={FEED: ("q", 4), "other": None}
)


def planned(stream: str, from_: int, next_: int, again: tuple[int, int] = (0, 0)) -> PlannedRange:
    return PlannedRange(stream=stream, from_=from_, next=next_, duplicates=again)


def test_a_successor_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    received = ReceiveCounts()
    for _ in range(3):
        received.note_plan(FEED, [planned("a", 5, 5), planned("b", 0, 2)], START)
    assert received.successors == 1
    assert received.successor == {"export": FEED, "stream": "b"}
    assert [r.getMessage() for r in caplog.records] == [
        f"export {FEED} continues in stream b: its checkpoint or its log is a new one, or it has"
        " other columns"
    ]


def test_the_streams_an_export_is_opened_with_are_no_successors() -> None:
    received = ReceiveCounts()
    with_two = [planned("x", 3, 3), planned("y", 0, 1)]
    received.note_plan("default/new/0/trades", with_two, START)
    received.note_plan("other", with_two, START)
    received.note_plan(FEED, [planned("a", 5, 7)], START)
    assert (received.successors, received.successor) == (0, None)


def test_duplicates_are_counted_once_however_often_they_are_planned() -> None:
    received = ReceiveCounts()
    for _ in range(2):
        received.note_plan(FEED, [planned("b", 2, 3, again=(2, 20))], START)
    received.note_plan(FEED, [planned("b", 3, 4)], START)
    received.note_plan(FEED, [planned("b", 5, 6, again=(1, 7))], START)
    assert received.status()["duplicates"] == [3, 27]


def test_what_an_export_has_beyond_the_reader_is_its_lag(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    received = ReceiveCounts()
    assert received.status()["lagEpochs"] == 0
    received.note_lag(FEED, {"a": 8, "unknown": 100}, START)
    received.note_lag("other", {"a": 3}, START)
    assert received.status()["lagEpochs"] == 3
    received.note_lag(FEED, None, START)
    assert received.status()["lagEpochs"] == 0
