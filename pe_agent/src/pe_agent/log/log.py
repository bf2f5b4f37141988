"""Durable log of one stream of frames.

Rules:

1. `sync` acknowledges a frame, `append` does not.
2. A failed fdatasync is not repeated: the kernel may have dropped the pages and would report
   success.
3. `LogWriter.lock` orders appends and is held while a frame is written. `LogState.changed` guards
   the tail and the list of segments and is held only briefly. So readers and syncs do not wait for
   writes, and appends do not wait for an fdatasync. Payload checksums are computed outside both
   locks. Lock order: `_flushing`, `LogWriter.lock`, `LogState.changed`.
4. One process owns a directory; the agent's lock on its data directory ensures it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from pe_agent.log import index, segments
from pe_agent.log.atomic_file import sync_directory
from pe_agent.log.commit import Committer
from pe_agent.log.errors import LogCorrupt, LogFailed
from pe_agent.log.frames import Address, Kind, Payload
from pe_agent.log.log_writer import LogState, LogWriter, SyncedSegment
from pe_agent.log.recovery import Progress, RecoveredLog, Recovery, recover
from pe_agent.log.segments import Segment, SegmentInfo, SegmentReader

SEGMENT_BYTES = 64 << 20
FLUSH_BYTES = 16 << 20


class UploadStatus(NamedTuple):
    """How far the uploads of a log are.

    Attributes:
        bytes: synced bytes that are not uploaded.
        seconds: for how long the oldest of them have waited, at least.
        error: why the last upload failed; None after one that succeeded.
        is_superseded: another agent has taken over.
    """

    bytes: int
    seconds: float
    error: str | None
    is_superseded: bool


class Uploader(Protocol):
    """Brings a log's frames to object storage; callers of `wait` wait if that ``is_required``."""

    is_required: bool
    uploaded: tuple[int, int]

    def wait(self, position: tuple[int, int]) -> None:
        """Return once frames up to (segment, offset) are as durable as the export demands."""

    def request(self) -> None:
        """Have what is synced uploaded soon."""

    def require_snapshot(self) -> None:
        """Have the agent's state uploaded before the next frames."""

    def drop(self, numbers: Collection[int]) -> None:
        """Delete segments from object storage, soon."""

    def status(self) -> UploadStatus:
        """Return how far the uploads are."""


