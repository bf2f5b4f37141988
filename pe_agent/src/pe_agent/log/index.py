"""Index of a segment: lists its frames, so that recovery need not scan them.

``0000000007.index`` belongs to ``0000000007.segment`` and has consecutive runs of frames, each::

    offset  size
         0     4  magic "SBLI"
         4     4  crc32 of all that follows
         8     4  format version
        12     4  bytes of the body
        16     8  number of the segment
        24     8  offset in the segment of the run's first frame
        32     8  offset behind its last
        40     8  offset of its last
        48     8  sequence of its first
        56     4  frames
        60     4  header checksum of the last frame
        64        body, packed by zlib: kinds (1 byte each), lengths of the frames and of their
                  metas (4 bytes each), metas

A run is written once its frames are safe on disk, so a power failure cannot make it wrong. The run
itself is not synced. From a missing, damaged, newer or mismatched run on, frames are scanned.
"""

import contextlib
import os
import struct
import zlib
from array import array
from collections.abc import Collection, Iterator
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

SUFFIX = ".index"
VERSION = 1
RUN_BYTES = 4 << 20
"""Bytes that an active segment grows by before its index is extended."""
RUN_FRAMES = 1024

_MAGIC = b"SBLI"
_FRONT = struct.Struct("<4sI")
_REST = struct.Struct("<IIQQQQQII")
_HEAD_BYTES = _FRONT.size + _REST.size
_FRAME_FRONT = struct.Struct("<4sI")
_ZLIB_LEVEL = 1

Entry = tuple[int, int, int, bytes]
"""Offset, length, kind and meta bytes of a frame."""


class Entries:
    """Consecutive frames, as appended or scanned."""

    __slots__ = ("_kinds", "_lengths", "_meta_bytes", "_metas", "begin", "crc", "end", "sequence")

    def __init__(self, begin: int, sequence: int) -> None:
        self.begin = self.end = begin
        self.sequence = sequence
        self.crc = 0
        self._kinds = bytearray()
        self._lengths = array("I")
        self._meta_bytes = array("I")
        self._metas = bytearray()

    def __len__(self) -> int:
        return len(self._kinds)

    def add(self, kind: int, length: int, meta: bytes, crc: int) -> None:
        """Add the next frame; ``crc`` is its header checksum."""
        self._kinds.append(kind)
        self._lengths.append(length)
        self._meta_bytes.append(len(meta))
        self._metas += meta
        self.end += length
        self.crc = crc

    @property
    def is_run_due(self) -> bool:
        """Whether there are enough frames for a run of a growing segment."""
        return self.end - self.begin >= RUN_BYTES or len(self) >= RUN_FRAMES

    @property
    def next_entries(self) -> "Entries":
        """Empty entries that begin after these."""
        return Entries(self.end, self.sequence + len(self))

    def pack(self, number: int) -> bytes:
        """Encode as a run of segment ``number``; there must be at least one frame."""
        count = len(self)
        body = zlib.compress(
            b"".join(
                (
                    self._kinds,
                    struct.pack(f"<{count}I", *self._lengths),
                    struct.pack(f"<{count}I", *self._meta_bytes),
                    self._metas,
                )
            ),
            _ZLIB_LEVEL,
        )
        rest = _REST.pack(
            VERSION,
            len(body),
            number,
            self.begin,
            self.end,
            self.end - self._lengths[-1],
            self.sequence,
            count,
            self.crc,
        )
        return _FRONT.pack(_MAGIC, zlib.crc32(body, zlib.crc32(rest))) + rest + body

    def entries(self, kinds: Collection[int] | None = None) -> Iterator[Entry]:
        """Yield the frames of these kinds, in order; None for all."""
        return _entries(
            self.begin, self._kinds, self._lengths, self._meta_bytes, bytes(self._metas), kinds
        )


