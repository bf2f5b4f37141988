"""Last contact of each agent.

Kept in memory only: agents report every 30 seconds, so live agents are known again soon after a
restart of the broker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from streambroker_core.model import PeKey


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardAgentInfo:
    """Another agent that stores rows of a PE's exports, as the PE's agent reports it.

    Attributes:
        active: whether it accepts rows; otherwise it is listed until it is empty.
        away_reason: why it did not answer; None if it did.
    """

    pe: PeKey
    active: bool = True
    away_reason: str | None = None


class AgentLiveness:
    """Last registration or report of each agent, by the clock of this process."""

    def __init__(self) -> None:
        self._last_contact: dict[PeKey, datetime] = {}
        self._shard_agents: dict[PeKey, tuple[ShardAgentInfo, ...]] = {}

    def note_contact(self, pe: PeKey) -> None:
        """Record a registration or a report."""
        self._last_contact[pe] = datetime.now(timezone.utc)

    def set_shard_agents(self, pe: PeKey, shard_agents: Sequence[ShardAgentInfo]) -> None:
        """Record the shard agents that an agent reports."""
        if shard_agents:
            self._shard_agents[pe] = tuple(shard_agents)
        else:
            self._shard_agents.pop(pe, None)

    def shard_agents(self, pe: PeKey) -> tuple[ShardAgentInfo, ...]:
        """Return the shard agents that an agent reported last."""
        return self._shard_agents.get(pe, ())

    def forget(self, pe: PeKey) -> None:
        """Forget a withdrawn PE."""
        self._last_contact.pop(pe, None)
        self._shard_agents.pop(pe, None)

    def last_contact(self, pe: PeKey) -> str | None:
        """Return the last contact in ISO 8601; None if there was none since the start."""
        at = self._last_contact.get(pe)
        return None if at is None else at.strftime("%Y-%m-%dT%H:%M:%SZ")
