"""Progress of an agent's log recovery, for processes that wait until it serves."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypedDict

from pe_agent.log.atomic_file import replace_file
from pe_agent.log.segments import SUFFIX

log = logging.getLogger("pe_agent")

FILE = "recovering.json"
WRITE_SECONDS = 0.2
LOG_INTERVAL_SECONDS = 5.0


class Progress(TypedDict):
    """The stream that recovery reads, and the bytes done and in total."""

    stream: str
    done: int
    total: int


class RecoveryProgress:
    """Bytes that recovery has read of all logs below a data directory.

    ``recovering.json`` has the current stream, bytes done and total bytes, until :meth:`end`.
    """

    def __init__(self, home: Path) -> None:
        self._path = home / FILE
        self._total = sum(p.stat().st_size for p in home.rglob(f"*{SUFFIX}"))
        self._finished_bytes, self._stream_bytes, self._stream = 0, 0, ""
        self._written = self._logged = time.monotonic() - WRITE_SECONDS

    def __call__(self, stream: str, done: int, total: int) -> None:
        """Record that ``done`` of the ``total`` bytes of a stream's log were read."""
        if stream != self._stream:
            self._finished_bytes += self._stream_bytes
            self._stream, self._stream_bytes = stream, total
        now, read = time.monotonic(), self._finished_bytes + done
        if now - self._written < WRITE_SECONDS:
            return
        self._written = now
        progress = Progress(stream=stream, done=read, total=self._total)
        replace_file(self._path, json.dumps(progress))
        if now - self._logged >= LOG_INTERVAL_SECONDS:
            self._logged = now
            log.info("recovering: %d of %d MiB read", read >> 20, self._total >> 20)

    def end(self) -> None:
        """Remove the file: the agent serves."""
        self._path.unlink(missing_ok=True)


def read_progress(home: Path) -> Progress | None:
    """Return the recovery progress of a data directory's agent, None without recovery."""
    try:
        progress: Progress = json.loads((home / FILE).read_text())
    except (OSError, ValueError):
        return None
    return progress


class ProgressTimeout:
    """Timeout of ``seconds`` that restarts whenever recovery makes progress."""

    def __init__(
        self, home: Path, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._home, self._seconds, self._clock = home, seconds, clock
        self._last_progress = read_progress(home)  # may be left over from a killed agent
        self._deadline = clock() + seconds
        self._logged = clock()

    def should_wait(self) -> bool:
        """Return whether to continue waiting."""
        now, progress = self._clock(), read_progress(self._home)
        if progress is not None and progress != self._last_progress:
            self._last_progress = progress
            self._deadline = now + self._seconds
            if now - self._logged >= LOG_INTERVAL_SECONDS:
                self._logged = now
                log.info("the agent recovers its logs: %s", describe_progress(progress))
        return now < self._deadline


def describe_progress(progress: Progress) -> str:
    """Return progress as text."""
    share = 100 * progress["done"] // max(1, progress["total"])
    return f"{share} % of {progress['total'] / 2**20:,.0f} MiB"
