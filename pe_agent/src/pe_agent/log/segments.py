"""Segment files: the parts of a log and the unit of retention.

A segment begins with a header page::

    offset  size
         0     4  magic "SBLS"
         4     4  crc32 of bytes 8..32
         8     4  format version
        12     4  1 if a recovery has reported lost frames after the last one, else 0
        16     8  number of the segment
        24     8  sequence of its first frame
        32     8  mark: offset up to which the file was safe on disk
        40     4  crc32 of the mark
      4096        frames

Creation is atomic: ``.new`` file, fsync, rename, fsync of the directory. The *mark* is written
after each fdatasync and reaches the disk with the next one. It may be late, but is never wrong, so
recovery can distinguish an unacknowledged torn tail from damage to acknowledged frames. The header
has its own page to keep the mark apart from frame writes.
"""

import contextlib
import errno
import os
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from pe_agent.log import index
from pe_agent.log.atomic_file import sync_directory
from pe_agent.log.errors import AddressGone, LogCorrupt, LogFull, LogVersionUnknown
from pe_agent.log.frames import HEADER_BYTES as FRAME_HEADER_BYTES
from pe_agent.log.frames import (
    VERSION,
    Address,
    BufferedFile,
    Scan,
    checksum,
    parse_frame,
    read_at,
)

HEADER_BYTES = 4096
SUFFIX = ".segment"
REMOTE_SUFFIX = ".remote"
"""Stands for a segment that is in object storage only; its text is the end of its frames."""
TORN_SUFFIX = ".torn"
NEW_SUFFIX = ".new"
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

_MAGIC = b"SBLS"
_FRONT = struct.Struct("<4sI")
_REST = struct.Struct("<IIQQ")
_MARK = struct.Struct("<QI")
_MARK_OFFSET = 32
_MAX_BUFFERS = 1024
_CANNOT_RESERVE = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})
_EVERYTHING = (1 << 63) - 1
_REMEDIES = {
    errno.ENOSPC: "free space on this file system, or lower the export's buffer.maxBytes",
    errno.EDQUOT: "raise the quota of the agent's user, or lower the export's buffer.maxBytes",
    errno.EFBIG: "raise the agent's file size limit (ulimit -f), or make the segments smaller",
}


class SegmentInfo(NamedTuple):
    """Snapshot of a segment: number, bytes of its frames, number of frames."""

    number: int
    bytes: int
    frames: int

    @property
    def end(self) -> int:
        """Offset after the last frame."""
        return HEADER_BYTES + self.bytes


class SegmentHeader(NamedTuple):
    """Header page; ``is_loss_reported`` if recovery reported lost frames after the last one."""

    number: int
    sequence: int
    mark: int
    is_loss_reported: bool = False


