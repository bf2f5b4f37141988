"""The board: all resources, who matches whom, and every PE's view of it.

Rule 1: every change of the routing state happens through `Board.handle`.
Rule 2: nothing here acts. Events go in; the orders that come out are for the
caller to carry out, in their order, at least once.
Rule 3: before both kinds have been listed the board answers no view and gives no
orders; a half-filled board would tear down what is merely not known yet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from streambroker_core.board.events import (
    Action,
    AgentRegistered,
    CaughtUp,
    Event,
    ExportApplied,
    ExportRemoved,
    FeedLost,
    Hint,
    ImportApplied,
    ImportRemoved,
    PeDeclared,
    PeWithdrawn,
    RoutesChanged,
    Status,
    StatusChanged,
    Synced,
)
from streambroker_core.board.half import Half
from streambroker_core.board.shelf import Change
from streambroker_core.board.views import (
    export_status,
    import_status,
    route_of,
    view_of,
)
from streambroker_core.matching import Figures, IndexMatcher, Match, Matcher, Outcome
from streambroker_core.model import Export, Import, Kind, PeKey, PortKey, Resource, Route
from streambroker_core.wire.hints import Point
from streambroker_core.wire.registration import Registration
from streambroker_core.wire.view import View


def stream_of(export: Export) -> tuple[str, str, str | None, str, str] | None:
    """Return the name under which a stream is given only once, or None."""
    if export.stream_id is None:
        return None
    application = export.application
    key = export.key
    return (key.namespace, application.scope, application.name, key.job, export.stream_id)


def _pe_order(pe: PeKey) -> tuple[str, str, int]:
    """Return what orders PEs as they order themselves, but faster."""
    return pe.namespace, pe.job, pe.pe


def _order(resource: Resource) -> tuple[str, str, int, str, float, str]:
    """Return what orders resources by port and age."""
    key = resource.key
    return key.namespace, key.job, key.pe, key.port, resource.created, resource.uid


_DEARER = 4
"""How much dearer it is to match an Import than an Export, about."""


class Board:
    """The state machine between resources and views.

    Args:
        matcher: decides pairs; an index by default.
    """

    def __init__(self, matcher: Matcher | None = None) -> None:
        self._matcher: Matcher = IndexMatcher() if matcher is None else matcher
        self._exports: Half[Export] = Half(stream_of)
        self._imports: Half[Import] = Half(lambda _: None)
        self._agents: dict[PeKey, AgentRegistered] = {}
        # When PEs were withdrawn: their agents' late registrations bring nothing back.
        self._withdrawn: dict[PeKey, int] = {}
        self._caught_up = 0
        self._known: set[PeKey] = set()
        self._views: dict[PeKey, View] = {}
        self._statuses: dict[tuple[Kind, str], Status] = {}
        self._dirty: set[PeKey] = set()
        self._dirty_statuses: set[tuple[Kind, str]] = set()

    # ---- what goes in ----------------------------------------------------

    def handle(self, event: Event) -> list[Action]:
        """Take one event in and return the orders it calls for.

        The same event twice, or a late one, asks for nothing.
        """
        return self.handle_all((event,))

    def handle_all(self, events: Iterable[Event]) -> list[Action]:
        """Take events in, in their order, and return the orders that all of them together call for.

        Nothing is seen of what lies between them: a route that is there before and after goes on.
        """
        for event in events:
            self._take(event)
        return self._settle() if self.synced else []

    def _take(self, event: Event) -> None:
        match event:
            case ExportApplied(export=export, version=version):
                self._export_changes(self._exports.shelf.apply(export, version))
            case ExportRemoved(uid=uid, version=version):
                self._export_changes(self._exports.shelf.remove(uid, version))
            case ImportApplied(import_=import_, version=version):
                self._import_changes(self._imports.shelf.apply(import_, version))
            case ImportRemoved(uid=uid, version=version):
                self._import_changes(self._imports.shelf.remove(uid, version))
            case Synced():
                self._synced(event)
            case FeedLost(kind=kind):
                (self._exports if kind == "Export" else self._imports).shelf.lost()
            case CaughtUp(version=version):
                self._forget(version)
            case AgentRegistered() | PeDeclared() | PeWithdrawn():
                self._agent(event)

    def _synced(self, event: Synced) -> None:
        if event.kind == "Export":
            exports = [(r, version) for r, version in event.listed if isinstance(r, Export)]
            self._export_changes(self._exports.shelf.relist(exports, event.version))
        else:
            imports = [(r, version) for r, version in event.listed if isinstance(r, Import)]
            self._import_changes(self._imports.shelf.relist(imports, event.version))

    def _agent(self, event: AgentRegistered | PeDeclared | PeWithdrawn) -> None:
        pe = event.pe
        if isinstance(event, PeDeclared):
            self._known.add(pe)
            self._dirty.add(pe)
            return
        known = self._agents.get(pe)
        last = self._withdrawn.get(pe, self._caught_up) if known is None else known.version
        if event.version < last:
            return
        if isinstance(event, AgentRegistered):
            self._withdrawn.pop(pe, None)
            self._agents[pe] = event
            self._known.add(pe)
        else:
            self._agents.pop(pe, None)
            self._withdrawn[pe] = event.version
            if not self._exports.of_pe(pe) and not self._imports.of_pe(pe):
                self._known.discard(pe)
        self._dirty.add(pe)
        for uid in self._exports.of_pe(pe):
            self._mark_importers(uid)

    def _forget(self, version: int) -> None:
        """Forget who was gone at a version that all feeds have passed."""
        self._caught_up = max(self._caught_up, version)
        self._exports.shelf.caught_up(version)
        self._imports.shelf.caught_up(version)
        self._withdrawn = {pe: at for pe, at in self._withdrawn.items() if at > version}

    def _mark_importers(self, export_uid: str) -> None:
        for uid in self._exports.outcomes_of(export_uid):
            peer = self._imports.shelf.get(uid)
            if peer is not None:
                self._dirty.add(peer.key.owner)

    def _export_changes(self, changes: Iterable[Change[Export]]) -> None:
        concerned: dict[str, None] = {}
        for change in changes:
            for uid in sorted(self._exports.enter(change)):
                concerned[uid] = None
                self._mark("Export", uid, change)
                export = self._exports.taking_part(uid)
                if export is None:
                    self._matcher.remove_export(uid)
                else:
                    self._matcher.put_export(export)
        for uid in concerned:
            outcomes = self._matcher.matches_of_export(uid)
            for peer in self._exports.pair(uid, outcomes, self._imports):
                self._mark("Import", peer)

    def _import_changes(self, changes: Iterable[Change[Import]]) -> None:
        concerned: dict[str, None] = {}
        for change in changes:
            for uid in sorted(self._imports.enter(change)):
                concerned[uid] = None
                self._mark("Import", uid, change)
                import_ = self._imports.taking_part(uid)
                if import_ is None:
                    self._matcher.remove_import(uid)
                else:
                    self._matcher.put_import(import_)
        for uid, outcomes in self._matches_of_imports(concerned):
            for peer in self._imports.pair(uid, outcomes, self._exports):
                self._mark("Export", peer)

    def _matches_of_imports(
        self, uids: Collection[str]
    ) -> Iterable[tuple[str, Mapping[str, Outcome]]]:
        """Return the outcomes of Imports, asked from the side that is quicker.

        From the Exports' side if most Imports are asked for: then little is found in vain.
        """
        most = 2 * len(uids) > len(self._imports.shelf)
        if not most or len(uids) * _DEARER < len(self._exports.shelf):
            return [(uid, self._matcher.matches_of_import(uid)) for uid in uids]
        found: dict[str, dict[str, Outcome]] = {uid: {} for uid in uids}
        for export in self._exports.shelf:
            for uid, outcome in self._matcher.matches_of_export(export.uid).items():
                if uid in found:
                    found[uid][export.uid] = outcome
        return found.items()

    def _mark(
        self, kind: Kind, uid: str, change: Change[Export] | Change[Import] | None = None
    ) -> None:
        self._dirty_statuses.add((kind, uid))
        side = self._exports if kind == "Export" else self._imports
        seen = [side.shelf.get(uid)]
        if change is not None:
            seen += [change.old, change.new]
        for resource in seen:
            if resource is not None:
                self._known.add(resource.key.owner)
                self._dirty.add(resource.key.owner)

    # ---- what comes out --------------------------------------------------

    def _settle(self) -> list[Action]:
        actions: list[Action] = []
        for pe in sorted(self._dirty, key=_pe_order):
            actions += self._settle_view(pe)
        for kind, uid in sorted(self._dirty_statuses):
            actions += self._settle_status(kind, uid)
        self._dirty.clear()
        self._dirty_statuses.clear()
        return actions

    def _settle_view(self, pe: PeKey) -> list[Action]:
        before = self._views.get(pe)
        if pe not in self._known:
            self._views.pop(pe, None)
            return [] if before is None else [RoutesChanged(pe=pe, version=None)]
        after = view_of(pe, self._exports, self._imports, self.registration)
        if before is not None and before.version == after.version:
            return []
        self._views[pe] = after
        actions: list[Action] = [RoutesChanged(pe=pe, version=after.version)]
        agent = self._agents.get(pe)
        news = before is not None or after.exports or after.imports
        if news and agent is not None and agent.registration.hint is not None:
            actions.append(Hint(pe=pe, version=after.version, point=self.point))
        return actions

    def _settle_status(self, kind: Kind, uid: str) -> list[Action]:
        after = (
            export_status(uid, self._exports, self._imports)
            if kind == "Export"
            else import_status(uid, self._exports, self._imports)
        )
        if after is None:
            self._statuses.pop((kind, uid), None)
            return []
        if self._statuses.get((kind, uid)) == after:
            return []
        self._statuses[(kind, uid)] = after
        return [StatusChanged(kind=kind, uid=uid)]

    # ---- what can be asked -----------------------------------------------

    @property
    def synced(self) -> bool:
        """Whether both kinds have been listed once; else there are no views."""
        return self._exports.shelf.synced and self._imports.shelf.synced

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
        view = self._views.get(pe)
        return None if view is None else replace(view, point=self.point)

    def pes(self) -> list[PeKey]:
        """Return the PEs that have a view, in order."""
        return sorted(self._views, key=_pe_order)

    def registration(self, pe: PeKey) -> Registration | None:
        """Return what a PE's agent registered last."""
        agent = self._agents.get(pe)
        return None if agent is None else agent.registration

    def exports(self) -> list[Export]:
        """Return all Exports, rivals included, in order of port and age."""
        return sorted(self._exports.shelf, key=_order)

    def imports(self) -> list[Import]:
        """Return all Imports, rivals included, in order of port and age."""
        return sorted(self._imports.shelf, key=_order)

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
        side = self._exports if kind == "Export" else self._imports
        return side.roster.takes_part(uid)

    def standing_by(self, kind: Kind) -> set[str]:
        """Return the uids of all that are there and do not hold what they claim."""
        side = self._exports if kind == "Export" else self._imports
        return side.roster.standing_by()

    def outcomes_for(self, resource: Resource) -> Mapping[str, Outcome]:
        """Return matches and near refusals that a resource would have; nothing is changed."""
        return self._matcher.outcomes_for(resource)

    def figures(self) -> Figures:
        """Return how the matcher is filled."""
        return self._matcher.figures()

    def get(self, kind: Kind, uid: str) -> Resource | None:
        """Return a resource by its uid."""
        side = self._exports if kind == "Export" else self._imports
        return side.shelf.get(uid)

    def named(self, kind: Kind, namespace: str, name: str) -> str | None:
        """Return the uid of the resource that a new one of this name would replace."""
        side = self._exports if kind == "Export" else self._imports
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

    def status(self, kind: Kind, uid: str) -> Status | None:
        """Return what there is to say about a resource; None before the board is synced."""
        return self._statuses.get((kind, uid))

    def outcomes(self, kind: Kind, uid: str) -> Mapping[str, Outcome]:
        """Return matches and near refusals of a resource, by the other side's uid."""
        side = self._exports if kind == "Export" else self._imports
        return dict(side.outcomes_of(uid))

    def routes_of(self, kind: Kind, uid: str) -> list[Route]:
        """Return a resource's routes, in order of the other side's port."""
        found = []
        for other, outcome in self.outcomes(kind, uid).items():
            export_uid, import_uid = (uid, other) if kind == "Export" else (other, uid)
            export = self._exports.shelf.get(export_uid)
            import_ = self._imports.shelf.get(import_uid)
            if isinstance(outcome, Match) and export is not None and import_ is not None:
                found.append(route_of(export, import_, outcome))
        return sorted(found, key=lambda route: (route.export, route.import_))

    def routes(self) -> list[Route]:
        """Return all routes, in order of the exporters' and the importers' ports."""
        return [
            route for export in self.exports() for route in self.routes_of("Export", export.uid)
        ]
