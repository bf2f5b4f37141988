"""What agents say of their exports: what the conditions `EndedRun` and `Damaged` are made of.

Rule 1: who has just begun to lead knows nothing; what is written stays until an agent has told.
Rule 2: what was told earlier, or comes late of another instance, never counts for more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, TypeVar

from streambroker_core.model import PeKey, PortKey
from streambroker_core.wire.broker.ended_exports import EndedExports

T = TypeVar("T")


class _EndReport(NamedTuple, Generic[T]):
    report: T
    at: float


class LastReports(Generic[T]):
    """What each agent said last.

    Args:
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._reports: dict[PeKey, _EndReport[T]] = {}
        self._instances: dict[PeKey, str] = {}

    def on_leader_change(self) -> None:
        """Take in that this process leads, or does no more: others may have heard later words."""
        self._reports.clear()

    def on_registered(self, pe: PeKey, instance: str) -> None:
        """Take in who a PE's agent is; what one said before it counts until it tells itself."""
        self._instances[pe] = instance

    def on_withdrawn(self, pe: PeKey) -> None:
        """Forget an agent whose PE is gone."""
        self._instances.pop(pe, None)
        self._reports.pop(pe, None)

    def on_report(
        self, pe: PeKey, report: T, ago_s: float = 0.0, instance: str | None = None
    ) -> bool:
        """Take in what an agent says; say whether it is another thing than before.

        Args:
            pe: whose agent it is.
            report: it told, by whichever replica that came.
            ago_s: how long ago it told, in seconds.
            instance: which one told another replica; one that is not known here tells again.
        """
        if instance is not None and instance != self._instances.get(pe):
            return False
        at, known = self._clock() - ago_s, self._reports.get(pe)
        if known is not None and known.at > at:
            return False
        self._reports[pe] = _EndReport(report, at)
        return known is None or known.report != report

    def latest(self, pe: PeKey) -> T | None:
        """Return what an agent said last; None where it has said nothing."""
        told = self._reports.get(pe)
        return None if told is None else told.report


class EndedTracker(LastReports[EndedExports]):
    """Which exports have ended."""

    def is_ended(self, key: PortKey) -> bool | None:
        """Say whether an export has ended; None where nothing was said of it."""
        told = self.latest(key.owner)
        return None if told is None else told.has_ended(key.port)


class DamageTracker(LastReports[Mapping[str, str]]):
    """What is damaged of the logs of exports, in words by port; the others are whole."""

    def damage_text(self, key: PortKey) -> str | None:
        """Say what is damaged of the log of an export; None where nothing was said of it."""
        told = self.latest(key.owner)
        return None if told is None else told.get(key.port, "")
