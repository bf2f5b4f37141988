"""The board: state machine from resources to matches, routes, views and statuses.

Invariants:

- Every change of the routing state happens through `Board.handle`.
- The board has no side effects. It turns events into actions, which the caller carries out in
  order, at least once.
- Until both kinds have been listed, the board returns no views and no actions. A partly filled
  board would remove routes of resources that are only not known yet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import cast

from streambroker_core.board.accepted import select_running
from streambroker_core.board.events import (
    Action,
    AgentRegistered,
    BoardEvent,
    CaughtUp,
    ExportApplied,
    ExportRemoved,
    FeedAdvanced,
    FeedLost,
    HintAction,
    ImportApplied,
    ImportRemoved,
    PeDeclared,
    PeWithdrawn,
    RouteChange,
    RoutesChanged,
    RuleApplied,
    RuleRemoved,
    Status,
    StatusChanged,
    Synced,
    Unreadable,
    WriteReverted,
)
from streambroker_core.board.reader import BoardReader
from streambroker_core.board.resource_cache import R, ResourceCache, ResourceChanged
from streambroker_core.board.route_digests import RouteDigests
from streambroker_core.board.rule_index import Job
from streambroker_core.board.views import (
    ACCEPTED,
    build_route,
    compute_view_version,
    export_status,
    find_fault,
    import_status,
    is_affected_by_namespace,
    unreadable_status,
    with_rejected,
)
from streambroker_core.errors import StreambrokerError
from streambroker_core.matching import Match, Matcher, MatchResult, NoMatch, import_filter_problem
from streambroker_core.model import (
    RULE,
    AnyKind,
    Export,
    Import,
    Kind,
    PeKey,
    PortKey,
    Route,
    Rule,
)

_IMPORT_MATCH_COST = 4
"""Approximate cost of matching an Import, in matches of one Export."""


class Board(BoardReader):
    """State machine between resources and views.

    A `matcher` decides pairs; an index by default. A copy of a board gets resources whose running
    generation is already decided, with `decides_generations` False.
    """

    def __init__(self, matcher: Matcher | None = None, *, decides_generations: bool = True) -> None:
        super().__init__(matcher)
        self._decides_generations = decides_generations
        # Versions at which PEs were withdrawn; late registrations of their agents are ignored.
        self._withdrawn: dict[PeKey, int] = {}
        self._caught_up = 0
        self._departed: set[PeKey] = set()
        self._digests = RouteDigests(self._exports, self.registration)
        # Faults of Imports that do not depend on Exports, computed once per change of the Import.
        self._faults: dict[str, Status] = {}
        # Imports whose running generation depends on Exports.
        self._undecided_imports: set[str] = set()
        # Changed since views and statuses were last emitted. Everything counts as changed at first.
        self._dirty: set[PeKey] = set()
        self._dirty_statuses: dict[Kind, set[str]] = {"Export": set(), "Import": set()}
        self._new: set[tuple[Kind, str]] = set()
        self._dirty_rules: set[str] = set()
        # Pairs whose route changed since views were last emitted, with the previous route.
        self._changed_routes: dict[tuple[str, str], Route | None] = {}
        # (exporter, importer) PEs of routes that were added, removed, or changed how they wait.
        self._changed_pairs: set[tuple[PeKey, PeKey]] = set()

    # ---- input -----------------------------------------------------------

    def handle(self, event: BoardEvent) -> list[Action]:
        """Apply one event and return the resulting actions.

        A repeated or late event yields none.
        """
        return self.handle_all((event,))

    def handle_all(self, events: Iterable[BoardEvent]) -> list[Action]:
        """Apply events in order and return the actions for their combined effect.

        Intermediate states are not visible: a route that exists before and after is unchanged.
        """
        return list(self.iter_actions(events))

    def iter_actions(self, events: Iterable[BoardEvent]) -> Iterator[Action]:
        """Do what `handle_all` does, lazily; the caller must exhaust the iterator.

        A broker's first list yields one action per resource and PE, too many to keep at once.
        """
        return (action for action in self.iter_steps(events) if action is not None)

    def iter_steps(self, events: Iterable[BoardEvent]) -> Iterator[Action | None]:
        """Do what `iter_actions` does in small steps; None marks a step without an action.

        Other work may run between two steps, but must not change or query the board: it is
        inconsistent until the last step.
        """
        for event in events:
            yield from (
                self._apply_rule_event(event) if _is_rule_event(event) else self._apply_event(event)
            )
        if self._exports.cache.synced and self._imports.cache.synced:
            yield from self._emit_changes()

    def diff(self, event: Synced) -> Iterator[BoardEvent | None]:
        """Yield the differences between a list and the board as single events, else None.

        The events may be applied one by one before the list, mixed with others. None moves the
        board's point past the feed, or contains more than the list does. If the store was
        restored, the events are incomplete, and only the list itself applies the rest.
        """
        unread = {what.uid for what in event.unreadable}
        if event.kind == RULE:
            return
        differences = self._index(event.kind).cache.diff(event.listed, unread, event.version)
        removed = ExportRemoved if event.kind == "Export" else ImportRemoved
        for one in differences:
            if one is None:
                yield None
                continue
            version, uid, resource = one
            if resource is None:
                yield removed(uid=uid, version=version)
            elif isinstance(resource, Export):
                yield ExportApplied(export=resource, version=version, ahead_of_feed=True)
            else:
                yield ImportApplied(import_=resource, version=version, ahead_of_feed=True)

    def _apply_event(self, event: BoardEvent) -> Iterator[None]:
        match event:
            case ExportApplied(export=export, version=version, ahead_of_feed=early):
                return self._apply_export_changes(
                    self._exports.cache.apply(export, version, ahead_of_feed=early)
                )
            case ExportRemoved(uid=uid, version=version, ahead_of_feed=early):
                return self._apply_export_changes(
                    self._exports.cache.remove(uid, version, ahead_of_feed=early)
                )
            case ImportApplied(import_=import_, version=version, ahead_of_feed=early):
                entry = self._select_running(self._imports.cache, import_)
                return self._apply_import_changes(
                    self._imports.cache.apply(entry, version, ahead_of_feed=early)
                )
            case ImportRemoved(uid=uid, version=version, ahead_of_feed=early):
                return self._apply_import_changes(
                    self._imports.cache.remove(uid, version, ahead_of_feed=early)
                )
            case Synced():
                return self._apply_list(event)
            case Unreadable(kind="Export"):
                return self._apply_export_changes(
                    self._apply_unreadable(self._exports.cache, event)
                )
            case Unreadable():
                return self._apply_import_changes(
                    self._apply_unreadable(self._imports.cache, event)
                )
            case FeedAdvanced() | FeedLost() | CaughtUp():
                return self._apply_feed_event(event)
            case AgentRegistered() | PeDeclared() | PeWithdrawn():
                self._apply_agent_event(event)
        return iter(())

    def _apply_list(self, event: Synced) -> Iterator[None]:
        if event.kind == "Export":
            return self._apply_export_changes(self._relist(self._exports.cache, event))
        return self._apply_import_changes(self._relist(self._imports.cache, event))

    def _relist(self, cache: ResourceCache[R], event: Synced) -> Iterator[ResourceChanged[R]]:
        listed = cast("Iterable[tuple[R | Unreadable, int]]", event.listed)
        unreadable: list[tuple[R | Unreadable, int]] = [
            (one, one.version) for one in event.unreadable
        ]
        entries = (
            (self._select_running(cache, one), own) for one, own in chain(listed, unreadable)
        )
        return cache.relist(entries, event.version)

    def _apply_unreadable(
        self, cache: ResourceCache[R], event: Unreadable
    ) -> list[ResourceChanged[R]]:
        return cache.apply(self._select_running(cache, event), event.version)

    def _select_running(self, cache: ResourceCache[R], entry: R | Unreadable) -> R | Unreadable:
        if not self._decides_generations:
            return entry
        return select_running(entry, cache.get(entry.uid), self._check_filter)

    def _check_filter(self, import_: Import) -> StreambrokerError | None:
        """Return why the filter suits no Export that the Import would match without it."""
        if import_.filter is None or import_.schema is not None:
            return None
        outcomes = self.outcomes_for(replace(import_, filter=None))
        exports = [self._exports.cache.get(uid) for uid in sorted(outcomes)]
        return import_filter_problem(import_, [one for one in exports if one is not None])

    def _recheck_generations(self) -> Iterator[None]:
        """Select the running generation again for Imports where it depends on Exports."""
        changes: list[ResourceChanged[Import]] = []
        for uid in sorted(self._undecided_imports) if self._decides_generations else ():
            current = self._imports.cache.get(uid)
            if current is None or (
                current.rejected is None and not current.held and not self._has_invalid_filter(uid)
            ):
                continue
            latest = current if current.rejected is None else current.rejected.resource
            entry = self._select_running(self._imports.cache, cast("Import", latest))
            if isinstance(entry, Import) and entry != current:
                changes += self._imports.cache.replace_entry(entry)
        if changes:
            yield from self._apply_import_changes(changes)

    def _has_invalid_filter(self, uid: str) -> bool:
        outcomes = self._imports.outcomes_of(uid).values()
        return any(isinstance(one, NoMatch) and one.reason == "FilterInvalid" for one in outcomes)

    def _apply_caught_up(self, version: int, kind: AnyKind | None) -> Iterator[None]:
        """Handle that one feed, or every feed if `kind` is None, has passed a version."""
        if kind is None:
            self._expire_tombstones(version)
            return iter(())
        if kind == "Export":
            return self._apply_export_changes(self._confirm_up_to(self._exports.cache, version))
        if kind == "Import":
            return self._apply_import_changes(self._confirm_up_to(self._imports.cache, version))
        return self._apply_rule_changes(self._confirm_up_to(self.rules.cache, version))

    def _confirm_up_to(self, cache: ResourceCache[R], version: int) -> list[ResourceChanged[R]]:
        """Handle that a feed has delivered everything up to a version."""
        cache.confirm(None, version)
        return cache.revert_unconfirmed(version) + cache.expire_tombstones(version)

    def _apply_feed_event(self, event: FeedAdvanced | FeedLost | CaughtUp) -> Iterator[None]:
        """Apply an event without a changed resource; only early, unconfirmed state may change."""
        if isinstance(event, CaughtUp):
            return self._apply_caught_up(event.version, event.kind)
        if isinstance(event, FeedLost):
            self._cache(event.kind).mark_feed_lost()
            return iter(())
        if event.kind == "Export":
            return self._apply_export_changes(self._exports.cache.confirm(event.uid, event.version))
        if event.kind == "Import":
            return self._apply_import_changes(self._imports.cache.confirm(event.uid, event.version))
        return self._apply_rule_changes(self.rules.cache.confirm(event.uid, event.version))

    def _apply_agent_event(self, event: AgentRegistered | PeDeclared | PeWithdrawn) -> None:
        pe = event.pe
        if isinstance(event, PeDeclared):
            self._ensure_pe(pe)
            return
        known = self._agents.get(pe)
        last = self._withdrawn.get(pe, self._caught_up) if known is None else known.version
        already_applied = (
            isinstance(event, PeWithdrawn) and self._withdrawn.get(pe) == event.version
        )
        if event.version < last or already_applied:
            return
        if isinstance(event, AgentRegistered):
            self._withdrawn.pop(pe, None)
            self._agents[pe] = event
            self._ensure_pe(pe)
        else:
            self._agents.pop(pe, None)
            self._withdrawn[pe] = event.version
            if not self._exports.uids_of_pe(pe) and not self._imports.uids_of_pe(pe):
                self._departed.add(pe)
        self._mark_view_dirty(pe)
        self._digests.mark_stale(self._exports.uids_of_pe(pe))
        for uid in self._exports.uids_of_pe(pe):
            self._mark_importers_dirty(uid)

    def _ensure_pe(self, pe: PeKey) -> None:
        self._departed.discard(pe)
        self._versions.setdefault(pe, b"")
        self._mark_view_dirty(pe)

    def _mark_view_dirty(self, pe: PeKey) -> None:
        if self._settled:
            self._dirty.add(pe)

    def _expire_tombstones(self, version: int) -> None:
        """Forget deletions up to a version that all feeds have passed."""
        self._caught_up = max(self._caught_up, version)
        self._exports.cache.expire_tombstones(version)
        self._imports.cache.expire_tombstones(version)
        self.rules.cache.expire_tombstones(version)
        self._withdrawn = {pe: at for pe, at in self._withdrawn.items() if at > version}

    def _mark_importers_dirty(self, export_uid: str) -> None:
        for uid in self._exports.outcomes_of(export_uid):
            peer = self._imports.cache.get(uid)
            if peer is not None:
                self._mark_view_dirty(peer.key.owner)

    def _apply_export_changes(self, changes: Iterable[ResourceChanged[Export]]) -> Iterator[None]:
        concerned: dict[str, Export | None] = {}
        limited: set[str] = set()
        for change in changes:
            yield None
            limited |= _exports_with_new_limit(change)
            if change.has_new_port and change.old is not None:
                for peer, was, _ in self._exports.set_outcomes(change.old, {}, self._imports):
                    self._mark_status_dirty("Import", peer)
                    self._record_route_change(change.old, self._imports.cache.get(peer), was, None)
            for uid in sorted(self._exports.apply(change)):
                removed = change.old if uid == change.uid else None
                concerned[uid] = self._exports.cache.get(uid) or removed
                self._mark_status_dirty("Export", uid, change)
                export = self._exports.get_accepted(uid)
                if export is None:
                    self._matcher.remove_export(uid)
                else:
                    self._matcher.put_export(export)
        self._digests.mark_stale(concerned)
        for uid, export in concerned.items():
            yield None
            if export is None:
                continue
            outcomes = self._matcher.matches_of_export(uid)
            for peer, was, now in self._exports.set_outcomes(export, outcomes, self._imports):
                self._mark_status_dirty("Import", peer)
                if was is not now or uid in limited:
                    self._record_route_change(export, self._imports.cache.get(peer), was, now)
        yield from self._recheck_generations()

    def _apply_import_changes(self, changes: Iterable[ResourceChanged[Import]]) -> Iterator[None]:
        concerned: dict[str, Import | None] = {}
        for change in changes:
            yield None
            if change.has_new_port and change.old is not None:
                for peer, was, _ in self._imports.set_outcomes(change.old, {}, self._exports):
                    self._mark_status_dirty("Export", peer)
                    self._record_route_change(self._exports.cache.get(peer), change.old, was, None)
            for uid in sorted(self._imports.apply(change)):
                removed = change.old if uid == change.uid else None
                concerned[uid] = self._imports.cache.get(uid) or removed
                self._mark_status_dirty("Import", uid, change)
                self._update_fault(uid)
                self._update_undecided(uid)
                self._update_held(uid)
                import_ = self._imports.get_accepted(uid)
                if import_ is None:
                    self._matcher.remove_import(uid)
                else:
                    self._matcher.put_import(import_)
        matches: dict[str, Mapping[str, MatchResult]] = {}
        yield from self._match_imports(concerned, matches)
        for uid, import_ in concerned.items():
            yield None
            if import_ is None:
                continue
            outcomes = matches.get(uid, {})
            for peer, was, now in self._imports.set_outcomes(import_, outcomes, self._exports):
                self._mark_status_dirty("Export", peer)
                if was is not now:
                    self._record_route_change(self._exports.cache.get(peer), import_, was, now)

    def _apply_rule_event(self, event: BoardEvent) -> Iterator[None]:
        cache = self.rules.cache
        match event:
            case RuleApplied(rule=rule, version=version, ahead_of_feed=early):
                self.rules.advance_to(version)
                entry = self._select_running(cache, rule)
                return self._apply_rule_changes(cache.apply(entry, version, ahead_of_feed=early))
            case RuleRemoved(uid=uid, version=version, ahead_of_feed=early):
                return self._apply_rule_changes(cache.remove(uid, version, ahead_of_feed=early))
            case Unreadable():
                return self._apply_rule_changes(self._apply_unreadable(cache, event))
            case Synced():
                first = not cache.synced
                self.rules.begin_list()
                return self._apply_rule_changes(self._relist(cache, event), all_views=first)
        return iter(())

    def _apply_rule_changes(
        self, changes: Iterable[ResourceChanged[Rule]], *, all_views: bool = False
    ) -> Iterator[None]:
        """Apply changes of rules, which take no part in matching.

        `all_views` updates every view: after the first list, views state their rules, if any.
        """
        jobs: set[Job] = set()
        for change in changes:
            yield None
            concerned, uids = self.rules.apply(change)
            jobs |= concerned
            if self._settled:
                self._dirty_rules |= uids
        if self._settled:
            self._dirty.update(pe for pe in self._versions if all_views or pe[:2] in jobs)

    def _update_undecided(self, uid: str) -> None:
        one = self._imports.cache.get(uid)
        if one is not None and (
            one.last_accepted or one.earlier_unknown or (one.rejected and one.rejected.resource)
        ):
            self._undecided_imports.add(uid)
        else:
            self._undecided_imports.discard(uid)

    def _update_held(self, uid: str) -> None:
        """Record whether agents keep the routes of an Import, and mark the affected views."""
        cache = self._imports.cache
        entry = cache.get(uid) or cache.unreadable(uid)
        before = self._held_imports.pop(uid, None)
        if entry is not None and entry.held:
            self._held_imports[uid] = (
                entry.key.namespace if isinstance(entry, Import) else entry.namespace
            )
        if self._settled and before != self._held_imports.get(uid):
            for namespace in {before, self._held_imports.get(uid)} - {None}:
                affected = (
                    pe
                    for pe in self._versions
                    if is_affected_by_namespace(pe, self._exports, str(namespace))
                )
                self._dirty.update(affected)

    def _update_fault(self, uid: str) -> None:
        import_ = self._imports.cache.get(uid)
        fault = None if import_ is None else find_fault(import_)
        if fault is None:
            self._faults.pop(uid, None)
        else:
            self._faults[uid] = fault

    def _record_route_change(
        self,
        export: Export | None,
        import_: Import | None,
        was: MatchResult | None,
        now: MatchResult | None,
    ) -> None:
        old = was if isinstance(was, Match) else None
        new = now if isinstance(now, Match) else None
        if export is None or import_ is None:
            return
        if self._settled:
            self._changed_pairs.add((export.key.owner, import_.key.owner))
        if old == new:
            return
        self._digests.update_route(export, import_, old, new)
        if self._settled:
            route = None if old is None else build_route(export, import_, old)
            self._changed_routes.setdefault((export.uid, import_.uid), route)

    def _match_imports(
        self, uids: Collection[str], matches: dict[str, Mapping[str, MatchResult]]
    ) -> Iterator[None]:
        """Compute the outcomes of Imports, from the cheaper side.

        If most Imports are requested, that is the Exports' side: few results are discarded.
        """
        most = 2 * len(uids) > len(self._imports.cache)
        if not most or len(uids) * _IMPORT_MATCH_COST < len(self._exports.cache):
            for uid in uids:
                matches[uid] = self._matcher.matches_of_import(uid)
                yield None
            return
        found: dict[str, dict[str, MatchResult]] = {}
        for export in self._exports.cache:
            for uid, outcome in self._matcher.matches_of_export(export.uid).items():
                if uid in uids:
                    found.setdefault(uid, {})[export.uid] = outcome
            yield None
        matches.update(found)

    def _mark_status_dirty(
        self,
        kind: Kind,
        uid: str,
        change: ResourceChanged[Export] | ResourceChanged[Import] | None = None,
    ) -> None:
        if self._settled:
            self._dirty_statuses[kind].add(uid)
            if change is not None and change.uid == uid and change.old is None:
                self._new.add((kind, uid))
        side = self._index(kind)
        candidates = [side.cache.get(uid)]
        if change is not None:
            candidates += [change.old, change.new]
        for resource in candidates:
            if resource is not None:
                self._ensure_pe(resource.key.owner)

    # ---- output ----------------------------------------------------------

    def _emit_changes(self) -> Iterator[Action]:
        self._digests.refresh()
        rerouted = self._changed_pairs if self._settled else ((pe, pe) for pe in self._versions)
        for pe in self._rings.update(rerouted):
            self._dirty_statuses["Export"].update(self._exports.uids_of_pe(pe))
            self._dirty_statuses["Import"].update(self._imports.uids_of_pe(pe))
        self._changed_pairs.clear()
        route_changes = self._route_changes_by_pe()
        for pe in sorted(self._dirty if self._settled else self._versions):
            yield from self._emit_view(pe, route_changes.get(pe, ()))
        for kind, uids in self._dirty_statuses.items():
            for uid in sorted(uids if self._settled else self._index(kind).cache.uids()):
                yield from self._emit_status(kind, uid)
            uids.clear()
        for uid in sorted(self._dirty_rules if self._settled else self.rules.cache.uids()):
            yield StatusChanged(kind=RULE, uid=uid)
        self._dirty_rules.clear()
        yield from self._emit_reverted()
        self._dirty.clear()
        self._departed.clear()
        self._new.clear()
        self._changed_routes.clear()
        self._settled = True

    def _emit_reverted(self) -> Iterator[Action]:
        for kind in (*self._dirty_statuses, RULE):
            undone = self._cache(kind).reverted
            for uid, difference in undone:
                yield WriteReverted(kind=kind, uid=uid, difference=difference)
            undone.clear()

    def _route_changes_by_pe(self) -> dict[PeKey, list[RouteChange]]:
        """Return changed routes by the exporter's PE, in port order."""
        by_pe: dict[PeKey, list[tuple[PortKey, PortKey, RouteChange]]] = {}
        for (export_uid, import_uid), was in self._changed_routes.items():
            now = self._route(export_uid, import_uid)
            route = now or was
            if route is not None and now != was:
                one = (route.export, route.import_, RouteChange(old=was, new=now))
                by_pe.setdefault(route.export.owner, []).append(one)
        return {
            pe: [one for *_, one in sorted(several, key=lambda one: one[:2])]
            for pe, several in by_pe.items()
        }

    def _emit_view(self, pe: PeKey, route_changes: Sequence[RouteChange]) -> list[Action]:
        before = self._versions.get(pe, b"").hex()
        if pe in self._departed:
            self._versions.pop(pe, None)
            return [RoutesChanged(pe=pe, version=None)] if before else []
        if pe not in self._versions:
            return []
        rules = self.rules.view_rules(pe[:2])
        after = compute_view_version(
            pe, self._exports, self._imports, self._digests, rules, self._held_imports
        )
        if before == after:
            return []
        self._versions[pe] = bytes.fromhex(after)
        actions: list[Action] = [
            RoutesChanged(pe=pe, version=after, new=not before, route_changes=tuple(route_changes))
        ]
        agent = self._agents.get(pe)
        has_hint_point = agent is not None and agent.registration.hint is not None
        if has_hint_point and (before or any(self.ports(pe))):
            actions.append(HintAction(pe=pe, version=after, point=self.point))
        return actions

    def _emit_status(self, kind: Kind, uid: str) -> list[Action]:
        after = (
            export_status(uid, self._exports, self._imports)
            if kind == "Export"
            else import_status(uid, self._exports, self._imports, self._faults.get(uid))
        )
        if after is None:
            after = unreadable_status(self.unreadable(kind, uid))
        else:
            after = with_rejected(after, self.get(kind, uid))
        if after is not None and uid in self._held_imports:
            after = replace(after, held=True)
        before = self._statuses.pop((kind, uid), ACCEPTED)
        if after is None:
            return []
        ring = self._describe_ring(kind, uid) if after.matches else ""
        if ring:
            after = replace(after, ring=ring)
        if after != ACCEPTED:
            self._statuses[(kind, uid)] = after
        same = before == after and self._settled and (kind, uid) not in self._new
        return [] if same else [StatusChanged(kind=kind, uid=uid)]


def _exports_with_new_limit(change: ResourceChanged[Export]) -> set[str]:
    old, new = change.old, change.new
    waits = old and new and old.buffer.wait_limit_s != new.buffer.wait_limit_s
    return {change.uid} if waits else set()


def _is_rule_event(event: BoardEvent) -> bool:
    """Return whether an event changes rules. Progress events of the rule feed do not count."""
    if isinstance(event, Unreadable | Synced):
        return event.kind == RULE
    return isinstance(event, RuleApplied | RuleRemoved)
