"""Who claims which epoch of an export, and what may be removed.

Claims, strongest first:

1. planned: never removed until acknowledged or the reader is away for longer than grace;
2. held: every epoch that a routed ``wait`` reader, live or within grace, has not finished;
3. size, in the log and in memory, and age: remove the oldest epochs that nobody claims.

A ``drop`` reader claims nothing but its plan, so size and age take the oldest epochs it has not
planned; that is what dropping is. A ``wait`` reader that kept the export waiting for longer than
``wait_limit`` is *turned*: it drops until it has come near the end again. Nothing is counted at
removal: what a reader lost is the distance between its position and the next epoch that is still
there, so a replay counts once.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from streambroker_core.ledger.epochs import Stream

MEMORY_BYTES = 128 << 20
"""What the retained epochs of an export may take in memory before its log counts as full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionLimits:
    """What an export may keep.

    Attributes:
        max_bytes: size at which unclaimed epochs are removed and ``wait`` waits; bytes.
        max_age: age at which unclaimed epochs are removed; seconds, None for no limit.
        grace: how long a reader that is away keeps its claims; seconds.
        wait_limit: how long the export waits before it turns the slowest; seconds, None: for ever.
    """

    max_bytes: int = 1 << 30
    max_age: float | None = None
    grace: float = 600.0
    wait_limit: float | None = None


@dataclass(slots=True)
class Cursor:
    """A reader's place in one stream.

    Attributes:
        next: first epoch it has not finished.
        planned: the epochs ``[first, next)`` it has pinned, or None.
        first: where it began to read the stream; an older checkpoint that does not know the
            stream begins there again.
        granted_until: end of what it may have read while it had a route; without one it gets no
            more.
    """

    next: int
    planned: tuple[int, int] | None = None
    first: int = 0
    granted_until: int = 0


@dataclass(slots=True)
class Reader:
    """One query that reads an import of some job.

    Attributes:
        lease_expires: end of its lease; it is away from then on.
        routed: its import is connected; a reader without a route claims only its plan.
        opened: it has read this export, or was connected before there was a stream; streams
            that come later are read from their first epoch.
        resume: lowest epoch it may read of a stream, set when its route returned.
        agreed_losses: epochs below that are gone were lost by agreement (before it was connected,
            under
            ``drop``), by stream; a ``wait`` reader does not stop at them.
        query: the streaming query whose tasks read for it, as last told; None before they did.
        last_progress: when it finished an epoch last, or came.
        demoted: it waits by its policy, and drops because the export waited for it too long.
        demotions: how often that has happened.
        agent_incarnations: the lives of its agent that have asked for it, the present one last.
        calls: the number of the last call in that life.
        control: it reads control tuples.
    """

    id: str
    import_: str
    policy: str
    start: str
    lease_expires: float
    routed: bool = True
    opened: bool = False
    cursors: dict[str, Cursor] = field(default_factory=dict)
    resume: dict[str, int] = field(default_factory=dict)
    agreed_losses: dict[str, int] = field(default_factory=dict)
    query: str | None = None
    last_progress: float = 0.0
    demoted: bool = False
    demotions: int = 0
    agent_incarnations: tuple[str, ...] = ()
    calls: int = 0
    control: bool = False

    @property
    def is_dropping(self) -> bool:
        """Whether it loses the oldest epochs instead of holding them."""
        return self.policy == "drop" or self.demoted

    def referenced_epochs(self, stream: str) -> set[int]:
        """Return the epochs of a stream at which it stands, may come back, or begins to count."""
        known = {self.resume.get(stream, 0), self.agreed_losses.get(stream, 0)}
        cursor = self.cursors.get(stream)
        if cursor is not None:
            known |= {cursor.next, cursor.first, cursor.granted_until, *(cursor.planned or ())}
        return known

    @property
    def is_holding(self) -> bool:
        """Whether it holds what it has not finished, while it lives and for grace."""
        return self.routed and not self.is_dropping


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockingReader:
    """A reader that keeps the log full.

    Attributes:
        bytes: what it has not finished.
        away: for how many seconds it has been away, 0 if it lives.
        query: the streaming query that reads, None if that is not known.
        last_progress: when it finished an epoch last.
        ring: the exports for which its query waits and which, in the end, wait for this one; None
            if it is not in such a ring, see :mod:`chains <streambroker_core.ledger.wait_chains>`.
    """

    reader: str
    import_: str
    bytes: int
    away: float
    query: str | None = None
    last_progress: float = 0.0
    ring: tuple[str, ...] | None = None


class Lag(NamedTuple):
    """What a reader has still to finish of what is retained.

    ``since`` is when the oldest of it was published, None if there is nothing; ``memory`` is what
    its agent keeps of it in memory, in bytes.
    """

    epochs: int
    rows: int
    bytes: int
    since: float | None
    memory: int = 0


