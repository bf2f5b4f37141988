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

from collections.abc import Mapping
from dataclasses import dataclass, field

from streambroker_core.epochs import Epoch, Stream
from streambroker_core.errors import StreambrokerError
from streambroker_core.offset import Planned

READERS = 1_000


class DataLossError(StreambrokerError):
    """Epochs that nobody agreed to lose are gone. Raised to the reader; changes nothing."""

    code = "DataLoss"

    def __init__(self, stream: str, first: int, last: int | None, why: str) -> None:
        self.stream, self.first, self.last = stream, first, last
        which = f"epochs from {first} on" if last is None else f"epochs {first} to {last - 1}"
        super().__init__(
            f"{which} of stream {stream} are gone: {why}. Nothing was skipped;"
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


@dataclass(slots=True)
class Cursor:
    """A reader's place in one stream.

    Attributes:
        next: first epoch it has not finished.
        planned: the epochs ``[first, next)`` it has pinned, or None.
        first: where it began to read the stream; an older checkpoint that does not know the
            stream begins there again.
    """

    next: int
    planned: tuple[int, int] | None = None
    first: int = 0


@dataclass(slots=True)
class Reader:
    """One query that reads an import of some job.

    Attributes:
        until: end of its lease; it is away from then on.
        routed: its import is connected; a reader without a route claims only its plan.
        opened: it has read this export, or was connected before there was a stream; streams
            that come later are read from their first epoch.
        resume: lowest epoch it may read of a stream, set when its route returned.
        agreed: epochs below that are gone were lost by agreement (before it was connected, under
            ``drop``), by stream; a ``wait`` reader does not stop at them.
    """

    id: str
    import_: str
    policy: str
    start: str
    until: float
    routed: bool = True
    opened: bool = False
    cursors: dict[str, Cursor] = field(default_factory=dict)
    resume: dict[str, int] = field(default_factory=dict)
    agreed: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a reader says when it wants its next micro-batch.

    Attributes:
        positions: first unfinished epoch by stream; acknowledges all below. Streams of other
            exports may be in it and are passed over.
        own: the streams in ``positions`` that the reader knows to be of this export.
        known: the reader has opened this export before, so a stream it does not know is a
            successor and is read from its first epoch.
        last: query and batch id of the last epoch it read of this export; epochs of that query
            up to that batch are published again over a lost log, and passed over.
        limit: do not plan at or above these, by stream; None for no limit.
        budget: bytes to plan at most; one epoch is planned whatever its size if ``one``.
        lease: seconds until the reader counts as away.
    """

    reader: str
    import_: str
    policy: str
    start: str
    positions: Mapping[str, int]
    own: frozenset[str] = frozenset()
    known: bool = False
    last: tuple[str, int] | None = None
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
        self.forgotten: set[str] = set()
        self.evicted: list[str] = []
        self._cut: set[str] = set()
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
        """Drop a sealed stream without epochs, and the cursors in it; its id stays known."""
        del self.streams[stream]
        self.forgotten.add(stream)
        for reader in self.readers.values():
            reader.cursors.pop(stream, None)
            reader.resume.pop(stream, None)
            reader.agreed.pop(stream, None)

    def wanted(self, stream: str) -> bool:
        """Whether a known reader has not come to the end of a stream, be it there or removed.

        While one has, the stream has to stay known: its loss is told or counted, not passed over.
        """
        known = self.streams[stream]
        return any(self._wanted_from(r, known) < known.next for r in self.readers.values())

    def lag(self, reader: Reader) -> tuple[int, int]:
        """Return how many epochs and bytes a reader has still to finish of what is retained."""
        if not reader.routed:
            return 0, 0
        epochs = size = 0
        for stream in self.streams.values():
            wanted = self._wanted_from(reader, stream)
            if wanted < stream.next:
                first = stream.at_or_after(wanted)
                epochs += stream.next - first
                size += stream.bytes_from(first)
        return epochs, size

    # -- routes and leases -------------------------------------------------------------------

    def set_routes(self, routes: Mapping[str, str]) -> None:
        """Take the exporter's own route table: policy (``wait`` or ``drop``) by import.

        A reader whose import left the table claims only its plan. One whose import came back
        goes on where its ``start`` policy says, counted from now.
        """
        for reader in self.readers.values():
            if reader.import_ in routes:
                policy = routes[reader.import_]
                if reader.policy == "drop" and policy != "drop":
                    self._agree(reader)
                reader.policy = policy
                if not reader.routed:
                    self._resume(reader)
            elif reader.import_ in self._routes:
                reader.routed = False
        self._cut = (self._cut | set(self._routes)) - set(routes)
        self._routes = dict(routes)

    def _resume(self, reader: Reader) -> None:
        reader.routed = True
        self._agree(reader)
        for stream in self.streams.values():
            latest = reader.start == "latest"
            reader.resume[stream.id] = stream.next if latest else stream.at_or_after(0)

    def _agree(self, reader: Reader) -> None:
        """Whatever is gone by now, the reader does not miss."""
        for stream in self.streams.values():
            reader.agreed[stream.id] = stream.whole_from()

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
        if not self._follows(reader, ask):
            return Answer(planned=(), finished=finished)
        self._open(reader, ask)
        for stream in list(self.streams.values()):
            if not self._reads(reader, stream):
                continue
            cursor = reader.cursors.setdefault(stream.id, Cursor(next=0))
            if stream.id not in ask.positions:
                cursor.next = cursor.first
            elif stream.sealed and cursor.next >= stream.next:
                continue
            plan, size = self._plan_stream(reader, stream, ask, budget, one=ask.one and total == 0)
            planned.append(plan)
            budget, total = budget - size, total + size
            if plan.next < stream.next:
                break
        self._pin(reader, planned)
        return Answer(
            planned=tuple(planned), finished=finished, bytes=total, last=self._last(planned)
        )

    def _follows(self, reader: Reader, ask: Ask) -> bool:
        """Whether what there is follows what the reader has read, where its stream was lost.

        Returns:
            False while that cannot be told, because nothing new has been published.

        Raises:
            DataLossError: epochs of the lost stream may not have been read, under ``wait``.
        """
        lost = sorted(s for s in ask.own if s not in self.streams and s not in self.forgotten)
        if not lost or reader.policy == "drop" or any(s in ask.positions for s in self.streams):
            return True
        epochs = [e for s in self.streams.values() for e in s.epochs.values()]
        first = next((e for e in epochs if not _again(e, ask.last)), None)
        if first is None:
            return False
        if ask.last is not None and (first.query, first.batch) == (ask.last[0], ask.last[1] + 1):
            return True
        raise DataLossError(
            lost[-1],
            ask.positions[lost[-1]],
            None,
            f"the exporter has lost its log; it goes on with batch {first.batch} of query"
            f" {first.query}, the last one read was {ask.last}",
        )

    def _reader(self, ask: Ask, now: float) -> Reader:
        reader = self.readers.get(ask.reader)
        if reader is None:
            policy = self._routes.get(ask.import_, ask.policy)
            reader = Reader(
                id=ask.reader,
                import_=ask.import_,
                policy=policy,
                start=ask.start,
                until=now,
                routed=ask.import_ not in self._cut,
            )
            self.readers[ask.reader] = reader
            while len(self.readers) > READERS:
                others = (r for r in self.readers.values() if r is not reader)
                oldest = min(others, key=lambda r: r.until)
                del self.readers[oldest.id]
                self.evicted.append(oldest.id)
        reader.start = ask.start
        reader.until = max(reader.until, now + ask.lease)
        return reader

    def _acknowledge(
        self, reader: Reader, positions: Mapping[str, int]
    ) -> tuple[tuple[str, int, int], ...]:
        own = [s for s in self.streams.values() if s.id in positions]
        for stream in own:
            if positions[stream.id] > stream.next:
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
            cursor = reader.cursors.setdefault(stream.id, Cursor(next=next_, first=next_))
            if next_ > cursor.next:
                finished.append((stream.id, cursor.next, next_))
            cursor.next = next_
            if cursor.planned and cursor.planned[1] <= next_:
                cursor.planned = None
        return tuple(finished)

    def _open(self, reader: Reader, ask: Ask) -> None:
        """Give a reader that comes for the first time its place by its ``start`` policy."""
        if not (reader.opened or ask.known or any(s in ask.positions for s in self.streams)):
            self._agree(reader)
            streams = list(self.streams.values())
            if reader.start == "latest":
                for stream in streams[-1:]:
                    reader.cursors[stream.id] = Cursor(next=stream.next, first=stream.next)
            else:
                for stream in ([s for s in streams if s.epochs] or streams[-1:])[:1]:
                    first = stream.at_or_after(0)
                    reader.cursors[stream.id] = Cursor(next=first, first=first)
        reader.opened = True

    def _reads(self, reader: Reader, stream: Stream) -> bool:
        """Whether a stream is the one the reader began with, or a successor of it."""
        known = next((name for name in self.streams if name in reader.cursors), None)
        if known is None:
            return reader.opened
        names = list(self.streams)
        return names.index(stream.id) >= names.index(known)

    def _plan_stream(
        self, reader: Reader, stream: Stream, ask: Ask, budget: int, *, one: bool
    ) -> tuple[Planned, int]:
        cursor = reader.cursors[stream.id]
        wanted = max(cursor.next, reader.resume.get(stream.id, 0))
        found = stream.at_or_after(wanted)
        if found > wanted and reader.policy != "drop" and found > reader.agreed.get(stream.id, 0):
            raise DataLossError(
                stream.id, wanted, found, "they were removed while the reader was away"
            )
        from_ = found
        while from_ in stream.epochs and _again(stream.epochs[from_], ask.last):
            from_ += 1
        end, size = from_, 0
        limit = stream.next if ask.limit is None else ask.limit.get(stream.id, from_)
        while end in stream.epochs and end < limit:
            bytes_ = stream.epochs[end].bytes
            if size + bytes_ > budget and not (one and end == from_):
                break
            size, end = size + bytes_, end + 1
        plan = Planned(
            stream=stream.id,
            from_=from_,
            next=end,
            dropped=(found - wanted, stream.rows_between(wanted, found)),
            duplicates=(from_ - found, stream.rows_between(found, from_)),
            moved=from_ > cursor.next,
        )
        return plan, size

    def _pin(self, reader: Reader, planned: list[Planned]) -> None:
        for plan in planned:
            pinned = (plan.from_, plan.next) if plan.from_ < plan.next else None
            reader.cursors[plan.stream].planned = pinned

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
        reader.opened = True
        finished = self._acknowledge(reader, ask.positions)
        for name, (first, next_) in ranges.items():
            cursor = reader.cursors.setdefault(name, Cursor(next=first, first=first))
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

    def _wanted_from(self, reader: Reader, stream: Stream) -> int:
        """Return the first epoch of ``stream`` that a reader still has to read."""
        if not self._reads(reader, stream):
            return stream.next
        cursor = reader.cursors.get(stream.id)
        return max(0 if cursor is None else cursor.next, reader.resume.get(stream.id, 0))

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
            s.bytes_from(min(self._wanted_from(r, s) for r in holding))
            for s in self.streams.values()
        )

    def blocked_by(self, now: float) -> list[Holder]:
        """Return who keeps the export waiting, slowest first; empty if a batch may be admitted."""
        if self.held_bytes(now) < self.limits.max_bytes:
            return []
        holders = [
            Holder(
                reader=r.id,
                import_=r.import_,
                bytes=sum(s.bytes_from(self._wanted_from(r, s)) for s in self.streams.values()),
                away=max(0.0, now - r.until),
            )
            for r in self._holding(now)
        ]
        return sorted((h for h in holders if h.bytes), key=lambda h: -h.bytes)

    def sweep(self, now: float) -> dict[str, list[int]]:
        """Remove the epochs that size and age take, and return their numbers by stream.

        Size never takes the newest epoch: a reader that drops would otherwise never get one that
        is larger than the log.
        """
        total = sum(s.bytes for s in self.streams.values())
        limits = self.limits
        oldest = None if limits.max_age is None else now - limits.max_age
        if total <= limits.max_bytes and oldest is None:
            return {}
        removed: dict[str, list[int]] = {}
        for stream in self.streams.values():
            claimed = self._claimed_in(stream, now)
            for epoch in list(stream.epochs.values()):
                newest = not stream.sealed and epoch.number + 1 == stream.next
                full = total > limits.max_bytes and not newest
                old = oldest is not None and epoch.published < oldest
                if epoch.number >= claimed.held or not (full or old):
                    break
                if claimed.planned(epoch.number):
                    continue
                total -= stream.remove(epoch.number).bytes
                removed.setdefault(stream.id, []).append(epoch.number)
        return removed

    def _claimed_in(self, stream: Stream, now: float) -> _Claimed:
        held = min((self._wanted_from(r, stream) for r in self._holding(now)), default=stream.next)
        plans = tuple(
            cursor.planned
            for reader in self.readers.values()
            if self._claims(reader, now)
            for cursor in [reader.cursors.get(stream.id)]
            if cursor is not None and cursor.planned is not None
        )
        return _Claimed(held=held, plans=plans)


def _again(epoch: Epoch, last: tuple[str, int] | None) -> bool:
    return last is not None and epoch.query == last[0] and epoch.batch <= last[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Claimed:
    held: int
    plans: tuple[tuple[int, int], ...]

    def planned(self, number: int) -> bool:
        return any(first <= number < next_ for first, next_ in self.plans)


__all__ = [
    "Answer",
    "Ask",
    "Cursor",
    "DataLossError",
    "Epoch",
    "Holder",
    "Ledger",
    "Limits",
    "Reader",
    "Stream",
]
