"""Lines of which there may be any number: anybody who reaches a port can cause them.

Of one kind at most one line a minute is written. It counts those that were left out before it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger("pe_agent")

INTERVAL_SECONDS = 60.0


class RateLimitedLog:
    """One kind of line. Safe from any thread."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last: float | None = None
        self._suppressed = 0

    def warning(self, text: str) -> None:
        """Write a line, or count it if one was written in the last minute."""
        with self._lock:
            now = self._clock()
            if self._last is not None and now - self._last < INTERVAL_SECONDS:
                self._suppressed += 1
                return
            self._last, left_out, self._suppressed = now, self._suppressed, 0
        log.warning("%s%s", text, f" ({left_out:,} more since the last one)" if left_out else "")