@dataclass(slots=True)
class _Front:
    """Where the slowest ``wait`` readers of a stream stand, and how many stand there."""

    position: int
    readers: int


class Retention:
    """The streams of one export, its readers, and what they hold.

    A log is full when its epochs take ``limits.max_bytes``, or ``max_memory`` in memory: of tiny
    epochs so many fit into the log that its agent could not hold what it knows of them.

    Where the slowest stand is kept by stream, so that a plan does not look at all readers. What
    is kept is forgotten when routes, limits, streams or leases change other than by time going on.
    """

    def __init__(self, limits: RetentionLimits | None = None) -> None:
        self._limits = limits or RetentionLimits()
        self.max_memory = MEMORY_BYTES
        self.streams: dict[str, Stream] = {}
        self.readers: dict[str, Reader] = {}
        self._fronts: dict[str, _Front] = {}
        self._fronts_until = math.inf
        self._fronts_at = -math.inf

    @property
    def limits(self) -> RetentionLimits:
        """What the export may keep."""
        return self._limits

    @limits.setter
    def limits(self, limits: RetentionLimits) -> None:
        self._limits = limits
        self._forget_fronts()

    def _has_claims(self, reader: Reader, now: float) -> bool:
        return now <= reader.lease_expires + self.limits.grace

    def _can_hold(self, reader: Reader, now: float) -> bool:
        """Whether a reader keeps epochs from being removed, or may come to."""
        if not self._has_claims(reader, now):
            return False
        return reader.is_holding or any(c.planned for c in reader.cursors.values())

    def _first_unread(self, reader: Reader, stream: Stream) -> int:
        """Return the first epoch of ``stream`` that a reader still has to read."""
        if not self._reads_stream(reader, stream):
            return stream.next
        cursor = reader.cursors.get(stream.id)
        return max(0 if cursor is None else cursor.next, reader.resume.get(stream.id, 0))

    def _reads_stream(self, reader: Reader, stream: Stream) -> bool:
        """Whether a stream is the one the reader began with, or a successor of it."""
        known = next((name for name in self.streams if name in reader.cursors), None)
        if known is None:
            return reader.opened
        names = list(self.streams)
        return names.index(stream.id) >= names.index(known)

    def is_unread(self, stream: str) -> bool:
        """Whether a known reader has not come to the end of a stream, be it there or removed.

        While one has, the stream has to stay known: its loss is told or counted, not passed over.
        """
        return any(self.has_unread(reader, stream) for reader in self.readers)

    def has_unread(self, reader: str, stream: str) -> bool:
        """Whether a reader has not come to the end of a stream; one that is not known has."""
        known, of = self.readers.get(reader), self.streams.get(stream)
        return known is not None and of is not None and self._first_unread(known, of) < of.next

    def lag(self, reader: Reader) -> Lag:
        """Return what a reader has still to finish; nothing once its route is gone.

        To one without control epochs without rows are nothing.
        """
        epochs = rows = size = memory = 0
        since: float | None = None
        for stream in self.streams.values() if reader.routed else ():
            first = stream.at_or_after(self._first_unread(reader, stream))
            if first < stream.next:
                epochs += stream.next - first
                rows += stream.rows_between(first, stream.next)
                size += stream.bytes_from(first)
                memory += stream.memory_from(first)
                since = stream.epochs[first].published if since is None else since
        if not rows and not reader.control:
            return Lag(0, 0, 0, None)
        return Lag(epochs, rows, size, since, memory)

    def released_readers(self, now: float) -> list[Reader]:
        """Return the readers that have been away for longer than grace: they hold nothing."""
        return [r for r in self.readers.values() if not self._has_claims(r, now)]

    def _holding_readers(self, now: float) -> list[Reader]:
        return [r for r in self.readers.values() if r.is_holding and self._has_claims(r, now)]

    # -- where the slowest stand -------------------------------------------------------------

    def _forget_fronts(self) -> None:
        self._fronts.clear()
        self._fronts_until = math.inf

    def _first_held(self, stream: Stream, now: float) -> int:
        """Return the first epoch that a ``wait`` reader holds, ``next`` if none does."""
        if now > self._fronts_until:
            self._forget_fronts()
        front = self._fronts.get(stream.id)
        if front is None:
            front = self._fronts[stream.id] = self._compute_front(stream, now)
        return min(front.position, stream.next) if front.readers else stream.next

    def _compute_front(self, stream: Stream, now: float) -> _Front:
        holding = self._holding_readers(now)
        until = min((r.lease_expires for r in holding), default=math.inf)
        self._fronts_until = min(self._fronts_until, until + self.limits.grace)
        self._fronts_at = now
        places = [self._first_unread(r, stream) for r in holding if self._reads_stream(r, stream)]
        slowest = min(places, default=0)
        return _Front(slowest, places.count(slowest))

    def _held_positions(self, id_: str, now: float) -> dict[str, int]:
        """Return where a reader holds epochs, by stream."""
        reader = self.readers.get(id_)
        if reader is None or not reader.is_holding or not self._has_claims(reader, now):
            return {}
        return {
            s.id: self._first_unread(reader, s)
            for s in self.streams.values()
            if self._reads_stream(reader, s)
        }

    @contextlib.contextmanager
    def _tracking_fronts(self, id_: str, now: float) -> Iterator[None]:
        """Keep the fronts right while one reader comes, moves or is seen again.

        One that comes, and is refused, has not come.
        """
        if now > self._fronts_until:
            self._forget_fronts()
        before, known = self._held_positions(id_, now), id_ in self.readers
        try:
            yield
        except Exception:
            if not known:
                self.readers.pop(id_, None)
            raise
        finally:
            after = self._held_positions(id_, now)
            if after:
                claimed = self.readers[id_].lease_expires + self.limits.grace
                self._fronts_until = min(self._fronts_until, claimed)
            for stream, front in list(self._fronts.items()):
                self._update_front(stream, front, before.get(stream), after.get(stream))

    def _update_front(
        self, stream: str, front: _Front, before: int | None, after: int | None
    ) -> None:
        if before == after:
            return
        if after is not None and (after < front.position or not front.readers):
            self._fronts[stream] = _Front(after, 1)
            return
        front.readers += (after == front.position) - (before == front.position)
        if before == front.position and not front.readers:
            del self._fronts[stream]

    # -- what may be removed -----------------------------------------------------------------

    def held_bytes(self, now: float) -> int:
        """Return the bytes that ``wait`` readers have not finished, each epoch counted once."""
        return sum(s.bytes_from(self._first_held(s, now)) for s in self.streams.values())

    def held_memory(self, now: float) -> int:
        """Return what the same epochs take in memory."""
        return sum(s.memory_from(self._first_held(s, now)) for s in self.streams.values())

    def fullness(self, bytes_: int, memory: int) -> float:
        """Return what part of the log some epochs fill; 1 and more is all of it."""
        return max(bytes_ / max(1, self.limits.max_bytes), memory / self.max_memory)

    def blocking_readers(self, now: float) -> list[BlockingReader]:
        """Return who keeps the export waiting, slowest first; empty if a batch may be admitted."""
        if self.fullness(self.held_bytes(now), self.held_memory(now)) < 1:
            return []
        holders = [
            BlockingReader(
                reader=r.id,
                import_=r.import_,
                bytes=sum(s.bytes_from(self._first_unread(r, s)) for s in self.streams.values()),
                away=max(0.0, now - r.lease_expires),
                query=r.query,
                last_progress=r.last_progress,
            )
            for r in self._holding_readers(now)
        ]
        return sorted((h for h in holders if h.bytes), key=lambda h: -h.bytes)

    def sweep(self, now: float) -> dict[str, list[int]]:
        """Remove the epochs that size and age take, and return their numbers by stream.

        Size never takes the newest epoch: a reader that drops would otherwise never get one that
        is larger than the log.
        """
        total = sum(s.bytes for s in self.streams.values())
        memory = sum(s.memory for s in self.streams.values())
        limits = self.limits
        oldest = None if limits.max_age is None else now - limits.max_age
        if total <= limits.max_bytes and memory <= self.max_memory and oldest is None:
            return {}
        removed: dict[str, list[int]] = {}
        for stream in self.streams.values():
            plans: list[tuple[int, int]] | None = None
            number = stream.at_or_after(0)
            while number < stream.next:
                newest = not stream.sealed and number + 1 == stream.next
                full = (total > limits.max_bytes or memory > self.max_memory) and not newest
                old = oldest is not None and stream.epochs[number].published < oldest
                if not (full or old) or number >= self._first_held(stream, now):
                    break
                plans = self._plans_in(stream, now) if plans is None else plans
                end = max((next_ for first, next_ in plans if first <= number < next_), default=0)
                if not end:
                    gone = stream.remove(number)
                    total, memory = total - gone.bytes, memory - gone.memory
                    removed.setdefault(stream.id, []).append(number)
                number = stream.at_or_after(end or number + 1)
            stream.forget_sums(self._referenced_epochs)
        self._forget_missing(removed)
        return removed

    def _forget_missing(self, removed: Mapping[str, list[int]]) -> None:
        """Forget what is missing before epochs that were removed: it would be gone as well."""
        names = list(self.streams)
        last = max((names.index(name) for name in removed), default=0)
        for name in names[:last]:
            self.streams[name].missing.clear()

    def _referenced_epochs(self, stream: str) -> set[int]:
        return {
            place for reader in self.readers.values() for place in reader.referenced_epochs(stream)
        }

    def _plans_in(self, stream: Stream, now: float) -> list[tuple[int, int]]:
        return [
            cursor.planned
            for reader in self.readers.values()
            if self._has_claims(reader, now)
            for cursor in [reader.cursors.get(stream.id)]
            if cursor is not None and cursor.planned is not None
        ]
