"""Who changed what: one line of JSON for each write, done or refused."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

LOGGER = "streambroker.audit"

MINUTE_S = 60.0
MAX_UNKNOWN = 10
"""Lines a minute about callers that are not known, one for each address."""
MAX_PATH = 256
"""Characters of a path that such a line has."""

_log = logging.getLogger(LOGGER)


class UnknownCallerFilter:
    """Decides which requests of unknown callers get a line: junk must not fill a disk."""

    def __init__(self) -> None:
        self._minute_start = float("-inf")
        self._addresses: set[str | None] = set()
        self._suppressed = 0

    def admit(self, address: str | None, now: float) -> int | None:
        """Return how many were left out before this one; None to leave it out, too.

        Args:
            address: of the caller.
            now: seconds of a clock that only goes forward.
        """
        if now - self._minute_start >= MINUTE_S:
            self._minute_start = now
            self._addresses.clear()
        if address in self._addresses or len(self._addresses) >= MAX_UNKNOWN:
            self._suppressed += 1
            return None
        self._addresses.add(address)
        left_out, self._suppressed = self._suppressed, 0
        return left_out


def is_enabled() -> bool:
    """Say whether anybody takes the lines."""
    return _log.isEnabledFor(logging.INFO)


def write_record(facts: Mapping[str, Any]) -> None:
    """Write the line of one request, at level INFO."""
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    _log.info("%s", json.dumps({"time": now, **facts}, separators=(",", ":")))


def log_to_stderr() -> None:
    """Write the lines to the standard error, bare, whatever the level of the other logs is."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    _log.propagate = False
