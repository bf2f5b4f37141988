"""Ends, damage and uploads of exports, and the health of ports, as agents report them.

For display only; nothing depends on it. Agents report ends with every poll, the rest with every
report. All is kept in memory only and is complete again 30 seconds after a broker restart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeAlias

from streambroker_core.board import BoardReader
from streambroker_core.model import Export, Kind, PeKey, PortKey, Resource, kind_of
from streambroker_core.wire.broker.ended_exports import EndedExports
from streambroker_core.wire.reports.health import Health, HealthState
from streambroker_core.wire.reports.schema_status import NO_VERSION, SchemaStatus, SchemaStatusMap
from streambroker_core.wire.reports.storage_status import (
    StorageStatusMap,
    StoredState,
    stored_state,
)

ChangedPort: TypeAlias = tuple[Kind, PortKey]


class PortFacts(NamedTuple):
    """What is published of a port besides its place on the board; of an Import only `healthy`.

    Attributes:
        healthy: whether it works; None without a report of it.
        ended: its program has finished the stream.
        damaged: damage of its log; empty for none.
        stored: whether the bucket has it; None without object storage or report.
        schema: version of its columns.
    """

    healthy: HealthState | None = None
    ended: bool = False
    damaged: str = ""
    stored: StoredState | None = None
    schema: SchemaStatus = NO_VERSION


class ReportedPorts(NamedTuple):
    """Last report of an agent: damage, uploads and versions by port, and health."""

    damaged: Mapping[str, str] = MappingProxyType({})
    storage: StorageStatusMap = MappingProxyType({})
    health: Health = Health(is_reported=False)
    schemas: SchemaStatusMap = MappingProxyType({})


class PortReports(Protocol):
    """What agents have reported of ports, as it is published."""

    def apply_ends(self, pe: PeKey, ends: EndedExports) -> Sequence[ChangedPort]:
        """Apply an agent's report of ends; return the ports whose published state changed."""

    def apply_report(self, pe: PeKey, report: ReportedPorts) -> Sequence[ChangedPort]:
        """Apply an agent's report of its ports; return as `apply_ends` does."""

    def facts(self, resource: Resource) -> PortFacts:
        """Return what is published of an accepted Export or Import."""

    def forget(self, pe: PeKey) -> None:
        """Drop the reports of a withdrawn PE."""


class LocalPortReports:
    """Last reports of agents, where all agents report to this process."""

    def __init__(self, board: BoardReader) -> None:
        self._board = board
        self._ended: dict[PeKey, frozenset[str]] = {}
        self._reported: dict[PeKey, ReportedPorts] = {}
        self._superseded = set[PeKey]()
        """PEs whose last report was of an agent that another one has replaced."""

    def apply_ends(self, pe: PeKey, ends: EndedExports) -> Sequence[ChangedPort]:
        """Apply an agent's report of ends; return the exports that changed."""
        before = self._ended.get(pe, frozenset())
        # A partial report: ports that it does not name keep their state.
        now = ends.ports | (before if ends.more else frozenset())
        self._ended.pop(pe, None)
        if now:
            self._ended[pe] = now
        return [("Export", PortKey(*pe, port)) for port in sorted(before ^ now)]

    def apply_report(self, pe: PeKey, report: ReportedPorts) -> Sequence[ChangedPort]:
        """Apply an agent's report; return the ports that changed.

        While a superseded agent and its successor report in turns, the superseded one is shown.
        """
        was_superseded = pe in self._superseded
        self._superseded.discard(pe)
        if any(one.superseded for one in report.storage.values()):
            self._superseded.add(pe)
        elif was_superseded:
            return []
        exports, imports = self._board.ports(pe)
        keys: list[ChangedPort] = [("Export", PortKey(*pe, port)) for port in exports]
        keys += [("Import", PortKey(*pe, port)) for port in imports]
        held = [one for key in keys if (one := self._board.holder(*key)) is not None]
        before = [self.facts(resource) for resource in held]
        self._reported[pe] = report
        return [
            (kind_of(resource), resource.key)
            for resource, facts in zip(held, before, strict=True)
            if self.facts(resource) != facts
        ]

    def facts(self, resource: Resource) -> PortFacts:
        """Return what the agent has reported of an Export or Import."""
        pe, port = resource.key.owner, resource.key.port
        reported = self._reported.get(pe, ReportedPorts())
        healthy = reported.health.find(kind_of(resource), port)
        if not isinstance(resource, Export):
            return PortFacts(healthy)
        uploads = reported.storage.get(port)
        return PortFacts(
            healthy=healthy,
            ended=port in self._ended.get(pe, ()),
            damaged=reported.damaged.get(port, ""),
            stored=None if uploads is None else stored_state(uploads, resource.durability),
            schema=reported.schemas.get(port, NO_VERSION),
        )

    def forget(self, pe: PeKey) -> None:
        """Drop the reports of a withdrawn PE."""
        self._ended.pop(pe, None)
        self._reported.pop(pe, None)
        self._superseded.discard(pe)
