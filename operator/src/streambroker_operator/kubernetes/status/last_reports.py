"""Last reports of agents, for the conditions `Ended`, `Damaged`, `Stored` and `Healthy`.

- A new leader has no reports; the published status stays until an agent reports.
- Older reports, and late ones of another instance, never replace newer ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from streambroker_core.model import Durability, Kind, PeKey, PortKey
from streambroker_core.wire.broker.ended_exports import EndedExports
from streambroker_core.wire.reports.health import Health
from streambroker_core.wire.reports.schema_status import NO_VERSION, SchemaStatus, SchemaStatusMap
from streambroker_core.wire.reports.storage_status import StorageStatus, StorageStatusMap
from streambroker_operator.kubernetes.replicas.agent_reports import (
    DamageReport,
    EndsReport,
    HealthReport,
    PortReport,
    SchemaReport,
    StorageReport,
)
from streambroker_operator.kubernetes.status.conditions import (
    Condition,
    PublishedStatus,
    healthy_condition,
    stored_condition,
)

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
        """Return what the last report of its agent states of a port; None without a report."""
        last = self._reports.get(key.owner)
        return None if last is None else self._read(last.content, key.port)


class PortReports:
    """Last reports of all agents about their ports, by content.

    Attributes:
        all: the reports of each content.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.ended = LastReports(clock, EndedExports.has_ended)
        self.damage = LastReports(clock, _damage_text)
        self.storage = LastReports(clock, _storage_status)
        self.health = LastReports(clock, _all_health)
        self.schemas = LastReports(clock, _schema_status)
        self.all: Sequence[LastReports[Any, Any]] = [
            *(self.ended, self.damage, self.storage, self.health, self.schemas)
        ]

    def on_report(self, pe: PeKey, report: PortReport) -> bool:
        """Record a report; return whether it differs from the one before."""
        at = report.ago_s, report.instance
        match report:
            case EndsReport():
                return self.ended.on_report(pe, report.ends, *at)
            case DamageReport():
                return self.damage.on_report(pe, report.damaged, *at)
            case StorageReport():
                return self.storage.on_report(pe, report.storage, *at)
            case SchemaReport():
                return self.schemas.on_report(pe, report.schemas, *at)
            case HealthReport():
                return self.health.on_report(pe, report.health, *at)
        return False

    def healthy(self, kind: Kind, key: PortKey, published: PublishedStatus) -> Condition | None:
        """Return the condition `Healthy` of a port, None without it."""
        return healthy_condition(self.health.find(key), key, kind, published)

    def change_export(
        self, key: PortKey, durability: Durability, published: PublishedStatus
    ) -> bool:
        """Return whether the reports of an Export state something else than its status."""
        ended, damage, schema = (r.find(key) for r in (self.ended, self.damage, self.schemas))
        return (
            ended not in (None, published.ended)
            or damage not in (None, published.damaged)
            or schema not in (None, published.schema)
            or stored_condition(durability, self.storage.find(key), published) != published.stored
            or self.healthy("Export", key, published) != published.healthy
        )


def _schema_status(schemas: SchemaStatusMap, port: str) -> SchemaStatus:
    return schemas.get(port, NO_VERSION)


def _all_health(health: Health, _: str) -> Health:
    return health


def _damage_text(damaged: Mapping[str, str], port: str) -> str:
    return damaged.get(port, "")


def _storage_status(storage: StorageStatusMap, port: str) -> StorageStatus | None:
    return storage.get(port)
