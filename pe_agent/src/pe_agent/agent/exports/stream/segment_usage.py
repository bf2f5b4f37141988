"""How much of each segment of a log is needed, in bytes of its frames."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable

from pe_agent.log.log import Address


class SegmentUsage:
    """Counts the needed bytes of each segment. Safe from any thread.

    ``lock`` may be held by an owner that looks at several segments at once.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._bytes_by_segment: Counter[int] = Counter()

    def add(self, frames: Iterable[Address]) -> None:
        """Count frames as needed, once more if they are already."""
        with self.lock:
            for frame in frames:
                self._bytes_by_segment[frame.segment] += frame.length

    def release(self, frames: Iterable[Address]) -> None:
        """Take back what :meth:`keep` has counted."""
        with self.lock:
            for frame in frames:
                self._bytes_by_segment[frame.segment] -= frame.length
                if not self._bytes_by_segment[frame.segment]:
                    del self._bytes_by_segment[frame.segment]

    def needed_bytes(self, segment: int) -> int:
        """Return how many bytes of a segment are needed; those needed twice count twice."""
        with self.lock:
            return self._bytes_by_segment[segment]
