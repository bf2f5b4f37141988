"""Any order of publishes, plans, crashes, restores and route changes, against a plain model.

A simulated query keeps a checkpoint as Spark does: offsets that were planned, then committed. The
model knows every epoch ever published, and so what each query has to have received.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from streambroker_core.ledger.epochs import Epoch
from streambroker_core.ledger.ledger import Ledger
from streambroker_core.ledger.losses import DataLossError
from streambroker_core.ledger.offset import Offset, advance, ranges
from streambroker_core.ledger.plan import PlanRequest
from streambroker_core.ledger.retention import RetentionLimits

EXPORT = "default/feed/0/trades"
GRACE = 20.0
LEASE = 5.0
READERS = 4

readers = st.integers(0, READERS - 1)


@dataclass
class Query:
    """One query and its checkpoint.

    Attributes:
        committed: offsets of finished batches, the first one empty.
        received: epochs read by the batches up to each committed offset.
        wal: the end of the batch that is planned and not committed.
        origin: first epoch that is its own, as (stream, epoch).
        until: end of its lease.
        strict: connected, waiting and never away beyond grace, so that nothing may be missing.
        subscribed: never without route, so that everything missing is dropped by agreement.
        safe: not away beyond grace since the plan was made, so that it can be replayed.
        restored: went back to an older checkpoint, whose epochs may be gone.
    """

    id: str
    import_: str
    start: str
    committed: list[Offset] = field(default_factory=lambda: [Offset()])
    received: list[list[tuple[int, int]]] = field(default_factory=lambda: [[]])
    wal: Offset | None = None
    origin: tuple[int, int] | None = None
    until: float = 0.0
    alive: bool = True
    strict: bool = True
    subscribed: bool = True
    safe: bool = True
    restored: bool = False


class Claims(RuleBasedStateMachine):
    """The ledger of one export with up to four readers, each of an import of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(RetentionLimits(max_bytes=500, grace=GRACE))
        self.now = 0.0
        self.streams: list[str] = []
        self.rows: dict[str, list[int]] = {}
        self.routes = {f"import{i}": "wait" for i in range(READERS)}
        self.queries: dict[int, Query] = {}
        self.made = 0
        self.ledger.set_routes(self.routes)

    # -- the exporter ------------------------------------------------------------------------

    @rule(sizes=st.lists(st.tuples(st.integers(1, 300), st.integers(1, 9)), max_size=4))
    def publish(self, sizes: list[tuple[int, int]]) -> None:
        for size, rows in sizes:
            if not self.streams:
                self.open_stream()
            stream = self.streams[-1]
            number = len(self.rows[stream])
            self.made += 1
            epoch = Epoch(
                number=number, rows=rows, bytes=size, published=self.now, query="q", batch=self.made
            )
            self.ledger.publish(stream, epoch)
            self.rows[stream].append(rows)

    @precondition(lambda self: len(self.streams) < 6)
    @rule()
    def open_stream(self) -> None:
        stream = f"stream{len(self.streams)}"
        self.streams.append(stream)
        self.rows[stream] = []
        self.ledger.open(stream)

    @rule()
    def sweep(self) -> None:
        """Let go as the agent does: epochs, then streams that nobody misses."""
        self.ledger.retention.sweep(self.now)
        for stream in list(self.ledger.streams.values()):
            if not stream.sealed or stream.epochs or self.ledger.claims.is_unread(stream.id):
                break
            self.ledger.forget_stream(stream.id)

    @rule(max_age=st.sampled_from([None, 5.0, 60.0]), max_bytes=st.sampled_from([1, 500, 5000]))
    def limit(self, max_age: float | None, max_bytes: int) -> None:
        self.ledger.retention.limits = RetentionLimits(
            max_bytes=max_bytes, max_age=max_age, grace=GRACE
        )

    @rule(which=readers, policy=st.sampled_from(["wait", "drop", None]))
    def route(self, which: int, policy: str | None) -> None:
        """Change a policy, take a route away, or bring it back."""
        if policy is None:
            self.routes.pop(f"import{which}", None)
        else:
            self.routes[f"import{which}"] = policy
        self.ledger.set_routes(self.routes)
        if which in self.queries:
            query = self.queries[which]
            query.strict = query.strict and policy == "wait"
            query.subscribed = query.subscribed and policy is not None

    @rule(seconds=st.sampled_from([1.0, 4.0, 12.0, 30.0]))
    def wait(self, seconds: float) -> None:
        """Let time pass; living queries renew their leases all the while."""
        self.now += seconds
        for query in self.queries.values():
            if query.alive:
                self._renew(query)
            elif self.now > query.until + GRACE:
                query.strict = query.safe = False

    def _renew(self, query: Query) -> None:
        query.until = self.now + LEASE
        self.ledger.claims.renew(query.id, query.until)

    # -- the readers -------------------------------------------------------------------------

    @rule(which=readers, start=st.sampled_from(["latest", "earliest"]))
    def begin(self, which: int, start: str) -> None:
        if which not in self.queries and f"import{which}" in self.routes:
            self.made += 1
            import_ = f"import{which}"
            query = Query(id=f"reader{self.made}", import_=import_, start=start)
            query.strict = self.routes[import_] == "wait"
            self.queries[which] = query
            self.plan(which, 10_000)

    @rule(which=readers, budget=st.sampled_from([1, 250, 10_000]))
    def plan(self, which: int, budget: int) -> None:
        """Spark asks for the next batch; what it gets is in the checkpoint from then on."""
        query = self.queries.get(which)
        if query is None or not query.alive or query.wal is not None:
            return
        start = query.committed[-1]
        if query.origin is None:
            query.origin = self._origin(query)
        ask = self._ask(query, start, budget=budget)
        try:
            answer = self.ledger.planner.plan(ask, self.now)
        except DataLossError:
            assert not query.strict or query.restored, "loss that nobody agreed to"
            assert self.routes.get(query.import_) == "wait", "a loss stops only who waits"
            del self.queries[which]
            return
        query.until = max(query.until, self.now + LEASE)
        assert answer.routed == (query.import_ in self.routes)
        if not answer.routed:
            return
        end = advance(start, EXPORT, list(answer.planned), answer.last)
        if EXPORT not in start.last or any(
            p.next > p.from_ or p.stream not in start.streams for p in answer.planned
        ):
            query.wal, query.safe = end, True

    def _origin(self, query: Query) -> tuple[int, int]:
        known = list(self.ledger.streams.values())
        if not known:
            return (len(self.streams), 0)
        if query.start == "latest":
            return (len(self.streams) - 1, len(self.rows[self.streams[-1]]))
        oldest = next((s for s in known if s.epochs), known[-1])
        first = min(oldest.epochs, default=oldest.next)
        later = known[known.index(oldest) + 1 :]
        if oldest.complete_from > first or any(s.complete_from > 0 for s in later):
            query.strict = False
        return (self.streams.index(oldest.id), first)

    def _ask(self, query: Query, start: Offset, *, budget: int = 0) -> PlanRequest:
        return PlanRequest(
            reader=query.id,
            import_=query.import_,
            policy="wait",
            start=query.start,
            positions={s: p.next for s, p in start.streams.items()},
            has_opened=EXPORT in start.last,
            last=start.last.get(EXPORT),
            budget=budget,
            lease=LEASE,
        )

    @rule(which=readers)
    def run(self, which: int) -> None:
        """The planned batch is read and committed; after a crash its plan is registered again."""
        query = self.queries.get(which)
        if query is None or query.wal is None:
            return
        start, end = query.committed[-1], query.wal
        wanted = ranges(start, end)
        try:
            self.ledger.planner.register_plan(self._ask(query, start), wanted, self.now)
        except DataLossError:
            assert not query.safe, "a plan within grace can be replayed"
            del self.queries[which]
            return
        query.alive = True
        self._renew(query)
        got = [
            (self.streams.index(s), n)
            for s, (first, next_) in wanted.items()
            for n in range(first, next_)
        ]
        for stream, number in got:
            assert self.ledger.planner.is_planned(query.id, self.streams[stream], number, self.now)
        query.received.append([*query.received[-1], *got])
        query.committed.append(end)
        query.wal = None

    @rule(which=readers)
    def crash(self, which: int) -> None:
        if which in self.queries:
            self.queries[which].alive = False

    @rule(which=readers)
    def restart(self, which: int) -> None:
        """Start again with the checkpoint as it is: a planned batch first."""
        if which in self.queries and not self.queries[which].alive:
            self.queries[which].alive = True
            self.run(which)

    @rule(which=readers, back=st.integers(1, 3))
    def restore(self, which: int, back: int) -> None:
        """Start with an older checkpoint."""
        query = self.queries.get(which)
        if query is None or not query.subscribed or len(query.committed) - back < 2:
            return
        del query.committed[-back:], query.received[-back:]
        query.wal, query.restored = None, True

    @rule(which=readers)
    def leave(self, which: int) -> None:
        if which in self.queries:
            query = self.queries[which]
            query.alive, query.until = False, self.now
            self.ledger.claims.end_lease(query.id, self.now)

    # -- what always holds -------------------------------------------------------------------

    @invariant()
    def planned_epochs_are_retained(self) -> None:
        for query in self.queries.values():
            if query.wal is None or not query.safe:
                continue
            for stream, (first, next_) in ranges(query.committed[-1], query.wal).items():
                for number in range(first, next_):
                    assert number in self.ledger.streams[stream].epochs
                    assert self.ledger.planner.is_planned(query.id, stream, number, self.now)

    @invariant()
    def what_is_held_is_what_one_finds_who_looks_at_all_readers(self) -> None:
        fresh = copy.deepcopy(self.ledger)
        fresh.retention.limits = self.ledger.retention.limits  # forgets where the slowest stand
        assert self.ledger.retention.held_bytes(self.now) == fresh.retention.held_bytes(self.now)

    @invariant()
    def epochs_come_once_and_in_order(self) -> None:
        for query in self.queries.values():
            got = query.received[-1]
            assert all(a < b for a, b in itertools.pairwise(got))

    @invariant()
    def what_is_missing_was_agreed_to(self) -> None:
        for query in self.queries.values():
            end = query.committed[-1]
            got = set(query.received[-1])
            missing_rows = missing = 0
            for stream, rows in self._passed(query, end):
                for number, count in rows:
                    if (stream, number) not in got:
                        missing, missing_rows = missing + 1, missing_rows + count
            if query.strict:
                assert missing == 0
            if query.subscribed:
                reported = end.dropped.values()
                assert missing == sum(n for n, _ in reported)
                assert missing_rows == sum(n for _, n in reported)

    def _passed(self, query: Query, end: Offset) -> list[tuple[int, list[tuple[int, int]]]]:
        """Return the query's own epochs below its position, by stream."""
        if query.origin is None or not end.streams:
            return []
        last = max(self.streams.index(s) for s in end.streams)
        result = []
        for stream in range(query.origin[0], last + 1):
            rows = self.rows[self.streams[stream]]
            position = end.streams.get(self.streams[stream])
            below = len(rows) if stream < last else 0
            if position is not None and query.subscribed and stream < last:
                assert position.next == len(rows), "a successor is read after its predecessor"
            next_ = below if position is None else position.next
            first = query.origin[1] if stream == query.origin[0] else 0
            result.append((stream, [(n, rows[n]) for n in range(first, next_)]))
        return result

    @invariant()
    def a_full_log_names_a_reader(self) -> None:
        holders = self.ledger.retention.blocking_readers(self.now)
        assert bool(holders) == (
            self.ledger.retention.held_bytes(self.now) >= self.ledger.retention.limits.max_bytes
        )
        assert all(self.routes.get(h.import_) == "wait" for h in holders)

    def teardown(self) -> None:
        """In the end everything that is left can be read by whoever is still there."""
        for which in list(self.queries):
            for _ in range(40):
                self.run(which)
                with contextlib.suppress(KeyError):
                    self.queries[which].alive = True
                self.plan(which, 10_000)
            if which in self.queries and self.queries[which].strict:
                query = self.queries[which]
                assert query.origin is not None
                every = [
                    (s, n)
                    for s, name in enumerate(self.streams)
                    for n in range(len(self.rows[name]))
                    if (s, n) >= query.origin
                ]
                assert query.received[-1] == every
        self.planned_epochs_are_retained()
        self.what_is_missing_was_agreed_to()


TestClaims = pytest.mark.timeout(1800)(Claims.TestCase)
TestClaims.settings = settings(stateful_step_count=60)
