"""Keeps daemon threads out of Flight while the process ends.

At the end of a process Python destroys its interpreter while daemon threads go on. A Flight call
that returns in such a thread then crashes the process with a signal, behind the last line of the
program. So a process waits at its end for calls in progress, and no daemon thread begins another.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Iterator

from pe_agent.transport.flight_errors import AgentUnreachableError

WAIT_SECONDS = 3.0
"""How long a process waits for calls in progress; one that takes longer does not return in time."""


class ExitGuard:
    """Counts Flight calls of daemon threads, and waits for them once."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all calls: a forked process has none of its parent's threads."""
        self._condition = threading.Condition()
        self._calls = 0
        self._ending = False

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """Surround a Flight call.

        Raises:
            AgentUnreachableError: the process is ending, and this is a daemon thread.
        """
        if not threading.current_thread().daemon:
            yield
            return
        with self._condition:
            if self._ending:
                raise AgentUnreachableError("the process is ending")
            self._calls += 1
        try:
            yield
        finally:
            with self._condition:
                self._calls -= 1
                self._condition.notify_all()

    def wait(self, seconds: float = WAIT_SECONDS) -> None:
        """Refuse further calls of daemon threads, and wait for those in progress."""
        with self._condition:
            self._ending = True
            self._condition.wait_for(lambda: self._calls == 0, seconds)


guard = ExitGuard()
atexit.register(guard.wait)
os.register_at_fork(after_in_child=guard.reset)
