"""Needed bytes of each segment of a log."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable

from pe_agent.log.log import Address


class SegmentUsage:
    """Counts needed frame bytes by segment. Thread-safe; ``lock`` may span several calls."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._bytes_by_segment: Counter[int] = Counter()

    def add(self, frames: Iterable[Address]) -> None:
        """Count frames as needed; repeated calls count again."""
        with self.lock:
            for frame in frames:
                self._bytes_by_segment[frame.segment] += frame.length

    def release(self, frames: Iterable[Address]) -> None:
        """Undo :meth:`add`."""
        with self.lock:
            for frame in frames:
                self._bytes_by_segment[frame.segment] -= frame.length
                if not self._bytes_by_segment[frame.segment]:
                    del self._bytes_by_segment[frame.segment]

    def needed_bytes(self, segment: int) -> int:
        """Return the needed bytes of a segment; frames added twice count twice."""
        with self.lock:
            return self._bytes_by_segment[segment]
