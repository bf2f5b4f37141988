"""The board: state machine from resources to matches, routes, views and statuses.

Invariants:

- Every change of the routing state happens through `Board.handle`.
- The board has no side effects. It turns events into actions, which the caller carries out in
  order, at least once.
- Until both kinds have been listed, the board returns no views and no actions. A partly filled
  board would remove routes of resources that are only not known yet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, TypeAlias, cast

from streambroker_core.board.accepted import Generations
from streambroker_core.board.events import (
    Action,
    AgentRegistered,
    AnyChange,
    BoardEvent,
    CaughtUp,
    ExportApplied,
    ExportRemoved,
    FeedAdvanced,
    FeedLost,
    ImportApplied,
    ImportRemoved,
    PeDeclared,
    PeWithdrawn,
    R,
    ResourceChanged,
    RuleApplied,
    RuleRemoved,
    Synced,
    Unreadable,
)
from streambroker_core.board.pending import PendingChanges
from streambroker_core.board.reader import BoardReader, BoardState
from streambroker_core.board.resource_cache import ResourceCache
from streambroker_core.board.rule_index import Job
from streambroker_core.board.views import find_fault
from streambroker_core.matching import IndexMatcher, Matcher, MatchResult
from streambroker_core.model import RULE, AnyKind, Export, Import, Kind, PeKey, Resource, Rule

Outcomes: TypeAlias = "Mapping[str, MatchResult]"
"""Matches and near misses of a resource, by the other side's uid."""
_IMPORT_MATCH_COST = 4
"""Approximate cost of matching an Import, in matches of one Export."""


