"""Last contact of each agent.

Kept in memory only: agents report every 30 seconds, so live agents are known again soon after a
restart of the broker.
"""

from __future__ import annotations

from datetime import UTC, datetime

from streambroker_core.model import PeKey


class AgentLiveness:
    """Last registration or report of each agent, by the clock of this process."""

    def __init__(self) -> None:
        self._last_contact: dict[PeKey, datetime] = {}

    def note_contact(self, pe: PeKey) -> None:
        """Record a registration or a report."""
        self._last_contact[pe] = datetime.now(UTC)

    def forget(self, pe: PeKey) -> None:
        """Forget a withdrawn PE."""
        self._last_contact.pop(pe, None)

    def last_contact(self, pe: PeKey) -> str | None:
        """Return the last contact in ISO 8601; None if there was none since the start."""
        at = self._last_contact.get(pe)
        return None if at is None else at.strftime("%Y-%m-%dT%H:%M:%SZ")
