"""Compare the log's appends with a plain loop over pwritev, crc32 and fdatasync.

Both write the same payloads into preallocated 64 MiB segments, check them with
crc32 and make each 16 MiB safe. They take turns in one run, in an order that
alternates, so that neither has the faster disk. The ratio is formed per pair.

    python benchmarks/log_append.py --rounds 7 --mib 256 --json log_append.json
"""

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

from pe_agent.log import Committer, Kind, StreamLog

SEGMENT_BYTES = 64 << 20
SYNC_BYTES = 16 << 20
PAYLOAD_BYTES = 800_000


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


def measure(place: Path, rounds: int, count: int) -> dict[str, list[float]]:
    """Return MB/s per round and way; round 0 warms up and is left out."""
    payload = os.urandom(PAYLOAD_BYTES)
    ways: list[tuple[str, Callable[[Path, bytes, int], float]]] = [
        ("plain", plain_loop),
        ("log", stream_log),
    ]
    rates: dict[str, list[float]] = {name: [] for name, _ in ways}
    for round_ in range(rounds + 1):
        for name, way in ways if round_ % 2 else reversed(ways):
            directory = place / f"{name}-{round_}"
            seconds = way(directory, payload, count)
            shutil.rmtree(directory)
            if round_:
                rates[name].append(count * PAYLOAD_BYTES / seconds / 1e6)
    return rates


def spread(values: list[float]) -> dict[str, float]:
    """Return median, least and greatest."""
    return {
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
    }


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--mib", type=int, default=256, help="MiB written per round and way")
    parser.add_argument("--directory", type=Path, help="where to write (default: a temporary one)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    count = (options.mib << 20) // PAYLOAD_BYTES
    with tempfile.TemporaryDirectory(dir=options.directory) as place:
        rates = measure(Path(place), options.rounds, count)
    ratios = [log / plain for log, plain in zip(rates["log"], rates["plain"], strict=True)]
    figures = {
        "payload_bytes": PAYLOAD_BYTES,
        "sync_bytes": SYNC_BYTES,
        "rounds": options.rounds,
        "plain_mb_per_s": spread(rates["plain"]),
        "log_mb_per_s": spread(rates["log"]),
        "log_to_plain": spread(ratios),
    }
    for name in ("plain_mb_per_s", "log_mb_per_s", "log_to_plain"):
        row = spread(ratios) if name == "log_to_plain" else spread(rates[name.partition("_")[0]])
        print(f"{name:15} {row['median']:9.2f}  [{row['min']:.2f} .. {row['max']:.2f}]")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
