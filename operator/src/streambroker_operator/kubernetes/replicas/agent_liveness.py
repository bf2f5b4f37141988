"""Which agents are away: told only by who leads, and only once it has listened for long enough.

Agents ask every 30 seconds, whichever replica they reach, and that one tells the one that leads. So
nobody else can say that an agent is away; and one that has just begun to lead knows no more of it
than that it has not heard of it yet.
"""

from __future__ import annotations

from collections.abc import Callable

from streambroker_core.model import PeKey

AWAY_S = 90.0
"""For how long an agent may be silent before it counts as away, in seconds: three polls."""
_MAX_PER_TURN = 500


class LeaderAgentLiveness:
    """When each agent was last heard of.

    Args:
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last_contact: dict[PeKey, float] = {}  # in the order of time, those away apart
        self._away: dict[PeKey, float] = {}
        self._leads_since: float | None = None

    def on_leader_change(self, leads: bool) -> None:
        """Take in whether this process leads from now on; nobody is away to begin with."""
        self._leads_since = self._clock() if leads else None
        self._last_contact = {**self._away, **self._last_contact}
        self._away = {}

    def note_contact(self, pe: PeKey) -> bool:
        """Take in a sign of life; say whether there was none for long."""
        known = self.is_alive(pe)
        self.forget(pe)
        self._last_contact[pe] = self._clock()
        return not known

    def forget(self, pe: PeKey) -> None:
        """Forget an agent whose PE is gone."""
        self._last_contact.pop(pe, None)
        self._away.pop(pe, None)

    def is_alive(self, pe: PeKey) -> bool:
        """Say whether an agent gave a sign of life lately."""
        since = self._last_contact.get(pe)
        return since is not None and self._clock() - since < AWAY_S

    def is_away(self, pe: PeKey) -> bool:
        """Say whether an agent is away, as `look` has found."""
        return pe in self._away

    def collect_away(self) -> list[PeKey]:
        """Return agents that are away from now on; further ones, where there are many, later."""
        limit = self._clock() - AWAY_S
        if self._leads_since is None or self._leads_since > limit:
            return []
        found: list[PeKey] = []
        for pe, since in self._last_contact.items():
            if since > limit or len(found) == _MAX_PER_TURN:
                break
            found.append(pe)
        self._away.update((pe, self._last_contact.pop(pe)) for pe in found)
        return found
