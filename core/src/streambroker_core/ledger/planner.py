"""Planner: acknowledges a reader's position, pins its next epochs and detects data loss.

A position acknowledges all epochs below it. A plan pins epochs until the reader acknowledges
them. Cursors change only here and, when routes change, in the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from streambroker_core.errors import StreambrokerError
from streambroker_core.ledger.epochs import Stream
from streambroker_core.ledger.losses import (
    DataLossError,
    count_lost_between,
    count_skipped,
    find_missing,
    skipped_error,
)
from streambroker_core.ledger.offset import sum_losses
from streambroker_core.ledger.plan import Plan, PlanRequest
from streambroker_core.ledger.plan_budget import PlanBudget, is_republished
from streambroker_core.ledger.retention import Claims, Cursor, Reader, Retention
from streambroker_core.ledger.routes import NotRoutedError, Routes
from streambroker_core.wire.agent_rpc.peer import PlannedRange
from streambroker_core.wire.encoding.start import start_time

MAX_READERS = 1_000
"""Default maximum of an export's readers that are live or have claims."""
MAX_INCARNATIONS = 8
"""Latest incarnations of a reader's agent kept; calls of all but the last are rejected."""
ROWLESS_BYTES = 1 << 20
"""Maximum bytes of trailing epochs without rows that a reader without control leaves unread."""

_Finished = tuple[tuple[str, int, int], ...]
"""Acknowledged epochs, as in `Plan`."""

_REMOVED = "they were removed while the reader was away"
_DAMAGED = "files of the exporter's log that contained them were removed or truncated"


class ReadersExceededError(StreambrokerError):
    """The export has its maximum of readers, all live or with claims; a new one is rejected."""

    code = "ReadersExceeded"


class OvertakenError(StreambrokerError):
    """A newer call of the same reader was handled before this one, which changes nothing."""

    code = "Overtaken"


class SharedPlans:
    """Plans of requests that are handled together, so that equal readers share one.

    The streams must not change meanwhile. Readers are equal if a plan depends on nothing that
    differs between them; their requests differ only in reader, import, policy and call.
    """

    def __init__(self) -> None:
        self._common: tuple[object, ...] = ()
        self._plans: dict[tuple[object, ...], Plan] = {}

    def find(
        self, reader: Reader, request: PlanRequest, finished: _Finished
    ) -> tuple[tuple[object, ...], Plan | None]:
        """Return what a reader's plan depends on, empty if on more, and the plan if known."""
        positions, common = request.positions, request.wanted
        if common != self._common:
            self._common, self._plans = common, {}
        if not (reader.routed and reader.opened and reader.cursors.keys() <= positions.keys()):
            return (), None
        key = (
            finished,
            reader.is_dropping,
            *reader.cursors,
            _list_above(positions, reader.resume),
            _list_above(positions, reader.agreed_losses),
        )
        return key, self._plans.get(key)

    def add(self, key: tuple[object, ...], plan: Plan) -> None:
        """Have equal readers share a plan."""
        self._plans[key] = plan


