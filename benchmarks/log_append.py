"""Compare the log's appends with a plain loop over pwritev, crc32 and fdatasync.

Both write the same payloads into preallocated 64 MiB segments, check them with
crc32 and make each 16 MiB safe. They take turns in one run, in an order that
alternates, so that neither has the faster disk. The ratio is formed per pair.
"""

from __future__ import annotations

import os
import shutil
import time
import zlib
from collections.abc import Callable
from pathlib import Path

from measure import Figures, Settings, turns

from pe_agent.log.commit import Committer
from pe_agent.log.frames import Kind
from pe_agent.log.log import StreamLog

PURPOSE = "appends to the log against a plain loop of pwritev, crc32 and fdatasync"
SEGMENT_BYTES = 64 << 20
SYNC_BYTES = 16 << 20
PAYLOAD_BYTES = 800_000
WRITTEN_BYTES = 256 << 20


def plain_loop(directory: Path, payload: bytes, count: int) -> float:
    """Return the seconds a loop without any structure takes."""
    directory.mkdir()
    fd, number, offset, unsynced = -1, 0, SEGMENT_BYTES, 0
    started = time.perf_counter()
    for _ in range(count):
        if offset + len(payload) > SEGMENT_BYTES:
            if fd >= 0:
                os.fdatasync(fd)
                os.close(fd)
            fd = os.open(directory / str(number), os.O_RDWR | os.O_CREAT)
            os.posix_fallocate(fd, 0, SEGMENT_BYTES)
            number, offset = number + 1, 0
        head = zlib.crc32(payload).to_bytes(32, "little")
        offset += os.pwritev(fd, [head, payload], offset)
        unsynced += len(payload)
        if unsynced >= SYNC_BYTES:
            os.fdatasync(fd)
            unsynced = 0
    os.fdatasync(fd)
    seconds = time.perf_counter() - started
    os.close(fd)
    return seconds


def stream_log(directory: Path, payload: bytes, count: int) -> float:
    """Return the seconds the log takes."""
    committer = Committer()
    log = StreamLog.open(directory, segment_bytes=SEGMENT_BYTES, committer=committer)
    unsynced = 0
    started = time.perf_counter()
    for _ in range(count):
        log.append(Kind.STAGE_DATA, b'{"stage":1}', payload)
        unsynced += len(payload)
        if unsynced >= SYNC_BYTES:
            log.sync()
            unsynced = 0
    log.sync()
    seconds = time.perf_counter() - started
    log.close()
    committer.close()
    return seconds


def run(settings: Settings) -> Figures:
    """Measure; round 0 warms up and is left out."""
    figures = Figures()
    payload = os.urandom(PAYLOAD_BYTES)
    count = (WRITTEN_BYTES >> (4 if settings.quick else 0)) // PAYLOAD_BYTES
    ways: dict[str, Callable[[Path, bytes, int], float]] = {"plain": plain_loop, "log": stream_log}
    for round_ in range(settings.rounds + 1):
        if round_:
            figures.yardstick()
        for name in turns(tuple(ways), round_):
            directory = settings.place / f"{name}-{round_}"
            seconds = ways[name](directory, payload, count)
            shutil.rmtree(directory)
            if round_:
                figures.add(name, count * PAYLOAD_BYTES / seconds / 1e6, "MB/s")
    figures.ratio("log / plain", "log", "plain")
    figures.note(f"{count} payloads of {PAYLOAD_BYTES:,} bytes per round and way.")
    return figures
