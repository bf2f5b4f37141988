"""Who holds which epoch of an export: readers, plans, and what may be removed.

Theory. An export's log is a row of *streams*, each a row of numbered epochs. A *reader* has one
cursor per stream: ``next`` is the first epoch it has not finished, ``planned`` the epochs it has
pinned for its current micro-batch. Claims, strongest first:

1. planned: never removed until acknowledged or the reader is away for longer than grace;
2. held: every epoch that a routed ``wait`` reader, live or within grace, has not finished;
3. size and age: remove the oldest epochs that nobody claims.

A ``drop`` reader claims nothing but its plan, so size and age take the oldest epochs it has not
planned; that is what dropping is. Nothing is counted at removal: what a reader lost is the
distance between its position and the next epoch that is still there, so a replay counts once.

Every change of this state happens in this file. Time is an argument, in seconds; only differences
count. Nothing here does I/O: the caller performs what is returned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from streambroker_core.errors import StreambrokerError
from streambroker_core.offset import Planned

TOMBSTONES = 100_000
READERS = 1_000


class DataLossError(StreambrokerError):
    """Epochs that nobody agreed to lose are gone. Raised to the reader; changes nothing."""

    code = "DataLoss"

    def __init__(self, stream: str, first: int, last: int, why: str) -> None:
        self.stream, self.first, self.last = stream, first, last
        super().__init__(
            f"epochs {first} to {last - 1} of stream {stream} are gone: {why}. Nothing was skipped;"
            " the query stops here. Restore the exporter's data directory, or start the importer"
            " with a new checkpoint."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an export may keep.

    Attributes:
        max_bytes: size at which unclaimed epochs are removed and ``wait`` waits; bytes.
        max_age: age at which unclaimed epochs are removed; seconds, None for no limit.
        grace: how long a reader that is away keeps its claims; seconds.
    """

    max_bytes: int = 1 << 30
    max_age: float | None = None
    grace: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """One published micro-batch. ``bytes`` is its size in the log, ``published`` its time."""

    number: int
    rows: int
    bytes: int
    published: float
    query: str
    batch: int


@dataclass(slots=True)
class Stream:
    """One log of epochs; ``next`` is the number the next epoch gets, ``bytes`` what is kept."""

    id: str
    sealed: bool = False
    next: int = 0
    bytes: int = 0
    epochs: dict[int, Epoch] = field(default_factory=dict)
    rows_before: dict[int, int] = field(default_factory=lambda: {0: 0})
    bytes_before: dict[int, int] = field(default_factory=lambda: {0: 0})

    def add(self, epoch: Epoch) -> None:
        self.epochs[epoch.number] = epoch
        self.bytes += epoch.bytes
        self.next = epoch.number + 1
        self.rows_before[self.next] = self.rows_before[epoch.number] + epoch.rows
        self.bytes_before[self.next] = self.bytes_before[epoch.number] + epoch.bytes
        for before in (self.rows_before, self.bytes_before):
            while len(before) > TOMBSTONES:
                del before[next(iter(before))]

    def skip_to(self, number: int, rows_before: int) -> None:
        """Begin at a later epoch: the ones before are gone, ``rows_before`` were in them."""
        if not self.epochs:
            self.rows_before, self.bytes_before = {}, {}
            self.bytes = 0
        self.next = number
        self.rows_before[number] = rows_before
        self.bytes_before[number] = next(reversed(self.bytes_before.values()), 0)

    def remove(self, number: int) -> Epoch:
        epoch = self.epochs.pop(number)
        self.bytes -= epoch.bytes
        return epoch

    def at_or_after(self, number: int) -> int:
        """Return the first retained epoch not below ``number``, or ``next`` if there is none."""
        if number in self.epochs or not self.epochs:
            return number if number in self.epochs else max(number, self.next)
        return next((n for n in self.epochs if n >= number), max(number, self.next))

    def rows_between(self, first: int, last: int) -> int:
        return _before(self.rows_before, last) - _before(self.rows_before, first)

    def bytes_from(self, number: int) -> int:
        return self.bytes_before[self.next] - _before(self.bytes_before, number)


def _before(sums: Mapping[int, int], number: int) -> int:
    """Return the sum before an epoch; where it is not known any more, the nearest that is."""
    if number in sums:
        return sums[number]
    lower = [n for n in sums if n <= number]
    return sums[lower[-1]] if lower else next(iter(sums.values()))


@dataclass(slots=True)
class Cursor:
    """A reader's place in one stream; ``planned`` is ``(first, next)`` or None."""

    next: int
    planned: tuple[int, int] | None = None


