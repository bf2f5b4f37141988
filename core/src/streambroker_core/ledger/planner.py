"""Planner: acknowledges a reader's position, pins its next epochs and detects data loss.

A position acknowledges all epochs below it. A plan pins epochs until the reader acknowledges
them. Cursors change only here and, when routes change, in the ledger.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from streambroker_core.control.tuples import MAX_BYTES, MAX_TUPLES
from streambroker_core.errors import StreambrokerError
from streambroker_core.ledger.epochs import Stream, holes
from streambroker_core.ledger.offset import PlannedRange, sum_losses
from streambroker_core.ledger.plan_budget import PlanBudget, is_republished
from streambroker_core.ledger.retention import Cursor, Reader, Retention, RetentionLimits

MAX_READERS = 1_000
MAX_INCARNATIONS = 8
"""Latest incarnations of a reader's agent kept; calls of all but the last are rejected."""
ROWLESS_BYTES = 1 << 20
"""Maximum bytes of trailing epochs without rows that a reader without control leaves unread."""

_REMOVED = "they were removed while the reader was away"
_DAMAGED = "files of the exporter's log that contained them were removed or truncated"

MissingRange = tuple[int, int, int | None]
"""Missing epochs ``[first, next)`` and their rows; rows are None if unknown."""


class DataLossError(StreambrokerError):
    """Unexpected data loss: epochs that the reader has to read are gone. Nothing is skipped."""

    code = "DataLoss"

    def __init__(self, stream: str, first: int, last: int | None, why: str) -> None:
        self.stream, self.first, self.last = stream, first, last
        which = f"epochs from {first} on" if last is None else f"epochs {first} to {last - 1}"
        super().__init__(
            f"{which} of stream {stream} are gone: {why}. Nothing was skipped;"
            " the query stops here. Restore the exporter's data directory, or start the importer"
            " with a new checkpoint, or without them: fail_on_data_loss=False."
        )


class NotRoutedError(StreambrokerError):
    """The import has no route to the export."""

    code = "NotRouted"


class RevokedError(StreambrokerError):
    """The export has revoked the import, which may not read even what was planned."""

    code = "Revoked"


class ReadersExceededError(StreambrokerError):
    """The export has `MAX_READERS` readers, all live or with claims; a new one is rejected."""

    code = "ReadersExceeded"


