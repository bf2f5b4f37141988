"""Batch reads of an export: which epochs they plan, and what they claim."""

from __future__ import annotations

import pytest

from streambroker_core.ledger.ledger import Ledger
from streambroker_core.ledger.losses import DataLossError
from support.core.ledgers import IMPORT, ask, ledger, put, retained

GRACE = 60.0


@pytest.fixture
def made() -> Ledger:
    """Return a ledger with two streams: epochs at seconds 0 to 4, and at 10 to 12."""
    made = ledger(max_bytes=400, grace=GRACE)
    for second in range(5):
        put(made, "A", now=float(second))
    for second in range(10, 13):
        put(made, "B", now=float(second))
    return made


def at(seconds: int) -> str:
    return f"1970-01-01T00:00:{seconds:02}Z"


def snapshot(made: Ledger, start: str = "earliest", end: str = "latest", now: float = 20.0) -> None:
    ranges = made.planner.find_epochs(start, end, now)
    made.planner.register_plan(ask(start=start, once=True, has_opened=True), ranges, now)


@pytest.mark.parametrize(
    ("start", "end", "found"),
    [
        ("earliest", "latest", {"A": (0, 5), "B": (0, 3)}),
        (at(3), "latest", {"A": (3, 5), "B": (0, 3)}),
        ("earliest", at(3), {"A": (0, 3)}),
        (at(1), at(11), {"A": (1, 5), "B": (0, 1)}),
        ("-9s", "-8s", {"B": (1, 2)}),
        (at(5), at(10), {}),
        (at(3), at(1), {}),
        ("latest", "latest", {}),
        (at(30), "latest", {}),
        ("earliest", at(30), {"A": (0, 5), "B": (0, 3)}),
    ],
)
def test_a_batch_read_has_the_epochs_from_its_start_to_its_end(
    made: Ledger, start: str, end: str, found: dict[str, tuple[int, int]]
) -> None:
    assert made.planner.find_epochs(start, end, 20.0) == found


def test_an_export_without_a_stream_has_nothing_to_read() -> None:
    assert ledger().planner.find_epochs("earliest", "latest", 0.0) == {}


def test_a_batch_read_begins_with_what_the_log_has_lost(made: Ledger) -> None:
    made.streams["A"].remove(0)
    made.streams["A"].missing = [(0, 1)]
    with pytest.raises(DataLossError, match="epochs 0 to 0"):
        snapshot(made)
    assert made.readers == {}


def test_a_batch_read_claims_its_plan_and_blocks_nothing(made: Ledger) -> None:
    snapshot(made, start=at(3))
    assert made.retention.blocking_readers(20) == []
    put(made, "B", 5, now=20.0)
    made.retention.sweep(20)
    assert (retained(made), retained(made, "B")) == ([3, 4], [0, 1, 2, 7])


def test_a_batch_read_claims_only_its_plan_also_after_a_change_of_routes(made: Ledger) -> None:
    snapshot(made, end=at(1))
    made.set_routes({IMPORT: "drop"})
    made.set_routes({IMPORT: "wait"})
    assert made.retention.blocking_readers(20) == []
    made.retention.sweep(20)
    assert retained(made) == [0]


def test_claims_of_a_batch_read_end_with_its_lease_although_it_can_repeat_reads(
    made: Ledger,
) -> None:
    snapshot(made)
    made.claims.end_lease("r", 21)
    made.retention.sweep(21)
    assert (retained(made), retained(made, "B")) == ([4], [0, 1, 2])
    assert made.planner.is_planned("r", "A", 4, 21)
    assert not made.claims.can_hold(made.readers["r"], 21)


def test_a_plan_that_is_registered_again_is_claimed_again(made: Ledger) -> None:
    snapshot(made)
    made.claims.end_lease("r", 21)
    snapshot(made, now=22)
    made.retention.sweep(22)
    assert retained(made) == [0, 1, 2, 3, 4]


def test_claims_of_a_batch_read_that_is_away_end_after_grace(made: Ledger) -> None:
    snapshot(made)
    assert not made.claims.released_readers(20 + GRACE)
    assert made.claims.released_readers(20 + 5 + GRACE + 1) == [made.readers["r"]]
    made.retention.sweep(20 + 5 + GRACE + 1)
    assert retained(made) == [4]
