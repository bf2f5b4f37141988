"""How a source process polls its agent without blocking."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from streambroker_core.errors import StreambrokerError
from streambroker_core.wire.agent_rpc.reader import NextOffset

log = logging.getLogger("pe_agent")

FRESH_SECONDS = 0.25


class Prefetcher:
    """Polls the agent in a thread, one call at a time, so that the caller does not block.

    It serves callers that return at once while there is nothing new. A response older than
    `FRESH_SECONDS` is discarded, because it may be out of date. A caller that comes back later
    than that, as with a trigger of some seconds, has to ask the agent itself.
    """

    def __init__(self, fetch: Callable[[Any], NextOffset]) -> None:
        self._fetch = fetch
        self._pending_start: object = None
        self._done = threading.Event()
        self._answer: NextOffset | StreambrokerError | None = None
        self._answered_at = 0.0
        self._last_empty: tuple[object, float] | None = None

    def note_empty(self, start: object) -> None:
        """Record that nothing follows ``start`` at this moment."""
        self._last_empty = (start, time.monotonic())

    def poll(self, start: object, seconds: float) -> NextOffset | None:
        """Return what follows ``start``; None if the caller has to ask the agent itself.

        Without a response after ``seconds``, nothing new is reported. Raises the error of the call.
        """
        if self._pending_start != start:
            if (
                self._last_empty is None
                or self._last_empty[0] != start
                or _is_stale(self._last_empty[1])
            ):
                return None
            self._pending_start, self._done, self._answer = start, threading.Event(), None
            threading.Thread(target=self._run, args=(start, self._done), daemon=True).start()
        if not self._done.wait(seconds):
            return NextOffset(offset=None)
        self._pending_start, answer = None, self._answer
        if isinstance(answer, StreambrokerError):
            raise answer
        if answer is None or _is_stale(self._answered_at):
            return None
        if answer.offset is None:
            self.note_empty(start)
        return answer

    def _run(self, start: object, done: threading.Event) -> None:
        try:
            answer: NextOffset | StreambrokerError | None = self._fetch(start)
        except StreambrokerError as error:
            answer = error
        except Exception:
            log.exception("cannot poll the agent for new offsets")
            answer = None
        if done is self._done:
            self._answer, self._answered_at = answer, time.monotonic()
        done.set()


def _is_stale(since: float) -> bool:
    return time.monotonic() > since + FRESH_SECONDS