class Board:
    """State machine between resources and views.

    A `matcher` decides pairs; an index by default. A copy of a board gets resources whose running
    generation is already decided, with `decides_generations` False.

    Attributes:
        reader: the current resources, routes, views and statuses.
    """

    def __init__(self, matcher: Matcher | None = None, *, decides_generations: bool = True) -> None:
        self._state = state = BoardState(IndexMatcher() if matcher is None else matcher)
        self.reader = BoardReader(state)
        self._pending = PendingChanges(state, self.reader)
        self._generations = Generations(state) if decides_generations else None
        self._ports = PortChanges(state, self._pending, self._generations)
        # Versions at which PEs were withdrawn; late registrations of their agents are ignored.
        self._withdrawn: dict[PeKey, int] = {}
        self._caught_up = 0

    def handle(self, event: BoardEvent) -> list[Action]:
        """Apply one event and return the resulting actions.

        A repeated or late event yields none.
        """
        return self.handle_all((event,))

    def handle_all(self, events: Iterable[BoardEvent]) -> list[Action]:
        """Apply events in order and return the actions for their combined effect.

        Intermediate routes and statuses are not visible: a route that exists before and after is
        unchanged.
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

        Once the board is synced, each event first yields the `ResourceChanged` of what it changes.
        """
        for event in events:
            yield from self._apply_event(event)
        if self._state.exports.cache.synced and self._state.imports.cache.synced:
            yield from self._pending.emit()

    def diff(self, event: Synced) -> Iterator[BoardEvent | None]:
        """Yield the differences between a list and the board as single events, else None.

        The events may be applied one by one before the list, mixed with others. None moves the
        board's point past the feed, or contains more than the list does. If the store was
        restored, the events are incomplete, and only the list itself applies the rest.
        """
        unread = {what.uid for what in event.unreadable}
        if event.kind == RULE:
            return
        differences = self._state.cache(event.kind).diff(event.listed, unread, event.version)
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

    def _apply_event(self, event: BoardEvent) -> Iterable[Action | None]:
        match event:
            case AgentRegistered() | PeDeclared() | PeWithdrawn():
                self._apply_agent_event(event)
            case CaughtUp(kind=None, version=version):
                self._expire_tombstones(version)
            case FeedLost(kind=kind):
                self._state.cache(kind).mark_feed_lost()
            case ExportApplied() | ImportApplied() | RuleApplied():
                return self._apply_resource(event)
            case Synced(kind=kind):
                return self._apply_list(kind, event)
            case _:
                kind = cast("AnyKind", event.kind)
                return self._apply_changes(kind, self._handle_in(self._state.cache(kind), event))
        return ()

    def _handle_in(
        self,
        cache: ResourceCache[R],
        event: ExportRemoved | ImportRemoved | RuleRemoved | Unreadable | FeedAdvanced | CaughtUp,
    ) -> list[ResourceChanged[R]]:
        match event:
            case Unreadable():
                return cache.apply(self._select(cache, event), event.version)
            case FeedAdvanced(uid=uid, version=version):
                return cache.confirm(uid, version)
            case CaughtUp(version=version):
                cache.confirm(None, version)
                return cache.revert_unconfirmed(version) + cache.expire_tombstones(version)
        return cache.remove(event.uid, event.version, ahead_of_feed=event.ahead_of_feed)

    def _apply_list(self, kind: AnyKind, event: Synced) -> Iterator[Action | None]:
        cache: ResourceCache[Any] = self._state.cache(kind)
        first = not cache.synced
        if kind == RULE:
            self._state.rules.begin_list()
        unreadable = [(one, one.version) for one in event.unreadable]
        entries = ((self._select(cache, one), own) for one, own in chain(event.listed, unreadable))
        return self._apply_changes(kind, cache.relist(entries, event.version), first_list=first)

    def _apply_resource(
        self, event: ExportApplied | ImportApplied | RuleApplied
    ) -> Iterator[Action | None]:
        if isinstance(event, RuleApplied):
            self._state.rules.advance_to(event.version)
        cache: ResourceCache[Any] = self._state.cache(event.kind)
        changes = cache.apply(
            self._select(cache, event.resource), event.version, ahead_of_feed=event.ahead_of_feed
        )
        return self._apply_changes(event.kind, changes)

    def _select(self, cache: ResourceCache[R], entry: R | Unreadable) -> R | Unreadable:
        return entry if self._generations is None else self._generations.select(cache, entry)

    def _apply_changes(
        self, kind: AnyKind, changes: Iterable[AnyChange], *, first_list: bool = False
    ) -> Iterator[Action | None]:
        if kind == RULE:
            rules = cast("Iterable[ResourceChanged[Rule]]", changes)
            return self._apply_rule_changes(rules, all_views=first_list)
        return self._ports.apply(kind, changes)

    def _apply_rule_changes(
        self, changes: Iterable[ResourceChanged[Rule]], *, all_views: bool
    ) -> Iterator[Action | None]:
        """Apply changes of rules, which take no part in matching.

        `all_views` updates every view: after the first list, views state their rules, if any.
        """
        jobs: set[Job] = set()
        uids: set[str] = set()
        for change in changes:
            yield change if self._state.settled else None
            concerned, affected = self._state.rules.apply(change)
            jobs |= concerned
            uids |= affected
        self._pending.mark_rules(jobs, uids, all_views=all_views)

    def _apply_agent_event(self, event: AgentRegistered | PeDeclared | PeWithdrawn) -> None:
        state, pe = self._state, event.pe
        if isinstance(event, PeDeclared):
            self._pending.ensure_pe(pe)
            return
        known = state.agents.get(pe)
        last = self._withdrawn.get(pe, self._caught_up) if known is None else known.version
        already_applied = (
            isinstance(event, PeWithdrawn) and self._withdrawn.get(pe) == event.version
        )
        if event.version < last or already_applied:
            return
        departed = False
        if isinstance(event, AgentRegistered):
            self._withdrawn.pop(pe, None)
            state.agents[pe] = event
            self._pending.ensure_pe(pe)
        else:
            state.agents.pop(pe, None)
            self._withdrawn[pe] = event.version
            departed = not state.exports.uids_of_pe(pe) and not state.imports.uids_of_pe(pe)
        self._pending.mark_agent(pe, departed=departed)

    def _expire_tombstones(self, version: int) -> None:
        """Forget deletions up to a version that all feeds have passed."""
        self._caught_up = max(self._caught_up, version)
        for cache in (
            self._state.exports.cache,
            self._state.imports.cache,
            self._state.rules.cache,
        ):
            cache.expire_tombstones(version)
        self._withdrawn = {pe: at for pe, at in self._withdrawn.items() if at > version}


