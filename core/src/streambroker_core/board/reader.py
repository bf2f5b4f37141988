"""Read-only access to a board; `streambroker_core.board.board` changes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from streambroker_core.board.events import AgentRegistered, Status, Unreadable
from streambroker_core.board.port_index import PortIndex
from streambroker_core.board.resource_cache import ResourceCache
from streambroker_core.board.rule_index import RuleIndex
from streambroker_core.board.views import ACCEPTED, build_route, build_view
from streambroker_core.board.wait_cycles import WaitEdge, WaitRings, wait_edges
from streambroker_core.matching import IndexStats, Match, Matcher, MatchResult
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
from streambroker_core.wire.manifests.quotas import Quotas, Usage


def claimed_stream(export: Export) -> tuple[str, str, str | None, str, str] | None:
    """Return the stream name that only one Export may hold, or None."""
    if export.stream_id is None:
        return None
    application = export.application
    key = export.key
    return (key.namespace, application.scope, application.name, key.job, export.stream_id)


class BoardState:
    """What a board knows. `Board` changes it; `BoardReader` only reads it.

    Attributes:
        matcher: decides pairs.
        agents: the last registration of each PE's agent.
        versions: view versions, 16 bytes each, empty before the first. Views are built on request.
        statuses: a resource without an entry is accepted and has no match.
        faults: of Imports, as far as they do not depend on Exports.
        held_imports: namespace of each held Import, by uid.
        settled: both kinds were listed and processed.
    """

    def __init__(self, matcher: Matcher) -> None:
        self.matcher = matcher
        self.rules = RuleIndex()
        self.exports: PortIndex[Export] = PortIndex("Export", claimed_stream)
        self.imports: PortIndex[Import] = PortIndex("Import", lambda _: None)
        self.agents: dict[PeKey, AgentRegistered] = {}
        self.versions: dict[PeKey, bytes] = {}
        self.statuses: dict[tuple[Kind, str], Status] = {}
        self.faults: dict[str, Status] = {}
        self.held_imports: dict[str, str] = {}
        self.settled = False

    def ports(self, kind: Kind) -> PortIndex[Any]:
        """Return the index of one kind of ports."""
        return self.exports if kind == "Export" else self.imports

    def cache(self, kind: AnyKind) -> ResourceCache[Any]:
        """Return the cache of one kind of resources."""
        return self.rules.cache if kind == RULE else self.ports(kind).cache

    def registration(self, pe: PeKey) -> Registration | None:
        """Return the last registration of a PE's agent."""
        agent = self.agents.get(pe)
        return None if agent is None else agent.registration


