"""Epochs that are missing from a damaged log: every reader that wants them learns it as loss."""

from __future__ import annotations

from typing import Any

import pytest

from streambroker_core.ledger.epochs import Epoch
from streambroker_core.ledger.ledger import Ledger
from streambroker_core.ledger.losses import DataLossError
from streambroker_core.wire.agent_rpc.peer import PlannedRange
from support.core.ledgers import IMPORT, QUERY, ask, ledger, planned, put, retained


def found(*there: int, next_: int, removed: int = 0, sealed: bool = False) -> Ledger:
    """Return a ledger as a restart finds it: of epochs up to ``next_`` these are in the log.

    Args:
        there: epochs of 10 rows each.
        next_: of the stream.
        removed: epochs below this were removed by size or age.
        sealed: the stream goes on no more.
    """
    made = ledger(grace=10)
    made.open("A")
    stream = made.streams["A"]
    stream.sealed = sealed
    for number in there:
        stream.skip_to(number, 10 * number)
        one = Epoch(number=number, rows=10, bytes=100, published=0.0, query=QUERY, batch=number)
        stream.add(one)
    if stream.next < next_:
        stream.skip_to(next_, 10 * next_)
    stream.restore_sum(removed, 10 * removed)
    stream.set_expected([(removed, next_)])
    return made


def lossy(made: Ledger, **more: Any) -> PlannedRange:
    (plan,) = made.planner.plan(ask(skip_lost=True, **more), 0).planned
    return plan


@pytest.mark.parametrize("policy", ["wait", "drop"])
def test_a_new_earliest_reader_gets_a_hole_at_the_begin_as_lost(policy: str) -> None:
    made = found(5, 6, next_=7, removed=2)
    made.set_routes({IMPORT: policy})
    plan = lossy(made, policy=policy)
    assert (plan.from_, plan.next, plan.lost, plan.dropped) == (5, 7, (3, 30), (0, 0))


def test_a_new_reader_that_does_not_go_on_over_loss_stops_and_names_the_epochs() -> None:
    made = found(5, 6, next_=7, removed=2)
    with pytest.raises(DataLossError, match="epochs 2 to 4 of stream A are gone: files of the"):
        made.planner.plan(ask(), 0)


def test_a_hole_in_the_middle_is_lost_where_the_reader_comes_to_it() -> None:
    made = found(0, 1, 4, next_=5)
    first = lossy(made)
    assert (first.from_, first.next, first.lost) == (0, 2, (0, 0))
    then = lossy(made, has_opened=True)
    made.planner.plan(ask({"A": 2}, has_opened=True, skip_lost=True), 0)
    assert then.lost == (0, 0)
    (plan,) = made.planner.plan(ask({"A": 2}, has_opened=True, skip_lost=True), 0).planned
    assert (plan.from_, plan.next, plan.lost) == (4, 5, (2, 20))


def test_a_drop_reader_counts_apart_what_was_removed_and_what_is_missing() -> None:
    made = ledger()
    made.set_routes({IMPORT: "drop"})
    put(made, "A", 1)
    made.planner.plan(ask(policy="drop"), 0)
    restarted = found(6, next_=7, removed=4)
    restarted.streams["A"].restore_sum(1, 10)
    restarted.set_routes({IMPORT: "drop"})
    restarted.readers = made.readers
    (plan,) = restarted.planner.plan(ask({"A": 1}, policy="drop", has_opened=True), 0).planned
    assert (plan.from_, plan.dropped, plan.lost) == (6, (3, 30), (2, 20))


def test_a_stream_that_is_missing_as_a_whole_is_lost_before_its_successor() -> None:
    made = found(next_=3, sealed=True)
    made.open("B")
    with pytest.raises(DataLossError, match="epochs 0 to 2 of stream A"):
        made.planner.plan(ask(), 0)
    put(made, "B", 1, batch=9)
    answer = made.planner.plan(ask(skip_lost=True), 0)
    assert planned(answer) == {"A": (3, 3), "B": (0, 1)}
    assert [p.lost for p in answer.planned] == [(3, 30), (0, 0)]


def test_a_reader_that_had_read_them_misses_nothing() -> None:
    made = found(3, next_=4)
    (plan,) = made.planner.plan(ask({"A": 3}, has_opened=True), 0).planned
    assert (plan.from_, plan.lost, plan.dropped) == (3, (0, 0), (0, 0))


def test_who_begins_at_the_end_misses_nothing() -> None:
    made = found(3, next_=4)
    (plan,) = made.planner.plan(ask(start="latest"), 0).planned
    assert (plan.from_, plan.lost) == (4, (0, 0))


def test_a_route_that_returns_does_not_pass_over_a_hole() -> None:
    made = ledger()
    put(made, "A", 1)
    made.planner.plan(ask(), 0)
    restarted = found(3, next_=4)
    restarted.readers = made.readers
    restarted.set_routes({})
    restarted.set_routes({IMPORT: "wait"})
    (plan,) = restarted.planner.plan(ask({"A": 0}, has_opened=True, skip_lost=True), 0).planned
    assert (plan.from_, plan.lost) == (3, (3, 30))


def test_once_size_takes_an_epoch_behind_a_hole_the_hole_counts_as_removed() -> None:
    made = found(5, 6, next_=7, removed=2)
    put(made, "A", 9)
    assert made.streams["A"].missing == [(2, 5)]
    made.retention.sweep(100)
    assert retained(made)[0] == 6
    assert made.streams["A"].missing == []
    assert lossy(made).lost == (0, 0)


def test_so_does_a_hole_in_a_stream_before() -> None:
    made = found(next_=3, sealed=True)
    made.open("B")
    put(made, "B", 11)
    made.retention.sweep(100)
    assert retained(made, "B")[0] == 1
    assert made.streams["A"].missing == []


def test_neighbouring_ranges_that_are_missing_are_one_hole() -> None:
    made = found(9, next_=10)
    made.streams["A"].set_expected([(2, 3), (3, 10)])
    assert made.streams["A"].missing == [(2, 9)]