class FrameRun(NamedTuple):
    """Consecutive frames, as stored in an index."""

    number: int
    begin: int
    end: int
    last: int
    sequence: int
    frames: int
    crc: int
    body: bytes

    def entries(self, kinds: Collection[int] | None = None) -> Iterator[Entry]:
        """Yield the frames of these kinds, in order; None for all."""
        data, count = zlib.decompress(self.body), self.frames
        lengths = struct.unpack_from(f"<{count}I", data, count)
        meta_bytes = struct.unpack_from(f"<{count}I", data, 5 * count)
        return _entries(self.begin, data[:count], lengths, meta_bytes, data[9 * count :], kinds)


def _entries(
    begin: int,
    frame_kinds: Collection[int],
    lengths: Collection[int],
    meta_bytes: Collection[int],
    metas: bytes,
    kinds: Collection[int] | None,
) -> Iterator[Entry]:
    offsets = accumulate(lengths, initial=begin)
    starts = accumulate(meta_bytes, initial=0)
    for kind, offset, length, start, count in zip(
        frame_kinds, offsets, lengths, starts, meta_bytes, strict=False
    ):
        if kinds is None or kind in kinds:
            yield offset, length, kind, metas[start : start + count]


def index_path(segment: Path) -> Path:
    """Return the index path of a segment."""
    return segment.with_suffix(SUFFIX)


def append(segment: Path, run: bytes, at: int) -> None:
    """Write a run at offset ``at``, after the earlier runs.

    Raises:
        OSError: the earlier runs are unchanged.
    """
    fd = os.open(index_path(segment), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        os.ftruncate(fd, at)
        done = 0
        while done < len(run):
            done += os.pwrite(fd, run[done:], at + done)
    finally:
        os.close(fd)


def read(
    segment: Path, fd: int | None, *, number: int, begin: int, sequence: int, size: int
) -> tuple[list[FrameRun], int]:
    """Return the valid runs from the segment's first frame on, and their bytes in the index.

    ``begin`` and ``sequence`` are those of the segment's first frame; ``size`` is its file size.
    ``fd`` is None if the segment is in object storage only.
    """
    runs: list[FrameRun] = []
    used = 0
    with contextlib.suppress(OSError):
        data = index_path(segment).read_bytes()
        while (run := _read_run(data, used)) is not None:
            if (run.number, run.begin, run.sequence) != (number, begin, sequence):
                break
            if run.end > size:
                # The segment has lost synced frames: scan all of it.
                return [], 0
            runs.append(run)
            used += _HEAD_BYTES + len(run.body)
            begin, sequence = run.end, run.sequence + run.frames
        if runs and fd is not None and not _matches_segment(fd, runs[-1]):
            return [], 0
    return runs, used


def first_sequence(segment: Path) -> int:
    """Return the sequence of the first frame in a segment's index, 0 without one."""
    try:
        run = _read_run(index_path(segment).read_bytes(), 0)
    except OSError:
        return 0
    return 0 if run is None else run.sequence


def end_of(segment: Path, *, begin: int) -> int:
    """Return the offset behind the last frame that a segment's index lists."""
    runs, _ = read(
        segment,
        None,
        number=int(segment.stem),
        begin=begin,
        sequence=first_sequence(segment),
        size=1 << 63,
    )
    return runs[-1].end if runs else begin


def _read_run(data: bytes, at: int) -> FrameRun | None:
    if at + _HEAD_BYTES > len(data):
        return None
    magic, crc = _FRONT.unpack_from(data, at)
    version, length, number, begin, end, last, sequence, frames, frame_crc = _REST.unpack_from(
        data, at + _FRONT.size
    )
    stop = at + _HEAD_BYTES + length
    if magic != _MAGIC or version != VERSION or stop > len(data):
        return None
    if crc != zlib.crc32(memoryview(data)[at + _FRONT.size : stop]):
        return None
    body = data[at + _HEAD_BYTES : stop]
    return FrameRun(number, begin, end, last, sequence, frames, frame_crc, body)


def _matches_segment(fd: int, run: FrameRun) -> bool:
    """Return whether the run's last frame is in the segment, by its header checksum."""
    head = os.pread(fd, _FRAME_FRONT.size, run.last)
    return len(head) == _FRAME_FRONT.size and _FRAME_FRONT.unpack(head)[1] == run.crc
