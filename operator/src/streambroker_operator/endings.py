"""Which exports have ended, for those who look at an Export.

Figures for people, on which nothing depends. Agents tell it with every poll, so it is kept in
memory only: after a restart of the broker it is known again within half a minute.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from streambroker_core.model import PeKey, PortKey, Resource
from streambroker_core.wire.ends import Ends


class Endings(Protocol):
    """What is shown of the ends of exports."""

    def take(self, pe: PeKey, ends: Ends) -> Sequence[PortKey]:
        """Take in what an agent says; return the exports of which something else is shown now."""

    def shows(self, resource: Resource) -> bool:
        """Say whether an accepted Export is shown as ended."""

    def forget(self, pe: PeKey) -> None:
        """A PE was withdrawn."""


class HeardEndings:
    """What the agents said last, where all of them ask this process."""

    def __init__(self) -> None:
        self._ended: dict[PeKey, frozenset[str]] = {}

    def take(self, pe: PeKey, ends: Ends) -> Sequence[PortKey]:
        """As of `Endings`."""
        before = self._ended.get(pe, frozenset())
        # Of what it does not name, among many, what it said before stays.
        now = ends.ports | (before if ends.more else frozenset())
        self.forget(pe)
        if now:
            self._ended[pe] = now
        return [PortKey(*pe, port) for port in sorted(before ^ now)]

    def shows(self, resource: Resource) -> bool:
        """As of `Endings`."""
        return resource.key.port in self._ended.get(resource.key.owner, frozenset())

    def forget(self, pe: PeKey) -> None:
        """As of `Endings`."""
        self._ended.pop(pe, None)
