"""The board: all resources, who matches whom, and every PE's view of it.

Rule 1: every change of the routing state happens through `Board.handle`.
Rule 2: nothing here acts. Events go in; the orders that come out are for the
caller to carry out, in their order, at least once.
Rule 3: before both kinds have been listed the board answers no view and gives no
orders; a half-filled board would tear down what is merely not known yet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import cast

from streambroker_core.board.accepted import running
from streambroker_core.board.events import (
    Action,
    AgentRegistered,
    CaughtUp,
    Event,
    ExportApplied,
    ExportRemoved,
    FeedLost,
    FellBack,
    Hint,
    ImportApplied,
    ImportRemoved,
    Moved,
    PeDeclared,
    PeWithdrawn,
    PointMoved,
    RoutesChanged,
    RuleApplied,
    RuleRemoved,
    Status,
    StatusChanged,
    Synced,
    Unreadable,
)
from streambroker_core.board.reader import Shown
from streambroker_core.board.resource_cache import Change, R, Shelf
from streambroker_core.board.route_digests import Marks
from streambroker_core.board.rule_index import Job
from streambroker_core.board.views import (
    ACCEPTED,
    concerns,
    export_status,
    fault_of,
    import_status,
    route_of,
    unread_status,
    view_version,
    with_newer,
)
from streambroker_core.errors import StreambrokerError
from streambroker_core.matching import Match, Matcher, Outcome, Refusal, import_filter_problem
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

_DEARER = 4
"""How much dearer it is to match an Import than an Export, about."""


class Board(Shown):
    """The state machine between resources and views.

    Args:
        matcher: decides pairs; an index by default.
        decides: the board decides which generation of a resource runs. A copy of another board
            takes the resources as that board has decided.
    """

    def __init__(self, matcher: Matcher | None = None, *, decides: bool = True) -> None:
        super().__init__(matcher)
        self._decides = decides
        # When PEs were withdrawn: their agents' late registrations bring nothing back.
        self._withdrawn: dict[PeKey, int] = {}
        self._caught_up = 0
        self._left: set[PeKey] = set()
        self._marks = Marks(self._exports, self.registration)
        # What is wrong with Imports by themselves: told once, while their texts are read.
        self._faults: dict[str, Status] = {}
        # Imports of which Exports decide which generation runs.
        self._doubtful: set[str] = set()
        # What may be another since it was settled; all is, the first time.
        self._dirty: set[PeKey] = set()
        self._dirty_statuses: dict[Kind, set[str]] = {"Export": set(), "Import": set()}
        self._new: set[tuple[Kind, str]] = set()
        self._dirty_rules: set[str] = set()
        # Pairs whose route is another since views were settled, and the route as it was.
        self._moved: dict[tuple[str, str], Route | None] = {}
        # PEs at both ends of routes that came, went, or wait in another way.
        self._rerouted: set[tuple[PeKey, PeKey]] = set()

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
        return list(self.orders(events))

    def orders(self, events: Iterable[Event]) -> Iterator[Action]:
        """Do what `handle_all` does, as the orders are asked for one by one, to the last.

        The first list of a broker calls for one per resource and PE, which are never all there.
        """
        return (action for action in self.steps(events) if action is not None)

    def steps(self, events: Iterable[Event]) -> Iterator[Action | None]:
        """Do what `orders` does in small steps; those that call for nothing are None.

        Between two steps other work may have its turn, but none that tells or asks the board:
        it is only half told.
        """
        for event in events:
            yield from self._take_rule(event) if _of_rules(event) else self._take(event)
        if self._exports.shelf.synced and self._imports.shelf.synced:
            yield from self._settle()

    def news(self, event: Synced) -> Iterator[Event | None]:
        """Yield what a list tells that is not known, as single events, and None for all else.

        The events may be taken in one by one ahead of the list, and others between them: none
        moves the point to where the feed has not come, nor says more than the list does.
        Where the store was restored they say less, and the list itself has to say the rest.
        """
        unread = {what.uid for what in event.unreadable}
        if event.kind == RULE:
            return
        found = self._side(event.kind).shelf.news(event.listed, unread, event.version)
        removed = ExportRemoved if event.kind == "Export" else ImportRemoved
        for one in found:
            if one is None:
                yield None
                continue
            version, uid, resource = one
            if resource is None:
                yield removed(uid=uid, version=version)
            elif isinstance(resource, Export):
                yield ExportApplied(export=resource, version=version, early=True)
            else:
                yield ImportApplied(import_=resource, version=version, early=True)

    def _take(self, event: Event) -> Iterator[None]:
        match event:
            case ExportApplied(export=export, version=version, early=early):
                return self._export_changes(self._exports.shelf.apply(export, version, early=early))
            case ExportRemoved(uid=uid, version=version, early=early):
                return self._export_changes(self._exports.shelf.remove(uid, version, early=early))
            case ImportApplied(import_=import_, version=version, early=early):
                entry = self._running(self._imports.shelf, import_)
                return self._import_changes(self._imports.shelf.apply(entry, version, early=early))
            case ImportRemoved(uid=uid, version=version, early=early):
                return self._import_changes(self._imports.shelf.remove(uid, version, early=early))
            case Synced():
                return self._synced(event)
            case Unreadable(kind="Export"):
                return self._export_changes(self._unread(self._exports.shelf, event))
            case Unreadable():
                return self._import_changes(self._unread(self._imports.shelf, event))
            case PointMoved() | FeedLost() | CaughtUp():
                return self._feed(event)
            case AgentRegistered() | PeDeclared() | PeWithdrawn():
                self._agent(event)
        return iter(())

    def _synced(self, event: Synced) -> Iterator[None]:
        if event.kind == "Export":
            return self._export_changes(self._listed(self._exports.shelf, event))
        return self._import_changes(self._listed(self._imports.shelf, event))

    def _listed(self, shelf: Shelf[R], event: Synced) -> Iterator[Change[R]]:
        listed = cast("Iterable[tuple[R | Unreadable, int]]", event.listed)
        unread: list[tuple[R | Unreadable, int]] = [(one, one.version) for one in event.unreadable]
        found = ((self._running(shelf, one), own) for one, own in chain(listed, unread))
        return shelf.relist(found, event.version)

    def _unread(self, shelf: Shelf[R], event: Unreadable) -> list[Change[R]]:
        return shelf.apply(self._running(shelf, event), event.version)

    def _running(self, shelf: Shelf[R], entry: R | Unreadable) -> R | Unreadable:
        if not self._decides:
            return entry
        return running(entry, shelf.get(entry.uid), self._filter_problem)

    def _filter_problem(self, import_: Import) -> StreambrokerError | None:
        """Return why an Import's filter works for none of the Exports that it would match."""
        if import_.filter is None or import_.schema is not None:
            return None
        found = self.outcomes_for(replace(import_, filter=None))
        exports = [self._exports.shelf.get(uid) for uid in sorted(found)]
        return import_filter_problem(import_, [one for one in exports if one is not None])

    def _judge_again(self) -> Iterator[None]:
        """Look again at generations that Exports decide about."""
        changes: list[Change[Import]] = []
        for uid in sorted(self._doubtful) if self._decides else ():
            held = self._imports.shelf.get(uid)
            if held is None or (held.newer is None and not held.held and not self._unfit(uid)):
                continue
            seen = held if held.newer is None else held.newer.resource
            entry = self._running(self._imports.shelf, cast("Import", seen))
            if isinstance(entry, Import) and entry != held:
                changes += self._imports.shelf.swap(entry)
        if changes:
            yield from self._import_changes(changes)

    def _unfit(self, uid: str) -> bool:
        found = self._imports.outcomes_of(uid).values()
        return any(isinstance(one, Refusal) and one.reason == "FilterInvalid" for one in found)

    def _caught_up_with(self, version: int, kind: AnyKind | None) -> Iterator[None]:
        """Take in that a feed, or all feeds have passed a version."""
        if kind is None:
            self._forget(version)
            return iter(())
        if kind == "Export":
            return self._export_changes(self._passed(self._exports.shelf, version))
        if kind == "Import":
            return self._import_changes(self._passed(self._imports.shelf, version))
        return self._rule_changes(self._passed(self.rules.shelf, version))

    def _passed(self, shelf: Shelf[R], version: int) -> list[Change[R]]:
        """Take in that a feed has told of all that there was at a version."""
        shelf.touch(None, version)
        return shelf.unconfirmed(version) + shelf.caught_up(version)

    def _feed(self, event: PointMoved | FeedLost | CaughtUp) -> Iterator[None]:
        """Take in what is about no resource, or changes only what was seen ahead of the feed."""
        if isinstance(event, CaughtUp):
            return self._caught_up_with(event.version, event.kind)
        if isinstance(event, FeedLost):
            self._shelf(event.kind).lost()
            return iter(())
        if event.kind == "Export":
            return self._export_changes(self._exports.shelf.touch(event.uid, event.version))
        if event.kind == "Import":
            return self._import_changes(self._imports.shelf.touch(event.uid, event.version))
        return self._rule_changes(self.rules.shelf.touch(event.uid, event.version))

    def _agent(self, event: AgentRegistered | PeDeclared | PeWithdrawn) -> None:
        pe = event.pe
        if isinstance(event, PeDeclared):
            self._know(pe)
            return
        known = self._agents.get(pe)
        last = self._withdrawn.get(pe, self._caught_up) if known is None else known.version
        told = isinstance(event, PeWithdrawn) and self._withdrawn.get(pe) == event.version
        if event.version < last or told:
            return
        if isinstance(event, AgentRegistered):
            self._withdrawn.pop(pe, None)
            self._agents[pe] = event
            self._know(pe)
        else:
            self._agents.pop(pe, None)
            self._withdrawn[pe] = event.version
            if not self._exports.of_pe(pe) and not self._imports.of_pe(pe):
                self._left.add(pe)
        self._touch(pe)
        self._marks.doubt(self._exports.of_pe(pe))
        for uid in self._exports.of_pe(pe):
            self._mark_importers(uid)

    def _know(self, pe: PeKey) -> None:
        self._left.discard(pe)
        self._versions.setdefault(pe, b"")
        self._touch(pe)

    def _touch(self, pe: PeKey) -> None:
        if self._settled:
            self._dirty.add(pe)

    def _forget(self, version: int) -> None:
        """Forget who was gone at a version that all feeds have passed."""
        self._caught_up = max(self._caught_up, version)
        self._exports.shelf.caught_up(version)
        self._imports.shelf.caught_up(version)
        self.rules.shelf.caught_up(version)
        self._withdrawn = {pe: at for pe, at in self._withdrawn.items() if at > version}

    def _mark_importers(self, export_uid: str) -> None:
        for uid in self._exports.outcomes_of(export_uid):
            peer = self._imports.shelf.get(uid)
            if peer is not None:
                self._touch(peer.key.owner)

    def _export_changes(self, changes: Iterable[Change[Export]]) -> Iterator[None]:
        concerned: dict[str, Export | None] = {}
        limited: set[str] = set()
        for change in changes:
            yield None
            limited |= _limited(change)
            if change.moves and change.old is not None:
                for peer, was, _ in self._exports.pair(change.old, {}, self._imports):
                    self._mark("Import", peer)
                    self._move(change.old, self._imports.shelf.get(peer), was, None)
            for uid in sorted(self._exports.enter(change)):
                gone = change.old if uid == change.uid else None
                concerned[uid] = self._exports.shelf.get(uid) or gone
                self._mark("Export", uid, change)
                export = self._exports.taking_part(uid)
                if export is None:
                    self._matcher.remove_export(uid)
                else:
                    self._matcher.put_export(export)
        self._marks.doubt(concerned)
        for uid, export in concerned.items():
            yield None
            if export is None:
                continue
            outcomes = self._matcher.matches_of_export(uid)
            for peer, was, now in self._exports.pair(export, outcomes, self._imports):
                self._mark("Import", peer)
                if was is not now or uid in limited:
                    self._move(export, self._imports.shelf.get(peer), was, now)
        yield from self._judge_again()

    def _import_changes(self, changes: Iterable[Change[Import]]) -> Iterator[None]:
        concerned: dict[str, Import | None] = {}
        for change in changes:
            yield None
            if change.moves and change.old is not None:
                for peer, was, _ in self._imports.pair(change.old, {}, self._exports):
                    self._mark("Export", peer)
                    self._move(self._exports.shelf.get(peer), change.old, was, None)
            for uid in sorted(self._imports.enter(change)):
                gone = change.old if uid == change.uid else None
                concerned[uid] = self._imports.shelf.get(uid) or gone
                self._mark("Import", uid, change)
                self._note_fault(uid)
                self._note_doubt(uid)
                self._note_held(uid)
                import_ = self._imports.taking_part(uid)
                if import_ is None:
                    self._matcher.remove_import(uid)
                else:
                    self._matcher.put_import(import_)
        matches: dict[str, Mapping[str, Outcome]] = {}
        yield from self._match_imports(concerned, matches)
        for uid, import_ in concerned.items():
            yield None
            if import_ is None:
                continue
            outcomes = matches.get(uid, {})
            for peer, was, now in self._imports.pair(import_, outcomes, self._exports):
                self._mark("Export", peer)
                if was is not now:
                    self._move(self._exports.shelf.get(peer), import_, was, now)

    def _take_rule(self, event: Event) -> Iterator[None]:
        shelf = self.rules.shelf
        match event:
            case RuleApplied(rule=rule, version=version, early=early):
                self.rules.reach(version)
                entry = self._running(shelf, rule)
                return self._rule_changes(shelf.apply(entry, version, early=early))
            case RuleRemoved(uid=uid, version=version, early=early):
                return self._rule_changes(shelf.remove(uid, version, early=early))
            case Unreadable():
                return self._rule_changes(self._unread(shelf, event))
            case Synced():
                first = not shelf.synced
                self.rules.begin()
                return self._rule_changes(self._listed(shelf, event), everywhere=first)
        return iter(())

    def _rule_changes(
        self, changes: Iterable[Change[Rule]], *, everywhere: bool = False
    ) -> Iterator[None]:
        """Take in changes of rules; nothing is matched by them.

        Args:
            changes: what they are.
            everywhere: all views say now which rules there are, if only that there are none.
        """
        jobs: set[Job] = set()
        for change in changes:
            yield None
            concerned, uids = self.rules.enter(change)
            jobs |= concerned
            if self._settled:
                self._dirty_rules |= uids
        if self._settled:
            self._dirty.update(pe for pe in self._versions if everywhere or pe[:2] in jobs)

    def _note_doubt(self, uid: str) -> None:
        one = self._imports.shelf.get(uid)
        if one is not None and (one.earlier or one.unsure or (one.newer and one.newer.resource)):
            self._doubtful.add(uid)
        else:
            self._doubtful.discard(uid)

    def _note_held(self, uid: str) -> None:
        """Note whether agents are to keep the routes of an Import, which their views say."""
        shelf = self._imports.shelf
        entry = shelf.get(uid) or shelf.unreadable(uid)
        before = self._held.pop(uid, None)
        if entry is not None and entry.held:
            self._held[uid] = entry.key.namespace if isinstance(entry, Import) else entry.namespace
        if self._settled and before != self._held.get(uid):
            for namespace in {before, self._held.get(uid)} - {None}:
                near = (pe for pe in self._versions if concerns(pe, self._exports, str(namespace)))
                self._dirty.update(near)

    def _note_fault(self, uid: str) -> None:
        import_ = self._imports.shelf.get(uid)
        fault = None if import_ is None else fault_of(import_)
        if fault is None:
            self._faults.pop(uid, None)
        else:
            self._faults[uid] = fault

    def _move(
        self,
        export: Export | None,
        import_: Import | None,
        was: Outcome | None,
        now: Outcome | None,
    ) -> None:
        """Note that a pair's outcome is another."""
        old = was if isinstance(was, Match) else None
        new = now if isinstance(now, Match) else None
        if export is None or import_ is None:
            return
        if self._settled:
            self._rerouted.add((export.key.owner, import_.key.owner))
        if old == new:
            return
        self._marks.move(export, import_, old, new)
        if self._settled:
            route = None if old is None else route_of(export, import_, old)
            self._moved.setdefault((export.uid, import_.uid), route)

    def _match_imports(
        self, uids: Collection[str], matches: dict[str, Mapping[str, Outcome]]
    ) -> Iterator[None]:
        """Look up the outcomes of Imports, asked from the side that is quicker.

        From the Exports' side if most Imports are asked for: then little is found in vain.
        """
        most = 2 * len(uids) > len(self._imports.shelf)
        if not most or len(uids) * _DEARER < len(self._exports.shelf):
            for uid in uids:
                matches[uid] = self._matcher.matches_of_import(uid)
                yield None
            return
        found: dict[str, dict[str, Outcome]] = {}
        for export in self._exports.shelf:
            for uid, outcome in self._matcher.matches_of_export(export.uid).items():
                if uid in uids:
                    found.setdefault(uid, {})[export.uid] = outcome
            yield None
        matches.update(found)

    def _mark(
        self, kind: Kind, uid: str, change: Change[Export] | Change[Import] | None = None
    ) -> None:
        if self._settled:
            self._dirty_statuses[kind].add(uid)
            if change is not None and change.uid == uid and change.old is None:
                self._new.add((kind, uid))
        side = self._side(kind)
        seen = [side.shelf.get(uid)]
        if change is not None:
            seen += [change.old, change.new]
        for resource in seen:
            if resource is not None:
                self._know(resource.key.owner)

    # ---- what comes out --------------------------------------------------

    def _settle(self) -> Iterator[Action]:
        self._marks.settle()
        rerouted = self._rerouted if self._settled else ((pe, pe) for pe in self._versions)
        for pe in self._rings.look(rerouted):
            self._dirty_statuses["Export"].update(self._exports.of_pe(pe))
            self._dirty_statuses["Import"].update(self._imports.of_pe(pe))
        self._rerouted.clear()
        moved = self._moved_by_pe()
        for pe in sorted(self._dirty if self._settled else self._versions):
            yield from self._settle_view(pe, moved.get(pe, ()))
        for kind, uids in self._dirty_statuses.items():
            for uid in sorted(uids if self._settled else self._side(kind).shelf.uids()):
                yield from self._settle_status(kind, uid)
            uids.clear()
        for uid in sorted(self._dirty_rules if self._settled else self.rules.shelf.uids()):
            yield StatusChanged(kind=RULE, uid=uid)
        self._dirty_rules.clear()
        yield from self._fell_back()
        self._dirty.clear()
        self._left.clear()
        self._new.clear()
        self._moved.clear()
        self._settled = True

    def _fell_back(self) -> Iterator[Action]:
        for kind in (*self._dirty_statuses, RULE):
            undone = self._shelf(kind).undone
            for uid, difference in undone:
                yield FellBack(kind=kind, uid=uid, difference=difference)
            undone.clear()

    def _moved_by_pe(self) -> dict[PeKey, list[Moved]]:
        """Return what became of routes, by the exporter's PE."""
        found: dict[PeKey, list[tuple[PortKey, PortKey, Moved]]] = {}
        for (export_uid, import_uid), was in self._moved.items():
            now = self._route(export_uid, import_uid)
            route = now or was
            if route is not None and now != was:
                one = (route.export, route.import_, Moved(was=was, now=now))
                found.setdefault(route.export.owner, []).append(one)
        return {
            pe: [one for *_, one in sorted(several, key=lambda one: one[:2])]
            for pe, several in found.items()
        }

    def _settle_view(self, pe: PeKey, moved: Sequence[Moved]) -> list[Action]:
        before = self._versions.get(pe, b"").hex()
        if pe in self._left:
            self._versions.pop(pe, None)
            return [RoutesChanged(pe=pe, version=None)] if before else []
        if pe not in self._versions:
            return []
        wanted = self.rules.wanted(pe[:2])
        after = view_version(pe, self._exports, self._imports, self._marks, wanted, self._held)
        if before == after:
            return []
        self._versions[pe] = bytes.fromhex(after)
        actions: list[Action] = [
            RoutesChanged(pe=pe, version=after, new=not before, moved=tuple(moved))
        ]
        agent = self._agents.get(pe)
        heard = agent is not None and agent.registration.hint is not None
        if heard and (before or any(self.ports(pe))):
            actions.append(Hint(pe=pe, version=after, point=self.point))
        return actions

    def _settle_status(self, kind: Kind, uid: str) -> list[Action]:
        after = (
            export_status(uid, self._exports, self._imports)
            if kind == "Export"
            else import_status(uid, self._exports, self._imports, self._faults.get(uid))
        )
        if after is None:
            after = unread_status(self.unreadable(kind, uid))
        else:
            after = with_newer(after, self.get(kind, uid))
        if after is not None and uid in self._held:
            after = replace(after, held=True)
        before = self._statuses.pop((kind, uid), ACCEPTED)
        if after is None:
            return []
        ring = self._ring_told(kind, uid) if after.matches else ""
        if ring:
            after = replace(after, ring=ring)
        if after != ACCEPTED:
            self._statuses[(kind, uid)] = after
        same = before == after and self._settled and (kind, uid) not in self._new
        return [] if same else [StatusChanged(kind=kind, uid=uid)]


def _limited(change: Change[Export]) -> set[str]:
    """Return the Export that is to wait for another time than before."""
    old, new = change.old, change.new
    waits = old and new and old.buffer.wait_limit_s != new.buffer.wait_limit_s
    return {change.uid} if waits else set()


def _of_rules(event: Event) -> bool:
    """Say whether an event is about rules, and not merely about how far their feed has come."""
    if isinstance(event, Unreadable | Synced):
        return event.kind == RULE
    return isinstance(event, RuleApplied | RuleRemoved)
