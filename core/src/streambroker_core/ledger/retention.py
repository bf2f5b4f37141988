"""Retention of an export: which epochs its readers claim, and which may be removed.

Rules, strongest first:

1. planned: never removed until acknowledged, or the reader is away for longer than grace;
2. held: every epoch that a routed ``wait`` reader, live or within grace, has not finished;
3. size, in the log and in memory, and age: remove the oldest unclaimed epochs.

With an archive its limits replace the third rule. They count only unclaimed epochs.

A ``drop`` reader claims only its plan. So does a batch read, until its tasks are done. A ``wait``
reader that blocked the export for longer than ``wait_limit`` is *demoted*: it drops until its lag
is small again. Removal counts no losses: a reader's loss is the distance from its position to the
next retained epoch, so replays count once.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from streambroker_core.ledger.epochs import RestoredLog, Stream

MEMORY_BYTES = 128 << 20
"""Memory of the retained epochs of an export at which its log counts as full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionLimits:
    """Limits of an export's log, in bytes and seconds.

    Attributes:
        max_bytes: size at which unclaimed epochs are removed and ``wait`` blocks the export.
        max_age: age at which unclaimed epochs are removed; None for no limit.
        grace: how long a reader that is away keeps its claims.
        wait_limit: how long the export waits before it demotes the slowest; None for ever.
        archive_bytes: size of the unclaimed epochs at which the oldest are removed.
        archive_age: age at which unclaimed epochs are removed. With one of these two limits
            ``max_bytes`` and ``max_age`` remove no epochs.
    """

    max_bytes: int = 1 << 30
    max_age: float | None = None
    grace: float = 600.0
    wait_limit: float | None = None
    archive_bytes: int | None = None
    archive_age: float | None = None

    @property
    def has_archive(self) -> bool:
        """Whether unclaimed epochs stay until the limits of an archive."""
        return self.archive_bytes is not None or self.archive_age is not None


