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
class Fellow:
    """Another agent that holds rows of a PE's exports, as the agent of that PE reported it.

    Attributes:
        active: it takes rows; else it is known until it holds nothing.
        away: why it did not answer, None if it did.
    """

    pe: PeKey
    active: bool = True
    away: str | None = None


def _now() -> datetime:
    return datetime.now(timezone.utc)


class Heard:
    """The last registration or report of each agent, by the clock of this run.

    Args:
        now: tells the time.
    """

    def __init__(self, now: Callable[[], datetime] = _now) -> None:
        self._now = now
        self._at: dict[PeKey, datetime] = {}
        self._fellows: dict[PeKey, tuple[Fellow, ...]] = {}

    def note(self, pe: PeKey) -> None:
        """An agent has registered or reported."""
        self._at[pe] = self._now()

    def told(self, pe: PeKey, fellows: Sequence[Fellow]) -> None:
        """An agent has said which fellows it has."""
        if fellows:
            self._fellows[pe] = tuple(fellows)
        else:
            self._fellows.pop(pe, None)

    def fellows(self, pe: PeKey) -> tuple[Fellow, ...]:
        """Return the fellows of an agent, as it reported them last."""
        return self._fellows.get(pe, ())

    def forget(self, pe: PeKey) -> None:
        """A PE was withdrawn."""
        self._at.pop(pe, None)
        self._fellows.pop(pe, None)

    def moment(self, pe: PeKey) -> str | None:
        """Return the moment in ISO 8601; None where this run has not heard of the agent."""
        at = self._at.get(pe)
        return None if at is None else at.strftime("%Y-%m-%dT%H:%M:%SZ")
