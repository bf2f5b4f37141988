"""Last reports of agents about their exports, for `Ended`, `Damaged`, `Stored` and `schemaVersion`.

- A new leader has no reports; the published status stays until an agent reports.
- Older reports, and late ones of another instance, never replace newer ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from streambroker_core.model import PeKey, PortKey

T = TypeVar("T")
V = TypeVar("V")


class _LastReport(NamedTuple, Generic[T]):
    content: T
    at: float


class LastReports(Generic[T, V]):
    """Last report of each agent; `read` returns what a report states of a port."""

    def __init__(self, clock: Callable[[], float], read: Callable[[T, str], V]) -> None:
        self._clock = clock
        self._read = read
        self._reports: dict[PeKey, _LastReport[T]] = {}
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
        self._reports[pe] = _LastReport(report, at)
        return previous is None or previous.content != report

    def find(self, key: PortKey) -> V | None:
        """Return what the last report of its agent states of an export; None without a report."""
        last = self._reports.get(key.owner)
        return None if last is None else self._read(last.content, key.port)