@dataclass(slots=True)
class Cursor:
    """A reader's position in one stream.

    Attributes:
        next: first unfinished epoch.
        planned: the pinned epochs ``[first, next)``, or None.
        first: where it began to read. An older checkpoint without the stream starts there again.
        granted_until: end of the epochs granted while it had a route; without one it gets no more.
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
        opened: it has read this export, or was connected before there was a stream. Later streams
            are read from their first epoch.
        resume: lowest epoch it may read, by stream; set when its route returned.
        archived: ends of the streams when it began to read the archive, None if it does not.
            Until its lag is small it claims the epochs below, but does not block the export.
        agreed_losses: epoch by stream below which losses are agreed (it was not connected, or
            dropped); a ``wait`` reader does not stop at them.
        query: the streaming query whose tasks read for it, as last reported; None if unknown.
        last_progress: when it last finished an epoch, or was created.
        demoted: its policy is ``wait``, but it drops because it blocked the export too long.
        agent_incarnations: incarnations of its agent that have sent requests, the present one last.
        calls: number of the last call in that incarnation.
        control: it reads control tuples.
        once: it is a batch read, which is forgotten when its claims end.
        released: a batch read that claims nothing more; it may repeat reads of its plan.
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
    archived: dict[str, int] | None = None
    agreed_losses: dict[str, int] = field(default_factory=dict)
    query: str | None = None
    last_progress: float = 0.0
    demoted: bool = False
    demotions: int = 0
    agent_incarnations: tuple[str, ...] = ()
    calls: int = 0
    control: bool = False
    once: bool = False
    released: bool = False

    @property
    def is_dropping(self) -> bool:
        """Whether the reader loses the oldest epochs instead of holding them."""
        return self.policy == "drop" or self.demoted

    def next_epoch(self, stream: str) -> int:
        """Return the first epoch of a stream that it has not finished and may read."""
        cursor = self.cursors.get(stream)
        return max(0 if cursor is None else cursor.next, self.resume.get(stream, 0))

    def referenced_epochs(self, stream: str) -> set[int]:
        """Return the epochs of a stream from which this reader may read or count losses."""
        known = {self.resume.get(stream, 0), self.agreed_losses.get(stream, 0)}
        cursor = self.cursors.get(stream)
        if cursor is not None:
            known |= {cursor.next, cursor.first, cursor.granted_until, *(cursor.planned or ())}
        return known

    @property
    def is_holding(self) -> bool:
        """Whether the reader holds unfinished epochs while it is live or within grace."""
        return self.routed and not self.is_dropping and self.archived is None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockingReader:
    """A reader that keeps the log full.

    Attributes:
        bytes: size of its unfinished epochs.
        away: seconds since its lease ended, 0 if it is live.
        query: the streaming query that reads, None if unknown.
        last_progress: when it last finished an epoch.
        ring: exports that its query waits for and that in turn wait for this one; None if there
            is no ring, see :mod:`wait chains <streambroker_core.ledger.wait_chains>`.
    """

    reader: str
    import_: str
    bytes: int
    away: float
    query: str | None = None
    last_progress: float = 0.0
    ring: tuple[str, ...] | None = None


class Lag(NamedTuple):
    """Retained epochs that a reader has not finished.

    ``since`` is when the oldest was published, None without lag; ``memory`` is in bytes.
    """

    epochs: int
    rows: int
    bytes: int
    since: float | None
    memory: int = 0


@dataclass(slots=True)
class _Front:
    """Position of the slowest ``wait`` readers of a stream, and their number."""

    position: int
    readers: int


class Claims:
    """The streams and readers of one export, and the epochs that the readers claim.

    Attributes:
        grace: how long a reader that is away keeps its claims; `Retention` sets it.
        streams: by id, in the order in which they were opened.
        readers: by id.
        forgotten: ids of streams that were dropped.
        restored: what the log had when an older copy was restored; None if none was.

    The front, which is the position of the slowest readers, is cached by stream, so that a plan
    does not scan all readers. Changes of routes, grace, streams or leases invalidate the cache.
    """

    def __init__(self, grace: float) -> None:
        self.grace = grace
        self.streams: dict[str, Stream] = {}
        self.readers: dict[str, Reader] = {}
        self.forgotten: set[str] = set()
        self.restored: RestoredLog | None = None
        self._fronts: dict[str, _Front] = {}
        self._fronts_until = math.inf
        self._fronts_at = -math.inf

    def has_claims(self, reader: Reader, now: float) -> bool:
        """Return whether a reader is live or within grace."""
        return now <= reader.lease_expires + self.grace

    def can_hold(self, reader: Reader, now: float) -> bool:
        """Return whether a reader prevents, or may come to prevent, that epochs are removed."""
        if reader.released or not self.has_claims(reader, now):
            return False
        planned = any(c.planned for c in reader.cursors.values())
        return reader.is_holding or planned or reader.archived is not None

    def first_unread(self, reader: Reader, stream: Stream) -> int:
        """Return the first epoch of ``stream`` to read, ``next`` if the reader skips the stream."""
        if not self.reads_stream(reader, stream):
            return stream.next
        return reader.next_epoch(stream.id)

    def reads_stream(self, reader: Reader, stream: Stream) -> bool:
        """Return whether the reader began with this stream or a predecessor of it."""
        for name in self.streams:
            if name in reader.cursors:
                return True
            if name == stream.id:
                break
        return reader.opened and not any(name in reader.cursors for name in self.streams)

    def is_unread(self, stream: str) -> bool:
        """Return whether a reader has not reached the end of a stream, removed epochs included.

        Such a stream has to stay known, so that losses in it are reported or counted.
        """
        return any(self.has_unread(reader, stream) for reader in self.readers)

    def has_unread(self, reader: str, stream: str) -> bool:
        """Return whether a reader has not reached the end of a stream; False if unknown."""
        known, of = self.readers.get(reader), self.streams.get(stream)
        return known is not None and of is not None and self.first_unread(known, of) < of.next

    def released_readers(self, now: float) -> list[Reader]:
        """Return the readers that are away for longer than grace and hold nothing."""
        # Looked at each second: no call for each reader.
        return [r for r in self.readers.values() if r.lease_expires + self.grace < now]

    def holding_readers(self, now: float) -> list[Reader]:
        """Return the readers, live or within grace, that hold unfinished epochs."""
        return [r for r in self.readers.values() if r.is_holding and self.has_claims(r, now)]

    def accept_losses(self, reader: Reader) -> None:
        """Count what was removed so far as agreed loss, but not what is missing from the log."""
        for stream in self.streams.values():
            reader.agreed_losses[stream.id] = stream.agreed_loss_end()

    # -- leases ---------------------------------------------------------------------------

    def renew(self, reader: str, until: float) -> None:
        """Extend a reader's lease; ignore an unknown reader."""
        if reader in self.readers:
            known = self.readers[reader]
            if not self.has_claims(known, self._fronts_at):
                self.forget_fronts()
            known.lease_expires = max(known.lease_expires, until)

    def end_lease(self, reader: str, now: float) -> None:
        """End the lease of a reader that stopped cleanly; its claims last for grace.

        Those of a batch read end at once.
        """
        if reader in self.readers:
            known = self.readers[reader]
            known.lease_expires, known.released = now, known.once
            self.forget_fronts()

    # -- positions of the slowest readers ----------------------------------------------------

    def forget_fronts(self) -> None:
        """Invalidate the cached fronts."""
        self._fronts.clear()
        self._fronts_until = math.inf

    def first_held(self, stream: Stream, now: float) -> int:
        """Return the first epoch held by a ``wait`` reader, ``next`` if there is none."""
        if now > self._fronts_until:
            self.forget_fronts()
        front = self._fronts.get(stream.id)
        if front is None:
            front = self._fronts[stream.id] = self._compute_front(stream, now)
        return min(front.position, stream.next) if front.readers else stream.next

    def _compute_front(self, stream: Stream, now: float) -> _Front:
        holding = self.holding_readers(now)
        until = min((r.lease_expires for r in holding), default=math.inf)
        self._fronts_until = min(self._fronts_until, until + self.grace)
        self._fronts_at = now
        positions = [r.next_epoch(stream.id) for r in holding if self.reads_stream(r, stream)]
        slowest = min(positions, default=0)
        return _Front(slowest, positions.count(slowest))

    def _held_positions(self, id_: str, now: float) -> dict[str, int]:
        """Return the first epoch that a reader holds, by stream with a front."""
        reader = self.readers.get(id_)
        if reader is None or not reader.is_holding or not self.has_claims(reader, now):
            return {}
        return {
            stream: reader.next_epoch(stream)
            for stream in self._fronts
            if self.reads_stream(reader, self.streams[stream])
        }

    @contextlib.contextmanager
    def tracking_fronts(self, id_: str, now: float) -> Iterator[None]:
        """Update the fronts after one reader was added, moved or renewed.

        If the body raises, a reader that it added is removed again.
        """
        if now > self._fronts_until:
            self.forget_fronts()
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
                claimed = self.readers[id_].lease_expires + self.grace
                self._fronts_until = min(self._fronts_until, claimed)
            if before != after:
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