class OvertakenError(StreambrokerError):
    """A newer call of the same reader was handled before this one, which changes nothing."""

    code = "Overtaken"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """Request of a reader for the epochs of its next micro-batch.

    Attributes:
        positions: first unfinished epoch by stream; acknowledges all below. Streams of other
            exports are ignored.
        own_streams: streams in ``positions`` that the reader attributes to this export.
        has_opened: the reader has opened this export before. A stream it does not know is then a
            successor and is read from its first epoch.
        last: query and batch id of the last epoch read of this export. Epochs of that query up to
            that batch were republished after a log was lost, and are skipped.
        limit: exclusive upper bound of the plan, by stream; None for no limit.
        budget: maximum bytes of the plan; ``at_least_one`` plans one epoch whatever its size.
        lease: seconds until the reader counts as away.
        skip_lost: report unexpected loss and skip it instead of stopping the reader.
        granted: the reader may get epochs that it was not granted before.
        call: incarnation of the reader's agent and number of the call within it; None if unknown.
        control: types of control tuples that do not end a window; None for a reader without
            control tuples.
        tuples: maximum control tuples of the plan, ``payload`` their maximum bytes.
    """

    reader: str
    import_: str
    policy: str
    start: str
    positions: Mapping[str, int]
    own_streams: frozenset[str] = frozenset()
    has_opened: bool = False
    last: tuple[str, int] | None = None
    limit: Mapping[str, int] | None = None
    budget: int = 256 << 20
    at_least_one: bool = True
    lease: float = 5.0
    skip_lost: bool = False
    granted: bool = True
    call: tuple[str, int] | None = None
    control: frozenset[str] | None = None
    tuples: int = MAX_TUPLES
    payload: int = MAX_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Epochs pinned for a reader, stream by stream.

    Attributes:
        finished: ``(stream, first, next)`` of the epochs acknowledged by this call.
        unknown_streams: the reader's ``own_streams`` that the export does not know.
        rowless_streams: end of the rowless epochs behind the plan, for readers without control.
        tuples: control tuples in the plan, ``payload`` their bytes.
    """

    planned: tuple[PlannedRange, ...]
    finished: tuple[tuple[str, int, int], ...] = ()
    bytes: int = 0
    last: tuple[str, int] | None = None
    routed: bool = True
    unknown_streams: tuple[str, ...] = ()
    rowless_streams: tuple[tuple[str, int], ...] = ()
    tuples: int = 0
    payload: int = 0


class Planner(Retention):
    """Plans for the readers of one export, over its retained epochs."""

    def __init__(self, limits: RetentionLimits | None = None) -> None:
        super().__init__(limits)
        self.forgotten: set[str] = set()
        self.evicted: list[str] = []
        self._cut_imports: dict[str, None] = {}
        self._routes: dict[str, str] = {}
        self._revoked: frozenset[str] = frozenset()

    def plan(self, request: PlanRequest, now: float) -> Plan:
        """Acknowledge the reader's position and pin its next epochs.

        Raises:
            DataLossError: the reader's next epochs are gone, it does not drop, and ``skip_lost``
                is not set.
            OvertakenError: see :meth:`check_call`.
            ReadersExceededError: the reader is new, and there are too many.
            RevokedError: see :meth:`check_revoked`.
        """
        self.check_revoked(request.import_)
        self.check_call(request)
        with self._tracking_fronts(request.reader, now):
            return self._plan(request, now)

    def check_revoked(self, import_: str) -> None:
        """Raise `RevokedError` if the import, its job or its namespace is revoked."""
        named = self._revoked_by(import_)
        if named is not None:
            raise RevokedError(
                f"the export has revoked {named}: {import_} reads nothing more from it, and its"
                " planned epochs are not retained. Its owner can undo that (field revoked)."
            )

    def check_call(self, request: PlanRequest) -> None:
        """Raise `OvertakenError` if a later call of the same reader was handled before this one.

        It would reset the reader's position and with it the plan that is being read.
        """
        reader = self.readers.get(request.reader)
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

    def _revoked_by(self, import_: str) -> str | None:
        parts = import_.split("/")
        names = ("/".join(parts[:n]) for n in range(1, len(parts) + 1))
        return next((name for name in names if name in self._revoked), None)

    def _plan(self, request: PlanRequest, now: float) -> Plan:
        reader = self._get_reader(request, now)
        finished = self._acknowledge(reader, request, now)
        unknown = tuple(
            sorted(s for s in request.own_streams if s not in {*self.streams, *self.forgotten})
        )
        if not reader.routed:
            return Plan(planned=(), finished=finished, routed=False, unknown_streams=unknown)
        # Set only here: requests that register a plan again, or have no route, lack it.
        reader.start = request.start
        lost = self._lost_between(reader, request, unknown)
        if lost is None:
            reader.opened = True
            return Plan(planned=(), finished=finished, unknown_streams=unknown)
        self._open_reader(reader, request)
        reader.control = request.control is not None
        budget = self._make_budget(request)
        planned = self._plan_streams(reader, request, lost, budget)
        self._pin(reader, planned)
        self._promote(reader)
        return Plan(
            planned=tuple(planned),
            finished=finished,
            bytes=request.budget - budget.size,
            last=self._last_batch(planned),
            unknown_streams=unknown,
            rowless_streams=self._find_rowless_ends(planned, request),
            tuples=request.tuples - budget.tuples,
            payload=request.payload - budget.payload,
        )

    def _plan_streams(
        self, reader: Reader, request: PlanRequest, lost_epochs: int, budget: PlanBudget
    ) -> list[PlannedRange]:
        """Return a plan for each stream to read; raise `DataLossError` on unexpected loss."""
        planned: list[PlannedRange] = []
        for stream in [s for s in self.streams.values() if self._reads_stream(reader, s)]:
            cursor = reader.cursors.setdefault(stream.id, Cursor(next=0))
            if stream.id not in request.positions:
                cursor.next = cursor.first
            elif stream.sealed and cursor.next >= stream.next:
                continue
            skipped = self._count_skipped(reader, stream, request)
            if (skipped or self._must_split(reader, stream, planned, budget)) and any(
                p.from_ < p.next for p in planned
            ):
                break
            if skipped and not request.skip_lost:
                raise self._skipped_error(stream, skipped)
            plan = self._plan_stream(reader, stream, request, budget)
            missed = skipped or (0 if planned else lost_epochs)
            if missed:
                plan = replace(plan, lost=sum_losses([plan.lost, (missed, None)]))
            planned.append(plan)
            if plan.next < stream.next:
                break
        return planned

    def _make_budget(self, request: PlanRequest) -> PlanBudget:
        return PlanBudget(
            size=request.budget,
            tuples=request.tuples,
            payload=request.payload,
            at_least_one=request.at_least_one,
            control=request.control,
            last=request.last,
            rowless=min(ROWLESS_BYTES, self.limits.max_bytes // 4),
        )

    def _must_split(
        self, reader: Reader, stream: Stream, planned: Sequence[PlannedRange], budget: PlanBudget
    ) -> bool:
        """Return whether the window has to end before the first epoch of ``stream``.

        A successor continues its predecessor, so windows end between streams as within one.
        """
        previous = next((p for p in reversed(planned) if p.from_ < p.next), None)
        if budget.control is None or previous is None:
            return False
        wanted = max(reader.cursors[stream.id].next, reader.resume.get(stream.id, 0))
        first = stream.epochs.get(stream.at_or_after(wanted))
        return budget.must_split(self.streams[previous.stream].epochs.get(previous.next - 1), first)

    def _find_rowless_ends(
        self, planned: Sequence[PlannedRange], request: PlanRequest
    ) -> tuple[tuple[str, int], ...]:
        """Return the end of the epochs without rows behind a plan, for readers without control."""
        if request.control is not None or request.limit is not None or not planned:
            return ()
        plan = planned[-1]
        stream, end = self.streams[plan.stream], plan.next
        while end in stream.epochs and not stream.epochs[end].rows:
            end += 1
        return ((stream.id, end),) if end > plan.next else ()

    def _lost_between(
        self, reader: Reader, request: PlanRequest, unknown_streams: tuple[str, ...]
    ) -> int | None:
        """Return the minimum number of epochs missing between a lost log and the present one.

        None while nothing new has been published. Raises `DataLossError` if a reader that does
        not skip losses may have missed epochs.
        """
        if (
            not unknown_streams
            or reader.is_dropping
            or any(s in request.positions for s in self.streams)
        ):
            return 0
        epochs = [e for s in self.streams.values() for e in s.epochs.values() if e.query]
        first = next((e for e in epochs if not is_republished(e, request.last)), None)
        if first is None:
            return None
        same = request.last is not None and first.query == request.last[0]
        between = first.batch - request.last[1] - 1 if request.last is not None and same else 1
        if between <= 0 or request.skip_lost:
            return between
        raise DataLossError(
            unknown_streams[-1],
            request.positions[unknown_streams[-1]],
            None,
            f"the exporter has lost its log; it continues with batch {first.batch} of query"
            f" {first.query}, the last one read was {request.last}",
        )

    def _count_skipped(self, reader: Reader, stream: Stream, request: PlanRequest) -> int:
        """Return how many batches between a reader's position and a stream are in no log."""
        wanted = max(reader.cursors[stream.id].next, reader.resume.get(stream.id, 0))
        epoch = stream.epochs.get(wanted)
        if (
            epoch is None
            or not epoch.gap
            or reader.is_dropping
            or stream.id in reader.agreed_losses
        ):
            return 0
        gap = epoch.gap
        if request.last is not None and request.last[0] == epoch.query:
            gap = min(gap, epoch.batch - request.last[1] - 1)
        return max(gap, 0)

    def _skipped_error(self, stream: Stream, skipped: int) -> DataLossError:
        names = list(self.streams)
        previous = self.streams[names[max(0, names.index(stream.id) - 1)]]
        epoch = next(iter(stream.epochs.values()))
        return DataLossError(
            previous.id,
            previous.next,
            None,
            f"batches {epoch.batch - skipped} to {epoch.batch - 1} of query {epoch.query} were"
            f" published and are in no log; it continues with batch {epoch.batch} (was an older"
            " copy of the exporter's data directory restored?)",
        )

    def _get_reader(self, request: PlanRequest, now: float) -> Reader:
        reader = self.readers.get(request.reader)
        if reader is None:
            self._evict_reader(request, now)
            policy = self._routes.get(request.import_, request.policy)
            reader = Reader(
                id=request.reader,
                import_=request.import_,
                policy=policy,
                start=request.start,
                lease_expires=now,
                routed=request.import_ not in self._cut_imports,
                last_progress=now,
            )
            self.readers[request.reader] = reader
        if request.call is not None and reader.routed and request.granted:
            incarnation, reader.calls = request.call
            reader.agent_incarnations = (
                *(known for known in reader.agent_incarnations if known != incarnation),
                incarnation,
            )[-MAX_INCARNATIONS:]
        reader.lease_expires = max(reader.lease_expires, now + request.lease)
        return reader

    def _evict_reader(self, request: PlanRequest, now: float) -> None:
        """Forget the reader without claims that is away longest, if all places are taken."""
        if len(self.readers) < MAX_READERS:
            return
        idle = [
            r for r in self.readers.values() if r.lease_expires < now and not self._can_hold(r, now)
        ]
        if not idle:
            raise ReadersExceededError(
                f"{len(self.readers):,} readers are active or hold epochs of this export; cannot"
                f" add reader {request.reader} of {request.import_}. Stop some, or lower"
                " buffer.grace: readers that are away then release theirs sooner."
            )
        oldest = min(idle, key=lambda r: r.lease_expires)
        del self.readers[oldest.id]
        self.evicted.append(oldest.id)

    def _acknowledge(
        self, reader: Reader, request: PlanRequest, now: float
    ) -> tuple[tuple[str, int, int], ...]:
        """Apply the reader's positions. Only one that skips losses may be ahead of the log."""
        positions = request.positions
        own = [s for s in self.streams.values() if s.id in positions]
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

    def _open_reader(self, reader: Reader, request: PlanRequest) -> None:
        """Set the cursor of a new reader by its ``start`` policy."""
        if not (
            reader.opened or request.has_opened or any(s in request.positions for s in self.streams)
        ):
            self._accept_losses(reader)
            streams = list(self.streams.values())
            if reader.start == "latest":
                for stream in streams[-1:]:
                    reader.cursors[stream.id] = Cursor(next=stream.next, first=stream.next)
            else:
                for stream in (
                    [s for s in streams if s.first_available() < s.next] or streams[-1:]
                )[:1]:
                    first = stream.first_available()
                    reader.cursors[stream.id] = Cursor(next=first, first=first)
        reader.opened = True

    def _accept_losses(self, reader: Reader) -> None:
        """Count what was removed so far as agreed loss, but not what is missing from the log."""
        for stream in self.streams.values():
            reader.agreed_losses[stream.id] = stream.agreed_loss_end()

    def _promote(self, reader: Reader) -> None:
        """Return a demoted reader to ``wait`` once its lag fills at most half of the log."""
        if not reader.demoted:
            return
        lag = self.lag(reader)
        if 2 * self.fullness(lag.bytes, lag.memory) <= 1:
            self._accept_losses(reader)
            reader.demoted = False

    def _plan_stream(
        self, reader: Reader, stream: Stream, request: PlanRequest, budget: PlanBudget
    ) -> PlannedRange:
        cursor = reader.cursors[stream.id]
        wanted = max(cursor.next, reader.resume.get(stream.id, 0))
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
        )

    def _pin(self, reader: Reader, planned: list[PlannedRange]) -> None:
        for plan in planned:
            cursor = reader.cursors[plan.stream]
            cursor.planned = (plan.from_, plan.next) if plan.from_ < plan.next else None
            cursor.granted_until = max(cursor.granted_until, plan.next)

    def _last_batch(self, planned: list[PlannedRange]) -> tuple[str, int] | None:
        """Return query and batch of the last epoch in a plan; the agent's own epochs have none."""
        for plan in reversed(planned):
            for number in range(plan.next - 1, plan.from_ - 1, -1):
                epoch = self.streams[plan.stream].epochs.get(number)
                if epoch is not None and epoch.query:
                    return (epoch.query, epoch.batch)
        return None

    def register_plan(
        self, request: PlanRequest, ranges: Mapping[str, tuple[int, int]], now: float
    ) -> tuple[tuple[str, int, int], ...]:
        """Register a plan again that is already in the reader's checkpoint.

        Returns:
            The epochs acknowledged by this call, as in :class:`Plan`.

        Raises:
            DataLossError: an epoch of the plan is gone, whatever the policy. With ``skip_lost``
                nothing is raised: :meth:`find_missing` returns the epochs to leave out.
            NotRoutedError: its route is cut, and the plan has epochs it was not granted before.
            OvertakenError: see :meth:`check_call`.
            ReadersExceededError: the reader is unknown, and there are too many.
            RevokedError: see :meth:`check_revoked`.
        """
        self.check_revoked(request.import_)
        self.check_call(request)
        self._check_granted(request, ranges)
        for name, lost in self.find_missing(ranges).items() if not request.skip_lost else ():
            raise DataLossError(
                name, lost[0][0], lost[-1][1], "they were planned by a batch in the checkpoint"
            )
        with self._tracking_fronts(request.reader, now):
            reader = self._get_reader(request, now)
            reader.opened = True
            finished = self._acknowledge(reader, request, now)
            for name, (first, next_) in ranges.items():
                if name not in self.streams:
                    continue
                cursor = reader.cursors.setdefault(name, Cursor(next=first, first=first))
                cursor.planned = (first, next_)
                cursor.granted_until = max(cursor.granted_until, next_)
            return finished

    def find_missing(
        self,
        ranges: Mapping[str, tuple[int, int]],
        *,
        broken: Mapping[str, Collection[int]] | None = None,
        before: Mapping[str, Sequence[MissingRange]] | None = None,
    ) -> dict[str, list[MissingRange]]:
        """Return which of these epochs are gone, by stream, in order.

        Args:
            ranges: epochs ``(first, next)`` to check, by stream.
            broken: retained epochs that can no longer be read completely.
            before: what was left out of these ranges before. It stays left out with the same row
                counts, even if it is readable again.
        """
        result: dict[str, list[MissingRange]] = {}
        for name, (first, next_) in ranges.items():
            stream = self.streams.get(name)
            missing = [r for r in (before or {}).get(name, ()) if first <= r[0] and r[1] <= next_]
            broken_ranges = [(n, n + 1) for n in sorted((broken or {}).get(name, ()))]
            retained = stream.retained_ranges(first, next_) if stream else ()
            intact = (part for low, high in retained for part in holes(broken_ranges, low, high))
            covered = sorted([*intact, *((r[0], r[1]) for r in missing)])
            for start, end in holes(covered, first, next_):
                known_rows = stream is not None and end <= stream.next
                rows = stream.rows_between(start, end) if stream and known_rows else None
                missing.append((start, end, rows))
            if missing:
                result[name] = sorted(missing, key=lambda g: g[0])
        return result

    def _check_granted(self, request: PlanRequest, ranges: Mapping[str, tuple[int, int]]) -> None:
        reader = self.readers.get(request.reader)
        routed = request.import_ not in self._cut_imports if reader is None else reader.routed
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
        known = self.readers.get(reader)
        if known is None or not self._has_claims(known, now):
            return False
        cursor = known.cursors.get(stream)
        planned = cursor.planned if cursor else None
        return planned is not None and planned[0] <= epoch < planned[1]
