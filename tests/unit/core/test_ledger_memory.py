"""Epochs so small that memory ends before the log is full: they count with what they take there."""

from __future__ import annotations

import pytest

from streambroker_core.ledger.ledger import Ledger
from support.core.ledgers import IMPORT, ask, ledger, planned, put, retained

TEN_GIBIBYTES = 10 << 30


def of_tiny_epochs(policy: str = "wait") -> Ledger:
    """Return a ledger with room for 10 GiB, and for five epochs in memory; its reader is at 0."""
    made = ledger(max_bytes=TEN_GIBIBYTES)
    made.retention.max_memory = 5000
    made.set_routes({IMPORT: policy})
    made.planner.plan(ask(lease=1e9), 0)
    return made


def test_a_log_of_tiny_epochs_is_full_at_what_its_agent_can_hold_and_free_below() -> None:
    made = of_tiny_epochs()
    put(made, "A", 4, memory=1000)
    assert made.retention.blocking_readers(0) == []
    put(made, "A", 1, memory=1000)
    assert [(h.import_, h.bytes) for h in made.retention.blocking_readers(0)] == [(IMPORT, 500)]
    made.planner.plan(ask({"A": 1}, has_opened=True), 0)
    assert made.retention.blocking_readers(0) == []


def test_what_readers_have_finished_takes_no_room_in_memory() -> None:
    made = of_tiny_epochs()
    for number in range(100):
        put(made, "A", 1, memory=1000)
        made.planner.plan(ask({"A": number + 1}, has_opened=True), 0)
        made.retention.sweep(0)
        assert made.retention.blocking_readers(0) == []
    assert retained(made) == list(range(95, 100))


def test_a_reader_that_drops_loses_the_oldest_and_is_informed() -> None:
    made = of_tiny_epochs("drop")
    for _ in range(100):
        put(made, "A", 1, memory=1000)
        made.retention.sweep(0)
        assert made.streams["A"].memory <= made.retention.max_memory
    answer = made.planner.plan(ask({"A": 0}, has_opened=True, budget=100), 0)
    assert planned(answer) == {"A": (95, 96)}
    assert answer.planned[0].dropped == (95, 950)


def test_memory_never_takes_the_newest_epoch() -> None:
    made = of_tiny_epochs("drop")
    put(made, "A", 3, memory=9000)
    made.retention.sweep(0)
    assert retained(made) == [2]


def test_who_is_turned_holds_again_once_half_of_the_memory_is_free() -> None:
    made = of_tiny_epochs()
    put(made, "A", 6, memory=1000)
    reader = made.readers["r"]
    assert made.retention.demote_slowest(0) == [reader]
    assert made.retention.blocking_readers(0) == []
    made.planner.plan(ask({"A": 3}, has_opened=True), 0)
    assert reader.demoted
    made.planner.plan(ask({"A": 4}, has_opened=True), 0)
    assert not reader.demoted


def test_several_streams_share_the_memory_of_their_export() -> None:
    made = of_tiny_epochs()
    put(made, "A", 3, memory=1000)
    put(made, "B", 1, memory=1000)
    assert made.retention.blocking_readers(0) == []
    put(made, "B", 1, memory=1000)
    assert made.retention.blocking_readers(0)
    made.set_routes({IMPORT: "drop"})
    put(made, "B", 4, memory=1000)
    made.retention.sweep(0)
    assert (retained(made, "A"), retained(made, "B")) == ([], [1, 2, 3, 4, 5])


@pytest.mark.parametrize(
    ("size", "memory", "full"),
    [(0, 0, 0.0), (500, 0, 0.5), (500, 700, 0.7), (2000, 700, 2.0), (10, 3000, 3.0)],
)
def test_a_log_is_as_full_as_the_larger_of_both(size: int, memory: int, full: float) -> None:
    made = ledger(max_bytes=1000)
    made.retention.max_memory = 1000
    assert made.retention.fullness(size, memory) == full
