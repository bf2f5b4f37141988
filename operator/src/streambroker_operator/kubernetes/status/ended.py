"""Last reports of agents about their exports, for the conditions `Ended` and `Damaged`.

- A new leader has no reports; the published status stays until an agent reports.
- Older reports, and late ones of another instance, never replace newer ones.
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
    """Last report of each agent."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._reports: dict[PeKey, _EndReport[T]] = {}
        self._instances: dict[PeKey, str] = {}

    def on_leader_change(self) -> None:
        """Clear the reports when leadership changes: another replica may have newer ones."""
        self._reports.clear()

    def on_registered(self, pe: PeKey, instance: str) -> None:
        """Record the instance of an agent; the last report stays until it reports."""
        self._instances[pe] = instance

    def on_withdrawn(self, pe: PeKey) -> None:
        """Drop the agent of a removed PE."""
        self._instances.pop(pe, None)
        self._reports.pop(pe, None)

    def on_report(
        self, pe: PeKey, report: T, ago_s: float = 0.0, instance: str | None = None
    ) -> bool:
        """Record a report that is `ago_s` old; return whether it differs from the previous one.

        `instance` is set if another replica relayed the report. A report of an instance that is
        unknown here is ignored: the agent will report again.
        """
        if instance is not None and instance != self._instances.get(pe):
            return False
        at, previous = self._clock() - ago_s, self._reports.get(pe)
        if previous is not None and previous.at > at:
            return False
        self._reports[pe] = _EndReport(report, at)
        return previous is None or previous.report != report

    def latest(self, pe: PeKey) -> T | None:
        """Return the last report of an agent; None if there is none."""
        last = self._reports.get(pe)
        return None if last is None else last.report


class EndedTracker(LastReports[EndedExports]):
    """Tracks which exports have ended."""

    def is_ended(self, key: PortKey) -> bool | None:
        """Return whether an export has ended; None without a report."""
        report = self.latest(key.owner)
        return None if report is None else report.has_ended(key.port)


class DamageTracker(LastReports[Mapping[str, str]]):
    """Tracks damage of export logs: descriptions by port; other ports are undamaged."""

    def damage_text(self, key: PortKey) -> str | None:
        """Return the damage of an export's log, empty if none; None without a report."""
        report = self.latest(key.owner)
        return None if report is None else report.get(key.port, "")