@dataclass(slots=True)
class Reader:
    """One query that reads an import of some job.

    Attributes:
        until: end of its lease; it is away from then on.
        routed: its import is connected; a reader without a route claims only its plan.
        resume: lowest epoch it may read of a stream, set when its route returned.
    """

    id: str
    import_: str
    policy: str
    start: str
    until: float
    routed: bool = True
    cursors: dict[str, Cursor] = field(default_factory=dict)
    resume: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a reader says when it wants its next micro-batch.

    Attributes:
        positions: first unfinished epoch by stream; acknowledges all below. Streams of other
            exports may be in it and are passed over.
        known: the reader has opened this export before, so a stream it does not know is a
            successor and is read from its first epoch.
        limit: do not plan at or above these, by stream; None for no limit.
        budget: bytes to plan at most; one epoch is planned whatever its size if ``one``.
        lease: seconds until the reader counts as away.
    """

    reader: str
    import_: str
    policy: str
    start: str
    positions: Mapping[str, int]
    known: bool = False
    limit: Mapping[str, int] | None = None
    budget: int = 256 << 20
    one: bool = True
    lease: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The plan, stream by stream; ``finished`` are the epochs acknowledged by this very call."""

    planned: tuple[Planned, ...]
    finished: tuple[tuple[str, int, int], ...] = ()
    bytes: int = 0
    last: tuple[str, int] | None = None
    routed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A reader that keeps the log full. ``bytes`` it has not finished; ``away`` seconds or 0."""

    reader: str
    import_: str
    bytes: int
    away: float


class Ledger:
    """The epochs of one export and the claims on them."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.streams: dict[str, Stream] = {}
        self.readers: dict[str, Reader] = {}
        self._routes: dict[str, str] = {}

    # -- streams -----------------------------------------------------------------------------

    def open(self, stream: str) -> None:
        """Begin a stream; its predecessors are sealed."""
        for earlier in self.streams.values():
            earlier.sealed = True
        self.streams[stream] = Stream(stream)

    def publish(self, stream: str, epoch: Epoch) -> None:
        """Take in an epoch that is durable; ``epoch.number`` is the stream's ``next``."""
        if epoch.number != self.streams[stream].next:
            raise ValueError(f"epoch {epoch.number} after {self.streams[stream].next - 1}")
        self.streams[stream].add(epoch)

    def forget_stream(self, stream: str) -> None:
        """Drop a sealed stream without epochs, and the cursors in it."""
        del self.streams[stream]
        for reader in self.readers.values():
            reader.cursors.pop(stream, None)
            reader.resume.pop(stream, None)

    # -- routes and leases -------------------------------------------------------------------

    def set_routes(self, routes: Mapping[str, str]) -> None:
        """Take the exporter's own route table: policy (``wait`` or ``drop``) by import.

        A reader whose import left the table claims only its plan. One whose import came back
        goes on where its ``start`` policy says, counted from now.
        """
        for reader in self.readers.values():
            if reader.import_ in routes:
                reader.policy = routes[reader.import_]
                if not reader.routed:
                    self._resume(reader)
            elif reader.import_ in self._routes:
                reader.routed = False
        self._routes = dict(routes)

    def _resume(self, reader: Reader) -> None:
        reader.routed = True
        for stream in self.streams.values():
            if reader.start == "latest":
                reader.resume[stream.id] = stream.next
                if stream.id not in reader.cursors and self._has_earlier(reader, stream.id):
                    reader.cursors[stream.id] = Cursor(next=stream.next)

    def renew(self, reader: str, until: float) -> None:
        """A sign of life; unknown readers are passed over."""
        if reader in self.readers:
            self.readers[reader].until = max(self.readers[reader].until, until)

    def leave(self, reader: str, now: float) -> None:
        """The reader's process ended in order: its lease is over, its claims last for grace."""
        if reader in self.readers:
            self.readers[reader].until = now

    # -- reading -----------------------------------------------------------------------------

    def plan(self, ask: Ask, now: float) -> Answer:
        """Acknowledge the reader's position and pin its next epochs.

        Raises:
            DataLossError: the reader's next epochs are gone and its policy is ``wait``.
        """
        reader = self._reader(ask, now)
        finished = self._acknowledge(reader, ask.positions)
        if not reader.routed:
            return Answer(planned=(), finished=finished, routed=False)
        planned: list[Planned] = []
        budget, total = ask.budget, 0
        opened = ask.known or any(s in ask.positions for s in self.streams)
        for stream in self._open_to(reader, opened, ask.positions):
            plan, size = self._plan_stream(reader, stream, ask, budget, one=ask.one and total == 0)
            planned.append(plan)
            budget, total = budget - size, total + size
            if plan.next < stream.next:
                break
        self._pin(reader, planned, ask.positions)
        return Answer(
            planned=tuple(planned), finished=finished, bytes=total, last=self._last(planned)
        )

    def _reader(self, ask: Ask, now: float) -> Reader:
        reader = self.readers.get(ask.reader)
        if reader is None:
            policy = self._routes.get(ask.import_, ask.policy)
            reader = Reader(
                id=ask.reader, import_=ask.import_, policy=policy, start=ask.start, until=now
            )
            self.readers[ask.reader] = reader
            while len(self.readers) > READERS:
                oldest = min(self.readers.values(), key=lambda r: r.until)
                del self.readers[oldest.id]
        reader.start = ask.start
        reader.until = max(reader.until, now + ask.lease)
        return reader

    def _acknowledge(
        self, reader: Reader, positions: Mapping[str, int]
    ) -> tuple[tuple[str, int, int], ...]:
        finished = []
        for stream in self.streams.values():
            if stream.id not in positions:
                continue
            next_ = positions[stream.id]
            if next_ > stream.next:
                raise DataLossError(
                    stream.id,
                    stream.next,
                    next_,
                    f"the reader has read up to epoch {next_ - 1}, the log ends at epoch"
                    f" {stream.next - 1} (was an older copy of it restored?)",
                )
            cursor = reader.cursors.setdefault(stream.id, Cursor(next=next_))
            if next_ > cursor.next:
                finished.append((stream.id, cursor.next, next_))
            cursor.next = next_
            if cursor.planned and cursor.planned[1] <= next_:
                cursor.planned = None
        return tuple(finished)

    def _open_to(
        self, reader: Reader, opened: bool, positions: Mapping[str, int]
    ) -> Iterator[Stream]:
        """Yield the streams the reader reads, oldest first, with a cursor in each."""
        begun = opened
        streams = list(self.streams.values())
        first_known = next((i for i, s in enumerate(streams) if s.id in reader.cursors), None)
        for index, stream in enumerate(streams):
            if first_known is not None and index < first_known:
                continue
            if stream.id not in reader.cursors:
                if begun or first_known is not None:
                    reader.cursors[stream.id] = Cursor(next=0)
                elif reader.start == "earliest":
                    reader.cursors[stream.id] = Cursor(next=stream.at_or_after(0))
                    begun = True
                elif index + 1 == len(streams):
                    reader.cursors[stream.id] = Cursor(next=stream.next)
                else:
                    continue
            drained = stream.sealed and reader.cursors[stream.id].next >= stream.next
            if not drained or stream.id not in positions:
                yield stream

    def _plan_stream(
        self, reader: Reader, stream: Stream, ask: Ask, budget: int, *, one: bool
    ) -> tuple[Planned, int]:
        cursor = reader.cursors[stream.id]
        wanted = max(cursor.next, reader.resume.get(stream.id, 0))
        from_ = stream.at_or_after(wanted)
        dropped = (0, 0)
        if from_ > wanted:
            if reader.policy != "drop":
                raise DataLossError(
                    stream.id, wanted, from_, "they were removed while the reader was away"
                )
            dropped = (from_ - wanted, stream.rows_between(wanted, from_))
        end, size = from_, 0
        limit = stream.next if ask.limit is None else ask.limit.get(stream.id, from_)
        while end in stream.epochs and end < limit:
            bytes_ = stream.epochs[end].bytes
            if size + bytes_ > budget and not (one and end == from_):
                break
            size, end = size + bytes_, end + 1
        plan = Planned(
            stream=stream.id, from_=from_, next=end, dropped=dropped, moved=from_ > cursor.next
        )
        return plan, size

    def _pin(self, reader: Reader, planned: list[Planned], positions: Mapping[str, int]) -> None:
        for plan in planned:
            cursor = reader.cursors[plan.stream]
            cursor.planned = (plan.from_, plan.next) if plan.from_ < plan.next else None
            if plan.stream not in positions:
                cursor.next = plan.from_

    def _last(self, planned: list[Planned]) -> tuple[str, int] | None:
        for plan in reversed(planned):
            epoch = self.streams[plan.stream].epochs.get(plan.next - 1)
            if epoch is not None and plan.next > plan.from_:
                return (epoch.query, epoch.batch)
        return None

    def replan(
        self, ask: Ask, ranges: Mapping[str, tuple[int, int]], now: float
    ) -> tuple[tuple[str, int, int], ...]:
        """Register a plan again that is already in the reader's checkpoint.

        Returns:
            The epochs acknowledged by this call, as in :class:`Answer`.

        Raises:
            DataLossError: an epoch of the plan is gone, whatever the policy.
        """
        for name, (first, next_) in ranges.items():
            stream = self.streams.get(name)
            gone = [n for n in range(first, next_) if stream is None or n not in stream.epochs]
            if gone:
                raise DataLossError(
                    name, gone[0], gone[-1] + 1, "they were planned by a batch in the checkpoint"
                )
        reader = self._reader(ask, now)
        finished = self._acknowledge(reader, ask.positions)
        for name, (first, next_) in ranges.items():
            cursor = reader.cursors.setdefault(name, Cursor(next=first))
            cursor.planned = (first, next_)
        return finished

    def is_planned(self, reader: str, stream: str, epoch: int) -> bool:
        """Whether the reader may read this epoch now."""
        known = self.readers.get(reader)
        cursor = known.cursors.get(stream) if known else None
        planned = cursor.planned if cursor else None
        return planned is not None and planned[0] <= epoch < planned[1]

    # -- claims ------------------------------------------------------------------------------

    def _claims(self, reader: Reader, now: float) -> bool:
        return now <= reader.until + self.limits.grace

    def _has_earlier(self, reader: Reader, stream: str) -> bool:
        for name in self.streams:
            if name == stream:
                return False
            if name in reader.cursors:
                return True
        return False

    def _held_from(self, reader: Reader, stream: Stream) -> int:
        """Return the first epoch of ``stream`` that a holding reader still wants."""
        cursor = reader.cursors.get(stream.id)
        if cursor is not None:
            return max(cursor.next, reader.resume.get(stream.id, 0))
        return 0 if self._has_earlier(reader, stream.id) else stream.next

    def _holding(self, now: float) -> list[Reader]:
        return [
            r
            for r in self.readers.values()
            if r.policy == "wait" and r.routed and self._claims(r, now)
        ]

    def held_bytes(self, now: float) -> int:
        """Return the bytes that ``wait`` readers have not finished, each epoch counted once."""
        holding = self._holding(now)
        if not holding:
            return 0
        return sum(
            s.bytes_from(min(self._held_from(r, s) for r in holding)) for s in self.streams.values()
        )

    def blocked_by(self, now: float) -> list[Holder]:
        """Return who keeps the export waiting, slowest first; empty if a batch may be admitted."""
        if self.held_bytes(now) < self.limits.max_bytes:
            return []
        holders = [
            Holder(
                reader=r.id,
                import_=r.import_,
                bytes=sum(s.bytes_from(self._held_from(r, s)) for s in self.streams.values()),
                away=max(0.0, now - r.until),
            )
            for r in self._holding(now)
        ]
        return sorted((h for h in holders if h.bytes), key=lambda h: -h.bytes)

    def sweep(self, now: float) -> dict[str, list[int]]:
        """Remove the epochs that size and age take, and return their numbers by stream."""
        total = sum(s.bytes for s in self.streams.values())
        limits = self.limits
        oldest = None if limits.max_age is None else now - limits.max_age
        if total <= limits.max_bytes and oldest is None:
            return {}
        removed: dict[str, list[int]] = {}
        for stream in self.streams.values():
            claimed = self._claimed_in(stream, now)
            for epoch in list(stream.epochs.values()):
                full = total > limits.max_bytes
                old = oldest is not None and epoch.published < oldest
                if epoch.number >= claimed.held or not (full or old):
                    break
                if claimed.planned(epoch.number):
                    continue
                total -= stream.remove(epoch.number).bytes
                removed.setdefault(stream.id, []).append(epoch.number)
        return removed

    def _claimed_in(self, stream: Stream, now: float) -> _Claimed:
        held = min((self._held_from(r, stream) for r in self._holding(now)), default=stream.next)
        plans = tuple(
            cursor.planned
            for reader in self.readers.values()
            if self._claims(reader, now)
            for cursor in [reader.cursors.get(stream.id)]
            if cursor is not None and cursor.planned is not None
        )
        return _Claimed(held=held, plans=plans)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Claimed:
    held: int
    plans: tuple[tuple[int, int], ...]

    def planned(self, number: int) -> bool:
        return any(first <= number < next_ for first, next_ in self.plans)
