"""Durable log of one stream of frames.

Rules:

1. `sync` acknowledges a frame, `append` does not.
2. A failed fdatasync is not repeated: the kernel may have dropped the pages and would report
   success.
3. `_appending` orders appends and is held while a frame is written. `_state` guards the tail and
   the list of segments and is held only briefly. So readers and syncs do not wait for writes, and
   appends do not wait for an fdatasync. Payload checksums are computed outside both locks. Lock
   order: `_flushing`, `_appending`, `_state`.
4. One process owns a directory; the agent's lock on its data directory ensures it.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from pe_agent.log import frames, index, segments
from pe_agent.log.atomic_file import sync_directory
from pe_agent.log.commit import Committer
from pe_agent.log.errors import AddressGone, LogClosed, LogCorrupt, LogFailed
from pe_agent.log.frames import Header, Kind, Payload
from pe_agent.log.recovery import Progress, RecoveredLog, Recovery, Verify, recover
from pe_agent.log.segments import DescriptorCache, Segment, SegmentInfo

SEGMENT_BYTES = 64 << 20
FLUSH_BYTES = 16 << 20


class Address(NamedTuple):
    """Segment number, offset and length in bytes of a frame; ordered as frames were appended."""

    segment: int
    offset: int
    length: int


_Position = tuple[int, int]
"""Segment number and offset; ordered like the frames."""


class StreamLog:
    """Append-only segments of checksummed frames; thread-safe.

    Attributes:
        directory: directory of the segments.
        recovered: report of the recovery at open.
        damaged: error text by segment number, for damage found by :meth:`verify`.
    """

    def __init__(
        self,
        directory: Path,
        recovered: RecoveredLog,
        *,
        segment_bytes: int,
        flush_bytes: int,
        committer: Committer,
    ) -> None:
        """Use `open` instead."""
        self.directory = directory
        self.recovered: Recovery = recovered.report
        self._segment_bytes = segment_bytes
        self._flush_bytes = flush_bytes
        self._committer = committer
        self._segments = {segment.number: segment for segment in recovered.segments}
        self._active = recovered.segments[-1]
        self._sequence = recovered.sequence
        self._state = threading.Condition()
        self._flushing = threading.Lock()
        self._appending = threading.Lock()
        unsafe = [one for one in recovered.segments[:-1] if one.mark < one.end]
        self._pending_segments = [
            one for one in recovered.segments[:-1] if one.mark < one.end or one.unindexed
        ]
        self._unflushed = 0
        first = unsafe[0] if unsafe else self._active
        self._synced: _Position = (first.number, first.mark)
        self._recovered_runs = recovered.runs
        self.damaged: dict[int, str] = {}
        self._failure: Exception | None = None
        self._closed = False
        self._files = DescriptorCache(directory)

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        committer: Committer,
        progress: Progress | None = None,
        flush_bytes: int = FLUSH_BYTES,
        verify: Verify = "tail",
    ) -> "StreamLog":
        """Create or recover the log. All its frames are then safe on disk.

        Args:
            directory: used by this log only; created if missing.
            segment_bytes: frame bytes after which a segment is full. A longer frame gets its own
                segment.
            committer: shared by all logs of the agent.
            progress: called with (bytes done, total bytes) while scanning.
            flush_bytes: appended bytes that start an fdatasync in the background.
            verify: "all" checks every payload. "tail" checks the payloads of the last segment and
                of frames that no mark covers, and the headers of all others.

        Raises:
            LogCorrupt: acknowledged frames in the middle are damaged; nothing changed.
            LogVersionUnknown: a newer release wrote this log; nothing changed.
            LogFull: there is no room for the first segment.
            LogFailed: the disk fails.
        """
        directory.mkdir(parents=True, exist_ok=True)
        result = recover(directory, verify=verify, progress=progress)
        if not result.segments:
            sync_directory(directory.parent)
            result.segments.append(_create_first(directory))
        log = cls(
            directory,
            result,
            segment_bytes=segment_bytes,
            flush_bytes=flush_bytes,
            committer=committer,
        )
        log.flush()
        log._check_usable()
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
        kind = Kind(kind)
        parts = frames.views(payload)
        payload_bytes = sum(map(len, parts))
        frames.check_size(len(meta), payload_bytes)
        crc = frames.checksum(parts)
        length = frames.HEADER_BYTES + len(meta) + payload_bytes
        with self._appending:
            with self._state:
                self._check_usable()
            head = frames.encode(
                kind,
                meta,
                payload_bytes=payload_bytes,
                payload_crc=crc,
                sequence=self._sequence,
            )
            segment = self._write([memoryview(head), *parts], length)
            address, flush_due = self._accept(segment, length, kind, meta, head)
        if flush_due:
            self._committer.request(self)
        return address

    def _accept(
        self, segment: Segment, length: int, kind: Kind, meta: bytes, head: bytes
    ) -> tuple[Address, bool]:
        """Record a written frame; return its address and whether to flush now."""
        with self._state:
            self._check_usable()
            address = Address(segment.number, segment.end, length)
            segment.end += length
            segment.frames += 1
            segment.unindexed.add(kind, length, meta, frames.header_checksum(head))
            self._sequence += 1
            self._unflushed += length
            flush_due = self._unflushed >= self._flush_bytes
            if flush_due:
                self._unflushed = 0
        return address, flush_due

    def _write(self, parts: list[memoryview], length: int) -> Segment:
        """Write a frame's parts; return the segment with its `end` not yet moved."""
        path = self._active.path
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
                raise LogFailed(self.directory, reason=str(error)) from error
            raise
        return segment

    def _undo(self, error: BaseException) -> None:
        """Cut off a partly written frame; fail the log if that is not possible."""
        try:
            self._active.cut()
        except OSError as second:
            self.fail(second)
        if isinstance(error, OSError) and error.errno not in segments.NO_ROOM:
            self.fail(error)

    def _segment_for(self, length: int) -> Segment:
        active = self._active
        used = active.end - segments.HEADER_BYTES
        if not used or used + length <= self._segment_bytes:
            return active
        fresh = segments.create(self.directory, active.number + 1, self._sequence)
        # Before it is visible as full: the flush that syncs a full segment closes its file.
        active.cut()
        with self._state:
            self._segments[fresh.number] = fresh
            self._pending_segments.append(active)
            self._active = fresh
        return fresh

    def sync(self, upto: Address | None = None) -> None:
        """Wait until the frames up to `upto` (default: all) are safe on disk.

        Concurrent callers share an fdatasync.

        Raises:
            LogFailed: the state on disk is unknown.
            LogClosed: the log was closed before.
        """
        with self._state:
            position = self._tail()
            if upto is not None:
                position = min(position, (upto.segment, upto.offset + upto.length))
            if self._synced >= position and self._failure is None:
                return
            self._check_usable()
        self._committer.request(self)
        with self._state:
            self._state.wait_for(
                lambda: self._synced >= position or self._failure is not None or self._closed
            )
            if self._synced < position:
                self._check_usable()

    def flush(self) -> None:
        """Sync all frames, for the committer; on a failed fdatasync fail the log, do not raise."""
        with self._flushing:
            with self._state:
                if self._failure is not None or self._closed:
                    return
                full_segments = list(self._pending_segments)
                due = [
                    (one, one.end) for one in (*full_segments, self._active) if one.end > one.mark
                ]
                new = [
                    (one, one.take_unindexed(growing=one is self._active))
                    for one in (*full_segments, self._active)
                ]
                position = self._tail()
                self._unflushed = 0
            try:
                for segment, end in due:
                    segment.sync(end)
            except OSError as error:
                self.fail(error)
                self._forget_unsynced()
                return
            for segment in full_segments:
                segment.release()
            with self._state:
                self._synced = position
                del self._pending_segments[: len(full_segments)]
                self._state.notify_all()
            for segment, entries in new:
                self._extend_index(segment, entries)

    def _extend_index(self, segment: Segment, entries: index.Entries | None) -> None:
        if entries is None:
            return
        segment.extend_index(entries)
        with self._state:
            dropped = segment.number not in self._segments
        if dropped:
            segment.unlink()

    def _forget_unsynced(self) -> None:
        """Cut the frames that a failed fdatasync left in doubt, as far as the disk allows.

        They may be in the page cache only; a recovery would read them there as if they were safe.
        """
        with self._appending, self._state, contextlib.suppress(OSError):
            for segment in (*self._pending_segments, self._active):
                os.ftruncate(segment.open_for_writing(), segment.mark)

    def fail(self, error: Exception) -> None:
        """Refuse further frames: the state on disk is unknown."""
        with self._state:
            self._failure = self._failure or error
            self._state.notify_all()

    def _tail(self) -> _Position:
        return self._active.number, self._active.end

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise LogFailed(self.directory, reason=str(self._failure)) from self._failure
        if self._closed:
            raise LogClosed(self.directory)

    def read(self, address: Address) -> memoryview:
        """Return a frame's verified payload.

        The frame need not be synced; after a failure only synced frames can be read.

        Raises:
            LogCorrupt: the frame on disk is damaged.
            AddressGone: its segment was dropped, or the address never had a frame.
            LogFailed, LogClosed: see `append`.
        """
        with self._frame(address) as (fd, header, _):
            start = address.offset + header.length - header.payload_bytes
            payload = memoryview(frames.read_at(fd, header.payload_bytes, start))
        if frames.checksum([payload]) != header.payload_crc:
            why = "the checksum of a frame's payload differs"
            raise LogCorrupt(self._path(address.segment), offset=address.offset, reason=why)
        return payload

    def read_meta(self, address: Address) -> bytes:
        """Return a frame's verified meta bytes; raises like `read`."""
        with self._frame(address) as (_, _, meta):
            return meta

    @contextlib.contextmanager
    def _frame(self, address: Address) -> Iterator[tuple[int, Header, bytes]]:
        path = self._path(address.segment)
        self._check_readable(address)
        with contextlib.ExitStack() as stack:
            try:
                fd = stack.enter_context(self._files.pin(address.segment))
            except FileNotFoundError:
                why = "its segment was dropped"
                raise AddressGone(path, offset=address.offset, reason=why) from None
            window = frames.BufferedFile(fd, address.offset + address.length)
            head = window.read(address.offset, frames.HEADER_BYTES)
            frame, damage = frames.parse_frame(window, path, address.offset, head)
            if frame is None:
                raise LogCorrupt(path, offset=address.offset, reason=damage or "")
            if frame.header.length != address.length:
                why = f"a frame of {frame.header.length} bytes, not {address.length}"
                raise LogCorrupt(path, offset=address.offset, reason=why)
            yield fd, frame.header, frame.meta

    def _check_readable(self, address: Address) -> None:
        path = self._path(address.segment)
        end = address.offset + address.length
        with self._state:
            if self._closed or (self._failure and (address.segment, end) > self._synced):
                self._check_usable()
            segment = self._segments.get(address.segment)
            if segment is None:
                raise AddressGone(path, offset=address.offset, reason="its segment was dropped")
            if end > segment.end:
                raise AddressGone(path, offset=address.offset, reason="the log ends before it")

    def _path(self, number: int) -> Path:
        return segments.segment_path(self.directory, number)

    def frames(self, kinds: Collection[int] | None = None) -> Iterator[tuple[Address, Kind, bytes]]:
        """Yield (address, kind, meta bytes) of the present frames, in order, without payloads.

        ``kinds`` None yields all. Segments dropped in the meantime are skipped.

        Raises:
            LogCorrupt: a frame's header is damaged.
            LogClosed: the log is closed.
        """
        with self._state:
            if self._closed:
                self._check_usable()
            stop = self._synced if self._failure else self._tail()
            ends = [(one.number, one.end) for one in self._segments.values()]
        for number, end in ends:
            if number > stop[0]:
                return
            yield from self._read_frames(number, stop[1] if number == stop[0] else end, kinds)

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
        with self._state:
            if self._closed:
                self._check_usable()
            segment = self._segments.get(number)
            end = 0 if segment is None else min(segment.end, segment.mark)
        if end <= segments.HEADER_BYTES:
            return
        try:
            for address, _, _ in self._read_frames(number, end, None, verify_payloads=True):
                yield address.length
        except LogCorrupt as error:
            with self._state:
                if number in self._segments:
                    self.damaged[number] = str(error)

    def _read_frames(
        self, number: int, end: int, kinds: Collection[int] | None, *, verify_payloads: bool = False
    ) -> Iterator[tuple[Address, Kind, bytes]]:
        path = self._path(number)
        with contextlib.ExitStack() as stack:
            try:
                fd = stack.enter_context(self._files.pin(number))
            except FileNotFoundError:
                return
            header = segments.read_header(fd, path)
            scan = frames.Scan(
                frames.BufferedFile(fd, end),
                path,
                start=segments.HEADER_BYTES,
                sequence=header.sequence,
                verify_from=0 if verify_payloads else end,
            )
            for frame in scan:
                if kinds is None or frame.header.kind in kinds:
                    address = Address(number, frame.offset, frame.header.length)
                    yield address, Kind(frame.header.kind), frame.meta
            if scan.end < end:
                raise LogCorrupt(path, offset=scan.end, reason=scan.damage or "a blank frame")

    def segments(self) -> list[SegmentInfo]:
        """Return the segments, oldest first; the last is active."""
        with self._state:
            return [segment.info for segment in self._segments.values()]

    @property
    def size_bytes(self) -> int:
        """Total bytes of all frames."""
        return sum(info.bytes for info in self.segments())

    def drop_segment(self, number: int) -> int:
        """Remove a segment and its frames; reads in progress still succeed.

        Returns:
            Bytes of frames removed; 0 if the segment does not exist.

        Raises:
            ValueError: it is the active segment.
            LogFailed: the directory cannot be written.
            LogClosed: the log is closed.
        """
        dropped = self._drop({number}.__contains__, refuse_active=True)
        return sum(info.bytes for info in dropped)

    def remove_segments(self, keep: Callable[[int], bool]) -> list[SegmentInfo]:
        """Remove the segments for which `keep` is false, never the active one; return them.

        Raises:
            LogFailed: the directory cannot be written.
            LogClosed: the log is closed.
        """
        return self._drop(lambda number: not keep(number))

    def _drop(
        self, chosen: Callable[[int], bool], *, refuse_active: bool = False
    ) -> list[SegmentInfo]:
        with self._state:
            self._check_usable()
            if refuse_active and chosen(self._active.number):
                raise ValueError(f"segment {self._active.number} is active and cannot be dropped")
            removed = [
                one
                for one in self._segments.values()
                if one is not self._active and chosen(one.number)
            ]
            for segment in removed:
                del self._segments[segment.number]
                self.damaged.pop(segment.number, None)
        try:
            for segment in removed:
                segment.unlink()
                self._files.forget(segment.number)
            if removed:
                sync_directory(self.directory)
        except OSError as error:
            self.fail(error)
            raise LogFailed(self.directory, reason=str(error)) from error
        return [segment.info for segment in removed]

    def close(self) -> None:
        """Sync everything and close the files; later calls raise `LogClosed`.

        Raises:
            LogFailed: the last frames could not be synced.
        """
        with self._state:
            if self._closed:
                return
            failed_before = self._failure is not None
        self.flush()
        with self._flushing, self._appending, self._state:
            self._closed = True
            self._state.notify_all()
            if self._failure is None:
                with contextlib.suppress(OSError):  # cut the unused reserved space
                    self._active.cut()
            for segment in (*self._pending_segments, self._active):
                segment.release()
        self._files.close()
        if self._failure is not None and not failed_before:
            raise LogFailed(self.directory, reason=str(self._failure)) from self._failure


def _create_first(directory: Path) -> Segment:
    try:
        return segments.create(directory, 1, 0)
    except OSError as error:
        if error.errno in segments.NO_ROOM:
            path = segments.segment_path(directory, 1)
            raise segments.log_full_error(path, segments.HEADER_BYTES, error) from error
        raise LogFailed(directory, reason=str(error)) from error
