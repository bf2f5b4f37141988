"""Readers that kept their export waiting for too long: they drop until they have caught up."""

from __future__ import annotations

import pytest

from streambroker_core.ledger.ledger import Ledger
from streambroker_core.ledger.losses import DataLossError
from streambroker_core.ledger.retention import RetentionLimits
from support.core.ledgers import IMPORT, ask, planned, put, retained

SLOW, SLOWER = "slow", "slower"


def full() -> Ledger:
    """Return a ledger of 500 bytes with six epochs; ``slower`` stands at 0, ``slow`` at 2."""
    made = Ledger(RetentionLimits(max_bytes=500, grace=60))
    made.set_routes({SLOW: "wait", SLOWER: "wait"})
    for reader in (SLOW, SLOWER):
        made.planner.plan(ask(reader=reader, import_=reader), 0)
    put(made, "A", 6)
    made.planner.plan(ask({"A": 0}, reader=SLOWER, import_=SLOWER, budget=100), 0)
    made.planner.plan(ask({"A": 2}, reader=SLOW, import_=SLOW, has_opened=True, budget=100), 0)
    return made


def turned(made: Ledger) -> list[str]:
    return [r.id for r in made.readers.values() if r.demoted]


def test_only_those_are_turned_that_leave_no_room_the_slowest_first() -> None:
    made = full()
    assert [r.id for r in made.retention.demote_slowest(0)] == [SLOWER]
    assert made.retention.blocking_readers(0) == []
    put(made, "A", 1)
    assert [h.reader for h in made.retention.blocking_readers(0)] == [SLOW]
    assert [r.id for r in made.retention.demote_slowest(0)] == [SLOW]
    assert turned(made) == [SLOW, SLOWER]


def test_who_is_turned_drops_the_oldest_it_has_not_planned_and_is_informed() -> None:
    made = full()
    made.retention.demote_slowest(0)
    put(made, "A", 1)
    made.retention.sweep(0)
    assert retained(made) == [0, 2, 3, 4, 5, 6]
    answer = made.planner.plan(
        ask({"A": 1}, reader=SLOWER, import_=SLOWER, has_opened=True, budget=100), 0
    )
    assert planned(answer) == {"A": (2, 3)}
    assert answer.planned[0].dropped == (1, 10)


def test_who_has_less_than_half_the_log_before_it_holds_again() -> None:
    made = full()
    made.retention.demote_slowest(0)
    made.planner.plan(ask({"A": 3}, reader=SLOWER, import_=SLOWER, has_opened=True), 0)
    assert turned(made) == [SLOWER]
    made.planner.plan(ask({"A": 4}, reader=SLOWER, import_=SLOWER, has_opened=True), 0)
    assert turned(made) == []
    put(made, "A", 9)
    made.planner.plan(ask({"A": 15}, reader=SLOW, import_=SLOW, has_opened=True), 0)
    made.retention.sweep(0)
    assert retained(made) == list(range(4, 15))
    assert [h.reader for h in made.retention.blocking_readers(0)] == [SLOWER]


def test_what_was_lost_while_it_was_turned_is_agreed_to() -> None:
    made = full()
    made.retention.demote_slowest(0)
    put(made, "A", 3)
    made.planner.plan(ask({"A": 9}, reader=SLOW, import_=SLOW, has_opened=True), 0)
    made.retention.sweep(0)
    assert retained(made) == [0, 5, 6, 7, 8]
    made.retention.limits = RetentionLimits(max_bytes=5000, grace=60)
    for _ in range(2):  # the first may be lost on its way
        answer = made.planner.plan(ask({"A": 1}, reader=SLOWER, import_=SLOWER, has_opened=True), 0)
        assert answer.planned[0].dropped == (4, 40)
        assert turned(made) == []


def test_a_loss_after_it_holds_again_is_not_agreed_to() -> None:
    made = full()
    made.retention.demote_slowest(0)
    made.planner.plan(ask({"A": 6}, reader=SLOWER, import_=SLOWER, has_opened=True), 0)
    assert turned(made) == []
    put(made, "A", 9)
    made.planner.plan(ask({"A": 15}, reader=SLOW, import_=SLOW, has_opened=True, lease=1000), 0)
    made.retention.sweep(1000)
    with pytest.raises(DataLossError):
        made.planner.plan(ask({"A": 6}, reader=SLOWER, import_=SLOWER, has_opened=True), 1000)


@pytest.mark.parametrize("policies", [["wait"], ["drop", "wait"]])
def test_a_change_of_the_policy_ends_it_and_a_view_that_leaves_it_does_not(
    policies: list[str],
) -> None:
    made = full()
    made.retention.demote_slowest(0)
    made.retention.sweep(0)
    for policy in policies:
        made.set_routes({SLOW: "wait", SLOWER: policy})
    assert turned(made) == ([SLOWER] if policies == ["wait"] else [])
    assert made.planner.plan(
        ask({"A": 1}, reader=SLOWER, import_=SLOWER, has_opened=True), 0
    ).planned


def test_readers_that_stand_at_one_place_are_turned_together() -> None:
    made = Ledger(RetentionLimits(max_bytes=100))
    made.set_routes({IMPORT: "wait"})
    for number in range(3):
        made.planner.plan(ask(reader=f"r{number}"), 0)
    put(made, "A", 2)
    assert [r.id for r in made.retention.demote_slowest(0)] == ["r0", "r1", "r2"]
    assert [r.demotions for r in made.readers.values()] == [1, 1, 1]
