"""How long an export has waited for its readers, and for whom."""

from __future__ import annotations

from collections.abc import Collection

RETRY_WINDOW_SECONDS = 6.0
"""Who waits asks again sooner; a longer pause is none of the wait."""


class WaitTimes:
    """Adds up the time between one vain admission and the next; its lock is the export's.

    Attributes:
        seconds: waited in all, however many tasks did at once.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._since: float | None = None
        self._last_attempt = 0.0
        self._holders: frozenset[str] = frozenset()
        self._seconds_by_reader: dict[str, float] = {}

    def note_attempt(self, now: float, holders: Collection[str]) -> None:
        """A task has asked for admission and waits for these readers; for none it is admitted."""
        if self.since(now) is None:
            self._since = None
        else:
            passed = max(0.0, now - self._last_attempt)
            self.seconds += passed
            for reader in self._holders:
                self._seconds_by_reader[reader] = self._seconds_by_reader.get(reader, 0.0) + passed
        self._last_attempt, self._holders = now, frozenset(holders)
        if not holders:
            self._since = None
        elif self._since is None:
            self._since = now

    def since(self, now: float) -> float | None:
        """Return since when a task waits, None if none does."""
        return self._since if now - self._last_attempt <= RETRY_WINDOW_SECONDS else None

    def seconds_for(self, reader: str) -> float:
        """Return the seconds that were waited for a reader."""
        return self._seconds_by_reader.get(reader, 0.0)

    def forget(self, reader: str) -> None:
        """The reader is not known any more."""
        self._seconds_by_reader.pop(reader, None)
