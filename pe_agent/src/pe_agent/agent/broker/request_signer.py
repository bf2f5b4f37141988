"""Signatures of an agent's requests, used in place of its token.

A broker in a cluster has to ask the API server for the owner of a token. It can verify a signature
with the registration key alone, so agents are served while the API server is away. The broker
announces that it accepts signatures: with a view, or when it refuses a token.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from streambroker_core.model import PeKey
from streambroker_core.wire.broker import request_signature as signature

PAUSE_SECONDS = 60.0
"""Time to use tokens after a refused signature; a wrong clock is rarely corrected soon."""


class Signer:
    """Signs requests while the broker accepts it; thread-safe.

    ``key`` returns the agent's key, empty before its first registration.
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
        """Return the ``Authorization`` header for a path with query; None to use the token."""
        key = self._key()
        if not self._is_enabled or not key:
            return None
        with self._lock:
            self._last_us = max(int(self._wall_clock() * 1e6), self._last_us + 1)
            time_us = self._last_us
        return signature.sign(
            key,
            agent=self._agent,
            instance=self._instance,
            method=method,
            path=path,
            body=body,
            time_us=time_us,
        )

    def on_answer(self, headers: Mapping[str, str]) -> None:
        """Handle the headers of a view response; names are in lower case."""
        if headers.get("acknowledge") == "at-once":
            self._enable_if_allowed()

    def on_refused(self, challenge: str) -> bool:
        """Handle a 401 with its ``WWW-Authenticate``; return whether it refused a signature."""
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
