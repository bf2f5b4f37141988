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
_AT_ONCE = 500


class Presence:
    """When each agent was last heard of.

    Args:
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: dict[PeKey, float] = {}  # in the order of time, those away apart
        self._away: dict[PeKey, float] = {}
        self._leads_since: float | None = None

    def lead(self, leads: bool) -> None:
        """Take in whether this process leads from now on; nobody is away to begin with."""
        self._leads_since = self._clock() if leads else None
        self._since = {**self._away, **self._since}
        self._away = {}

    def note(self, pe: PeKey) -> bool:
        """Take in a sign of life; say whether there was none for long."""
        known = self.known(pe)
        self.forget(pe)
        self._since[pe] = self._clock()
        return not known

    def forget(self, pe: PeKey) -> None:
        """Forget an agent whose PE is gone."""
        self._since.pop(pe, None)
        self._away.pop(pe, None)

    def known(self, pe: PeKey) -> bool:
        """Say whether an agent gave a sign of life lately."""
        since = self._since.get(pe)
        return since is not None and self._clock() - since < AWAY_S

    def away(self, pe: PeKey) -> bool:
        """Say whether an agent is away, as `look` has found."""
        return pe in self._away

    def look(self) -> list[PeKey]:
        """Return agents that are away from now on; further ones, where there are many, later."""
        limit = self._clock() - AWAY_S
        if self._leads_since is None or self._leads_since > limit:
            return []
        found: list[PeKey] = []
        for pe, since in self._since.items():
            if since > limit or len(found) == _AT_ONCE:
                break
            found.append(pe)
        self._away.update((pe, self._since.pop(pe)) for pe in found)
        return found
