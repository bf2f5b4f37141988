"""Ends, damage, uploads and versions of exports, as agents report them.

For display only; nothing depends on it. Agents report ends with every poll, the rest with every
report. All is kept in memory only and is complete again 30 seconds after a broker restart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from streambroker_core.board import BoardReader
from streambroker_core.model import Export, PeKey, PortKey
from streambroker_core.wire.broker.ended_exports import EndedExports
from streambroker_core.wire.reports.schema_status import NO_VERSION, SchemaStatus, SchemaStatusMap
from streambroker_core.wire.reports.storage_status import (
    StorageStatusMap,
    StoredState,
    stored_state,
)


class ExportFacts(NamedTuple):
    """What is published of an export besides its place on the board.

    Attributes:
        ended: its program has finished the stream.
        damaged: damage of its log; empty for none.
        stored: whether the bucket has it; None without object storage or report.
        schema: version of its columns.
    """

    ended: bool = False
    damaged: str = ""
    stored: StoredState | None = None
    schema: SchemaStatus = NO_VERSION


class ExportReports(Protocol):
    """Reported ends, damage, uploads and versions of exports, as they are published."""

    def apply_ends(self, pe: PeKey, ends: EndedExports) -> Sequence[PortKey]:
        """Apply an agent's report of ends; return the exports whose published state changed."""

    def apply_report(
        self,
        pe: PeKey,
        damaged: Mapping[str, str],
        storage: StorageStatusMap,
        schemas: SchemaStatusMap,
    ) -> Sequence[PortKey]:
        """Apply an agent's report by port: damage of logs; uploads and versions of all exports.

        Return as `apply_ends` does.
        """

    def facts(self, export: Export) -> ExportFacts:
        """Return what is published of an accepted Export."""

    def forget(self, pe: PeKey) -> None:
        """Drop the reports of a withdrawn PE."""


class _Reported(NamedTuple):
    """Last report of an agent, by port."""

    damaged: Mapping[str, str]
    storage: StorageStatusMap
    schemas: SchemaStatusMap


class LocalExportReports:
    """Last reports of agents, where all agents report to this process."""

    def __init__(self, board: BoardReader) -> None:
        self._board = board
        self._ended: dict[PeKey, frozenset[str]] = {}
        self._reported: dict[PeKey, _Reported] = {}
        self._superseded = set[PeKey]()
        """PEs whose last report was of an agent that another one has replaced."""

    def apply_ends(self, pe: PeKey, ends: EndedExports) -> Sequence[PortKey]:
        """Apply an agent's report of ends; return the exports that changed."""
        before = self._ended.get(pe, frozenset())
        # A partial report: ports that it does not name keep their state.
        now = ends.ports | (before if ends.more else frozenset())
        self._ended.pop(pe, None)
        if now:
            self._ended[pe] = now
        return [PortKey(*pe, port) for port in sorted(before ^ now)]

    def apply_report(
        self,
        pe: PeKey,
        damaged: Mapping[str, str],
        storage: StorageStatusMap,
        schemas: SchemaStatusMap,
    ) -> Sequence[PortKey]:
        """Apply an agent's report by port; return the exports that changed.

        While a superseded agent and its successor report in turns, the superseded one is shown.
        """
        was_superseded = pe in self._superseded
        self._superseded.discard(pe)
        if any(one.superseded for one in storage.values()):
            self._superseded.add(pe)
        elif was_superseded:
            return []
        reports = (*self._reported.get(pe, ()), damaged, storage, schemas)
        ports = sorted({port for report in reports for port in report})
        held = [self._board.holder("Export", PortKey(*pe, port)) for port in ports]
        exports = [one for one in held if isinstance(one, Export)]
        before = [self.facts(export) for export in exports]
        self._reported[pe] = _Reported(damaged, storage, schemas)
        return [
            export.key
            for export, facts in zip(exports, before, strict=True)
            if self.facts(export) != facts
        ]

    def facts(self, export: Export) -> ExportFacts:
        """Return what the agent has reported of an Export."""
        pe, port = export.key.owner, export.key.port
        reported = self._reported.get(pe, _Reported({}, {}, {}))
        uploads = reported.storage.get(port)
        return ExportFacts(
            ended=port in self._ended.get(pe, ()),
            damaged=reported.damaged.get(port, ""),
            stored=None if uploads is None else stored_state(uploads, export.durability),
            schema=reported.schemas.get(port, NO_VERSION),
        )

    def forget(self, pe: PeKey) -> None:
        """Drop the reports of a withdrawn PE."""
        self._ended.pop(pe, None)
        self._reported.pop(pe, None)
        self._superseded.discard(pe)
