"""Audit log: one line of JSON for each write, done or refused."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from streambroker_core.wire.encoding.canonical import JsonObject

LOGGER = "streambroker.audit"

MINUTE_S = 60.0
MAX_UNKNOWN = 10
"""Lines per minute about unknown callers, at most one per address."""
MAX_PATH = 256
"""Maximum length of the path in such a line, in characters."""

_log = logging.getLogger(LOGGER)


class UnknownCallerFilter:
    """Limits the lines about unknown callers, so that junk cannot fill a disk."""

    def __init__(self) -> None:
        self._minute_start = float("-inf")
        self._addresses: set[str | None] = set()
        self._suppressed = 0

    def admit(self, address: str | None, now: float) -> int | None:
        """Return the number of lines suppressed before this one; None to suppress this one, too.

        `now` is monotonic time in seconds.
        """
        if now - self._minute_start >= MINUTE_S:
            self._minute_start = now
            self._addresses.clear()
        if address in self._addresses or len(self._addresses) >= MAX_UNKNOWN:
            self._suppressed += 1
            return None
        self._addresses.add(address)
        suppressed, self._suppressed = self._suppressed, 0
        return suppressed


def is_enabled() -> bool:
    """Return whether the audit log is enabled."""
    return _log.isEnabledFor(logging.INFO)


def write_record(facts: JsonObject) -> None:
    """Write the line of one request, at level INFO."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    _log.info("%s", json.dumps({"time": now, **facts}, separators=(",", ":")))


def log_to_stderr() -> None:
    """Write the lines to standard error without prefix, at any level of other logs."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    _log.propagate = False
