"""Something has happened: counters that threads can wait on, one for each thing."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import TypeVar

T = TypeVar("T")


class Notifier:
    """Counts what happened, so that nothing between a look and a wait is missed.

    News of a key wakes those who wait for that key, or for anything. News without a key is for
    everybody.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._broadcasts = 0
        self._total = 0
        self._waiting: dict[threading.Event, frozenset[str] | None] = {}
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether nothing is waited for any more: the agent ends."""
        return self._closed

    @property
    def count(self) -> int:
        """How often anything has happened."""
        return self._total

    def version(self, keys: Collection[str] | None) -> int:
        """Return how often something has happened to any of the keys; None for anything."""
        with self._lock:
            return self._count(keys)

    def _count(self, keys: Collection[str] | None) -> int:
        if keys is None:
            return self._total
        return self._broadcasts + sum(self._counts[key] for key in keys if key in self._counts)

    def notify(self, *keys: str) -> None:
        """Wake those who wait for one of the keys; everybody if none is given."""
        with self._lock:
            self._total += 1
            self._counts.update(keys)
            self._broadcasts += not keys
            for event, wanted in self._waiting.items():
                if not keys or wanted is None or not wanted.isdisjoint(keys):
                    event.set()

    def wait(self, version: int, seconds: float, keys: Collection[str] | None = None) -> bool:
        """Return True once :meth:`version` of the keys is beyond ``version``, False after a time.

        Once closed it is False at once: who waits in a loop must end it.

        Args:
            version: what was seen before.
            seconds: how long to wait.
            keys: the same as were asked for with :meth:`version`.
        """
        event = threading.Event()
        with self._lock:
            if self._closed:
                return False
            if self._count(keys) > version:
                return True
            self._waiting[event] = None if keys is None else frozenset(keys)
        try:
            return event.wait(max(0.0, seconds)) and not self._closed
        finally:
            with self._lock:
                del self._waiting[event]

    def wait_for(
        self,
        keys: Collection[str] | None,
        seconds: float,
        read: Callable[[], T],
        predicate: Callable[[T], bool],
    ) -> T:
        """Look, and look again at news of the keys, until it is enough or the time is over.

        Returns:
            What was found last, enough or not.
        """
        deadline = time.monotonic() + seconds
        while True:
            seen = self.version(keys)
            found = read()
            left = deadline - time.monotonic()
            if predicate(found) or left <= 0 or not self.wait(seen, left, keys):
                return found

    def waiters(self) -> list[frozenset[str] | None]:
        """Return what is waited for at this moment."""
        with self._lock:
            return list(self._waiting.values())

    def close(self) -> None:
        """Let everybody go, now and later."""
        with self._lock:
            self._closed = True
            for event in self._waiting:
                event.set()
