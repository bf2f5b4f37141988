"""Ends, damage and uploads of exports, as agents report them.

For display only; nothing depends on it. Agents report ends with every poll, the rest with every
report. All is kept in memory only and is complete again 30 seconds after a broker restart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from streambroker_core.model import Export, PeKey, PortKey, Resource
from streambroker_core.wire.broker.ended_exports import EndedExports
from streambroker_core.wire.reports.storage_status import (
    StorageStatusMap,
    StoredState,
    stored_state,
)


class ExportReports(Protocol):
    """Reported ends, damage and uploads of exports, as they are published."""

    def apply_ends(self, pe: PeKey, ends: EndedExports) -> Sequence[PortKey]:
        """Apply an agent's report of ends; return the exports whose published state changed."""

    def is_ended(self, resource: Resource) -> bool:
        """Return whether an accepted Export is published as ended."""

    def apply_damage(self, pe: PeKey, damaged: Mapping[str, str]) -> Sequence[PortKey]:
        """Apply an agent's descriptions of damaged logs, by port; return as `apply_ends` does."""

    def damage(self, resource: Resource) -> str:
        """Return the published damage of an Export's log; empty for none."""

    def apply_storage(self, pe: PeKey, storage: StorageStatusMap) -> Sequence[PortKey]:
        """Apply an agent's rounded uploads, by port; return as `apply_ends` does."""

    def stored(self, export: Export) -> StoredState | None:
        """Return whether the bucket has an Export; None without object storage or report."""

    def forget(self, pe: PeKey) -> None:
        """Drop the reports of a withdrawn PE."""


class LocalExportReports:
    """Last reports of agents, where all agents report to this process."""

    def __init__(self) -> None:
        self._ended: dict[PeKey, frozenset[str]] = {}
        self._damaged: dict[PeKey, Mapping[str, str]] = {}
        self._storage: dict[PeKey, StorageStatusMap] = {}

    def apply_ends(self, pe: PeKey, ends: EndedExports) -> Sequence[PortKey]:
        """Apply an agent's report of ends; return the exports that changed."""
        before = self._ended.get(pe, frozenset())
        # A partial report: ports that it does not name keep their state.
        now = ends.ports | (before if ends.more else frozenset())
        self._ended.pop(pe, None)
        if now:
            self._ended[pe] = now
        return [PortKey(*pe, port) for port in sorted(before ^ now)]

    def is_ended(self, resource: Resource) -> bool:
        """Return whether the agent has reported the end of an Export."""
        return resource.key.port in self._ended.get(resource.key.owner, frozenset())

    def apply_damage(self, pe: PeKey, damaged: Mapping[str, str]) -> Sequence[PortKey]:
        """Apply an agent's report of damage; return the exports that changed."""
        before = self._damaged.pop(pe, {})
        if damaged:
            self._damaged[pe] = dict(damaged)
        ports = {*before, *damaged}
        return [PortKey(*pe, p) for p in sorted(ports) if before.get(p) != damaged.get(p)]

    def damage(self, resource: Resource) -> str:
        """Return the reported damage of an Export's log; empty for none."""
        return self._damaged.get(resource.key.owner, {}).get(resource.key.port, "")

    def apply_storage(self, pe: PeKey, storage: StorageStatusMap) -> Sequence[PortKey]:
        """Apply an agent's report of uploads; return the exports that changed."""
        before, self._storage[pe] = self._storage.get(pe, {}), storage
        ports = {*before, *storage}
        return [PortKey(*pe, p) for p in sorted(ports) if before.get(p) != storage.get(p)]

    def stored(self, export: Export) -> StoredState | None:
        """Return what an agent has reported of the uploads of an Export."""
        storage = self._storage.get(export.key.owner, {}).get(export.key.port)
        return None if storage is None else stored_state(storage, export.durability)

    def forget(self, pe: PeKey) -> None:
        """Drop the reports of a withdrawn PE."""
        for reports in (self._ended, self._damaged, self._storage):
            reports.pop(pe, None)
