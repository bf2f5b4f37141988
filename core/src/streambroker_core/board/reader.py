"""What a board holds, and what it can be asked; nothing here changes anything.

`streambroker_core.board.board` has what changes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from streambroker_core.board.events import AgentRegistered, Status, Unreadable
from streambroker_core.board.port_index import Half
from streambroker_core.board.resource_cache import Shelf
from streambroker_core.board.rule_index import RuleBook
from streambroker_core.board.views import ACCEPTED, route_of, view_of
from streambroker_core.board.wait_cycles import Edge, Ring, Rings, waiting
from streambroker_core.matching import Figures, IndexMatcher, Match, Matcher, Outcome
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


def stream_of(export: Export) -> tuple[str, str, str | None, str, str] | None:
    """Return the name under which a stream is given only once, or None."""
    if export.stream_id is None:
        return None
    application = export.application
    key = export.key
    return (key.namespace, application.scope, application.name, key.job, export.stream_id)


class Shown:
    """Resources, routes, views and statuses, as they are now.

    Args:
        matcher: decides pairs; an index by default.

    Attributes:
        rules: of patterns; only the board changes them.
    """

    def __init__(self, matcher: Matcher | None = None) -> None:
        self.rules = RuleBook()
        self._matcher: Matcher = IndexMatcher() if matcher is None else matcher
        self._exports: Half[Export] = Half(stream_of)
        self._imports: Half[Import] = Half(lambda _: None)
        self._agents: dict[PeKey, AgentRegistered] = {}
        # The versions of the views, 16 bytes each, none before the first; views are drawn when
        # asked for.
        self._versions: dict[PeKey, bytes] = {}
        # All others are accepted, and match nothing.
        self._statuses: dict[tuple[Kind, str], Status] = {}
        self._settled = False
        # Imports that are held, each with its namespace.
        self._held: dict[str, str] = {}
        self._rings = Rings(self.waits, self._relays)

    def _relays(self, pe: PeKey) -> bool:
        return bool(self._imports.of_pe(pe) and self._exports.of_pe(pe))

    def waits(self, pe: PeKey) -> Iterator[Edge]:
        """Yield the routes to other PEs for which a PE's Exports wait without end."""
        for export in self._exports.holders(pe):
            yield from waiting(export, self.routes_of("Export", export.uid))

    def rings(self) -> list[Ring]:
        """Return the jobs that may wait for each other, in order of their first PEs."""
        return self._rings.all()

    def _ring_told(self, kind: Kind, uid: str) -> str:
        """Return a sentence about the ring that a resource is part of; empty if of none."""
        resource = self._side(kind).shelf.get(uid)
        ring = None if resource is None else self._rings.of(resource.key.owner)
        if resource is None or ring is None:
            return ""
        for route in self.routes_of(kind, uid):
            export = self._exports.shelf.get(route.export_uid)
            if export is None:
                continue
            for edge in waiting(export, (route,)):
                if {edge.export.owner, edge.import_.owner} <= ring.members:
                    return ring.told(resource.key.namespace)
        return ""

    def _side(self, kind: Kind) -> Half[Any]:
        return self._exports if kind == "Export" else self._imports

    def _shelf(self, kind: AnyKind) -> Shelf[Any]:
        return self.rules.shelf if kind == RULE else self._side(kind).shelf

    def ahead(self, kind: Kind) -> list[str]:
        """Return the uids of resources that writes from here have changed ahead of the feed."""
        return self._side(kind).shelf.ahead()

    def _route(self, export_uid: str, import_uid: str) -> Route | None:
        export = self._exports.shelf.get(export_uid)
        import_ = self._imports.shelf.get(import_uid)
        outcome = self._exports.outcomes_of(export_uid).get(import_uid)
        if export is None or import_ is None or not isinstance(outcome, Match):
            return None
        return route_of(export, import_, outcome)

    @property
    def synced(self) -> bool:
        """Whether both kinds have been listed once, and looked at; else there are no views."""
        return self._settled

    @property
    def stale(self) -> bool:
        """Whether a feed is lost at the moment; the views go on."""
        return self._exports.shelf.stale or self._imports.shelf.stale

    @property
    def point(self) -> Point:
        """Processed versions of (exports, imports)."""
        return self._exports.shelf.point, self._imports.shelf.point

    def view(self, pe: PeKey) -> View | None:
        """Return a PE's view at the board's point; None where the PE is not known."""
        version = self._versions.get(pe)
        if not version:
            return None
        wanted = self.rules.wanted(pe[:2])
        drawn = view_of(pe, self._exports, self._imports, self.registration, wanted, self._held)
        at = 0 if wanted is None else self.rules.point
        return replace(drawn, version=version.hex(), point=self.point, rules_at=at)

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
        return sorted(self._exports.shelf, key=resource_order)

    def imports(self) -> list[Import]:
        """Return all Imports, rivals included, in order of port and age."""
        return sorted(self._imports.shelf, key=resource_order)

    def each_export(self) -> Iterator[Export]:
        """Yield all Exports, rivals included, in no order."""
        return iter(self._exports.shelf)

    def each_import(self) -> Iterator[Import]:
        """Yield all Imports, rivals included, in no order."""
        return iter(self._imports.shelf)

    def exports_on(self, key: PortKey) -> list[Export]:
        """Return all Exports that claim a port, in order of their uids."""
        return self._exports.at(key)

    def imports_on(self, key: PortKey) -> list[Import]:
        """Return all Imports that claim a port, in order of their uids."""
        return self._imports.at(key)

    def same_stream(self, export: Export) -> list[Export]:
        """Return the holders of ports that claim the stream name that an Export claims."""
        stream = stream_of(export)
        return [] if stream is None else self._exports.sharing(stream)

    def takes_part(self, kind: Kind, uid: str) -> bool:
        """Say whether a resource is there and holds what it claims."""
        side = self._side(kind)
        return side.roster.takes_part(uid)

    def standing_by(self, kind: Kind) -> set[str]:
        """Return the uids of all that are there and do not hold what they claim."""
        side = self._side(kind)
        return side.roster.standing_by()

    def outcomes_for(self, resource: Resource) -> Mapping[str, Outcome]:
        """Return matches and near refusals that a resource would have; nothing is changed."""
        return self._matcher.outcomes_for(resource)

    def figures(self) -> Figures:
        """Return how the matcher is filled."""
        return self._matcher.figures()

    def get(self, kind: AnyKind, uid: str) -> Resource | None:
        """Return an Export or an Import by its uid; the board's ``rules`` have the rules."""
        return None if kind == RULE else self._side(kind).shelf.get(uid)

    def unreadable(self, kind: AnyKind, uid: str) -> Unreadable | None:
        """Return what is known of a resource that is there and cannot be read, by its uid."""
        return self._shelf(kind).unreadable(uid)

    def version_of(self, kind: Kind, uid: str) -> int:
        """Return the version at which a resource changed last; 0 where it is not known."""
        side = self._side(kind)
        return side.shelf.version_of(uid)

    def newest(self, kind: AnyKind) -> int:
        """Return the highest version at which any of a kind was seen, be it ahead of the feed."""
        return self._shelf(kind).newest()

    def resources_of(self, pe: PeKey) -> list[Resource]:
        """Return a PE's resources, rivals included, Exports first, in order of their uids."""
        return [*self._exports.roster.of_pe(pe), *self._imports.roster.of_pe(pe)]

    def named(self, kind: Kind, namespace: str, name: str) -> str | None:
        """Return the uid of the resource that a new one of this name would replace."""
        side = self._side(kind)
        return side.shelf.named(namespace, name)

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

    def outcomes(self, kind: Kind, uid: str) -> Mapping[str, Outcome]:
        """Return matches and near refusals of a resource, by the other side's uid."""
        side = self._side(kind)
        return dict(side.outcomes_of(uid))

    def routes_of(self, kind: Kind, uid: str) -> list[Route]:
        """Return a resource's routes, in order of the other side's port."""
        side = self._side(kind)
        peers = side.met(uid).peers()
        pairs = ((uid, peer) if kind == "Export" else (peer, uid) for peer in peers)
        found = (self._route(*pair) for pair in pairs)
        return [route for route in found if route is not None]

    def routes(self) -> list[Route]:
        """Return all routes, in order of the exporters' and the importers' ports."""
        return [
            route for export in self.exports() for route in self.routes_of("Export", export.uid)
        ]
