"""Background verification of the frames that recovery took from an index.

Reads verify only what they read. The scrub finds other damage early, while it can be restored. One
thread serves all logs of an agent.
"""

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from pe_agent.log.errors import LogError
from pe_agent.log.log import StreamLog

BYTES_PER_SECOND = 50 << 20
SHARE = 0.1
"""Maximum share of a core: short frames cost more than their bytes."""
_SLICE_BYTES = 1 << 20
_SLICE_SECONDS = 0.02

_log = logging.getLogger("pe_agent")


class Scrub:
    """Verifies the segments present at open, oldest first; counts bytes of valid frames."""

    def __init__(
        self,
        *,
        bytes_per_second: float = BYTES_PER_SECOND,
        share: float = SHARE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.verified_bytes = 0
        self._rate = bytes_per_second
        self._share = share
        self._clock = clock
        self._due: deque[tuple[StreamLog, int]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="log scrub", daemon=True)
        self._thread.start()

    def add(self, log: StreamLog) -> None:
        """Add a log that was just opened, unless recovery has read all of it."""
        with self._changed:
            if log.recovered.scanned_bytes < log.recovered.bytes:
                self._due.extend((log, one.number) for one in log.segments() if one.bytes)
            self._changed.notify()

    @property
    def waiting(self) -> int:
        """Number of segments still to verify."""
        with self._changed:
            return len(self._due)

    def close(self) -> None:
        """Stop; the next start begins again with unverified segments."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._due or self._closed)
                if self._closed:
                    return
                log, number = self._due[0]
            with contextlib.suppress(LogError, OSError):  # the log is closed, or its disk fails
                self._verify(log, number)
            with self._changed:
                if not self._closed:
                    self._due.popleft()

    def _verify(self, log: StreamLog, number: int) -> None:
        size, begun = 0, self._clock()
        for length in log.verify(number):
            self.verified_bytes += length
            size += length
            used = self._clock() - begun
            if size >= _SLICE_BYTES or used >= _SLICE_SECONDS:
                if not self._throttle(size, used):
                    return
                size, begun = 0, self._clock()
        if number in log.damaged:
            _log.error("a segment is damaged, its rows will be refused: %s", log.damaged[number])
        self._throttle(size, self._clock() - begun)

    def _throttle(self, size: int, used: float) -> bool:
        seconds = max(size / self._rate, used / self._share) - used
        with self._changed:
            return not self._changed.wait_for(lambda: self._closed, max(0.0, seconds))
