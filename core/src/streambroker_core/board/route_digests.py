"""What stands for the routes of a port in the version of a view, kept change by change.

A view's version is a hash of its content. Of thousands of routes one is another, as a
rule; so each route has a mark, a port the sum of its routes' marks, and the version is
made of the sums. `streambroker_core.wire.broker.view.seal` makes the same of a whole view.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from streambroker_core.board.port_index import Half
from streambroker_core.matching import Match
from streambroker_core.model import Export, Import, PeKey
from streambroker_core.wire.broker.registration import Registration
from streambroker_core.wire.broker.view import (
    MARKS,
    face_of,
    mark_of_export_route,
    mark_of_import_route,
)


class Marks:
    """The sums of all ports.

    An import's routes show the *face* of the exporter: its address, its schema. That
    changes without the outcome of the pair, after a registration for instance.

    Args:
        exports: all Exports, and whom they meet.
        registration: gives what a PE's agent said last.

    Attributes:
        of_exports: by uid; those without routes are left out, here and in the other.
        of_imports: by uid.
    """

    def __init__(
        self, exports: Half[Export], registration: Callable[[PeKey], Registration | None]
    ) -> None:
        self._exports = exports
        self._registration = registration
        self.of_exports: dict[str, int] = {}
        self.of_imports: dict[str, int] = {}
        self._faces: dict[str, str] = {}
        self._doubted: set[str] = set()

    def move(self, export: Export, import_: Import, was: Match | None, now: Match | None) -> None:
        """Note that a pair has another route, or none any more."""
        face = self._faces.get(export.uid)
        if face is None:
            face = self._faces[export.uid] = self._face(export)
        for match, times in ((was, -1), (now, 1)):
            if match is None:
                continue
            told = match.filter, match.policy
            mark = mark_of_export_route(import_.key, import_.uid, *told)
            _add(self.of_exports, export.uid, times * mark)
            mark = mark_of_import_route(face, export.uid, *told)
            _add(self.of_imports, import_.uid, times * mark)
        if export.uid not in self.of_exports:
            del self._faces[export.uid]

    def doubt(self, uids: Iterable[str]) -> None:
        """Note that Exports may have another face."""
        self._doubted.update(uids)

    def settle(self) -> None:
        """Look at the Exports again whose face may be another."""
        for uid in self._doubted & self._faces.keys():
            export = self._exports.shelf.get(uid)
            if export is not None:
                self._show(uid, self._faces[uid], self._face(export))
        self._doubted.clear()

    def _show(self, uid: str, was: str, now: str) -> None:
        if was == now:
            return
        self._faces[uid] = now
        for peer, outcome in self._exports.outcomes_of(uid).items():
            if isinstance(outcome, Match):
                told = uid, outcome.filter, outcome.policy
                mark = mark_of_import_route(now, *told) - mark_of_import_route(was, *told)
                _add(self.of_imports, peer, mark)

    def _face(self, export: Export) -> str:
        agent = self._registration(export.key.owner)
        location = None if agent is None else agent.location
        issuer = None if agent is None else issuer_of(export, agent)
        return face_of(export.key, location, issuer, export.schema)


def issuer_of(export: Export, agent: Registration) -> str:
    """Return what else the capability for an Export depends on."""
    return f"{agent.instance}/{'filter' if export.allow_filter else 'plain'}"


def _add(sums: dict[str, int], uid: str, mark: int) -> None:
    found = (sums.get(uid, 0) + mark) % MARKS
    if found:
        sums[uid] = found
    else:
        sums.pop(uid, None)
