"""Tracks which agents are away; only the leader decides that, after it led for long enough.

Agents poll any replica every 30 seconds, and that replica relays the contact to the leader. So
other replicas cannot know that an agent is away. A new leader has not yet received all contacts.
"""

from __future__ import annotations

from collections.abc import Callable

from streambroker_core.model import PeKey

AWAY_S = 90.0
"""Seconds of silence after which an agent is away: three polls."""
_MAX_PER_TURN = 500


class LeaderAgentLiveness:
    """Last contact of each agent."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last_contact: dict[PeKey, float] = {}  # ordered by time, without agents away
        self._away: dict[PeKey, float] = {}
        self._leads_since: float | None = None

    def on_leader_change(self, leads: bool) -> None:
        """Handle a change of leadership; initially no agent is away."""
        self._leads_since = self._clock() if leads else None
        self._last_contact = {**self._away, **self._last_contact}
        self._away = {}

    def note_contact(self, pe: PeKey) -> bool:
        """Record a contact; return whether the agent was silent before."""
        was_alive = self.is_alive(pe)
        self.forget(pe)
        self._last_contact[pe] = self._clock()
        return not was_alive

    def forget(self, pe: PeKey) -> None:
        """Drop the agent of a removed PE."""
        self._last_contact.pop(pe, None)
        self._away.pop(pe, None)

    def is_alive(self, pe: PeKey) -> bool:
        """Return whether an agent had a recent contact."""
        since = self._last_contact.get(pe)
        return since is not None and self._clock() - since < AWAY_S

    def is_away(self, pe: PeKey) -> bool:
        """Return whether `collect_away` found an agent to be away."""
        return pe in self._away

    def collect_away(self) -> list[PeKey]:
        """Return agents that are away from now on, a limited number per call."""
        limit = self._clock() - AWAY_S
        if self._leads_since is None or self._leads_since > limit:
            return []
        away: list[PeKey] = []
        for pe, since in self._last_contact.items():
            if since > limit or len(away) == _MAX_PER_TURN:
                break
            away.append(pe)
        self._away.update((pe, self._last_contact.pop(pe)) for pe in away)
        return away
