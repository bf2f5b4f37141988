"""Changes of views and statuses that the board has not emitted yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from streambroker_core.board.events import (
    Action,
    HintAction,
    ResourceChanged,
    RouteChange,
    RoutesChanged,
    StatusChanged,
    WriteReverted,
)
from streambroker_core.board.reader import BoardReader, BoardState
from streambroker_core.board.route_digests import RouteDigests
from streambroker_core.board.rule_index import Job
from streambroker_core.board.views import (
    ACCEPTED,
    build_route,
    compute_view_version,
    export_status,
    import_status,
    is_affected_by_namespace,
    unreadable_status,
    with_rejected,
)
from streambroker_core.matching import Match, MatchResult
from streambroker_core.model import RULE, Export, Import, Kind, PeKey, PortKey, Route


class PendingChanges:
    """What changed since views and statuses were last emitted.

    Before the first emission nothing is recorded, because everything counts as changed.
    """

    def __init__(self, state: BoardState, reader: BoardReader) -> None:
        self._state, self._reader = state, reader
        self.digests = RouteDigests(state.exports, state.registration)
        self._views: set[PeKey] = set()
        self._departed: set[PeKey] = set()
        self._statuses: dict[Kind, set[str]] = {"Export": set(), "Import": set()}
        self._new: set[tuple[Kind, str]] = set()
        self._rules: set[str] = set()
        # Pairs whose route changed, with the previous route.
        self._routes: dict[tuple[str, str], Route | None] = {}
        # (exporter, importer) PEs of routes that were added, removed, or changed how they wait.
        self._pairs: set[tuple[PeKey, PeKey]] = set()

    def mark_view(self, pe: PeKey) -> None:
        """Record that a PE's view may have changed."""
        if self._state.settled:
            self._views.add(pe)

    def ensure_pe(self, pe: PeKey) -> None:
        """Record that a PE exists."""
        self._departed.discard(pe)
        self._state.versions.setdefault(pe, b"")
        self.mark_view(pe)

    def mark_agent(self, pe: PeKey, *, departed: bool) -> None:
        """Record that a PE's agent changed; `departed` if the PE is gone with it."""
        if departed:
            self._departed.add(pe)
        self.mark_view(pe)
        exports = self._state.exports
        self.digests.mark_stale(exports.uids_of_pe(pe))
        for uid in exports.uids_of_pe(pe):
            for peer in map(self._state.imports.cache.get, exports.outcomes_of(uid)):
                if peer is not None:
                    self.mark_view(peer.key.owner)

    def mark_rules(self, jobs: set[Job], uids: set[str], *, all_views: bool) -> None:
        """Record changed rules of some jobs."""
        if self._state.settled:
            self._rules |= uids
            self._views.update(pe for pe in self._state.versions if all_views or pe[:2] in jobs)

    def mark_namespaces(self, namespaces: Iterable[str]) -> None:
        """Record that the held Imports of some namespaces changed."""
        exports = self._state.exports
        for namespace in namespaces if self._state.settled else ():
            self._views.update(
                pe
                for pe in self._state.versions
                if is_affected_by_namespace(pe, exports, namespace)
            )

    def mark_status(
        self,
        kind: Kind,
        uid: str,
        change: ResourceChanged[Export] | ResourceChanged[Import] | None = None,
    ) -> None:
        """Record that a resource's status may have changed, by a change of it or of another."""
        if self._state.settled:
            self._statuses[kind].add(uid)
            if change is not None and change.uid == uid and change.old is None:
                self._new.add((kind, uid))
        candidates = [self._state.ports(kind).cache.get(uid)]
        if change is not None:
            candidates += [change.old, change.new]
        for resource in candidates:
            if resource is not None:
                self.ensure_pe(resource.key.owner)

    def record_route(
        self,
        export: Export | None,
        import_: Import | None,
        was: MatchResult | None,
        now: MatchResult | None,
    ) -> None:
        """Record the outcome of a pair before and after."""
        old = was if isinstance(was, Match) else None
        new = now if isinstance(now, Match) else None
        if export is None or import_ is None:
            return
        if self._state.settled:
            self._pairs.add((export.key.owner, import_.key.owner))
        if old == new:
            return
        self.digests.update_route(export, import_, old, new)
        if self._state.settled:
            route = None if old is None else build_route(export, import_, old)
            self._routes.setdefault((export.uid, import_.uid), route)

    def emit(self) -> Iterator[Action]:
        """Yield the actions for everything recorded, and begin again."""
        state, settled = self._state, self._state.settled
        self.digests.refresh()
        rerouted = self._pairs if settled else ((pe, pe) for pe in state.versions)
        for pe in self._reader.wait_rings.update(rerouted):
            for kind, uids in self._statuses.items():
                uids.update(state.ports(kind).uids_of_pe(pe))
        self._pairs.clear()
        route_changes = self._route_changes_by_pe()
        for pe in sorted(self._views if settled else state.versions):
            yield from self._emit_view(pe, route_changes.get(pe, ()))
        for kind, uids in self._statuses.items():
            for uid in sorted(uids if settled else state.cache(kind).uids()):
                yield from self._emit_status(kind, uid)
            uids.clear()
        for uid in sorted(self._rules if settled else state.rules.cache.uids()):
            yield StatusChanged(kind=RULE, uid=uid)
        for kind_or_rule in (*self._statuses, RULE):
            undone = state.cache(kind_or_rule).reverted
            for uid, difference in undone:
                yield WriteReverted(kind=kind_or_rule, uid=uid, difference=difference)
            undone.clear()
        for recorded in (self._rules, self._views, self._departed, self._new, self._routes):
            recorded.clear()
        state.settled = True

    def _route_changes_by_pe(self) -> dict[PeKey, list[RouteChange]]:
        """Return changed routes by the exporter's PE, in port order."""
        by_pe: dict[PeKey, list[tuple[PortKey, PortKey, RouteChange]]] = {}
        for (export_uid, import_uid), was in self._routes.items():
            now = self._reader.route(export_uid, import_uid)
            route = now or was
            if route is not None and now != was:
                one = (route.export, route.import_, RouteChange(old=was, new=now))
                by_pe.setdefault(route.export.owner, []).append(one)
        return {
            pe: [one for *_, one in sorted(several, key=lambda one: one[:2])]
            for pe, several in by_pe.items()
        }

    def _emit_view(self, pe: PeKey, route_changes: Sequence[RouteChange]) -> list[Action]:
        state, versions = self._state, self._state.versions
        before = versions.get(pe, b"").hex()
        if pe in self._departed:
            versions.pop(pe, None)
            return [RoutesChanged(pe=pe, version=None)] if before else []
        if pe not in versions:
            return []
        rules = state.rules.view_rules(pe[:2])
        after = compute_view_version(
            pe, state.exports, state.imports, self.digests, rules, state.held_imports
        )
        if before == after:
            return []
        versions[pe] = bytes.fromhex(after)
        actions: list[Action] = [
            RoutesChanged(pe=pe, version=after, new=not before, route_changes=tuple(route_changes))
        ]
        agent = state.registration(pe)
        has_hint_point = agent is not None and agent.hint is not None
        if has_hint_point and (before or any(self._reader.ports(pe))):
            actions.append(HintAction(pe=pe, version=after, point=self._reader.point))
        return actions

    def _emit_status(self, kind: Kind, uid: str) -> list[Action]:
        state = self._state
        after = (
            export_status(uid, state.exports, state.imports)
            if kind == "Export"
            else import_status(uid, state.exports, state.imports, state.faults.get(uid))
        )
        if after is None:
            after = unreadable_status(self._reader.unreadable(kind, uid))
        else:
            after = with_rejected(after, self._reader.get(kind, uid))
        if after is not None and uid in state.held_imports:
            after = replace(after, held=True)
        before = state.statuses.pop((kind, uid), ACCEPTED)
        if after is None:
            return []
        ring = self._reader.describe_ring(kind, uid) if after.matches else ""
        if ring:
            after = replace(after, ring=ring)
        if after != ACCEPTED:
            state.statuses[(kind, uid)] = after
        same = before == after and state.settled and (kind, uid) not in self._new
        return [] if same else [StatusChanged(kind=kind, uid=uid)]
