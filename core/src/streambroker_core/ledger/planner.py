"""What a reader of an export may read next: its position, its plan, and the loss it is told of.

A reader brings its position; that acknowledges all below. It gets a plan: epochs that are pinned
for it until it acknowledges them. Changes of a reader's place are made here and, where routes
come and go, in the ledger.
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
"""How many earlier lives of a reader's agent are known, whose late calls change nothing."""
ROWLESS_BYTES = 1 << 20
"""How many bytes of epochs without rows a reader without control leaves unread, at most."""

_REMOVED = "they were removed while the reader was away"
_DAMAGED = "files of the exporter's log were removed or cut off, and they were in them"

MissingRange = tuple[int, int, int | None]
"""Epochs ``[first, next)`` that are gone, and how many rows they had, None if nobody knows."""


class DataLossError(StreambrokerError):
    """Epochs that nobody agreed to lose are gone. Raised to the reader; changes nothing."""

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
    """The import has no route to the export; nothing was opened."""

    code = "NotRouted"


class RevokedError(StreambrokerError):
    """The export has revoked the import: it reads nothing more, not even what was planned."""

    code = "Revoked"


class ReadersExceededError(StreambrokerError):
    """All places are taken by readers that live, or have claims; the new one got none."""

    code = "ReadersExceeded"


