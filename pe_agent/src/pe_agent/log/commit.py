"""The group committer: few fdatasyncs for many callers and many logs.

Callers ask for a flush and wait at their log. While one fdatasync of a log
runs, further callers gather, and the next one serves them all. One log is never
flushed by two threads at once; two logs are, by default, because an fdatasync
waits for the disk and not for a core.
"""

import contextlib
import threading
from typing import Protocol


class Flushable(Protocol):
    """What the committer flushes: a log."""

    def flush(self) -> None:
        """Make everything appended so far safe; failures are kept in the log."""

    def fail(self, error: Exception) -> None:
        """Fail for good: `flush` raised."""


class Committer:
    """Threads that flush logs; one committer serves all logs of an agent."""

    def __init__(self, *, threads: int = 2) -> None:
        """Start the threads.

        Args:
            threads: logs that are flushed at the same time.
        """
        self._changed = threading.Condition()
        self._requested: dict[Flushable, None] = {}
        self._running: set[Flushable] = set()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"log-commit-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def request(self, log: Flushable) -> None:
        """Ask for a flush of the log; it starts after this call and covers all before it.

        Returns at once, except after `close`: then the caller's thread flushes.
        """
        with self._changed:
            if not self._closed:
                self._requested[log] = None
                self._changed.notify()
                return
        _flush(log)

    def close(self) -> None:
        """Flush what was asked for and end the threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (log := self._take_next()) is not None:
            _flush(log)
            with self._changed:
                self._running.discard(log)
                self._changed.notify_all()

    def _take_next(self) -> Flushable | None:
        """Return a log that was asked for and is not being flushed; None at the end."""
        with self._changed:
            while True:
                for log in self._requested:
                    if log not in self._running:
                        del self._requested[log]
                        self._running.add(log)
                        return log
                if self._closed and not self._requested:
                    return None
                self._changed.wait()


def _flush(log: Flushable) -> None:
    try:
        log.flush()
    except Exception as error:  # a caller that waits must learn of it, whatever it was
        with contextlib.suppress(Exception):
            log.fail(error)