class Segment:
    """One segment of an open log; `fd` is None while it is not open for writing.

    `unindexed` holds the frames after those in the index. `index_bytes` is the index size, None
    after a failed index write.
    """

    def __init__(
        self,
        path: Path,
        number: int,
        *,
        unindexed: index.Entries,
        frames: int = 0,
        mark: int,
        index_bytes: int = 0,
    ) -> None:
        self.path = path
        self.number = number
        self.end = unindexed.end
        self.frames = frames
        self.mark = mark
        self.unindexed = unindexed
        self.index_bytes: int | None = index_bytes
        self.reserved = self.end
        self.fd: int | None = None

    @property
    def info(self) -> SegmentInfo:
        """Snapshot for callers."""
        return SegmentInfo(self.number, self.end - HEADER_BYTES, self.frames)

    def open_for_writing(self) -> int:
        """Return the descriptor for writing, opened on the first call."""
        if self.fd is None:
            self.fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        return self.fd

    def reserve(self, length: int, *, segment_bytes: int) -> None:
        """Preallocate up to `segment_bytes` of frames, or the space of one frame.

        Missing support for preallocation is no error; neither is a lack of space for the whole
        segment while the frame fits.

        Raises:
            OSError: there is no space for the frame, or the disk fails.
        """
        fd, stop = self.open_for_writing(), HEADER_BYTES + segment_bytes
        if self.end + length <= self.reserved:
            return
        if stop >= self.end + length and self._allocate(fd, stop):
            return
        self._allocate(fd, self.end + length)

    def _allocate(self, fd: int, stop: int) -> bool:
        try:
            os.posix_fallocate(fd, self.end, stop - self.end)
        except AttributeError:  # not on this platform
            self.reserved = _EVERYTHING
            return True
        except OSError as error:
            if error.errno in _CANNOT_RESERVE:
                self.reserved = _EVERYTHING
                return True
            if error.errno not in NO_ROOM:
                raise
            os.ftruncate(fd, self.end)
            self.reserved = self.end
            return False
        self.reserved = stop
        return True

    def write(self, parts: list[memoryview]) -> None:
        """Write all parts after the last frame; `end` does not move.

        Raises:
            OSError: a part could not be written; the caller must cut the rest.
        """
        fd, offset, first = self.open_for_writing(), self.end, 0
        while first < len(parts):
            written = os.pwritev(fd, parts[first : first + _MAX_BUFFERS], offset)
            if written <= 0:
                raise OSError(errno.EIO, "the file takes no more bytes", str(self.path))
            offset += written
            while first < len(parts) and written >= len(parts[first]):
                written -= len(parts[first])
                first += 1
            if written:
                parts[first] = parts[first][written:]

    def cut(self) -> None:
        """Truncate the file after the last frame, including reserved space."""
        self.reserved = self.end
        os.ftruncate(self.open_for_writing(), self.end)

    def sync(self, end: int) -> None:
        """Sync all frames before `end` and write the mark.

        Raises:
            OSError: the fdatasync failed; it must not be repeated.
        """
        fd = self.open_for_writing()
        os.fdatasync(fd)
        self.mark = end
        with contextlib.suppress(OSError):  # a late mark is harmless
            write_mark(fd, end)

    def take_unindexed(self, *, growing: bool) -> index.Entries | None:
        """Return the frames due for the index, None if there are none."""
        due = self.unindexed
        if not due or (growing and not due.is_run_due):
            return None
        self.unindexed = due.next_entries
        return due

    def extend_index(self, entries: index.Entries) -> None:
        """Append synced frames to the index; after a failure the next start scans from them on."""
        if self.index_bytes is None:
            return
        run = entries.pack(self.number)
        try:
            index.append(self.path, run, self.index_bytes)
        except OSError:
            self.index_bytes = None
            return
        self.index_bytes += len(run)

    def unlink(self) -> None:
        """Remove the file and its index."""
        self.path.unlink(missing_ok=True)
        remote_path(self.path).unlink(missing_ok=True)
        index.index_path(self.path).unlink(missing_ok=True)

    def release(self) -> None:
        """Close the descriptor for writing."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


def segment_path(directory: Path, number: int) -> Path:
    """Return the path of a segment."""
    return directory / f"{number:010d}{SUFFIX}"


def remote_path(segment: Path) -> Path:
    """Return the path that stands for a segment while it is in object storage only."""
    return segment.with_suffix(REMOTE_SUFFIX)


def list_paths(directory: Path) -> list[Path]:
    """Return the segment files of a directory, in order."""
    return _list(directory, SUFFIX)


def list_remote_ends(directory: Path) -> dict[Path, int]:
    """Return the ends of the segments in object storage only, by the path they would have."""
    return {
        path.with_suffix(SUFFIX): int(path.read_text()) for path in _list(directory, REMOTE_SUFFIX)
    }


def _list(directory: Path, suffix: str) -> list[Path]:
    paths = [path for path in directory.glob(f"*{suffix}") if path.stem.isdigit()]
    return sorted(paths, key=lambda path: int(path.stem))


def create(directory: Path, number: int, sequence: int) -> Segment:
    """Create an empty segment, durable under its name.

    Raises:
        OSError: failed; no file is left behind if there was no room.
    """
    path = segment_path(directory, number)
    fresh = path.with_name(path.name + NEW_SUFFIX)
    fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
    try:
        _write_all(fd, new_header(number, sequence))
        os.fsync(fd)
        fresh.rename(path)
        sync_directory(directory)
    except BaseException:
        os.close(fd)
        fresh.unlink(missing_ok=True)
        raise
    unindexed = index.Entries(HEADER_BYTES, sequence)
    segment = Segment(path, number, unindexed=unindexed, mark=HEADER_BYTES)
    segment.fd = fd
    return segment


def new_header(number: int, sequence: int) -> bytes:
    """Return the header page of a segment without frames."""
    head = _pack_header(number, sequence) + _pack_mark(HEADER_BYTES)
    return head.ljust(HEADER_BYTES, b"\0")


def read_header(fd: int, path: Path) -> SegmentHeader:
    """Return the header of a segment; an invalid mark reads as "nothing safe".

    Raises:
        LogCorrupt: the header is damaged.
        LogVersionUnknown: the header is valid and of a newer version.
    """
    page = read_at(fd, HEADER_BYTES, 0)
    if len(page) < HEADER_BYTES:
        raise LogCorrupt(path, offset=0, reason="the segment's header is cut short")
    magic, crc = _FRONT.unpack_from(page)
    if magic != _MAGIC or crc != zlib.crc32(page[_FRONT.size : _MARK_OFFSET]):
        raise LogCorrupt(path, offset=0, reason="the segment's header is damaged")
    version, is_loss_reported, number, sequence = _REST.unpack_from(page, _FRONT.size)
    if version > VERSION:
        raise LogVersionUnknown(path, version=version, supported=VERSION)
    if segment_path(path.parent, number) != path:
        raise LogCorrupt(path, offset=0, reason=f"this is segment {number} under another name")
    mark, mark_crc = _MARK.unpack_from(page, _MARK_OFFSET)
    mark_valid = mark_crc == zlib.crc32(page[_MARK_OFFSET : _MARK_OFFSET + 8])
    return SegmentHeader(
        number, sequence, mark if mark_valid else HEADER_BYTES, is_loss_reported == 1
    )


def mark_frames_lost(fd: int, number: int, sequence: int) -> None:
    """Record in the header that frames after the last one are lost, so later starts accept it."""
    os.pwrite(fd, _pack_header(number, sequence, short=1), 0)


def write_mark(fd: int, end: int) -> None:
    """Write the mark: everything before `end` is safe."""
    os.pwrite(fd, _pack_mark(end), _MARK_OFFSET)


def _pack_header(number: int, sequence: int, short: int = 0) -> bytes:
    rest = _REST.pack(VERSION, short, number, sequence)
    return _FRONT.pack(_MAGIC, zlib.crc32(rest)) + rest


def _pack_mark(end: int) -> bytes:
    return _MARK.pack(end, zlib.crc32(end.to_bytes(8, "little")))


def _write_all(fd: int, data: bytes) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:], done)


def log_full_error(path: Path, needed: int, error: OSError) -> LogFull:
    """Return the error for a frame of `needed` bytes that did not fit."""
    stat = os.statvfs(path.parent)
    return LogFull(
        path,
        needed=needed,
        free=stat.f_bavail * stat.f_frsize,
        reason=os.strerror(error.errno or errno.ENOSPC),
        remedy=_REMEDIES.get(error.errno or errno.ENOSPC, _REMEDIES[errno.ENOSPC]),
    )


class _OpenFile:
    __slots__ = ("fd", "stale", "users")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.users = 0
        self.stale = False


class SegmentReader:
    """Reads frames of a directory's segments. Thread-safe.

    At most `limit` descriptors are kept while unused. A read in progress succeeds although its
    segment is removed.
    """

    def __init__(
        self, directory: Path, *, limit: int = 16, fetch: Callable[[int], None] | None = None
    ) -> None:
        self._directory = directory
        self._limit = limit
        self._fetch = fetch
        """Brings a segment from object storage; does nothing if it is not there."""
        self._fetching = threading.Lock()
        self._lock = threading.Lock()
        self._files: dict[int, _OpenFile] = {}

    def read(self, address: Address) -> memoryview:
        """Return a frame's verified payload.

        Raises:
            LogCorrupt: the frame on disk is damaged.
            AddressGone: its segment was removed.
        """
        path = segment_path(self._directory, address.segment)
        if self._fetch is not None and not path.exists():
            with self._fetching:
                self._fetch(address.segment)
        with contextlib.ExitStack() as stack:
            try:
                fd = stack.enter_context(self._pin(address.segment))
            except FileNotFoundError:
                why = "its segment was dropped"
                raise AddressGone(path, offset=address.offset, reason=why) from None
            window = BufferedFile(fd, address.offset + address.length)
            head = window.read(address.offset, FRAME_HEADER_BYTES)
            frame, damage = parse_frame(window, path, address.offset, head)
            if frame is None:
                raise LogCorrupt(path, offset=address.offset, reason=damage or "")
            header = frame.header
            if header.length != address.length:
                why = f"a frame of {header.length} bytes, not {address.length}"
                raise LogCorrupt(path, offset=address.offset, reason=why)
            start = address.offset + header.length - header.payload_bytes
            payload = memoryview(read_at(fd, header.payload_bytes, start))
        if checksum([payload]) != header.payload_crc:
            why = "the checksum of a frame's payload differs"
            raise LogCorrupt(path, offset=address.offset, reason=why)
        return payload

    def verify(self, number: int, end: int) -> Iterator[int]:
        """Read a segment up to `end` with its payloads; yield the length of each frame in bytes.

        Raises:
            LogCorrupt: a frame is damaged or missing.
        """
        path = segment_path(self._directory, number)
        with contextlib.ExitStack() as stack:
            try:
                fd = stack.enter_context(self._pin(number))
            except FileNotFoundError:
                return
            scan = Scan(
                BufferedFile(fd, end),
                path,
                start=HEADER_BYTES,
                sequence=read_header(fd, path).sequence,
                verify_from=0,
            )
            for frame in scan:
                yield frame.header.length
            if scan.end < end:
                raise LogCorrupt(path, offset=scan.end, reason=scan.damage or "a blank frame")

    @contextlib.contextmanager
    def _pin(self, number: int) -> Iterator[int]:
        with self._lock:
            file = self._files.pop(number, None)
            if file is None:
                path = segment_path(self._directory, number)
                file = _OpenFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            self._files[number] = file
            file.users += 1
            self._evict()
        try:
            yield file.fd
        finally:
            with self._lock:
                file.users -= 1
                if file.stale and not file.users:
                    os.close(file.fd)

    def forget(self, number: int) -> None:
        """Close the segment's descriptor now, or when its last user is done."""
        with self._lock:
            self._close(number)

    def close(self) -> None:
        """Forget all segments."""
        with self._lock:
            for number in list(self._files):
                self._close(number)

    def _evict(self) -> None:
        unused = [number for number, file in self._files.items() if not file.users]
        for number in unused[: max(0, len(self._files) - self._limit)]:
            self._close(number)

    def _close(self, number: int) -> None:
        file = self._files.pop(number, None)
        if file is not None:
            file.stale = True
            if not file.users:
                os.close(file.fd)
