"""Rate limit for log lines that any caller of a port can cause.

At most one line per minute and kind is written, with the number of suppressed lines before it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger("pe_agent")

INTERVAL_SECONDS = 60.0


class RateLimitedLog:
    """One kind of log line. Thread-safe."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last: float | None = None
        self._suppressed = 0

    def warning(self, text: str) -> None:
        """Write a line, or count it as suppressed within a minute of the last one."""
        with self._lock:
            now = self._clock()
            if self._last is not None and now - self._last < INTERVAL_SECONDS:
                self._suppressed += 1
                return
            self._last, left_out, self._suppressed = now, self._suppressed, 0
        log.warning("%s%s", text, f" ({left_out:,} more since the last one)" if left_out else "")