class Planner:
    """Plans for the readers of one export, over its retained epochs.

    Attributes:
        evicted: ids of forgotten readers; the caller empties the list.
        max_readers: limit of the readers that are live or have claims.
    """

    def __init__(self, claims: Claims, retention: Retention, routes: Routes) -> None:
        self._claims, self._retention, self._routes = claims, retention, routes
        self._streams, self._readers = claims.streams, claims.readers
        self._forgotten = claims.forgotten
        self.evicted: list[str] = []
        self.max_readers = MAX_READERS

    def plan(self, request: PlanRequest, now: float, shared: SharedPlans | None = None) -> Plan:
        """Acknowledge the reader's position and pin its next epochs.

        With ``shared``, equal readers of the requests that are planned with it share their plan.

        Raises:
            DataLossError: the reader's next epochs are gone, it does not drop, and ``skip_lost``
                is not set.
            OvertakenError: see :meth:`check_call`.
            ReadersExceededError: the reader is new, and there are too many.
            RevokedError: the import, its job or its namespace is revoked.
        """
        self._routes.check_revoked(request.import_)
        self.check_call(request)
        with self._claims.tracking_fronts(request.reader, now):
            return self._plan(request, now, shared or SharedPlans())

    def check_call(self, request: PlanRequest) -> None:
        """Raise `OvertakenError` if a later call of the same reader was handled before this one.

        It would reset the reader's position and with it the plan that is being read.
        """
        reader = self._readers.get(request.reader)
        if reader is None or request.call is None or not (reader.routed and request.granted):
            return
        incarnation, number = request.call
        if incarnation in reader.agent_incarnations[:-1] or (
            incarnation in reader.agent_incarnations and number < reader.calls
        ):
            raise OvertakenError(
                f"call {number} of reader {request.reader} arrives after a later one; nothing is"
                " planned for it."
            )

    def _plan(self, request: PlanRequest, now: float, shared: SharedPlans) -> Plan:
        reader = self._get_reader(request, now)
        finished = self._acknowledge(reader, request, now)
        (key, plan), cursors = shared.find(reader, request, finished), len(reader.cursors)
        if plan is None:
            plan = self._make_plan(reader, request, finished, now)
            if key and plan.planned and len(reader.cursors) == cursors:
                shared.add(key, plan)
        else:
            reader.start, reader.control = request.start, request.control is not None
            _pin(reader, plan.planned)
            self._retention.promote(reader)
        return plan

    def _make_plan(
        self, reader: Reader, request: PlanRequest, finished: _Finished, now: float
    ) -> Plan:
        unknown = tuple(
            sorted(s for s in request.own_streams if s not in {*self._streams, *self._forgotten})
        )
        if not reader.routed:
            return Plan(planned=(), finished=finished, routed=False, unknown_streams=unknown)
        # Set only here: requests that register a plan again, or have no route, lack it.
        reader.start = request.start
        lost = count_lost_between(self._streams, reader, request, unknown, self._claims.restored)
        if lost is None:
            reader.opened = True
            return Plan(planned=(), finished=finished, unknown_streams=unknown)
        self._open_reader(reader, request, now)
        reader.control = request.control is not None
        budget = PlanBudget(
            size=request.budget,
            tuples=request.tuples,
            payload=request.payload,
            at_least_one=request.at_least_one,
            control=request.control,
            last=request.last,
            rowless=min(ROWLESS_BYTES, self._retention.limits.max_bytes // 4),
        )
        planned = self._plan_streams(reader, request, lost, budget)
        _pin(reader, planned)
        self._retention.promote(reader)
        return Plan(
            planned=tuple(planned),
            finished=finished,
            bytes=request.budget - budget.size,
            last=_last_batch(self._streams, planned),
            unknown_streams=unknown,
            rowless_streams=_find_rowless_ends(self._streams, planned, request),
            tuples=request.tuples - budget.tuples,
            payload=request.payload - budget.payload,
        )

    def _plan_streams(
        self, reader: Reader, request: PlanRequest, lost_epochs: int, budget: PlanBudget
    ) -> list[PlannedRange]:
        """Return a plan for each stream to read; raise `DataLossError` on unexpected loss."""
        planned: list[PlannedRange] = []
        reads = self._claims.reads_stream
        for stream in [s for s in self._streams.values() if reads(reader, s)]:
            cursor = reader.cursors.setdefault(stream.id, Cursor(next=0))
            if stream.id not in request.positions:
                cursor.next = cursor.first
            elif stream.sealed and cursor.next >= stream.next:
                continue
            skipped = count_skipped(reader, stream, request)
            if (skipped or _must_split(self._streams, reader, stream, planned, budget)) and any(
                p.from_ < p.next for p in planned
            ):
                break
            if skipped and not request.skip_lost:
                raise skipped_error(self._streams, stream, skipped)
            plan = _plan_stream(reader, stream, request, budget)
            missed = skipped or (0 if planned else lost_epochs)
            if missed:
                plan = replace(plan, lost=sum_losses([plan.lost, (missed, None)]))
            planned.append(plan)
            if plan.next < stream.next:
                break
        return planned

    def _get_reader(self, request: PlanRequest, now: float) -> Reader:
        reader = self._readers.get(request.reader)
        if reader is None:
            self._evict_reader(request, now)
            policy = self._routes.policies.get(request.import_, request.policy)
            policy = "drop" if request.once else policy
            reader = Reader(
                id=request.reader,
                import_=request.import_,
                policy=policy,
                start=request.start,
                lease_expires=now,
                routed=request.import_ not in self._routes.cut,
                last_progress=now,
                once=request.once,
            )
            self._readers[request.reader] = reader
            self._retention.archive(reader)
        if request.call is not None and reader.routed and request.granted:
            incarnation, reader.calls = request.call
            if incarnation not in reader.agent_incarnations[-1:]:
                earlier = [known for known in reader.agent_incarnations if known != incarnation]
                reader.agent_incarnations = (*earlier, incarnation)[-MAX_INCARNATIONS:]
        reader.lease_expires = max(reader.lease_expires, now + request.lease)
        return reader

    def _evict_reader(self, request: PlanRequest, now: float) -> None:
        """Forget the reader without claims that is away longest, if all places are taken."""
        if len(self._readers) < self.max_readers:
            return
        away = (r for r in self._readers.values() if r.lease_expires < now)
        idle = [r for r in away if not self._claims.can_hold(r, now)]
        if not idle:
            raise ReadersExceededError(
                f"{len(self._readers):,} readers are active or hold epochs of this export; cannot"
                f" add reader {request.reader} of {request.import_}. Stop some, lower buffer.grace"
                " (readers that are away then release theirs sooner), or start the exporter's"
                " job with a larger $STREAMBROKER_MAX_READERS."
            )
        self.evict(min(idle, key=lambda r: r.lease_expires))

    def evict(self, reader: Reader) -> None:
        """Forget a reader that holds nothing."""
        del self._readers[reader.id]
        self.evicted.append(reader.id)

    def _acknowledge(self, reader: Reader, request: PlanRequest, now: float) -> _Finished:
        """Apply the reader's positions. Only one that skips losses may be ahead of the log."""
        positions = request.positions
        own = [s for s in self._streams.values() if s.id in positions]
        for stream in own:
            if positions[stream.id] > stream.next and not request.skip_lost:
                raise DataLossError(
                    stream.id,
                    stream.next,
                    positions[stream.id],
                    f"the reader has read up to epoch {positions[stream.id] - 1}, the log ends"
                    f" before epoch {stream.next} (was an older copy of it restored?)",
                )
        finished = []
        for stream in own:
            next_ = positions[stream.id]
            if stream.id not in reader.cursors:
                reader.last_progress = now
            cursor = reader.cursors.setdefault(stream.id, Cursor(next=next_, first=next_))
            if next_ > cursor.next:
                finished.append((stream.id, cursor.next, next_))
                reader.last_progress = now
            cursor.next = next_
            if reader.routed:
                cursor.granted_until = max(cursor.granted_until, next_)
            if cursor.planned and cursor.planned[1] <= next_:
                cursor.planned = None
        return tuple(finished)

    def _open_reader(self, reader: Reader, request: PlanRequest, now: float) -> None:
        """Set the cursor of a new reader by its ``start`` policy."""
        if not (
            reader.opened
            or request.has_opened
            or any(s in request.positions for s in self._streams)
        ):
            self._claims.accept_losses(reader)
            streams = list(self._streams.values())
            for stream, first in _find_start(streams, reader.start, now):
                reader.cursors[stream.id] = Cursor(next=first, first=first)
        reader.opened = True

    def find_epochs(self, start: str, end: str, now: float) -> dict[str, tuple[int, int]]:
        """Return the epochs ``[first, next)`` between two starts, by stream, without empty ranges.

        An ``end`` of ``latest`` is behind the newest epoch.
        """
        streams = list(self._streams.values())
        if not streams:
            return {}
        (from_, first), (to, next_) = (_find_start(streams, at, now)[0] for at in (start, end))
        between = streams[streams.index(from_) : streams.index(to) + 1]
        found = {
            s.id: (
                first if s is from_ else s.first_available(),
                next_ if s is to else s.next,
            )
            for s in between
        }
        return {stream: (low, high) for stream, (low, high) in found.items() if low < high}

    def register_plan(
        self, request: PlanRequest, ranges: Mapping[str, tuple[int, int]], now: float
    ) -> tuple[tuple[str, int, int], ...]:
        """Register a plan again that is already in the reader's checkpoint.

        Returns:
            The epochs acknowledged by this call, as in :class:`Plan`.

        Raises:
            DataLossError: an epoch of the plan is gone, under any policy. With ``skip_lost``
                nothing is raised: `find_missing` returns the epochs to leave out.
            NotRoutedError: its route is cut, and the plan has epochs it was not granted before.
            OvertakenError: see :meth:`check_call`.
            ReadersExceededError: the reader is unknown, and there are too many.
            RevokedError: the import, its job or its namespace is revoked.
        """
        self._routes.check_revoked(request.import_)
        self.check_call(request)
        self._check_granted(request, ranges)
        for name, lost in (
            find_missing(self._streams, ranges).items() if not request.skip_lost else ()
        ):
            why = _DAMAGED if request.once else "they were planned by a batch in the checkpoint"
            raise DataLossError(name, lost[0][0], lost[-1][1], why)
        with self._claims.tracking_fronts(request.reader, now):
            reader = self._get_reader(request, now)
            reader.opened, reader.released = True, False
            finished = self._acknowledge(reader, request, now)
            for name, (first, next_) in ranges.items():
                if name not in self._streams:
                    continue
                cursor = reader.cursors.setdefault(name, Cursor(next=first, first=first))
                cursor.planned = (first, next_)
                cursor.granted_until = max(cursor.granted_until, next_)
            return finished

    def _check_granted(self, request: PlanRequest, ranges: Mapping[str, tuple[int, int]]) -> None:
        reader = self._readers.get(request.reader)
        routed = request.import_ not in self._routes.cut if reader is None else reader.routed
        if routed and request.granted:
            return
        for name, (_, next_) in ranges.items():
            cursor = reader.cursors.get(name) if reader else None
            granted_until = cursor.granted_until if cursor else 0
            if next_ > granted_until:
                raise NotRoutedError(
                    f"import {request.import_} no longer has a route to this export: of stream"
                    f" {name} its reader was granted the epochs below {granted_until}, not those"
                    f" up to {next_ - 1}. Connect it again, or start with a new checkpoint."
                )

    def is_planned(self, reader: str, stream: str, epoch: int, now: float) -> bool:
        """Return whether the reader may read this epoch now; a plan also ends with its grace."""
        known = self._readers.get(reader)
        if known is None or not self._claims.has_claims(known, now):
            return False
        cursor = known.cursors.get(stream)
        planned = cursor.planned if cursor else None
        return planned is not None and planned[0] <= epoch < planned[1]


def _must_split(
    streams: Mapping[str, Stream],
    reader: Reader,
    stream: Stream,
    planned: Sequence[PlannedRange],
    budget: PlanBudget,
) -> bool:
    """Return whether the window has to end before the first epoch of ``stream``.

    A successor continues its predecessor, so windows end between streams as within one.
    """
    previous = next((p for p in reversed(planned) if p.from_ < p.next), None)
    if budget.control is None or previous is None:
        return False
    first = stream.epochs.get(stream.at_or_after(reader.next_epoch(stream.id)))
    return budget.must_split(streams[previous.stream].epochs.get(previous.next - 1), first)


def _list_above(positions: Mapping[str, int], bounds: Mapping[str, int]) -> tuple[object, ...]:
    """Return bounds of a reader by stream; those below its positions have no effect."""
    if not bounds:
        return ()
    return tuple([(stream, max(n, positions.get(stream, 0))) for stream, n in bounds.items()])


def _find_start(streams: Sequence[Stream], start: str, now: float) -> list[tuple[Stream, int]]:
    """Return the stream and epoch at which a new reader begins; empty without streams."""
    time = start_time(start, now)
    found = None
    if start == "earliest":
        available = ((s, s.first_available()) for s in streams)
        found = next(((s, first) for s, first in available if first < s.next), None)
    elif time is not None:
        epochs = ((s, e) for s in streams for e in s.epochs.values())
        found = next(((s, e.number) for s, e in epochs if e.published >= time), None)
    return [found] if found else [(s, s.next) for s in streams[-1:]]


def _plan_stream(
    reader: Reader, stream: Stream, request: PlanRequest, budget: PlanBudget
) -> PlannedRange:
    cursor = reader.cursors[stream.id]
    wanted = reader.next_epoch(stream.id)
    available = stream.at_or_after(wanted)
    agreed = available if reader.is_dropping else reader.agreed_losses.get(stream.id, 0)
    agreed = min(max(agreed, wanted), available)
    if agreed < available and not request.skip_lost:
        missing = stream.count_missing(agreed, available)[0]
        raise DataLossError(stream.id, wanted, available, _DAMAGED if missing else _REMOVED)
    lost = stream.count_missing(wanted, agreed)
    from_ = available
    while from_ in stream.epochs and is_republished(stream.epochs[from_], request.last):
        from_ += 1
    limit = stream.next if request.limit is None else request.limit.get(stream.id, from_)
    end = budget.take_epochs(stream, from_, limit)
    return PlannedRange(
        stream=stream.id,
        from_=from_,
        next=end,
        dropped=(agreed - wanted - lost[0], stream.rows_between(wanted, agreed) - lost[1]),
        lost=(available - agreed + lost[0], stream.rows_between(agreed, available) + lost[1]),
        duplicates=(from_ - available, stream.rows_between(available, from_)),
        has_gap=from_ > cursor.next,
        rows_below=stream.rows - stream.rows_between(end, stream.next),
    )


def _find_rowless_ends(
    streams: Mapping[str, Stream], planned: Sequence[PlannedRange], request: PlanRequest
) -> tuple[tuple[str, int], ...]:
    """Return the end of the epochs without rows behind a plan, for readers without control."""
    if request.control is not None or request.limit is not None or not planned:
        return ()
    plan = planned[-1]
    stream, end = streams[plan.stream], plan.next
    while end in stream.epochs and not stream.epochs[end].rows:
        end += 1
    return ((stream.id, end),) if end > plan.next else ()


def _pin(reader: Reader, planned: Sequence[PlannedRange]) -> None:
    for plan in planned:
        cursor = reader.cursors[plan.stream]
        cursor.planned = (plan.from_, plan.next) if plan.from_ < plan.next else None
        cursor.granted_until = max(cursor.granted_until, plan.next)


def _last_batch(
    streams: Mapping[str, Stream], planned: list[PlannedRange]
) -> tuple[str, int] | None:
    """Return query and batch of the last epoch in a plan; the agent's own epochs have none."""
    for plan in reversed(planned):
        for number in range(plan.next - 1, plan.from_ - 1, -1):
            epoch = streams[plan.stream].epochs.get(number)
            if epoch is not None and epoch.query:
                return (epoch.query, epoch.batch)
    return None