class OvertakenError(StreambrokerError):
    """A call that a newer one of the same reader has overtaken; nothing was done."""

    code = "Overtaken"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What a reader says when it wants its next micro-batch.

    Attributes:
        positions: first unfinished epoch by stream; acknowledges all below. Streams of other
            exports may be in it and are passed over.
        own_streams: the streams in ``positions`` that the reader knows to be of this export.
        has_opened: the reader has opened this export before, so a stream it does not know is a
            successor and is read from its first epoch.
        last: query and batch id of the last epoch it read of this export; epochs of that query
            up to that batch are published again over a lost log, and passed over.
        limit: do not plan at or above these, by stream; None for no limit.
        budget: bytes to plan at most; one epoch is planned whatever its size if ``at_least_one``.
        lease: seconds until the reader counts as away.
        skip_lost: loss that nobody agreed to is told and passed over; it does not stop the reader.
        granted: it may have what it was not given before.
        call: the life of the reader's agent, and the how many-th call for the reader in it this
            is; None if it does not say.
        control: of a reader of control tuples, the types that do not cut; None for others.
        tuples: control tuples to plan at most, ``payload`` their bytes.
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
    """The plan, stream by stream.

    Attributes:
        finished: the epochs acknowledged by this very call.
        unknown_streams: streams the reader knows to be of this export, and the export does not
            know.
        rowless_streams: streams of which there are epochs beyond the plan, all without a row, up to
            these: they are nothing to a reader without control.
        tuples: how many control tuples the plan has, ``payload`` their bytes.
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
    """Plans of readers, over the epochs there are."""

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
            DataLossError: the reader's next epochs are gone, its policy is ``wait``, and it is not
                lossy.
            OvertakenError: a later call of the reader was there before.
            ReadersExceededError: it is new, and there are too many.
            RevokedError: its import is revoked.
        """
        self.check_revoked(request.import_)
        self.check_call(request)
        with self._tracking_fronts(request.reader, now):
            return self._plan(request, now)

    def check_revoked(self, import_: str) -> None:
        """Refuse an import that is to read no more.

        Raises:
            RevokedError: the export has revoked it, its job or its namespace.
        """
        named = self._revoked_by(import_)
        if named is not None:
            raise RevokedError(
                f"the export has revoked {named}: {import_} reads nothing of it any more, and what"
                " it had planned is not kept. Its owner can take that back (field revoked)."
            )

    def check_call(self, request: PlanRequest) -> None:
        """Refuse a call whose sender has given it up and made another one since.

        It would take the reader back: its position, and with it the plan that is being read.

        Raises:
            OvertakenError: it is one.
        """
        reader = self.readers.get(request.reader)
        if reader is None or request.call is None or not (reader.routed and request.granted):
            return
        life, number = request.call
        if life in reader.agent_incarnations[:-1] or (
            life in reader.agent_incarnations and number < reader.calls
        ):
            raise OvertakenError(
                f"call {number} of reader {request.reader} comes after a later one; nothing is"
                f" planned"
                " for it."
            )

    def _revoked_by(self, import_: str) -> str | None:
        parts = import_.split("/")
        names = ("/".join(parts[:n]) for n in range(1, len(parts) + 1))
        return next((name for name in names if name in self._revoked), None)

    def _plan(self, request: PlanRequest, now: float) -> Plan:
        reader = self._get_reader(request, now)
        finished = self._acknowledge(reader, request, now)
        gone = tuple(
            sorted(s for s in request.own_streams if s not in {*self.streams, *self.forgotten})
        )
        if not reader.routed:
            return Plan(planned=(), finished=finished, routed=False, unknown_streams=gone)
        reader.start = request.start  # who registers a plan again, or has no route, does not say it
        lost = self._lost_between(reader, request, gone)
        if lost is None:
            reader.opened = True
            return Plan(planned=(), finished=finished, unknown_streams=gone)
        self._open_reader(reader, request)
        reader.control = request.control is not None
        room = self._make_budget(request)
        planned = self._plan_streams(reader, request, lost, room)
        self._pin(reader, planned)
        self._promote(reader)
        return Plan(
            planned=tuple(planned),
            finished=finished,
            bytes=request.budget - room.size,
            last=self._last_batch(planned),
            unknown_streams=gone,
            rowless_streams=self._find_rowless_ends(planned, request),
            tuples=request.tuples - room.tuples,
            payload=request.payload - room.payload,
        )

    def _plan_streams(
        self, reader: Reader, request: PlanRequest, lost_epochs: int, budget: PlanBudget
    ) -> list[PlannedRange]:
        """Return a plan of each stream in which there is something.

        Raises:
            DataLossError: what comes next is gone.
        """
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
        """Whether the window that has what is planned must not have the next stream's first epoch.

        A successor goes on where its predecessor ended, so what cuts within one cuts between two.
        """
        before = next((p for p in reversed(planned) if p.from_ < p.next), None)
        if budget.control is None or before is None:
            return False
        wanted = max(reader.cursors[stream.id].next, reader.resume.get(stream.id, 0))
        first = stream.epochs.get(stream.at_or_after(wanted))
        return budget.must_split(self.streams[before.stream].epochs.get(before.next - 1), first)

    def _find_rowless_ends(
        self, planned: Sequence[PlannedRange], request: PlanRequest
    ) -> tuple[tuple[str, int], ...]:
        """Return where the row-less ends of streams end, of a reader to whom they are nothing."""
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
        """Return how many epochs are missing at least between a lost log and what there is.

        Returns:
            None while that cannot be told, because nothing new has been published.

        Raises:
            DataLossError: epochs of the lost stream may not have been read, under ``wait``.
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
            f"the exporter has lost its log; it goes on with batch {first.batch} of query"
            f" {first.query}, the last one read was {request.last}",
        )

    def _count_skipped(self, reader: Reader, stream: Stream, request: PlanRequest) -> int:
        """Return how many batches are in no log between what a reader has read and a stream."""
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
        before = self.streams[names[max(0, names.index(stream.id) - 1)]]
        epoch = next(iter(stream.epochs.values()))
        return DataLossError(
            before.id,
            before.next,
            None,
            f"batches {epoch.batch - skipped} to {epoch.batch - 1} of query {epoch.query} were"
            f" published and are in no log; it goes on with batch {epoch.batch} (was an older copy"
            " of the exporter's data directory restored?)",
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
            life, reader.calls = request.call
            reader.agent_incarnations = (
                *(one for one in reader.agent_incarnations if one != life),
                life,
            )[-MAX_INCARNATIONS:]
        reader.lease_expires = max(reader.lease_expires, now + request.lease)
        return reader

    def _evict_reader(self, request: PlanRequest, now: float) -> None:
        """Forget the reader that is away longest, of those without any claim.

        Raises:
            ReadersExceededError: there is none, and no place is left.
        """
        if len(self.readers) < MAX_READERS:
            return
        idle = [
            r for r in self.readers.values() if r.lease_expires < now and not self._can_hold(r, now)
        ]
        if not idle:
            raise ReadersExceededError(
                f"{len(self.readers):,} readers live or hold epochs of this export; reader"
                f" {request.reader} of {request.import_} finds no place. Stop some, or lower"
                f" buffer.grace:"
                " those that are away then leave theirs sooner."
            )
        oldest = min(idle, key=lambda r: r.lease_expires)
        del self.readers[oldest.id]
        self.evicted.append(oldest.id)

    def _acknowledge(
        self, reader: Reader, request: PlanRequest, now: float
    ) -> tuple[tuple[str, int, int], ...]:
        """Take the reader's positions; a lossy one may be ahead of an older copy of the log."""
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
        """Give a reader that comes for the first time its place by its ``start`` policy."""
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
        """The reader does not miss what was removed by now, only what is missing from the log."""
        for stream in self.streams.values():
            reader.agreed_losses[stream.id] = stream.agreed_loss_end()

    def _promote(self, reader: Reader) -> None:
        """Let a reader that was turned hold again, once what it has before it is no danger."""
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
        found = stream.at_or_after(wanted)
        agreed = found if reader.is_dropping else reader.agreed_losses.get(stream.id, 0)
        agreed = min(max(agreed, wanted), found)
        if agreed < found and not request.skip_lost:
            missing = stream.count_missing(agreed, found)[0]
            raise DataLossError(stream.id, wanted, found, _DAMAGED if missing else _REMOVED)
        lost = stream.count_missing(wanted, agreed)
        from_ = found
        while from_ in stream.epochs and is_republished(stream.epochs[from_], request.last):
            from_ += 1
        limit = stream.next if request.limit is None else request.limit.get(stream.id, from_)
        end = budget.take_epochs(stream, from_, limit)
        return PlannedRange(
            stream=stream.id,
            from_=from_,
            next=end,
            dropped=(agreed - wanted - lost[0], stream.rows_between(wanted, agreed) - lost[1]),
            lost=(found - agreed + lost[0], stream.rows_between(agreed, found) + lost[1]),
            duplicates=(from_ - found, stream.rows_between(found, from_)),
            has_gap=from_ > cursor.next,
        )

    def _pin(self, reader: Reader, planned: list[PlannedRange]) -> None:
        for plan in planned:
            cursor = reader.cursors[plan.stream]
            cursor.planned = (plan.from_, plan.next) if plan.from_ < plan.next else None
            cursor.granted_until = max(cursor.granted_until, plan.next)

    def _last_batch(self, planned: list[PlannedRange]) -> tuple[str, int] | None:
        """Return the last batch in a plan; epochs of the agent's own are of none."""
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
            DataLossError: an epoch of the plan is gone, whatever the policy. A lossy reader
                asks :meth:`missing` and leaves those epochs out.
            NotRoutedError: its route is cut, and the plan is not one that it was given before.
            OvertakenError: a later call of the reader was there before.
            ReadersExceededError: it is not known (any more), and there are too many.
            RevokedError: its import is revoked.
        """
        self.check_revoked(request.import_)
        self.check_call(request)
        self._check_granted(request, ranges)
        for name, gone in self.find_missing(ranges).items() if not request.skip_lost else ():
            raise DataLossError(
                name, gone[0][0], gone[-1][1], "they were planned by a batch in the checkpoint"
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
            ranges: the epochs that are looked for, by stream.
            broken: epochs that are retained and that nobody can have whole any more.
            before: what was left out of these ranges before: it stays left out, with the same
                rows, also where it can be had again.
        """
        result: dict[str, list[MissingRange]] = {}
        for name, (first, next_) in ranges.items():
            stream = self.streams.get(name)
            gone = [g for g in (before or {}).get(name, ()) if first <= g[0] and g[1] <= next_]
            bad = [(n, n + 1) for n in sorted((broken or {}).get(name, ()))]
            there = stream.retained_ranges(first, next_) if stream else ()
            whole = (good for low, high in there for good in holes(bad, low, high))
            covered = sorted([*whole, *((g[0], g[1]) for g in gone)])
            for start, end in holes(covered, first, next_):
                known_rows = stream is not None and end <= stream.next
                rows = stream.rows_between(start, end) if stream and known_rows else None
                gone.append((start, end, rows))
            if gone:
                result[name] = sorted(gone, key=lambda g: g[0])
        return result

    def _check_granted(self, request: PlanRequest, ranges: Mapping[str, tuple[int, int]]) -> None:
        reader = self.readers.get(request.reader)
        routed = request.import_ not in self._cut_imports if reader is None else reader.routed
        if routed and request.granted:
            return
        for name, (_, next_) in ranges.items():
            cursor = reader.cursors.get(name) if reader else None
            given = cursor.granted_until if cursor else 0
            if next_ > given:
                raise NotRoutedError(
                    f"import {request.import_} has no route to this export any more: of stream"
                    f" {name}"
                    f" its reader was given the epochs below {given}, not those up to"
                    f" {next_ - 1}. Connect it again, or start with a new checkpoint."
                )

    def is_planned(self, reader: str, stream: str, epoch: int, now: float) -> bool:
        """Whether the reader may read this epoch now: a plan ends when grace is over, too."""
        known = self.readers.get(reader)
        if known is None or not self._has_claims(known, now):
            return False
        cursor = known.cursors.get(stream)
        planned = cursor.planned if cursor else None
        return planned is not None and planned[0] <= epoch < planned[1]
