"""An archive keeps what no reader claims, up to its limits, and never blocks the export."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from streambroker_core.ledger.ledger import Ledger
from streambroker_core.ledger.losses import DataLossError
from streambroker_core.ledger.retention import RetentionLimits
from support.core.ledgers import IMPORT, ask, planned, put, retained

DAY = 86_400.0


def archiving(
    *, max_bytes: int = 300, archive_bytes: int | None = 1000, archive_age: float | None = None
) -> Ledger:
    """Return a ledger with an archive, the route of `IMPORT` as ``wait``, and ten epochs."""
    limits = RetentionLimits(
        max_bytes=max_bytes, grace=60, archive_bytes=archive_bytes, archive_age=archive_age
    )
    made = Ledger(limits)
    made.set_routes({IMPORT: "wait"})
    put(made, "A", 10)
    return made


def read_all(made: Ledger, end: int, now: float = 0.0, **more: object) -> None:
    made.planner.plan(ask({"A": end}, has_opened=True, **more), now)


def test_what_all_have_read_stays_until_the_archive_is_full() -> None:
    made = archiving()
    made.planner.plan(ask(), 0)
    read_all(made, 10)
    assert made.retention.sweep(0) == {}
    put(made, "A", 2)
    read_all(made, 12)
    assert made.retention.sweep(0) == {"A": [0, 1]}
    assert made.streams["A"].bytes == 1000


def test_what_all_have_read_stays_until_it_is_too_old_for_the_archive() -> None:
    made = archiving(archive_bytes=None, archive_age=7 * DAY)
    put(made, "A", 1, now=DAY)
    assert made.retention.sweep(7 * DAY) == {}
    assert made.retention.sweep(7 * DAY + 1) == {"A": list(range(10))}


def test_the_size_of_an_archive_counts_only_what_no_reader_claims() -> None:
    made = archiving(archive_bytes=400)
    made.planner.plan(ask(start="latest"), 0)
    put(made, "A", 2)
    assert made.retention.held_bytes(0) == 200
    made.retention.sweep(0)
    assert retained(made) == list(range(6, 12))


def test_a_reader_that_starts_in_the_archive_does_not_block_the_export() -> None:
    made = archiving()
    assert planned(made.planner.plan(ask(budget=100), 0)) == {"A": (0, 1)}
    assert made.retention.blocking_readers(0) == []
    put(made, "A", 20)
    assert made.retention.blocking_readers(0) == []


def test_what_the_archive_has_when_a_reader_starts_in_it_stays_for_this_reader() -> None:
    made = archiving()
    made.planner.plan(ask(budget=100), 0)
    put(made, "A", 20)
    made.retention.sweep(0)
    assert retained(made) == [*range(10), *range(20, 30)]


def test_a_reader_that_the_archive_overtakes_stops_with_an_error() -> None:
    made = archiving()
    made.planner.plan(ask(budget=100), 0)
    put(made, "A", 20)
    made.retention.sweep(0)
    with pytest.raises(DataLossError, match="epochs 10 to 19"):
        read_all(made, 10)


def test_a_reader_that_has_read_the_archive_blocks_again() -> None:
    made = archiving()
    made.planner.plan(ask(budget=100), 0)
    read_all(made, 9)
    put(made, "A", 3)
    assert [r.reader for r in made.retention.blocking_readers(0)] == ["r"]


def test_a_reader_that_was_away_for_longer_than_grace_does_not_block_when_it_returns() -> None:
    made = archiving()
    made.planner.plan(ask(start="latest"), 0)
    assert made.retention.archive(made.readers["r"])
    assert not made.retention.archive(made.readers["r"])
    put(made, "A", 9, now=100)
    made.claims.renew("r", 110)
    assert made.retention.blocking_readers(105) == []
    made.planner.plan(ask({"A": 10}, has_opened=True, budget=100), 105)
    assert made.retention.blocking_readers(105) == []


def test_a_reader_that_was_forgotten_does_not_block_when_it_returns() -> None:
    made = archiving()
    request = ask({"A": 1}, has_opened=True)
    made.planner.register_plan(request, {"A": (1, 2)}, 0)
    assert made.retention.blocking_readers(0) == []
    assert planned(made.planner.plan(ask({"A": 2}, has_opened=True, budget=100), 0)) == {
        "A": (2, 3)
    }
    assert made.retention.blocking_readers(0) == []


def test_a_reader_whose_route_returns_does_not_block_the_export() -> None:
    made = archiving()
    made.planner.plan(ask(start="earliest"), 0)
    read_all(made, 10)
    made.set_routes({})
    put(made, "A", 9)
    made.set_routes({IMPORT: "wait"})
    assert made.retention.blocking_readers(0) == []


def test_a_reader_that_drops_loses_only_what_the_archive_loses() -> None:
    made = archiving()
    made.set_routes({IMPORT: "drop"})
    made.planner.plan(ask(budget=100), 0)
    put(made, "A", 2)
    made.retention.sweep(0)
    answer = made.planner.plan(ask({"A": 1}, has_opened=True, budget=100), 0)
    assert planned(answer) == {"A": (2, 3)}
    assert answer.planned[0].dropped == (1, 10)


def test_without_an_archive_the_limits_of_the_buffer_remove_what_was_read() -> None:
    made = archiving(archive_bytes=None)
    made.retention.sweep(0)
    assert retained(made) == [7, 8, 9]


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("1970-01-01T00:00:00Z", ("A", 0)),
        ("1970-01-01T00:00:10.5Z", ("A", 2)),
        ("1970-01-01T01:00:20+01:00", ("A", 2)),
        ("1970-01-01T00:00:21Z", ("B", 0)),
        ("1970-01-01T00:01:00Z", ("B", 2)),
        ("-80s", ("A", 2)),
        ("-1h", ("A", 0)),
        ("-0s", ("B", 2)),
        ("latest", ("B", 2)),
        ("earliest", ("A", 0)),
    ],
)
def test_a_new_reader_begins_at_the_first_epoch_from_a_time_on(
    start: str, first: tuple[str, int]
) -> None:
    made = Ledger(RetentionLimits(archive_age=DAY))
    made.set_routes({IMPORT: "wait"})
    for stream, at in (("A", 0), ("A", 10), ("A", 20), ("B", 30), ("B", 40)):
        put(made, stream, now=at)
    answer = made.planner.plan(ask(start=start, budget=100), 100)
    assert (answer.planned[0].stream, answer.planned[0].from_) == first


def test_a_start_in_time_is_resolved_once() -> None:
    made = archiving(archive_bytes=None, archive_age=DAY)
    put(made, "A", 1, now=50)
    assert planned(made.planner.plan(ask(start="-10s", budget=100), 60)) == {"A": (10, 11)}
    put(made, "A", 1, now=100)
    answer = made.planner.plan(ask({"A": 10}, start="-10s", has_opened=True, budget=100), 200)
    assert planned(answer) == {"A": (10, 11)}


BUFFER, ARCHIVE, AGE, GRACE = 300, 500, 40.0, 20.0
IMPORTS = ("waits", "waits too", "drops")
readers = st.integers(0, len(IMPORTS) - 1)


class Archive(RuleBasedStateMachine):
    """Any order of publishes, plans, absences and route changes.

    Attributes:
        positions: of each reader, by stream; absent before its first plan.
        published_since: bytes published since a reader began, or its route or lease returned.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.now = 0.0
        self.opened = 0
        self.positions: dict[int, dict[str, int]] = {}
        self.published_since: dict[int, int] = {}
        self.routes = dict(zip(IMPORTS, ("wait", "wait", "drop"), strict=True))
        self.ledger.set_routes(self.routes)

    @initialize(sized=st.booleans(), aged=st.booleans())
    def limit(self, sized: bool, aged: bool) -> None:
        self.ledger.retention.limits = RetentionLimits(
            max_bytes=BUFFER,
            max_age=1,
            grace=GRACE,
            archive_bytes=ARCHIVE if sized or not aged else None,
            archive_age=AGE if aged else None,
        )

    @rule(count=st.integers(1, 4), size=st.integers(1, 200), opens=st.integers(0, 9))
    def publish(self, count: int, size: int, opens: int) -> None:
        self.opened += not opens or not self.opened
        put(self.ledger, f"s{self.opened}", count, bytes_=size, now=self.now)
        for reader in self.published_since:
            self.published_since[reader] += count * size

    @rule(seconds=st.integers(1, 30))
    def wait(self, seconds: int) -> None:
        self.now += seconds
        for reader in self.ledger.claims.released_readers(self.now):
            self.ledger.retention.archive(reader)
            self.published_since[int(reader.id)] = 0

    @rule(reader=readers, start=st.sampled_from(["latest", "earliest", "-20s"]))
    def read(self, reader: int, start: str) -> None:
        """Acknowledge what the reader has planned, and plan again."""
        positions = self.positions.get(reader, {})
        self.published_since.setdefault(reader, 0)
        request = ask(
            positions,
            reader=str(reader),
            import_=IMPORTS[reader],
            policy=self.routes.get(IMPORTS[reader], "wait"),
            start=start,
            has_opened=reader in self.positions,
            budget=250,
        )
        with contextlib.suppress(DataLossError):
            plan = self.ledger.planner.plan(request, self.now)
            if plan.planned:
                self.positions[reader] = {**positions, **{p.stream: p.next for p in plan.planned}}

    @rule(reader=readers, policy=st.sampled_from(["wait", "drop", ""]))
    def route(self, reader: int, policy: str) -> None:
        before = self.routes.pop(IMPORTS[reader], "")
        if policy:
            self.routes[IMPORTS[reader]] = policy
        if reader in self.published_since and policy != before:
            self.published_since[reader] = 0
        self.ledger.set_routes(self.routes)

    def claimed(self) -> set[tuple[str, int]]:
        """Return the epochs that a reader claims, by stream and number, one by one."""
        ledger, found = self.ledger, set[tuple[str, int]]()
        for reader in ledger.readers.values():
            if self.now > reader.lease_expires + GRACE:
                continue
            for stream in ledger.streams.values():
                cursor = reader.cursors.get(stream.id)
                first = ledger.claims.first_unread(reader, stream)
                archived = reader.archived
                until = stream.next if archived is None else archived.get(stream.id, 0)
                if reader.routed and (archived is not None or not reader.is_dropping):
                    found |= {(stream.id, n) for n in range(first, until)}
                if cursor is not None and cursor.planned:
                    found |= {(stream.id, n) for n in range(*cursor.planned)}
        return found

    def retained(self) -> dict[tuple[str, int], int]:
        """Return the bytes of all retained epochs, oldest first."""
        streams = self.ledger.streams.values()
        return {(s.id, n): e.bytes for s in streams for n, e in s.epochs.items()}

    @invariant()
    def only_the_oldest_unclaimed_epochs_go_and_the_limits_hold(self) -> None:
        limits, before, claimed = self.ledger.retention.limits, self.retained(), self.claimed()
        if not limits.has_archive:
            return
        unclaimed = [epoch for epoch in before if epoch not in claimed]
        times = {
            (s.id, n): e.published
            for s in self.ledger.streams.values()
            for n, e in s.epochs.items()
        }
        removed = self.ledger.retention.sweep(self.now)
        gone = [epoch for epoch in unclaimed if epoch[1] in removed.get(epoch[0], ())]
        assert len(gone) == sum(map(len, removed.values()))
        assert gone == unclaimed[: len(gone)]
        kept = unclaimed[len(gone) :]
        oldest = self.now - (limits.archive_age or 1e9)
        assert all(times[epoch] >= oldest for epoch in kept)
        size = sum(before[epoch] for epoch in kept)
        limit = limits.archive_bytes or 1e9
        assert size <= limit or kept == list(before)[-1:]
        assert not gone or times[gone[-1]] < oldest or size + before[gone[-1]] > limit

    @invariant()
    def only_what_was_published_since_a_reader_began_blocks_the_export(self) -> None:
        if self.ledger.retention.limits.has_archive:
            blocking = self.ledger.retention.blocking_readers(self.now)
            slowest = max((self.published_since[int(r.reader)] for r in blocking), default=BUFFER)
            assert 2 * slowest > BUFFER


TestArchive = Archive.TestCase
TestArchive.settings = settings(stateful_step_count=60)
