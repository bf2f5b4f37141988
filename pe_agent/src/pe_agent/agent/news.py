"""Something has happened: a counter that threads can wait on."""

from __future__ import annotations

import threading


class News:
    """Counts what happened, so that nothing between a look and a wait is missed."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._count = 0
        self._closed = False

    @property
    def count(self) -> int:
        """How often something has happened."""
        return self._count

    def tell(self) -> None:
        """Wake everybody who waits."""
        with self._condition:
            self._count += 1
            self._condition.notify_all()

    def wait(self, seen: int, seconds: float) -> bool:
        """Return True as soon as the count is beyond ``seen``, False after ``seconds``."""
        with self._condition:
            return self._condition.wait_for(
                lambda: self._count > seen or self._closed, timeout=max(0.0, seconds)
            )

    def close(self) -> None:
        """Let everybody go, now and later."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
