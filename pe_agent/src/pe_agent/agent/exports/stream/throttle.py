"""Delays what is sent to readers, as the rates of the namespace's quota demand."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator

from pe_agent.agent.exports.stream.block_reader import SentBlock
from streambroker_core.ledger.throttle import MAX_BUCKETS, Throttle


class SendThrottle:
    """Rates of an agent; thread-safe. Without rates blocks pass through."""

    def __init__(
        self, stopping: threading.Event, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Create without rates; ``stopping`` ends all delays."""
        self._wait, self._clock = stopping.wait, clock
        self._lock = threading.Lock()
        self._throttle = Throttle()
        self._seconds: dict[str, float] = {}

    @property
    def is_on(self) -> bool:
        """Whether there is any rate."""
        return self._throttle.is_on

    def set_rates(self, reader: float | None, job: float | None) -> None:
        """Set the bytes per second of one reader, and of one importing job; None is no limit."""
        with self._lock:
            self._throttle.set_rates(reader, job)

    def seconds(self, reader: str) -> int:
        """Return for how long blocks of a reader were delayed, over all slices."""
        return int(self._seconds.get(reader, 0.0))

    def delay(self, blocks: Iterable[SentBlock], reader: str, import_: str) -> Iterator[SentBlock]:
        """Yield the blocks for a reader of an import, each when the rates allow it."""
        for block in blocks:
            seconds = self._take(reader, import_, block) if self.is_on else 0.0
            if seconds > 0:
                self._wait(seconds)
            yield block

    def _take(self, reader: str, import_: str, block: SentBlock) -> float:
        with self._lock:
            seconds = self._throttle.take(reader, import_, block[0].nbytes, self._clock())
            if seconds > 0:
                self._seconds[reader] = self._seconds.pop(reader, 0.0) + seconds
                while len(self._seconds) > MAX_BUCKETS:
                    del self._seconds[next(iter(self._seconds))]
        return seconds
