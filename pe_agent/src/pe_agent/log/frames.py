"""Frame format: a fixed header, a small meta part, a payload.

::

    offset  size
         0     4  magic "SBLF"
         4     4  crc32 of bytes 8..32 and the meta part
         8     1  format version
         9     1  kind
        10     2  flags (0)
        12     4  meta bytes
        16     4  payload bytes
        20     4  crc32 of the payload
        24     8  sequence, counted over the whole log from 0
        32        meta, then payload

Numbers are little endian. The header checksum covers the payload checksum, so headers and metas
can be verified without payloads, and payload checksums need no lock. Every format version keeps
these 32 bytes, so that an old release can distinguish a newer frame from a damaged one.
"""

import enum
import errno
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from pe_agent.log.errors import FrameTooLarge, LogVersionUnknown

MAGIC = b"SBLF"
VERSION = 1
HEADER_BYTES = 32
MAX_META_BYTES = 16 << 20
MAX_PAYLOAD_BYTES = 1 << 30

Payload: TypeAlias = Any
"""One object with the buffer protocol, or a list or tuple of such objects."""

_FRONT = struct.Struct("<4sI")
_REST = struct.Struct("<BBHIIIQ")
_WINDOW_BYTES = 32 << 10
_CHUNK_BYTES = 1 << 20


class Kind(enum.IntEnum):
    """Content of a frame; the log treats all kinds alike."""

    STAGE_DATA = 1
    MANIFEST = 2
    STAGE_END = 3
    NOTE = 4


class Address(NamedTuple):
    """Segment number, offset and length in bytes of a frame; ordered as frames were appended."""

    segment: int
    offset: int
    length: int


class Header(NamedTuple):
    """Fixed part of a frame, as stored."""

    crc: int
    version: int
    kind: int
    flags: int
    meta_bytes: int
    payload_bytes: int
    payload_crc: int
    sequence: int

    @property
    def length(self) -> int:
        """Bytes of the whole frame."""
        return HEADER_BYTES + self.meta_bytes + self.payload_bytes


class ScannedFrame(NamedTuple):
    """One frame found by a scan: offset, header and meta bytes."""

    offset: int
    header: Header
    meta: bytes


def views(payload: Payload) -> list[memoryview]:
    """Return the payload's buffers as flat byte views, without copying.

    Raises:
        TypeError: an item has no contiguous buffer.
    """
    parts: Sequence[Any] = payload if isinstance(payload, (list, tuple)) else (payload,)
    return [memoryview(part).cast("B") for part in parts]


def checksum(parts: Sequence[memoryview]) -> int:
    """Return the crc32 over all parts, in order."""
    crc = 0
    for part in parts:
        crc = zlib.crc32(part, crc)
    return crc


def check_size(meta_bytes: int, payload_bytes: int) -> None:
    """Check the format's size limits.

    Raises:
        FrameTooLarge: meta above 16 MiB or payload above 1 GiB.
    """
    if meta_bytes > MAX_META_BYTES:
        raise FrameTooLarge("the meta part", size=meta_bytes, limit=MAX_META_BYTES)
    if payload_bytes > MAX_PAYLOAD_BYTES:
        raise FrameTooLarge("the payload", size=payload_bytes, limit=MAX_PAYLOAD_BYTES)


def encode(kind: int, meta: bytes, *, payload_bytes: int, payload_crc: int, sequence: int) -> bytes:
    """Return header and meta of a frame; the payload follows them in the file."""
    rest = _REST.pack(VERSION, kind, 0, len(meta), payload_bytes, payload_crc, sequence)
    return _FRONT.pack(MAGIC, zlib.crc32(meta, zlib.crc32(rest))) + rest + meta


def header_checksum(head: bytes) -> int:
    """Return the header checksum of an encoded frame."""
    return int(_FRONT.unpack_from(head)[1])


def decode(head: bytes) -> Header | None:
    """Return the header in the first 32 bytes of `head`, None if magic or limits are wrong.

    The checksum also needs the meta part, see `is_whole`.
    """
    if len(head) < HEADER_BYTES:
        return None
    magic, crc = _FRONT.unpack_from(head)
    header = Header(crc, *_REST.unpack_from(head, _FRONT.size))
    if magic != MAGIC or header.meta_bytes > MAX_META_BYTES:
        return None
    return header if header.payload_bytes <= MAX_PAYLOAD_BYTES else None


def is_whole(head: bytes, meta: bytes) -> bool:
    """Return whether the header checksum matches header and meta bytes."""
    crc = zlib.crc32(meta, zlib.crc32(head[_FRONT.size : HEADER_BYTES]))
    return bool(_FRONT.unpack_from(head)[1] == crc)


