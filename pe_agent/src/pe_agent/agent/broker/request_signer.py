"""When an agent signs its requests in the place of showing its token.

A broker of a cluster asks the API server whose a token is. What an agent has signed with the
key of its registration it can check alone, so that agents come through while the API server is
away. Whether a broker takes signatures it says itself: with a view, or when it refuses a token.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from streambroker_core.model import PeKey
from streambroker_core.wire.broker import request_signature as signature

PAUSE_SECONDS = 60.0
"""How long tokens are shown after a signature was refused; a wrong clock is not put right soon."""


class Signer:
    """Signs, as long as the broker takes it; safe to be used by several threads.

    Args:
        agent: whose requests.
        instance: of the agent's registration.
        key: returns the agent's key; empty before its first registration.
        clock: a monotonic clock, in seconds.
        wall_clock: seconds since 1970.
    """

    def __init__(
        self,
        agent: PeKey,
        instance: str,
        key: Callable[[], bytes],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._agent, self._instance, self._key = agent, instance, key
        self._clock, self._wall_clock = clock, wall_clock
        self._lock = threading.Lock()
        self._is_enabled = False
        self._not_before = clock()
        self._last_us = 0

    def header(self, method: str, path: str, body: bytes) -> str | None:
        """Return what to send as ``Authorization``; None to show the token.

        Args:
            method: of the request.
            path: as in the request line, with its query.
            body: of the request; empty for none.
        """
        key = self._key()
        if not self._is_enabled or not key:
            return None
        with self._lock:
            self._last_us = max(int(self._wall_clock() * 1e6), self._last_us + 1)
            now = self._last_us
        return signature.sign(
            key,
            agent=self._agent,
            instance=self._instance,
            method=method,
            path=path,
            body=body,
            time_us=now,
        )

    def on_answer(self, headers: Mapping[str, str]) -> None:
        """Take in what the broker sent with a view; names are in lower case."""
        if headers.get("acknowledge") == "at-once":
            self._enable_if_allowed()

    def on_refused(self, challenge: str) -> bool:
        """Take in that the broker does not know who asks; say if that was for a signature.

        Args:
            challenge: what it sent as ``WWW-Authenticate``.
        """
        if self._is_enabled:
            self._is_enabled = False
            self._not_before = self._clock() + PAUSE_SECONDS
            return True
        if signature.SCHEME.lower() in challenge.lower():
            self._enable_if_allowed()
        return False

    def _enable_if_allowed(self) -> None:
        self._is_enabled = self._is_enabled or (
            bool(self._key()) and self._clock() >= self._not_before
        )