class BoardReader:
    """Current resources, routes, views and statuses of a board.

    Attributes:
        rules: only the board changes them.
        quotas: of namespaces; the owner of the board sets them.
    """

    def __init__(self, state: BoardState) -> None:
        self._state = state
        self.rules = state.rules
        self.quotas = Quotas()
        self.registration = state.registration
        self._exports, self._imports = state.exports, state.imports
        self._versions, self._statuses = state.versions, state.statuses
        self.wait_rings = WaitRings(self.wait_edges, self._is_relay)

    def usage(self, namespace: str) -> Usage:
        """Return what all Exports and Imports of a namespace use, also refused ones."""
        resources: list[Resource] = [*self.iter_exports(), *self.iter_imports()]
        uses = [Usage.of(one) for one in resources if one.key.namespace == namespace]
        return Usage(len(uses), sum(one.bytes for one in uses))

    def _is_relay(self, pe: PeKey) -> bool:
        return bool(self._imports.uids_of_pe(pe) and self._exports.uids_of_pe(pe))

    def wait_edges(self, pe: PeKey) -> Iterator[WaitEdge]:
        """Yield the routes to other PEs for which a PE's Exports wait without a limit."""
        for export in self._exports.holders(pe):
            yield from wait_edges(export, self.routes_of("Export", export.uid))

    def describe_ring(self, kind: Kind, uid: str) -> str:
        """Return a sentence about the ring that contains a route of a resource, or ""."""
        resource = self._state.ports(kind).cache.get(uid)
        ring = None if resource is None else self.wait_rings.get(resource.key.owner)
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

    def route(self, export_uid: str, import_uid: str) -> Route | None:
        """Return the route between two resources, or None."""
        export = self._exports.cache.get(export_uid)
        import_ = self._imports.cache.get(import_uid)
        outcome = self._exports.outcomes_of(export_uid).get(import_uid)
        if export is None or import_ is None or not isinstance(outcome, Match):
            return None
        return build_route(export, import_, outcome)

    @property
    def synced(self) -> bool:
        """Whether both kinds were listed and processed; before that there are no views."""
        return self._state.settled

    @property
    def stale(self) -> bool:
        """Whether a feed is currently lost; views stay available."""
        return self._exports.cache.stale or self._imports.cache.stale

    @property
    def point(self) -> Point:
        """Processed versions of (exports, imports)."""
        return self._exports.cache.resource_version, self._imports.cache.resource_version

    def view(self, pe: PeKey) -> View | None:
        """Return a PE's view at the board's point; None if the PE is unknown."""
        version = self._versions.get(pe)
        if not version:
            return None
        rules = self.rules.view_rules(pe[:2])
        view = build_view(
            pe, self._exports, self._imports, self.registration, rules, self._state.held_imports
        )
        rules_version = 0 if rules is None else self.rules.resource_version
        return replace(view, version=version.hex(), point=self.point, rules_version=rules_version)

    def version(self, pe: PeKey) -> str | None:
        """Return the version of a PE's view without building it; None if the PE is unknown."""
        return self._versions.get(pe, b"").hex() or None

    def ports(self, pe: PeKey) -> tuple[list[str], list[str]]:
        """Return the export and import names of a PE's view, in order."""
        exports, imports = self._exports.holders(pe), self._imports.holders(pe)
        return [one.key.port for one in exports], [one.key.port for one in imports]

    def versions(self) -> dict[PeKey, str]:
        """Return the view versions of all PEs that have a view, unordered."""
        return {pe: version.hex() for pe, version in self._versions.items() if version}

    def registrations(self) -> dict[PeKey, Registration]:
        """Return the last registrations of the PEs' agents, unordered."""
        return {pe: event.registration for pe, event in self._state.agents.items()}

    def statuses(self) -> dict[tuple[Kind, str], Status]:
        """Return the statuses of all resources that are not accepted or have more to report."""
        return dict(self._statuses)

    def exports(self) -> list[Export]:
        """Return all Exports, rivals included, in order of port and age."""
        return sorted(self._exports.cache, key=resource_order)

    def imports(self) -> list[Import]:
        """Return all Imports, rivals included, in order of port and age."""
        return sorted(self._imports.cache, key=resource_order)

    def iter_exports(self) -> Iterator[Export]:
        """Yield all Exports, rivals included, unordered."""
        return iter(self._exports.cache)

    def iter_imports(self) -> Iterator[Import]:
        """Yield all Imports, rivals included, unordered."""
        return iter(self._imports.cache)

    def claimants(self, kind: Kind, key: PortKey) -> list[Resource]:
        """Return all resources of one kind that claim a port, in order of their uids."""
        return self._state.ports(kind).claimants(key)

    def exports_sharing_stream(self, export: Export) -> list[Export]:
        """Return the port holders that claim the same stream name as an Export."""
        stream = claimed_stream(export)
        return [] if stream is None else self._exports.stream_holders(stream)

    def is_accepted(self, kind: Kind, uid: str) -> bool:
        """Return whether a resource exists and holds what it claims."""
        return self._state.ports(kind).ownership.is_accepted(uid)

    def standby_uids(self, kind: Kind) -> set[str]:
        """Return the uids of existing resources that do not hold what they claim."""
        return self._state.ports(kind).ownership.standby_uids()

    def outcomes_for(self, resource: Resource) -> Mapping[str, MatchResult]:
        """Return the matches and near misses that a resource would have, without a change."""
        return self._state.matcher.outcomes_for(resource)

    def index_stats(self) -> IndexStats:
        """Return the size of the matcher's index."""
        return self._state.matcher.stats()

    def get(self, kind: AnyKind, uid: str) -> Resource | None:
        """Return an Export or Import by its uid; for rules use `rules`."""
        return None if kind == RULE else self._state.ports(kind).cache.get(uid)

    def unreadable(self, kind: AnyKind, uid: str) -> Unreadable | None:
        """Return an unreadable resource by its uid."""
        return self._state.cache(kind).unreadable(uid)

    def version_of(self, kind: Kind, uid: str) -> int:
        """Return the version at which a resource changed last; 0 if unknown."""
        return self._state.ports(kind).cache.version_of(uid)

    def newest_version(self, kind: AnyKind) -> int:
        """Return the highest version at which any of a kind was seen, also ahead of the feed."""
        return self._state.cache(kind).newest_version()

    def resources_of(self, pe: PeKey) -> list[Resource]:
        """Return a PE's resources, rivals included, Exports first, in order of their uids."""
        return [
            *self._exports.ownership.claimants_of_pe(pe),
            *self._imports.ownership.claimants_of_pe(pe),
        ]

    def uid_by_name(self, kind: Kind, namespace: str, name: str) -> str | None:
        """Return the uid of the resource that a new one of this name would replace."""
        return self._state.ports(kind).cache.uid_by_name(namespace, name)

    @property
    def route_count(self) -> int:
        """Number of routes."""
        return self._exports.match_count()

    def holder(self, kind: Kind, key: PortKey) -> Resource | None:
        """Return the resource of one kind that holds a port."""
        return self._state.ports(kind).holder_at(key)

    def status(self, kind: AnyKind, uid: str) -> Status | None:
        """Return the status of a resource; None before the board is synced."""
        if kind == RULE:
            return self.rules.status(uid) if self._state.settled else None
        exists = self.get(kind, uid) or self.unreadable(kind, uid)
        known = self._state.settled and exists is not None
        return self._statuses.get((kind, uid), ACCEPTED) if known else None

    def outcomes(self, kind: Kind, uid: str) -> Mapping[str, MatchResult]:
        """Return matches and near misses of a resource, by the other side's uid."""
        return dict(self._state.ports(kind).outcomes_of(uid))

    def routes_of(self, kind: Kind, uid: str) -> list[Route]:
        """Return a resource's routes, in order of the other side's port."""
        peers = self._state.ports(kind).peers_for(uid).peers()
        pairs = ((uid, peer) if kind == "Export" else (peer, uid) for peer in peers)
        routes = (self.route(*pair) for pair in pairs)
        return [route for route in routes if route is not None]

    def routes(self) -> list[Route]:
        """Return all routes, in order of the exporters' and the importers' ports."""
        return [
            route for export in self.exports() for route in self.routes_of("Export", export.uid)
        ]
