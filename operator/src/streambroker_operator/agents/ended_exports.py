"""What agents say of their exports: that they have ended, and that their logs are damaged.

This is for those who look at an Export; nothing depends on it. Agents tell the first with every
poll and the second with every report, so it is kept in memory only: after a restart of the broker
it is known again within half a minute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from streambroker_core.model import PeKey, PortKey, Resource
from streambroker_core.wire.broker.ended_exports import EndedExports


class ExportReports(Protocol):
    """What is shown of ends and damage of exports."""

    def apply_ends(self, pe: PeKey, ends: EndedExports) -> Sequence[PortKey]:
        """Take in what an agent says; return the exports of which something else is shown now."""

    def is_ended(self, resource: Resource) -> bool:
        """Say whether an accepted Export is shown as ended."""

    def apply_damage(self, pe: PeKey, damaged: Mapping[str, str]) -> Sequence[PortKey]:
        """Take in which logs of an agent are damaged, in words by port; return as `take` does."""

    def damage(self, resource: Resource) -> str:
        """Return what is shown of damage to the log of an Export; empty for none."""

    def forget(self, pe: PeKey) -> None:
        """A PE was withdrawn."""


class LocalExportReports:
    """What the agents said last, where all of them ask this process."""

    def __init__(self) -> None:
        self._ended: dict[PeKey, frozenset[str]] = {}
        self._damaged: dict[PeKey, Mapping[str, str]] = {}

    def apply_ends(self, pe: PeKey, ends: EndedExports) -> Sequence[PortKey]:
        """As of `ExportReports`."""
        before = self._ended.get(pe, frozenset())
        # Of what it does not name, among many, what it said before stays.
        now = ends.ports | (before if ends.more else frozenset())
        self._ended.pop(pe, None)
        if now:
            self._ended[pe] = now
        return [PortKey(*pe, port) for port in sorted(before ^ now)]

    def is_ended(self, resource: Resource) -> bool:
        """As of `ExportReports`."""
        return resource.key.port in self._ended.get(resource.key.owner, frozenset())

    def apply_damage(self, pe: PeKey, damaged: Mapping[str, str]) -> Sequence[PortKey]:
        """As of `ExportReports`."""
        before = self._damaged.pop(pe, {})
        if damaged:
            self._damaged[pe] = dict(damaged)
        ports = {*before, *damaged}
        return [PortKey(*pe, p) for p in sorted(ports) if before.get(p) != damaged.get(p)]

    def damage(self, resource: Resource) -> str:
        """As of `ExportReports`."""
        return self._damaged.get(resource.key.owner, {}).get(resource.key.port, "")

    def forget(self, pe: PeKey) -> None:
        """As of `ExportReports`."""
        self._ended.pop(pe, None)
        self._damaged.pop(pe, None)
