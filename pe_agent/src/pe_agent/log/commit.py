"""Group committer: few fdatasyncs for many callers and logs.

Callers request a flush and wait at their log. Requests during an fdatasync share the next one. One
log is never flushed by two threads at once. Two logs are, by default, because an fdatasync waits
for the disk and needs no core.
"""

import contextlib
import threading
from typing import Protocol


class Flushable(Protocol):
    """Interface of a log for the committer."""

    def flush(self) -> None:
        """Sync everything appended so far; the log records failures."""

    def fail(self, error: Exception) -> None:
        """Fail for good: `flush` raised."""


class Committer:
    """Threads that flush logs; one committer serves all logs of an agent."""

    def __init__(self, *, threads: int = 2) -> None:
        """Start ``threads`` threads: as many logs are flushed in parallel."""
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
        """Request a flush that covers everything appended before this call.

        Returns at once, except after `close`: then the caller's thread flushes.
        """
        with self._changed:
            if not self._closed:
                self._requested[log] = None
                self._changed.notify()
                return
        _flush(log)

    def close(self) -> None:
        """Flush all requested logs and stop the threads."""
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
        """Return a requested log that no thread flushes now; None after `close`."""
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
    except Exception as error:  # waiting callers must get any error
        with contextlib.suppress(Exception):
            log.fail(error)
