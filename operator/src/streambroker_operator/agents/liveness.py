"""When each agent was last heard of, for those who ask whether it lives.

Kept in memory only: agents report every 30 seconds, so after a restart of the
broker every one that lives is known again before long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from streambroker_core.model import PeKey


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardAgentInfo:
    """Another agent that holds rows of a PE's exports, as the agent of that PE reported it.

    Attributes:
        active: it takes rows; else it is known until it holds nothing.
        away_reason: why it did not answer, None if it did.
    """

    pe: PeKey
    active: bool = True
    away_reason: str | None = None


def _now() -> datetime:
    return datetime.now(timezone.utc)


class AgentLiveness:
    """The last registration or report of each agent, by the clock of this run.

    Args:
        now: tells the time.
    """

    def __init__(self, now: Callable[[], datetime] = _now) -> None:
        self._now = now
        self._last_contact: dict[PeKey, datetime] = {}
        self._shard_agents: dict[PeKey, tuple[ShardAgentInfo, ...]] = {}

    def note_contact(self, pe: PeKey) -> None:
        """An agent has registered or reported."""
        self._last_contact[pe] = self._now()

    def set_shard_agents(self, pe: PeKey, shard_agents: Sequence[ShardAgentInfo]) -> None:
        """An agent has said which fellows it has."""
        if shard_agents:
            self._shard_agents[pe] = tuple(shard_agents)
        else:
            self._shard_agents.pop(pe, None)

    def shard_agents(self, pe: PeKey) -> tuple[ShardAgentInfo, ...]:
        """Return the fellows of an agent, as it reported them last."""
        return self._shard_agents.get(pe, ())

    def forget(self, pe: PeKey) -> None:
        """A PE was withdrawn."""
        self._last_contact.pop(pe, None)
        self._shard_agents.pop(pe, None)

    def last_contact(self, pe: PeKey) -> str | None:
        """Return the moment in ISO 8601; None where this run has not heard of the agent."""
        at = self._last_contact.get(pe)
        return None if at is None else at.strftime("%Y-%m-%dT%H:%M:%SZ")
