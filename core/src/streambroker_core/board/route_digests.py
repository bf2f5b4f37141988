"""Digests of each port's routes for view versions, updated incrementally.

A view's version is a hash of its content. Usually one of thousands of routes changes. So each
route has a digest, a port has the sum of its routes' digests, and the version is a hash over the
sums. `streambroker_core.wire.broker.view.with_version` computes the same from a complete view.
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
from streambroker_core.wire.encoding.canonical import digest
from streambroker_core.wire.encoding.policies import write_policies


class RouteDigests:
    """Sums of route digests by port.

    An import's route contains a digest of the exporter: address, issuer and schema. It may change
    without the outcome of the pair, for example after a registration.

    Attributes:
        export_digests: by uid; ports without routes are left out, also in `import_digests`.
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
        """Record that a pair's route changed, appeared or ended."""
        exporter_digest = self._exporter_digests.get(export.uid)
        if exporter_digest is None:
            exporter_digest = self._exporter_digests[export.uid] = self._compute_exporter_digest(
                export
            )
        for match, sign in ((old, -1), (new, 1)):
            if match is None:
                continue
            route = match.filter, match.policy
            number = digest_export_route(import_.key, import_.uid, *route)
            _add_digest(self.export_digests, export.uid, sign * number)
            number = digest_import_route(exporter_digest, export.uid, *route)
            _add_digest(self.import_digests, import_.uid, sign * number)
        if export.uid not in self.export_digests:
            del self._exporter_digests[export.uid]

    def mark_stale(self, uids: Iterable[str]) -> None:
        """Record that the exporter digests of Exports may have changed."""
        self._stale_exporters.update(uids)

    def refresh(self) -> None:
        """Recompute the exporter digests that may have changed."""
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
                route = uid, outcome.filter, outcome.policy
                difference = digest_import_route(new, *route) - digest_import_route(old, *route)
                _add_digest(self.import_digests, peer, difference)

    def _compute_exporter_digest(self, export: Export) -> str:
        agent = self._registration(export.key.owner)
        location = None if agent is None else agent.location
        issuer = None if agent is None else issuer_for(export, agent)
        return digest_exporter(export.key, location, issuer, export.schema)


def issuer_for(export: Export, agent: Registration) -> str:
    """Return what else the capability for an Export depends on, and columns of its importers.

    These are the agent's instance, the right to filter, and policies if there are any.
    """
    policies = f"/{digest(write_policies(export.policies))}" if export.policies else ""
    return f"{agent.instance}/{'filter' if export.allow_filter else 'plain'}{policies}"


def _add_digest(sums: dict[str, int], uid: str, route_digest: int) -> None:
    total = (sums.get(uid, 0) + route_digest) % DIGEST_MODULUS
    if total:
        sums[uid] = total
    else:
        sums.pop(uid, None)
