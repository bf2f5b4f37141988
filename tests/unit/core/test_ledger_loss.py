"""Loss that nobody agreed to: a reader that goes on in spite of it is told how much."""

from __future__ import annotations

import pytest

from streambroker_core.ledger.ledger import Ledger
from streambroker_core.ledger.losses import DataLossError, MissingRange, find_missing
from support.core.ledgers import IMPORT, QUERY, ask, ledger, planned, put, retained


def lost_some() -> Ledger:
    """Return a ledger whose reader was away for too long: epochs 1 to 3 of 0 to 4 are gone."""
    made = ledger(max_bytes=100, grace=10)
    put(made, "A", 1)
    made.planner.plan(ask(lease=5), 0)
    put(made, "A", 4)
    made.retention.sweep(100)
    assert retained(made) == [4]
    return made


def test_a_lossy_reader_goes_on_behind_what_is_gone_and_hears_how_much_it_was() -> None:
    made = lost_some()
    for _ in range(2):
        answer = made.planner.plan(ask({"A": 1}, has_opened=True, skip_lost=True), 100)
        (plan,) = answer.planned
        assert (plan.from_, plan.next, plan.has_gap) == (4, 5, True)
        assert (plan.lost, plan.dropped) == ((3, 30), (0, 0))
        assert answer.unknown_streams == ()
    made.planner.plan(ask({"A": 5}, has_opened=True, skip_lost=True), 100)
    put(made, "A", 1)
    (plan,) = made.planner.plan(ask({"A": 5}, has_opened=True, skip_lost=True), 100).planned
    assert plan.lost == (0, 0)


def test_a_reader_that_is_not_lossy_stops_as_before() -> None:
    made = lost_some()
    with pytest.raises(DataLossError):
        made.planner.plan(ask({"A": 1}, has_opened=True), 100)


def test_what_was_dropped_by_agreement_before_is_no_loss() -> None:
    made = ledger(max_bytes=100, grace=10)
    made.set_routes({IMPORT: "drop"})
    put(made, "A", 1)
    made.planner.plan(ask(policy="drop", lease=5), 0)
    put(made, "A", 2)
    made.planner.plan(
        ask({"A": 1}, policy="drop", has_opened=True, budget=1, at_least_one=False), 0
    )
    made.retention.sweep(0)
    made.set_routes({IMPORT: "wait"})
    put(made, "A", 3)
    made.retention.sweep(100)
    assert retained(made) == [5]
    (plan,) = made.planner.plan(ask({"A": 1}, has_opened=True, skip_lost=True), 100).planned
    assert (plan.from_, plan.dropped, plan.lost) == (5, (1, 10), (3, 30))


def test_planned_epochs_that_are_gone_are_reported_by_range() -> None:
    made = ledger(max_bytes=100, grace=10)
    put(made, "A", 4)
    made.planner.plan(ask(lease=5), 0)
    made.retention.sweep(100)
    assert retained(made) == [3]
    assert find_missing(made.streams, {"A": (0, 4), "B": (2, 5)}) == {
        "A": [(0, 3, 30)],
        "B": [(2, 5, None)],
    }
    with pytest.raises(DataLossError):
        made.planner.register_plan(ask(), {"A": (0, 4)}, 100)
    made.planner.register_plan(ask(skip_lost=True), {"A": (0, 4), "B": (2, 5)}, 100)
    assert made.planner.is_planned("r", "A", 3, 100)
    assert list(made.readers["r"].cursors) == ["A"]
    assert find_missing(made.streams, {"A": (3, 4)}) == {}


def test_a_lossy_reader_of_a_lost_log_goes_on_with_what_was_published_since() -> None:
    made = ledger()
    put(made, "B", 1, batch=7)
    last = (QUERY, 4)
    asked = ask({"A": 5}, has_opened=True, own_streams=frozenset({"A"}), last=last)
    with pytest.raises(DataLossError):
        made.planner.plan(asked, 0)
    answer = made.planner.plan(
        ask({"A": 5}, has_opened=True, own_streams=frozenset({"A"}), last=last, skip_lost=True), 0
    )
    assert planned(answer) == {"B": (0, 1)}
    assert answer.unknown_streams == ("A",)
    assert answer.planned[0].lost == (2, None)


def test_epochs_removed_since_a_lost_log_are_counted_once() -> None:
    made = ledger(max_bytes=100)
    for batch in range(6, 10):  # batch 5 was in the lost log alone
        put(made, "B", batch=batch)
    made.retention.sweep(0)
    assert retained(made, "B") == [3]
    asked = ask(
        {"A": 5}, has_opened=True, own_streams=frozenset({"A"}), last=(QUERY, 4), skip_lost=True
    )
    (plan,) = made.planner.plan(asked, 0).planned
    assert (plan.from_, plan.lost) == (3, (4, None))


def test_how_much_of_a_lost_log_is_missing_is_not_known_where_another_query_publishes() -> None:
    made = ledger()
    put(made, "B", 1, batch=0, query="other")
    asked = ask(
        {"A": 5}, has_opened=True, own_streams=frozenset({"A"}), last=(QUERY, 4), skip_lost=True
    )
    assert made.planner.plan(asked, 0).planned[0].lost == (1, None)


def test_nothing_is_lost_where_the_next_batch_follows() -> None:
    made = ledger()
    put(made, "B", 1, batch=5)
    asked = ask(
        {"A": 5}, has_opened=True, own_streams=frozenset({"A"}), last=(QUERY, 4), skip_lost=True
    )
    assert made.planner.plan(asked, 0).planned[0].lost == (0, 0)


def test_a_lossy_reader_that_is_ahead_of_an_older_copy_of_the_log_waits_for_its_place() -> None:
    made = ledger()
    put(made, "A", 2)
    with pytest.raises(DataLossError):
        made.planner.plan(ask({"A": 3}, has_opened=True), 0)
    assert planned(made.planner.plan(ask({"A": 3}, has_opened=True, skip_lost=True), 0)) == {
        "A": (3, 3)
    }
    assert made.retention.held_bytes(0) == 0
    put(made, "A", 2)
    assert planned(made.planner.plan(ask({"A": 3}, has_opened=True, skip_lost=True), 0)) == {
        "A": (3, 4)
    }


def test_what_cannot_be_read_is_gone_like_what_was_removed() -> None:
    made = lost_some()
    put(made, "A", 3)
    assert find_missing(made.streams, {"A": (0, 8)}) == {"A": [(0, 4, 40)]}
    assert find_missing(made.streams, {"A": (3, 8)}) == {"A": [(3, 4, 10)]}
    assert find_missing(made.streams, {"A": (5, 6)}) == {}


def test_what_was_left_out_before_stays_left_out_and_is_reported_alike() -> None:
    made = ledger()
    put(made, "A", 6)
    before: dict[str, list[MissingRange]] = {"A": [(1, 3, 7)], "B": [(0, 2, None)]}
    assert find_missing(made.streams, {"A": (0, 6)}, before=before) == {"A": [(1, 3, 7)]}
    assert find_missing(made.streams, {"A": (3, 6)}, before=before) == {}
    assert find_missing(made.streams, {"B": (0, 3)}, before=before) == {
        "B": [(0, 2, None), (2, 3, None)]
    }


def test_epochs_behind_the_end_of_an_older_copy_of_the_log_are_gone() -> None:
    made = ledger()
    put(made, "A", 3)
    assert find_missing(made.streams, {"A": (2, 5)}) == {"A": [(3, 5, None)]}
    with pytest.raises(DataLossError):
        made.planner.register_plan(ask({"A": 2}), {"A": (2, 5)}, 0)
