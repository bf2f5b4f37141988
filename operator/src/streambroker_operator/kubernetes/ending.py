"""Which exports have ended, as agents tell: what the condition `Ended` is made of.

Rule 1: who has just begun to lead knows nothing; what is written stays until an agent has told.
Rule 2: what was told earlier, or comes late of another instance, never counts for more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from streambroker_core.model import PeKey, PortKey
from streambroker_core.wire.ends import Ends


class _Told(NamedTuple):
    ends: Ends
    at: float


class Ending:
    """What each agent said last.

    Args:
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._told: dict[PeKey, _Told] = {}
        self._instances: dict[PeKey, str] = {}

    def lead(self) -> None:
        """Take in that this process leads, or does no more: others may have heard later words."""
        self._told.clear()

    def registered(self, pe: PeKey, instance: str) -> None:
        """Take in who a PE's agent is; what one said before it counts until it tells itself."""
        self._instances[pe] = instance

    def withdrawn(self, pe: PeKey) -> None:
        """Forget an agent whose PE is gone."""
        self._instances.pop(pe, None)
        self._told.pop(pe, None)

    def heard(self, pe: PeKey, ends: Ends, ago_s: float = 0.0, instance: str | None = None) -> bool:
        """Take in what an agent says; say whether it is another thing than before.

        Args:
            pe: whose agent it is.
            ends: as it told by its poll, by whichever replica that came.
            ago_s: how long ago it told, in seconds.
            instance: which one told another replica; one that is not known here tells again.
        """
        if instance is not None and instance != self._instances.get(pe):
            return False
        at, known = self._clock() - ago_s, self._told.get(pe)
        if known is not None and known.at > at:
            return False
        self._told[pe] = _Told(ends, at)
        return known is None or known.ends != ends

    def ended(self, key: PortKey) -> bool | None:
        """Say whether an export has ended; None where nothing was said of it."""
        told = self._told.get(key.owner)
        return None if told is None else told.ends.of(key.port)
