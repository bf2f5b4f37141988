"""Builders for tests of the durable log."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from pe_agent.log.commit import Committer
from pe_agent.log.frames import Address, BufferedFile, Kind, Scan
from pe_agent.log.log import StreamLog
from pe_agent.log.segments import HEADER_BYTES, read_header, segment_path


@contextlib.contextmanager
def opened(directory: Path, *, segment_bytes: int = 1 << 20) -> Iterator[StreamLog]:
    """Open a log for the length of a block, with a committer of its own."""
    committer = Committer(threads=1)
    try:
        log = StreamLog.open(directory, segment_bytes=segment_bytes, committer=committer)
        try:
            yield log
        finally:
            log.close()
    finally:
        committer.close()


def body(number: int, size: int = 40) -> bytes:
    """Return a payload that no other number has, without zeros at its end."""
    return (f"<{number}>".encode() * size)[:size]


def fill(log: StreamLog, count: int, *, size: int = 40) -> list[Address]:
    """Append `count` notes: meta ``{"n": i}``, payload ``body(i, size)``."""
    return [log.append(Kind.NOTE, b'{"n": %d}' % n, body(n, size)) for n in range(count)]


def frames_of(log: StreamLog) -> Iterator[tuple[Address, Kind, bytes]]:
    """Yield address, kind and meta of the frames in the files, in order, up to a bad one."""
    for info in log.segments():
        path = segment_path(log.directory, info.number)
        with path.open("rb") as file:
            scan = Scan(
                BufferedFile(file.fileno(), info.end),
                path,
                start=HEADER_BYTES,
                sequence=read_header(file.fileno(), path).sequence,
                verify_from=info.end,
            )
            for frame in scan:
                address = Address(info.number, frame.offset, frame.header.length)
                yield address, Kind(frame.header.kind), frame.meta


def size_of(log: StreamLog) -> int:
    return sum(info.bytes for info in log.segments())


def contents(log: StreamLog) -> list[bytes]:
    return [bytes(log.read(address)) for address, _, _ in frames_of(log)]


def snapshot(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def flip(path: Path, offset: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(data)
