"""Appending to the segments of an open log, and how far they are safe on disk."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pe_agent.log import frames, segments
from pe_agent.log.errors import AddressGone, LogClosed, LogFailed, Superseded
from pe_agent.log.frames import Address, Kind, Payload
from pe_agent.log.recovery import RecoveredLog
from pe_agent.log.segments import Segment

_Position = tuple[int, int]
"""Segment number and offset; ordered like the frames."""


class SyncedSegment(NamedTuple):
    """A segment as far as it is safe on disk; ``is_full`` once file and index are final."""

    number: int
    path: Path
    end: int
    is_full: bool


class LogState:
    """Segments, tail and failure of an open log, guarded by ``changed``.

    Attributes:
        segments: all segments by number; the last one is ``active``.
        pending: full segments that are not synced or not indexed yet.
        synced: position up to which frames are safe on disk.
        unflushed: bytes appended since the last flush began.
    """

    def __init__(self, directory: Path, recovered: RecoveredLog) -> None:
        self.directory = directory
        self.changed = threading.Condition()
        *full, self.active = recovered.segments
        self.segments = {segment.number: segment for segment in recovered.segments}
        self.pending = [one for one in full if one.mark < one.end or one.unindexed]
        unsafe = [one for one in full if one.mark < one.end]
        first = unsafe[0] if unsafe else self.active
        self.synced: _Position = (first.number, first.mark)
        self.unflushed = 0
        self.failure: Exception | None = None
        self.closed = False

    @property
    def tail(self) -> _Position:
        """Position behind the last frame."""
        return self.active.number, self.active.end

    def synced_segments(self, since: int) -> list[SyncedSegment]:
        """Return the segments from number ``since`` on, oldest first, as far as they are safe."""
        with self.changed:
            number, offset = self.synced
            return [
                SyncedSegment(
                    one.number,
                    one.path,
                    min(one.end, offset) if one.number == number else one.end,
                    one is not self.active and one not in self.pending,
                )
                for one in self.segments.values()
                if since <= one.number <= number
            ]

    def check_usable(self) -> None:
        """Raise `LogFailed`, `LogClosed` or `Superseded` if the log is."""
        if isinstance(self.failure, Superseded):
            raise self.failure
        if self.failure is not None:
            raise LogFailed(self.directory, reason=str(self.failure)) from self.failure
        if self.closed:
            raise LogClosed(self.directory)

    def fail(self, error: Exception) -> None:
        """Refuse further frames: the state on disk is unknown."""
        with self.changed:
            self.failure = self.failure or error
            self.changed.notify_all()

    def check_readable(self, address: Address) -> None:
        """Raise `AddressGone`, `LogFailed` or `LogClosed` if a frame cannot be read."""
        path = segments.segment_path(self.directory, address.segment)
        end = address.offset + address.length
        with self.changed:
            if self.closed or (self.failure and (address.segment, end) > self.synced):
                self.check_usable()
            segment = self.segments.get(address.segment)
            if segment is None:
                raise AddressGone(path, offset=address.offset, reason="its segment was dropped")
            if end > segment.end:
                raise AddressGone(path, offset=address.offset, reason="the log ends before it")

    def take_dropped(self, keep: Callable[[int], bool]) -> list[Segment]:
        """Remove the segments for which ``keep`` is false, except the active one; return them."""
        with self.changed:
            self.check_usable()
            dropped = [
                one
                for one in self.segments.values()
                if one is not self.active and not keep(one.number)
            ]
            for segment in dropped:
                del self.segments[segment.number]
        return dropped

    def forget_unsynced(self) -> None:
        """Cut the frames that a failed fdatasync left in doubt.

        They may be in the page cache only; a recovery would read them there as if they were safe.

        Raises:
            OSError: the disk does not allow it.
        """
        with self.changed:
            for segment in (*self.pending, self.active):
                os.ftruncate(segment.open_for_writing(), segment.mark)


class LogWriter:
    """Appends frames; ``lock`` orders them and is held while a frame is written."""

    def __init__(self, state: LogState, sequence: int, *, segment_bytes: int) -> None:
        self.lock = threading.Lock()
        self._state = state
        self._sequence = sequence
        self._segment_bytes = segment_bytes

    def append(self, kind: Kind, meta: bytes, payload: Payload) -> Address:
        """Append a frame; see `StreamLog.append`."""
        parts = frames.views(payload)
        payload_bytes = sum(map(len, parts))
        frames.check_size(len(meta), payload_bytes)
        crc = frames.checksum(parts)
        length = frames.HEADER_BYTES + len(meta) + payload_bytes
        with self.lock:
            with self._state.changed:
                self._state.check_usable()
            head = frames.encode(
                kind,
                meta,
                payload_bytes=payload_bytes,
                payload_crc=crc,
                sequence=self._sequence,
            )
            segment = self._write([memoryview(head), *parts], length)
            with self._state.changed:
                self._state.check_usable()
                address = Address(segment.number, segment.end, length)
                segment.end += length
                segment.frames += 1
                segment.unindexed.add(kind, length, meta, frames.header_checksum(head))
                self._sequence += 1
                self._state.unflushed += length
        return address

    def _write(self, parts: list[memoryview], length: int) -> Segment:
        """Write a frame's parts; return the segment with its `end` not yet moved."""
        path = self._state.active.path
        try:
            segment = self._segment_for(length)
            path = segment.path
            segment.reserve(length, segment_bytes=self._segment_bytes)
            segment.write(parts)
        except BaseException as error:
            self._undo(error)
            if isinstance(error, OSError) and error.errno in segments.NO_ROOM:
                raise segments.log_full_error(path, length, error) from error
            if isinstance(error, OSError):
                raise LogFailed(self._state.directory, reason=str(error)) from error
            raise
        return segment

    def _undo(self, error: BaseException) -> None:
        """Cut off a partly written frame; fail the log if that is not possible."""
        try:
            self._state.active.cut()
        except OSError as second:
            self._state.fail(second)
        if isinstance(error, OSError) and error.errno not in segments.NO_ROOM:
            self._state.fail(error)

    def _segment_for(self, length: int) -> Segment:
        state, active = self._state, self._state.active
        used = active.end - segments.HEADER_BYTES
        if not used or used + length <= self._segment_bytes:
            return active
        fresh = segments.create(state.directory, active.number + 1, self._sequence)
        # Before it is visible as full: the flush that syncs a full segment closes its file.
        active.cut()
        with state.changed:
            state.segments[fresh.number] = fresh
            state.pending.append(active)
            state.active = fresh
        return fresh
