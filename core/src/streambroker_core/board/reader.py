"""What a board holds, and what it can be asked; nothing here changes anything.

`streambroker_core.board.board` has what changes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from streambroker_core.board.events import AgentRegistered, Status, Unreadable
from streambroker_core.board.port_index import PortIndex
from streambroker_core.board.resource_cache import ResourceCache
from streambroker_core.board.rule_index import RuleIndex
from streambroker_core.board.views import ACCEPTED, build_route, build_view
from streambroker_core.board.wait_cycles import Ring, WaitEdge, WaitRings, wait_edges
from streambroker_core.matching import IndexMatcher, IndexStats, Match, Matcher, MatchResult
from streambroker_core.model import (
    RULE,
    AnyKind,
    Export,
    Import,
    Kind,
    PeKey,
    PortKey,
    Resource,
    Route,
    resource_order,
)
from streambroker_core.wire.broker.hints import Point
from streambroker_core.wire.broker.registration import Registration
from streambroker_core.wire.broker.view import View


def claimed_stream(export: Export) -> tuple[str, str, str | None, str, str] | None:
    """Return the name under which a stream is given only once, or None."""
    if export.stream_id is None:
        return None
    application = export.application
    key = export.key
    return (key.namespace, application.scope, application.name, key.job, export.stream_id)


class BoardReader:
    """Resources, routes, views and statuses, as they are now.

    Args:
        matcher: decides pairs; an index by default.

    Attributes:
        rules: of patterns; only the board changes them.
    """

    def __init__(self, matcher: Matcher | None = None) -> None:
        self.rules = RuleIndex()
        self._matcher: Matcher = IndexMatcher() if matcher is None else matcher
        self._exports: PortIndex[Export] = PortIndex(claimed_stream)
        self._imports: PortIndex[Import] = PortIndex(lambda _: None)
        self._agents: dict[PeKey, AgentRegistered] = {}
        # The versions of the views, 16 bytes each, none before the first; views are drawn when
        # asked for.
        self._versions: dict[PeKey, bytes] = {}
        # All others are accepted, and match nothing.
        self._statuses: dict[tuple[Kind, str], Status] = {}
        self._settled = False
        # Imports that are held, each with its namespace.
        self._held_imports: dict[str, str] = {}
        self._rings = WaitRings(self.wait_edges, self._is_relay)

    def _is_relay(self, pe: PeKey) -> bool:
        return bool(self._imports.uids_of_pe(pe) and self._exports.uids_of_pe(pe))

    def wait_edges(self, pe: PeKey) -> Iterator[WaitEdge]:
        """Yield the routes to other PEs for which a PE's Exports wait without end."""
        for export in self._exports.holders(pe):
            yield from wait_edges(export, self.routes_of("Export", export.uid))

    def rings(self) -> list[Ring]:
        """Return the jobs that may wait for each other, in order of their first PEs."""
        return self._rings.list_all()

    def _describe_ring(self, kind: Kind, uid: str) -> str:
        """Return a sentence about the ring that a resource is part of; empty if of none."""
        resource = self._index(kind).cache.get(uid)
        ring = None if resource is None else self._rings.get(resource.key.owner)
        if resource is None or ring is None:
            return ""
        for route in self.routes_of(kind, uid):
            export = self._exports.cache.get(route.export_uid)
            if export is None:
                continue
            for edge in wait_edges(export, (route,)):
                if {edge.export.owner, edge.import_.owner} <= ring.members:
                    return ring.describe(resource.key.namespace)
        return ""

    def _index(self, kind: Kind) -> PortIndex[Any]:
        return self._exports if kind == "Export" else self._imports

    def _cache(self, kind: AnyKind) -> ResourceCache[Any]:
        return self.rules.cache if kind == RULE else self._index(kind).cache

    def uids_ahead_of_feed(self, kind: Kind) -> list[str]:
        """Return the uids of resources that writes from here have changed ahead of the feed."""
        return self._index(kind).cache.uids_ahead_of_feed()

    def _route(self, export_uid: str, import_uid: str) -> Route | None:
        export = self._exports.cache.get(export_uid)
        import_ = self._imports.cache.get(import_uid)
        outcome = self._exports.outcomes_of(export_uid).get(import_uid)
        if export is None or import_ is None or not isinstance(outcome, Match):
            return None
        return build_route(export, import_, outcome)

    @property
    def synced(self) -> bool:
        """Whether both kinds have been listed once, and looked at; else there are no views."""
        return self._settled

    @property
    def stale(self) -> bool:
        """Whether a feed is lost at the moment; the views go on."""
        return self._exports.cache.stale or self._imports.cache.stale

    @property
    def point(self) -> Point:
        """Processed versions of (exports, imports)."""
        return self._exports.cache.resource_version, self._imports.cache.resource_version

    def view(self, pe: PeKey) -> View | None:
        """Return a PE's view at the board's point; None where the PE is not known."""
        version = self._versions.get(pe)
        if not version:
            return None
        wanted = self.rules.view_rules(pe[:2])
        drawn = build_view(
            pe, self._exports, self._imports, self.registration, wanted, self._held_imports
        )
        at = 0 if wanted is None else self.rules.resource_version
        return replace(drawn, version=version.hex(), point=self.point, rules_version=at)

    def version(self, pe: PeKey) -> str | None:
        """Return the version of a PE's view, without drawing it; None where it is not known."""
        return self._versions.get(pe, b"").hex() or None

    def ports(self, pe: PeKey) -> tuple[list[str], list[str]]:
        """Return the names of the exports and of the imports that a PE's view shows, in order."""
        exports, imports = self._exports.holders(pe), self._imports.holders(pe)
        return [one.key.port for one in exports], [one.key.port for one in imports]

    def versions(self) -> dict[PeKey, str]:
        """Return the PEs that have a view, with its version, in no order."""
        return {pe: version.hex() for pe, version in self._versions.items() if version}

    def registrations(self) -> dict[PeKey, Registration]:
        """Return what the PEs' agents registered last, in no order."""
        return {pe: event.registration for pe, event in self._agents.items()}

    def statuses(self) -> dict[tuple[Kind, str], Status]:
        """Return the statuses of all resources that are not merely accepted."""
        return dict(self._statuses)

    def pes(self) -> list[PeKey]:
        """Return the PEs that have a view, in order."""
        return sorted(self.versions())

    def registration(self, pe: PeKey) -> Registration | None:
        """Return what a PE's agent registered last."""
        agent = self._agents.get(pe)
        return None if agent is None else agent.registration

    def exports(self) -> list[Export]:
        """Return all Exports, rivals included, in order of port and age."""
        return sorted(self._exports.cache, key=resource_order)

    def imports(self) -> list[Import]:
        """Return all Imports, rivals included, in order of port and age."""
        return sorted(self._imports.cache, key=resource_order)

    def iter_exports(self) -> Iterator[Export]:
        """Yield all Exports, rivals included, in no order."""
        return iter(self._exports.cache)

    def iter_imports(self) -> Iterator[Import]:
        """Yield all Imports, rivals included, in no order."""
        return iter(self._imports.cache)

    def exports_claiming(self, key: PortKey) -> list[Export]:
        """Return all Exports that claim a port, in order of their uids."""
        return self._exports.claimants(key)

    def imports_claiming(self, key: PortKey) -> list[Import]:
        """Return all Imports that claim a port, in order of their uids."""
        return self._imports.claimants(key)

    def exports_sharing_stream(self, export: Export) -> list[Export]:
        """Return the holders of ports that claim the stream name that an Export claims."""
        stream = claimed_stream(export)
        return [] if stream is None else self._exports.stream_holders(stream)

    def is_accepted(self, kind: Kind, uid: str) -> bool:
        """Say whether a resource is there and holds what it claims."""
        side = self._index(kind)
        return side.ownership.is_accepted(uid)

    def standby_uids(self, kind: Kind) -> set[str]:
        """Return the uids of all that are there and do not hold what they claim."""
        side = self._index(kind)
        return side.ownership.standby_uids()

    def outcomes_for(self, resource: Resource) -> Mapping[str, MatchResult]:
        """Return matches and near refusals that a resource would have; nothing is changed."""
        return self._matcher.outcomes_for(resource)

    def index_stats(self) -> IndexStats:
        """Return how the matcher is filled."""
        return self._matcher.stats()

    def get(self, kind: AnyKind, uid: str) -> Resource | None:
        """Return an Export or an Import by its uid; the board's ``rules`` have the rules."""
        return None if kind == RULE else self._index(kind).cache.get(uid)

    def unreadable(self, kind: AnyKind, uid: str) -> Unreadable | None:
        """Return what is known of a resource that is there and cannot be read, by its uid."""
        return self._cache(kind).unreadable(uid)

    def version_of(self, kind: Kind, uid: str) -> int:
        """Return the version at which a resource changed last; 0 where it is not known."""
        side = self._index(kind)
        return side.cache.version_of(uid)

    def newest_version(self, kind: AnyKind) -> int:
        """Return the highest version at which any of a kind was seen, be it ahead of the feed."""
        return self._cache(kind).newest_version()

    def resources_of(self, pe: PeKey) -> list[Resource]:
        """Return a PE's resources, rivals included, Exports first, in order of their uids."""
        return [
            *self._exports.ownership.claimants_of_pe(pe),
            *self._imports.ownership.claimants_of_pe(pe),
        ]

    def uid_by_name(self, kind: Kind, namespace: str, name: str) -> str | None:
        """Return the uid of the resource that a new one of this name would replace."""
        side = self._index(kind)
        return side.cache.uid_by_name(namespace, name)

    @property
    def route_count(self) -> int:
        """How many routes there are."""
        return self._exports.match_count()

    def export_at(self, key: PortKey) -> Export | None:
        """Return the Export that holds a port."""
        return self._exports.holder_at(key)

    def import_at(self, key: PortKey) -> Import | None:
        """Return the Import that holds a port."""
        return self._imports.holder_at(key)

    def status(self, kind: AnyKind, uid: str) -> Status | None:
        """Return what there is to say about a resource; None before the board is synced."""
        if kind == RULE:
            return self.rules.status(uid) if self._settled else None
        there = self.get(kind, uid) or self.unreadable(kind, uid)
        known = self._settled and there is not None
        return self._statuses.get((kind, uid), ACCEPTED) if known else None

    def outcomes(self, kind: Kind, uid: str) -> Mapping[str, MatchResult]:
        """Return matches and near refusals of a resource, by the other side's uid."""
        side = self._index(kind)
        return dict(side.outcomes_of(uid))

    def routes_of(self, kind: Kind, uid: str) -> list[Route]:
        """Return a resource's routes, in order of the other side's port."""
        side = self._index(kind)
        peers = side.peers_for(uid).peers()
        pairs = ((uid, peer) if kind == "Export" else (peer, uid) for peer in peers)
        found = (self._route(*pair) for pair in pairs)
        return [route for route in found if route is not None]

    def routes(self) -> list[Route]:
        """Return all routes, in order of the exporters' and the importers' ports."""
        return [
            route for export in self.exports() for route in self.routes_of("Export", export.uid)
        ]