class BufferedFile:
    """Buffered reader of a file: avoids one system call per short frame."""

    def __init__(self, fd: int, size: int) -> None:
        self._fd = fd
        self._start = 0
        self._data = b""
        self.size = size

    def read(self, offset: int, count: int) -> bytes:
        """Return up to `count` bytes at `offset`; fewer only at the end of the file."""
        count = min(count, self.size - offset)
        if count <= 0:
            return b""
        at = offset - self._start
        if at < 0 or at + count > len(self._data):
            self._data = read_at(self._fd, max(count, _WINDOW_BYTES), offset)
            self._start, at = offset, 0
        return self._data[at : at + count]

    def crc(self, offset: int, count: int) -> int:
        """Return the crc32 of `count` bytes at `offset`, read in chunks."""
        crc, stop = 0, offset + count
        while offset < stop:
            data = self.read(offset, min(_CHUNK_BYTES, stop - offset))
            if not data:
                break
            crc = zlib.crc32(data, crc)
            offset += len(data)
        return crc

    def find(self, needle: bytes, offset: int) -> int | None:
        """Return the first offset of `needle` at or after `offset`, None if there is none."""
        while offset < self.size:
            data = self.read(offset, _CHUNK_BYTES)
            at = data.find(needle)
            if at >= 0:
                return offset + at
            if len(data) < _CHUNK_BYTES:
                return None
            offset += len(data) - len(needle) + 1
        return None

    def data_end(self, offset: int) -> int:
        """Return the offset after the last non-zero byte, at least `offset`."""
        if self.size <= offset or not _has_data(self._fd, offset):
            return offset
        stop = self.size
        while stop > offset:
            start = max(offset, stop - _CHUNK_BYTES)
            data = self.read(start, stop - start).rstrip(b"\0")
            if data:
                return start + len(data)
            stop = start
        return offset


def read_at(fd: int, count: int, offset: int) -> bytes:
    """Return `count` bytes of the file at `offset`; fewer only at its end."""
    data = os.pread(fd, count, offset)
    while data and len(data) < count:
        more = os.pread(fd, count - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


def _has_data(fd: int, offset: int) -> bool:
    """Return whether data follows `offset`; preallocated space is no data."""
    try:
        os.lseek(fd, offset, os.SEEK_DATA)
    except OSError as error:
        return error.errno != errno.ENXIO
    return True


class Scan:
    """Frames of one file in order, up to its end or the first damaged frame.

    After the iteration `end` is the offset after the last good frame, `sequence` the next expected
    one, `damage` a description or None. A blank header is the end, not damage: preallocated space
    is zero.
    """

    def __init__(
        self, file: BufferedFile, path: Path, *, start: int, sequence: int, verify_from: int
    ) -> None:
        """Scan from `start`; payloads of frames that end after `verify_from` are verified."""
        self._file = file
        self._path = path
        self._verify_from = verify_from
        self.end = start
        self.sequence = sequence
        self.damage: str | None = None

    def __iter__(self) -> Iterator[ScannedFrame]:
        """Yield the good frames; raise `LogVersionUnknown` at a valid frame of a newer version."""
        while (frame := self._next()) is not None:
            self.end += frame.header.length
            self.sequence += 1
            yield frame

    def _next(self) -> ScannedFrame | None:
        head = self._file.read(self.end, HEADER_BYTES)
        if not head.strip(b"\0"):
            return None
        frame, self.damage = parse_frame(self._file, self._path, self.end, head)
        if frame is None:
            return None
        if frame.header.sequence != self.sequence:
            self.damage = f"frame {frame.header.sequence} where {self.sequence} was due"
            return None
        if self.end + frame.header.length > self._verify_from:
            self.damage = find_payload_damage(self._file, frame)
        return None if self.damage else frame


def parse_frame(
    file: BufferedFile, path: Path, offset: int, head: bytes
) -> tuple[ScannedFrame | None, str | None]:
    """Return the frame with the header `head`, or None and a description of the damage.

    Raises:
        LogVersionUnknown: the frame is valid and of a newer version.
    """
    header = decode(head)
    if header is None:
        return None, "no frame header"
    meta = file.read(offset + HEADER_BYTES, header.meta_bytes)
    if len(meta) < header.meta_bytes or not is_whole(head, meta):
        return None, "the checksum of a frame's header differs"
    if header.version > VERSION:
        raise LogVersionUnknown(path, version=header.version, supported=VERSION)
    if offset + header.length > file.size:
        return None, "a frame's payload is cut short"
    return ScannedFrame(offset, header, meta), None


def find_payload_damage(file: BufferedFile, frame: ScannedFrame) -> str | None:
    """Return a description of payload damage, None if the checksum matches."""
    header = frame.header
    start = frame.offset + HEADER_BYTES + header.meta_bytes
    if file.crc(start, header.payload_bytes) != header.payload_crc:
        return "the checksum of a frame's payload differs"
    return None


def find_whole_frame(file: BufferedFile, path: Path, offset: int, *, sequence: int) -> int | None:
    """Return the offset of the next valid frame after `offset`, None if there is none.

    Frames up to `sequence` do not count: a payload may contain copies of frames.
    """
    at = file.find(MAGIC, offset + 1)
    while at is not None:
        frame, _ = parse_frame(file, path, at, file.read(at, HEADER_BYTES))
        if frame and frame.header.sequence > sequence and not find_payload_damage(file, frame):
            return at
        at = file.find(MAGIC, at + 1)
    return None