class StreamLog:
    """Append-only segments of checksummed frames; thread-safe.

    Attributes:
        directory: directory of the segments.
        recovered: report of the recovery at open.
        damaged: error text by segment number, for damage found by :meth:`verify` or `read`.
        uploader: brings frames to object storage, None without one.
    """

    def __init__(
        self,
        directory: Path,
        recovered: RecoveredLog,
        *,
        segment_bytes: int,
        flush_bytes: int,
        committer: Committer,
        fetch: Callable[[int], None] | None = None,
    ) -> None:
        """Use `open` instead."""
        self.directory = directory
        self.recovered: Recovery = recovered.report
        self.damaged: dict[int, str] = {}
        self._recovered_runs = recovered.runs
        self._state = LogState(directory, recovered)
        self._writer = LogWriter(self._state, recovered.sequence, segment_bytes=segment_bytes)
        self._reader = SegmentReader(directory, fetch=fetch)
        self.uploader: Uploader | None = None
        self._flush_bytes = flush_bytes
        self._committer = committer
        self._flushing = threading.Lock()

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        committer: Committer,
        progress: Progress | None = None,
        flush_bytes: int = FLUSH_BYTES,
        fetch: Callable[[int], None] | None = None,
    ) -> StreamLog:
        """Create or recover the log. All its frames are then safe on disk.

        Payloads are verified in the last segment and in frames that no mark covers.

        Args:
            directory: used by this log only; created if missing.
            segment_bytes: frame bytes after which a segment is full. A longer frame gets its own
                segment.
            committer: shared by all logs of the agent.
            progress: called with (bytes done, total bytes) while scanning.
            flush_bytes: appended bytes that start an fdatasync in the background.
            fetch: brings the file of a segment that is in object storage only.

        Raises:
            LogCorrupt: acknowledged frames in the middle are damaged; nothing changed.
            LogVersionUnknown: a newer release wrote this log; nothing changed.
            LogFull: there is no room for the first segment.
            LogFailed: the disk fails.
        """
        directory.mkdir(parents=True, exist_ok=True)
        result = recover(directory, progress)
        if not result.segments:
            sync_directory(directory.parent)
            result.segments.append(_create_first(directory))
        log = cls(
            directory,
            result,
            segment_bytes=segment_bytes,
            flush_bytes=flush_bytes,
            committer=committer,
            fetch=fetch,
        )
        log.flush()
        log._state.check_usable()
        return log

    def append(self, kind: int, meta: bytes, payload: Payload = b"") -> Address:
        """Append a frame; it is safe only after `sync`.

        Args:
            kind: one of `Kind`.
            meta: small JSON, at most 16 MiB.
            payload: a buffer, or a list or tuple of buffers, at most 1 GiB in total; not copied.

        Returns:
            The frame's address; it never changes.

        Raises:
            LogFull: no room; nothing was appended, the log stays usable.
            LogFailed: the write failed; nothing can be appended any more.
            LogClosed: the log is closed.
            FrameTooLarge: meta or payload exceeds the format's limits.
            ValueError: the kind is unknown.
        """
        address = self._writer.append(Kind(kind), meta, payload)
        with self._state.changed:
            flush_due = self._state.unflushed >= self._flush_bytes
            if flush_due:
                self._state.unflushed = 0
        if flush_due:
            self._committer.request(self)
        return address

    def sync(self, upto: Address | None = None, *, is_local: bool = False) -> None:
        """Wait until the frames up to `upto` (default: all) are safe.

        Concurrent callers share an fdatasync. The disk is enough if ``is_local``, or if the
        uploader demands no more.

        Raises:
            LogFailed: the state on disk is unknown.
            LogClosed: the log was closed before.
        """
        state = self._state
        with state.changed:
            position = state.tail
            if upto is not None:
                position = min(position, (upto.segment, upto.offset + upto.length))
            is_synced = state.synced >= position and state.failure is None
            if not is_synced:
                state.check_usable()
        if not is_synced:
            self._committer.request(self)
            with state.changed:
                state.changed.wait_for(
                    lambda: state.synced >= position or state.failure is not None or state.closed
                )
                if state.synced < position:
                    state.check_usable()
        if self.uploader is not None and not is_local:
            self.uploader.wait(position)

    def flush(self) -> None:
        """Sync all frames, for the committer; on a failed fdatasync fail the log, do not raise."""
        state = self._state
        with self._flushing:
            with state.changed:
                if state.failure is not None or state.closed:
                    return
                full = list(state.pending)
                due = [(one, one.end) for one in (*full, state.active) if one.end > one.mark]
                new = [
                    (one, one.take_unindexed(growing=one is state.active))
                    for one in (*full, state.active)
                ]
                position = state.tail
                state.unflushed = 0
            try:
                for segment, end in due:
                    segment.sync(end)
            except OSError as error:
                state.fail(error)
                with self._writer.lock, contextlib.suppress(OSError):
                    state.forget_unsynced()
                return
            for segment in full:
                segment.release()
            with state.changed:
                state.synced = position
                state.changed.notify_all()
            for segment, entries in new:
                self._extend_index(segment, entries)
            with state.changed:
                del state.pending[: len(full)]
        if self.uploader is not None and (full or self.uploader.is_required):
            self.uploader.request()

    def _extend_index(self, segment: Segment, entries: index.Entries | None) -> None:
        if entries is None:
            return
        segment.extend_index(entries)
        with self._state.changed:
            dropped = segment.number not in self._state.segments
        if dropped:
            segment.unlink()

    def fail(self, error: Exception) -> None:
        """Refuse further frames: the state on disk is unknown."""
        self._state.fail(error)

    def read(self, address: Address) -> memoryview:
        """Return a frame's verified payload.

        The frame need not be synced; after a failure only synced frames can be read.

        Raises:
            LogCorrupt: the frame on disk is damaged.
            AddressGone: its segment was dropped, or the address never had a frame.
            LogFailed, LogClosed: see `append`.
        """
        self._state.check_readable(address)
        try:
            return self._reader.read(address)
        except LogCorrupt as error:
            _record_damage(self, address.segment, error)
            raise

    def recovered_frames(self, kinds: Collection[int]) -> Iterator[tuple[Address, Kind, bytes]]:
        """Yield the recovered frames of some kinds, in order, without disk access.

        Frames appended since may be missing. Empty after `forget_recovered`.
        """
        for number, runs in self._recovered_runs:
            for run in runs:
                for offset, length, kind, meta in run.entries(kinds):
                    yield Address(number, offset, length), Kind(kind), meta

    def forget_recovered(self) -> None:
        """Free the memory of the recovered frames."""
        self._recovered_runs = []

    def verify(self, number: int) -> Iterator[int]:
        """Read a segment's frames with payloads; yield the length of each valid frame in bytes.

        Damage ends the iteration and is recorded in `damaged`, unless the segment was dropped.

        Raises:
            LogClosed: the log is closed.
        """
        state = self._state
        with state.changed:
            if state.closed:
                state.check_usable()
            segment = state.segments.get(number)
            end = 0 if segment is None else min(segment.end, segment.mark)
        if end <= segments.HEADER_BYTES:
            return
        try:
            yield from self._reader.verify(number, end)
        except LogCorrupt as error:
            _record_damage(self, number, error)

    def synced_segments(self, since: int) -> list[SyncedSegment]:
        """Return the segments from number ``since`` on, oldest first, as far as they are safe."""
        return self._state.synced_segments(since)

    def is_on_disk(self, number: int) -> bool:
        """Return whether a segment is not in object storage only."""
        return segments.segment_path(self.directory, number).exists()

    def segments(self) -> list[SegmentInfo]:
        """Return the segments, oldest first; the last is active."""
        with self._state.changed:
            return [segment.info for segment in self._state.segments.values()]

    def drop(self, keep: Callable[[int], bool]) -> list[SegmentInfo]:
        """Remove the segments for which `keep` is false, never the active one; return them.

        Reads in progress still succeed.

        Raises:
            LogFailed: the directory cannot be written.
            LogClosed: the log is closed.
        """
        dropped = self._state.take_dropped(keep)
        try:
            for segment in dropped:
                self.damaged.pop(segment.number, None)
                segment.unlink()
                self._reader.forget(segment.number)
            if dropped:
                sync_directory(self.directory)
        except OSError as error:
            self.fail(error)
            raise LogFailed(self.directory, reason=str(error)) from error
        if dropped and self.uploader is not None:
            self.uploader.drop([segment.number for segment in dropped])
        return [segment.info for segment in dropped]

    def close(self) -> None:
        """Sync everything and close the files; later calls raise `LogClosed`.

        Raises:
            LogFailed: the last frames could not be synced.
        """
        state = self._state
        with state.changed:
            if state.closed:
                return
            failed_before = state.failure is not None
        self.flush()
        with self._flushing, self._writer.lock, state.changed:
            state.closed = True
            state.changed.notify_all()
            if state.failure is None:
                with contextlib.suppress(OSError):  # cut the unused reserved space
                    state.active.cut()
            for segment in (*state.pending, state.active):
                segment.release()
        self._reader.close()
        if state.failure is not None and not failed_before:
            raise LogFailed(self.directory, reason=str(state.failure)) from state.failure


def _create_first(directory: Path) -> Segment:
    try:
        return segments.create(directory, 1, 0)
    except OSError as error:
        if error.errno in segments.NO_ROOM:
            path = segments.segment_path(directory, 1)
            raise segments.log_full_error(path, segments.HEADER_BYTES, error) from error
        raise LogFailed(directory, reason=str(error)) from error


def _record_damage(log: StreamLog, number: int, error: LogCorrupt) -> None:
    with log._state.changed:
        if number in log._state.segments:
            log.damaged[number] = str(error)
