"""Change counters by key that threads can wait on."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import TypeVar

T = TypeVar("T")


class Notifier:
    """Counts changes, so that no change between a read and a wait is missed.

    A change of a key wakes the waiters of that key. A change without a key wakes all waiters.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._broadcasts = 0
        self._waiting: dict[threading.Event, frozenset[str]] = {}
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether waiting has ended because the agent stops."""
        return self._closed

    def version(self, keys: Collection[str]) -> int:
        """Return the number of changes of the keys."""
        with self._lock:
            return self._count(keys)

    def _count(self, keys: Collection[str]) -> int:
        return self._broadcasts + sum(self._counts[key] for key in keys if key in self._counts)

    def notify(self, *keys: str) -> None:
        """Count a change of the keys and wake their waiters; all waiters if there is no key."""
        with self._lock:
            self._counts.update(keys)
            self._broadcasts += not keys
            for event, wanted in self._waiting.items():
                if not keys or not wanted.isdisjoint(keys):
                    event.set()

    def wait(self, version: int, seconds: float, keys: Collection[str]) -> bool:
        """Return True once :meth:`version` of the keys exceeds ``version``, False on timeout.

        After :meth:`close` it returns False at once, so a caller's loop must check `closed`.
        """
        event = threading.Event()
        with self._lock:
            if self._closed:
                return False
            if self._count(keys) > version:
                return True
            self._waiting[event] = frozenset(keys)
        try:
            return event.wait(max(0.0, seconds)) and not self._closed
        finally:
            with self._lock:
                del self._waiting[event]

    def wait_for(
        self,
        keys: Collection[str],
        seconds: float,
        read: Callable[[], T],
        predicate: Callable[[T], bool],
    ) -> T:
        """Read again at each change until the predicate or the timeout; return the last value."""
        deadline = time.monotonic() + seconds
        while True:
            seen = self.version(keys)
            value = read()
            left = deadline - time.monotonic()
            if predicate(value) or left <= 0 or not self.wait(seen, left, keys):
                return value

    def waiters(self) -> list[frozenset[str]]:
        """Return the keys of all current waiters, for tests and diagnosis."""
        with self._lock:
            return list(self._waiting.values())

    def close(self) -> None:
        """Wake all current waiters; later waits return at once."""
        with self._lock:
            self._closed = True
            for event in self._waiting:
                event.set()