class PortChanges:
    """Applies changes of Exports and Imports to ownership, matcher and match outcomes."""

    def __init__(
        self, state: BoardState, pending: PendingChanges, generations: Generations | None
    ) -> None:
        self._state, self._pending, self._generations = state, pending, generations

    def apply(self, kind: Kind, changes: Iterable[AnyChange]) -> Iterator[Action | None]:
        """Apply changes of one kind; yield each once the board is synced, and None for steps."""
        index = self._state.ports(kind)
        concerned: dict[str, Resource | None] = {}
        limited: set[str] = set()
        for change in cast("Iterable[ResourceChanged[Any]]", changes):
            yield change if self._state.settled else None
            if _has_new_limit(change):
                limited.add(change.uid)
            if change.has_new_port:
                self._set_outcomes(kind, change.old, {}, always=False)
            for uid in sorted(index.ownership.apply(change)):
                removed = change.old if uid == change.uid else None
                concerned[uid] = index.cache.get(uid) or removed
                self._pending.mark_status(kind, uid, change)
                self._put(kind, uid)
        if kind == "Export":
            self._pending.digests.mark_stale(concerned)
        for found in self._match(kind, concerned):
            yield None
            if found is not None:
                uid, outcomes = found
                self._set_outcomes(kind, concerned[uid], outcomes, always=uid in limited)
        if kind == "Export" and self._generations is not None:
            rechecked = list(self._generations.recheck())
            # These follow from other resources: only their status counts as changed.
            yield from (None for _ in self.apply("Import", rechecked) if rechecked)

    def _put(self, kind: Kind, uid: str) -> None:
        """Add a resource to the matcher if it is accepted, else remove it."""
        if kind == "Import":
            self._update_import(uid)
        accepted = self._state.ports(kind).get_accepted(uid)
        if accepted is None:
            self._state.matcher.remove(kind, uid)
        else:
            self._state.matcher.put(accepted)

    def _set_outcomes(
        self, kind: Kind, resource: Resource | None, outcomes: Outcomes, *, always: bool
    ) -> None:
        """Set the outcomes of a resource; record those that changed, or `always` all."""
        if resource is None:
            return
        other: Kind = "Import" if kind == "Export" else "Export"
        index, others = self._state.ports(kind), self._state.ports(other)
        for peer, was, now in index.set_outcomes(resource, outcomes, others):
            self._pending.mark_status(other, peer)
            if was is not now or always:
                pair: tuple[Any, Any] = resource, others.cache.get(peer)
                export, import_ = pair if kind == "Export" else pair[::-1]
                self._pending.record_route(export, import_, was, now)

    def _match(self, kind: Kind, uids: Collection[str]) -> Iterator[tuple[str, Outcomes] | None]:
        """Yield the outcomes of resources, and None for steps.

        Those of Imports are computed from the cheaper side. If most Imports are requested, that
        is the Exports' side: few results are discarded.
        """
        matcher, exports = self._state.matcher, self._state.exports.cache
        most = 2 * len(uids) > len(self._state.imports.cache)
        if kind == "Export" or not most or len(uids) * _IMPORT_MATCH_COST < len(exports):
            yield from ((uid, matcher.matches_of(kind, uid)) for uid in uids)
        else:
            found: dict[str, dict[str, MatchResult]] = {}
            for export in exports:
                for uid, outcome in matcher.matches_of("Export", export.uid).items():
                    if uid in uids:
                        found.setdefault(uid, {})[export.uid] = outcome
                yield None
            yield from ((uid, found.get(uid, {})) for uid in uids)

    def _update_import(self, uid: str) -> None:
        """Update the fault of an Import, and whether agents keep its routes."""
        state, cache = self._state, self._state.imports.cache
        import_ = cache.get(uid)
        fault = None if import_ is None else find_fault(import_)
        if fault is None:
            state.faults.pop(uid, None)
        else:
            state.faults[uid] = fault
        if self._generations is not None:
            self._generations.update(uid)
        entry = import_ or cache.unreadable(uid)
        before = state.held_imports.pop(uid, None)
        if entry is not None and entry.held:
            state.held_imports[uid] = (
                entry.key.namespace if isinstance(entry, Import) else entry.namespace
            )
        now = state.held_imports.get(uid)
        if before != now:
            self._pending.mark_namespaces({name for name in (before, now) if name is not None})


def _has_new_limit(change: ResourceChanged[Any]) -> bool:
    """Return whether an Export changed how long it waits."""
    old, new = change.old, change.new
    return (
        isinstance(old, Export)
        and isinstance(new, Export)
        and old.buffer.wait_limit_s != new.buffer.wait_limit_s
    )