class Retention:
    """What fills the log of one export, whom it waits for, and which epochs are removed.

    A log is full at ``limits.max_bytes``, or at ``max_memory`` in memory: an agent could not hold
    the metadata of as many tiny epochs as fit into the log.
    """

    def __init__(self, claims: Claims, limits: RetentionLimits) -> None:
        self._claims, self._limits = claims, limits
        self._streams, self._readers = claims.streams, claims.readers
        self.max_memory = MEMORY_BYTES

    @property
    def limits(self) -> RetentionLimits:
        """Limits of the export's log."""
        return self._limits

    @limits.setter
    def limits(self, limits: RetentionLimits) -> None:
        self._limits, self._claims.grace = limits, limits.grace
        self._claims.forget_fronts()

    def lag(self, reader: Reader) -> Lag:
        """Return the lag of a reader; none without a route.

        Epochs without rows are no lag for a reader without control tuples.
        """
        epochs = rows = size = memory = 0
        since: float | None = None
        for stream in self._streams.values() if reader.routed else ():
            first = stream.at_or_after(self._claims.first_unread(reader, stream))
            if first < stream.next:
                epochs += stream.next - first
                rows += stream.rows_between(first, stream.next)
                size += stream.bytes_from(first)
                memory += stream.memory_from(first)
                since = stream.epochs[first].published if since is None else since
        if not rows and not reader.control:
            return Lag(0, 0, 0, None)
        return Lag(epochs, rows, size, since, memory)

    def held_bytes(self, now: float) -> int:
        """Return the bytes of epochs that ``wait`` readers hold, each epoch counted once."""
        return sum(s.bytes_from(self._claims.first_held(s, now)) for s in self._streams.values())

    def held_memory(self, now: float) -> int:
        """Return the memory of the same epochs, in bytes."""
        return sum(s.memory_from(self._claims.first_held(s, now)) for s in self._streams.values())

    def fullness(self, bytes_: int, memory: int) -> float:
        """Return the fraction of the log that such epochs fill; from 1 on it is full."""
        return max(bytes_ / max(1, self.limits.max_bytes), memory / self.max_memory)

    def blocking_readers(self, now: float) -> list[BlockingReader]:
        """Return the readers that block the export, slowest first; empty if a batch is admitted."""
        if self.fullness(self.held_bytes(now), self.held_memory(now)) < 1:
            return []
        holders = [
            BlockingReader(
                reader=r.id,
                import_=r.import_,
                bytes=sum(
                    s.bytes_from(self._claims.first_unread(r, s)) for s in self._streams.values()
                ),
                away=max(0.0, now - r.lease_expires),
                query=r.query,
                last_progress=r.last_progress,
            )
            for r in self._claims.holding_readers(now)
        ]
        return sorted((h for h in holders if h.bytes), key=lambda h: -h.bytes)

    def demote_slowest(self, now: float) -> list[Reader]:
        """Demote the slowest readers to ``drop`` until the log has room; return them.

        Called once the export has waited for ``limits.wait_limit``.
        """
        demoted = []
        while holders := self.blocking_readers(now):
            for holder in holders:
                if holder.bytes == holders[0].bytes:
                    reader = self._readers[holder.reader]
                    reader.demoted, reader.demotions = True, reader.demotions + 1
                    demoted.append(reader)
            self._claims.forget_fronts()
        return demoted

    def promote(self, reader: Reader) -> None:
        """Let a reader hold its epochs again once its lag fills at most half of the log."""
        if not reader.demoted and reader.archived is None:
            return
        lag = self.lag(reader)
        if 2 * self.fullness(lag.bytes, lag.memory) <= 1:
            if reader.demoted:
                self._claims.accept_losses(reader)
            reader.demoted, reader.archived = False, None

    def archive(self, reader: Reader) -> bool:
        """Leave what a reader has not read to the archive; return whether this changes anything.

        Called when a reader is new, when its route or policy changes, and when it is away for
        longer than grace: what it has not read then must not block the export.
        """
        if not self.limits.has_archive or reader.policy == "drop" or reader.archived is not None:
            return False
        reader.archived = {stream.id: stream.next for stream in self._streams.values()}
        return True

    def sweep(self, now: float) -> dict[str, list[int]]:
        """Remove unclaimed epochs beyond size and age; return their numbers by stream.

        Size never removes the newest epoch. Otherwise a reader that drops would never get one
        that is larger than the log.
        """
        limits = self.limits
        max_age = limits.archive_age if limits.has_archive else limits.max_age
        oldest = None if max_age is None else now - max_age
        size, memory = self._excess(now)
        if size <= 0 and memory <= 0 and oldest is None:
            return {}
        removed: dict[str, list[int]] = {}
        for stream in self._streams.values():
            plans: list[tuple[int, int]] | None = None
            number = stream.at_or_after(0)
            while number < stream.next:
                newest = not stream.sealed and number + 1 == stream.next
                full = (size > 0 or memory > 0) and not newest
                old = oldest is not None and stream.epochs[number].published < oldest
                if not (full or old) or number >= self._claims.first_held(stream, now):
                    break
                plans = self._claims_in(stream, now) if plans is None else plans
                end = max((next_ for first, next_ in plans if first <= number < next_), default=0)
                if not end:
                    epoch = stream.remove(number)
                    size, memory = size - epoch.bytes, memory - epoch.memory
                    removed.setdefault(stream.id, []).append(number)
                number = stream.at_or_after(end or number + 1)
            stream.forget_sums(self._referenced_epochs)
        _forget_missing(self._streams, removed)
        return removed

    def _referenced_epochs(self, stream: str) -> set[int]:
        return {
            number
            for reader in self._readers.values()
            for number in reader.referenced_epochs(stream)
        }

    def _excess(self, now: float) -> tuple[float, int]:
        """Return by how many bytes, and bytes of memory, the epochs exceed the size limits.

        All epochs count for the limit of the log, and only unclaimed ones for that of an archive.
        """
        streams, limits = self._streams.values(), self.limits
        if not limits.has_archive:
            size, memory = sum(s.bytes for s in streams), sum(s.memory for s in streams)
            return size - limits.max_bytes, memory - self.max_memory
        size, memory = self.unclaimed(now)
        max_bytes = math.inf if limits.archive_bytes is None else limits.archive_bytes
        return size - max_bytes, memory - self.max_memory

    def unclaimed(self, now: float) -> tuple[int, int]:
        """Return the bytes and the memory of the epochs that no reader claims."""
        size = memory = 0
        for stream in self._streams.values():
            ranges = [stream.sizes_between(*r) for r in self._claimed_ranges(stream, now)]
            size += stream.bytes - sum(claimed for claimed, _ in ranges)
            memory += stream.memory - sum(claimed for _, claimed in ranges)
        return size, memory

    def _claimed_ranges(self, stream: Stream, now: float) -> Iterator[tuple[int, int]]:
        """Yield the claimed epochs of a stream as ranges ``[first, next)`` without overlap."""
        held, at = (self._claims.first_held(stream, now), stream.next), 0
        for low, high in sorted([held, *self._claims_in(stream, now)]):
            if max(low, at) < high:
                yield max(low, at), high
                at = high

    def _claims_in(self, stream: Stream, now: float) -> list[tuple[int, int]]:
        """Return the epochs that readers claim without holding all later ones."""
        ranges = []
        for reader in self._readers.values():
            if reader.released or not self._claims.has_claims(reader, now):
                continue
            cursor = reader.cursors.get(stream.id)
            if cursor is not None and cursor.planned is not None:
                ranges.append(cursor.planned)
            if reader.routed and reader.archived and stream.id in reader.archived:
                first = self._claims.first_unread(reader, stream)
                ranges.append((first, max(first, reader.archived[stream.id])))
        return ranges


def _forget_missing(streams: Mapping[str, Stream], removed: Mapping[str, list[int]]) -> None:
    """Forget missing epochs of streams before a removal: they would be removed as well."""
    names = list(streams)
    last = max((names.index(name) for name in removed), default=0)
    for name in names[:last]:
        streams[name].missing.clear()
