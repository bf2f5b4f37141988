"""Times that an export has waited for its readers."""

from __future__ import annotations

from collections.abc import Collection

RETRY_WINDOW_SECONDS = 6.0
"""Waiting tasks retry sooner; a longer pause does not count as waiting."""


class WaitTimes:
    """Sums the times between failed admissions; guarded by the export's lock.

    ``seconds`` is the total, however many tasks waited at once.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._since: float | None = None
        self._last_attempt = 0.0
        self._holders: frozenset[str] = frozenset()
        self._seconds_by_reader: dict[str, float] = {}

    def note_attempt(self, now: float, holders: Collection[str]) -> None:
        """Record a failed admission that waits for ``holders``; empty if admitted."""
        if self.since(now) is None:
            self._since = None
        else:
            elapsed = max(0.0, now - self._last_attempt)
            self.seconds += elapsed
            for reader in self._holders:
                self._seconds_by_reader[reader] = self._seconds_by_reader.get(reader, 0.0) + elapsed
        self._last_attempt, self._holders = now, frozenset(holders)
        if not holders:
            self._since = None
        elif self._since is None:
            self._since = now

    def since(self, now: float) -> float | None:
        """Return since when a task waits, None if none does."""
        return self._since if now - self._last_attempt <= RETRY_WINDOW_SECONDS else None

    def seconds_for(self, reader: str) -> float:
        """Return the seconds waited for a reader."""
        return self._seconds_by_reader.get(reader, 0.0)

    def forget(self, reader: str) -> None:
        """Remove an evicted reader."""
        self._seconds_by_reader.pop(reader, None)
