"""Whether the broker answers, and how long to wait before the next try."""

from __future__ import annotations

import logging
import random
from typing import TypedDict

from streambroker_client.errors import BrokerRefusedError, BrokerUnavailableError
from streambroker_core.errors import StreambrokerError

log = logging.getLogger("pe_agent")

RETRY_SECONDS = 1.0
REFUSED_FACTOR = 5
"""Factor on the retry pause while the broker refuses the agent's token."""
MAX_DOUBLINGS = 4
"""Maximum doublings of the retry pause while the broker responds that it is busy."""


class BrokerStatus(TypedDict, total=False):
    """State of the link to the broker; empty without one.

    ``refused`` is why the broker refuses this agent; ``refusedHints`` counts invalid hints.
    """

    url: str
    away: bool
    refused: str | None
    polls: int
    refusedHints: int


class ConnectionState:
    """Result of the last round with the broker; logs when it changes.

    Attributes:
        polls: number of polls.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self.polls = 0
        self._away = False
        self._refused: str | None = None
        self._busy_retries = 0

    def succeeded(self) -> None:
        """Record that the broker has answered."""
        if self._away:
            log.info("broker is reachable again", extra={"broker": self._url})
        self._away, self._refused, self._busy_retries = False, None, 0

    def failed(self, error: Exception) -> float:
        """Record an error; return seconds until the next try."""
        if isinstance(error, StreambrokerError):
            self._log(error)
        else:
            log.error("communication with the broker failed", exc_info=error)
        self._away = True
        pause = RETRY_SECONDS * random.uniform(0.5, 1.0)  # noqa: S311 - jitter
        pause *= REFUSED_FACTOR if self._refused else 1
        later = isinstance(error, BrokerUnavailableError) and error.busy
        self._busy_retries = min(self._busy_retries + 1, MAX_DOUBLINGS) if later else 0
        return pause * 2.0**self._busy_retries

    def _log(self, error: StreambrokerError) -> None:
        """Log once that the broker is away, or why it refuses this agent."""
        denied = isinstance(error, BrokerRefusedError) and error.status in (401, 403)
        refused = f"{error.code}: {error}" if denied else None
        if refused is not None and refused != self._refused:
            log.error("the broker refuses this agent, routes stay: %s", refused)
        elif refused is None and not (self._away and self._refused is None):
            log.warning("broker is unreachable, routes stay: %s", error)
        self._refused = refused

    def status(self) -> BrokerStatus:
        """Return URL, state and number of polls."""
        return {
            "url": self._url,
            "away": self._away,
            "refused": self._refused,
            "polls": self.polls,
        }
