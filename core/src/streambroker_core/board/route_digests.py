"""What stands for the routes of a port in the version of a view, kept change by change.

A view's version is a hash of its content. Of thousands of routes one is another, as a
rule; so each route has a mark, a port the sum of its routes' marks, and the version is
made of the sums. `streambroker_core.wire.broker.view.with_version` makes the same of a whole view.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from streambroker_core.board.port_index import PortIndex
from streambroker_core.matching import Match
from streambroker_core.model import Export, Import, PeKey
from streambroker_core.wire.broker.registration import Registration
from streambroker_core.wire.broker.view import (
    DIGEST_MODULUS,
    digest_export_route,
    digest_exporter,
    digest_import_route,
)


class RouteDigests:
    """The sums of all ports.

    An import's routes show the *face* of the exporter: its address, its schema. That
    changes without the outcome of the pair, after a registration for instance.

    Args:
        exports: all Exports, and whom they meet.
        registration: gives what a PE's agent said last.

    Attributes:
        export_digests: by uid; those without routes are left out, here and in the other.
        import_digests: by uid.
    """

    def __init__(
        self, exports: PortIndex[Export], registration: Callable[[PeKey], Registration | None]
    ) -> None:
        self._exports = exports
        self._registration = registration
        self.export_digests: dict[str, int] = {}
        self.import_digests: dict[str, int] = {}
        self._exporter_digests: dict[str, str] = {}
        self._stale_exporters: set[str] = set()

    def update_route(
        self, export: Export, import_: Import, old: Match | None, new: Match | None
    ) -> None:
        """Note that a pair has another route, or none any more."""
        face = self._exporter_digests.get(export.uid)
        if face is None:
            face = self._exporter_digests[export.uid] = self._compute_exporter_digest(export)
        for match, times in ((old, -1), (new, 1)):
            if match is None:
                continue
            told = match.filter, match.policy
            mark = digest_export_route(import_.key, import_.uid, *told)
            _add_digest(self.export_digests, export.uid, times * mark)
            mark = digest_import_route(face, export.uid, *told)
            _add_digest(self.import_digests, import_.uid, times * mark)
        if export.uid not in self.export_digests:
            del self._exporter_digests[export.uid]

    def mark_stale(self, uids: Iterable[str]) -> None:
        """Note that Exports may have another face."""
        self._stale_exporters.update(uids)

    def refresh(self) -> None:
        """Look at the Exports again whose face may be another."""
        for uid in self._stale_exporters & self._exporter_digests.keys():
            export = self._exports.cache.get(uid)
            if export is not None:
                self._set_exporter_digest(
                    uid, self._exporter_digests[uid], self._compute_exporter_digest(export)
                )
        self._stale_exporters.clear()

    def _set_exporter_digest(self, uid: str, old: str, new: str) -> None:
        if old == new:
            return
        self._exporter_digests[uid] = new
        for peer, outcome in self._exports.outcomes_of(uid).items():
            if isinstance(outcome, Match):
                told = uid, outcome.filter, outcome.policy
                mark = digest_import_route(new, *told) - digest_import_route(old, *told)
                _add_digest(self.import_digests, peer, mark)

    def _compute_exporter_digest(self, export: Export) -> str:
        agent = self._registration(export.key.owner)
        location = None if agent is None else agent.location
        issuer = None if agent is None else issuer_for(export, agent)
        return digest_exporter(export.key, location, issuer, export.schema)


def issuer_for(export: Export, agent: Registration) -> str:
    """Return what else the capability for an Export depends on."""
    return f"{agent.instance}/{'filter' if export.allow_filter else 'plain'}"


def _add_digest(sums: dict[str, int], uid: str, route_digest: int) -> None:
    found = (sums.get(uid, 0) + route_digest) % DIGEST_MODULUS
    if found:
        sums[uid] = found
    else:
        sums.pop(uid, None)
