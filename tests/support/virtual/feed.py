"""Feeds that bring the truth to a board late, twice, or not at all.

A `Replica` is a real board behind a feed; after each event it is compared with a scan of what it
knows, and no route may go whose two resources and match have existed all along.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from streambroker_core.board import (
    Action,
    AgentRegistered,
    Board,
    BoardEvent,
    ExportApplied,
    ExportRemoved,
    FeedLost,
    HintAction,
    ImportApplied,
    ImportRemoved,
    PeDeclared,
    PeWithdrawn,
    RoutesChanged,
    Synced,
)
from streambroker_core.model import Kind, PeKey, Resource, kind_of
from support.virtual.world import KINDS, PES, Pair, World, scan

Queue = Literal["Export", "Import", "Agent"]


def queue_of(event: BoardEvent) -> Queue:
    """Return which feed brings an event."""
    if isinstance(event, ExportApplied | ExportRemoved):
        return "Export"
    return "Import" if isinstance(event, ImportApplied | ImportRemoved) else "Agent"


def _uid_of(event: BoardEvent) -> str:
    if isinstance(event, ExportApplied):
        return event.export.uid
    if isinstance(event, ImportApplied):
        return event.import_.uid
    if isinstance(event, ExportRemoved | ImportRemoved):
        return event.uid
    assert isinstance(event, AgentRegistered | PeWithdrawn)
    return str(event.pe)


def _version_of(event: BoardEvent) -> int:
    assert not isinstance(event, PeDeclared | FeedLost)
    return event.version


@dataclass
class Replica:
    """A real board behind a feed, and what may be said of it after each event.

    Attributes:
        coming: events on their way, with the time they were sent at.
        past: events that came, to come again.
        missed: versions of lost events, by kind.
        listing: lists on their way, by kind; no more than one of a kind.
        gap: kinds whose feed has begun anew, without its first list.
    """

    world: World
    send: Callable[[HintAction], None]
    board: Board = field(default_factory=Board)
    coming: list[tuple[BoardEvent, float]] = field(default_factory=list)
    past: list[BoardEvent] = field(default_factory=list)
    missed: dict[Kind, set[int]] = field(default_factory=lambda: {kind: set() for kind in KINDS})
    listing: dict[Kind, Synced] = field(default_factory=dict)
    gap: set[Kind] = field(default_factory=set)
    heard: dict[str, int] = field(default_factory=dict)
    listed: dict[Kind, int] = field(default_factory=dict)
    announced: dict[PeKey, str | None] = field(default_factory=dict)
    shown: frozenset[Pair] = frozenset()
    sent: int = 0

    def __post_init__(self) -> None:
        self.fill()

    # ---- the feed --------------------------------------------------------------

    def fill(self) -> None:
        """Begin anew from the store's content, as a broker does that starts."""
        guarded = self.guarded()
        self.board = Board()
        self.announced.clear()
        for key in sorted(self.world.known):
            self._handle(PeDeclared(pe=key))
        for key, (registration, version) in self.world.agents.items():
            self._handle(AgentRegistered(pe=key, registration=registration, version=version))
        self.coming = [pair for pair in self.coming if queue_of(pair[0]) != "Agent"]
        self.past = [event for event in self.past if queue_of(event) != "Agent"]
        self.listing.clear()
        self.gap.clear()
        self.heard.clear()
        for kind in KINDS:
            half = (self.board.reader.synced, sorted(self.board.reader.versions()), self.announced)
            assert half == (False, [], {}), "a board that is half filled is not to be seen"
            self._list(Synced(kind=kind, listed=self.world.of(kind), version=self.world.counter))
        self._examine(guarded)
        assert self.board.reader.point == (self.world.counter, self.world.counter)

    def deliver(self, place: int) -> None:
        """Let an event come that is on its way; it may be none that can come now."""
        event, _ = self.coming[place]
        if queue_of(event) in self.gap or not self._may_come(event):
            return
        del self.coming[place]
        self.past = [*self.past[-30:], event]
        self.apply(event)

    def _may_come(self, event: BoardEvent) -> bool:
        """A withdrawal is written after the PE's ports went, and comes after that."""
        return not isinstance(event, PeWithdrawn) or not any(
            queue_of(other) != "Agent" for other, _ in self.coming
        )

    def deliver_next(self, queue: Queue) -> None:
        """Let the oldest event of one feed come."""
        places = [i for i, (event, _) in enumerate(self.coming) if queue_of(event) == queue]
        if places:
            self.deliver(places[0])

    def again(self, pick: int) -> None:
        """Let an event come once more."""
        found = [event for event in self.past if queue_of(event) not in self.gap]
        if found:
            self.apply(found[pick % len(found)])

    def lose(self, place: int) -> None:
        """Lose an event of a resource."""
        event, _ = self.coming[place]
        for kind in KINDS:
            if queue_of(event) == kind:
                del self.coming[place]
                self.missed[kind].add(_version_of(event))

    def ask_list(self, kind: Kind) -> None:
        """Take a consistent list; it is brought later."""
        if kind not in self.listing:
            self.listing[kind] = Synced(
                kind=kind, listed=self.world.of(kind), version=self.world.counter
            )

    def bring_list(self, kind: Kind) -> None:
        """Let the list come that is on its way."""
        event = self.listing.pop(kind, None)
        if event is None:
            return
        guarded = self.guarded()
        self._list(event)
        self._examine(guarded)

    def _list(self, event: Synced) -> None:
        self._handle(event)
        kind = event.kind
        assert kind != "PatternProcessor"
        self.gap.discard(kind)
        self.listed[kind] = event.version
        self.missed[kind] = {v for v in self.missed[kind] if v > event.version}
        for resource, _ in event.listed:
            uid = resource.uid
            self.heard[uid] = max(self.heard.get(uid, 0), event.version)

    def break_off(self, kind: Kind) -> None:
        """Lose the feed; a list that was on its way does not come."""
        self.listing.pop(kind, None)
        self.apply(FeedLost(kind=kind))

    def begin_session(self, *, silent: bool) -> None:
        """Feel that the store was restored: the feeds end, the next lists begin new ones."""
        self.coming = [pair for pair in self.coming if queue_of(pair[0]) == "Agent"]
        self.past = [event for event in self.past if queue_of(event) == "Agent"]
        self.gap.update(KINDS)
        for kind in KINDS:
            if silent and self.world.counter < self.listed.get(kind, -1):
                self.listing.pop(kind, None)
                self.ask_list(kind)
            else:
                self.break_off(kind)
            self.missed[kind].clear()
        self.heard = {uid: v for uid, v in self.heard.items() if "/" in uid}
        self.listed.clear()

    def catch_up(self) -> None:
        """Bring everything that is on its way, and lists for what is not."""
        for kind in KINDS:
            self.bring_list(kind)
            if self.missed[kind] or kind in self.gap or self.board.reader.stale:
                self.ask_list(kind)
                self.bring_list(kind)
        self.deliver_since(float("inf"))
        assert self.complete()

    def deliver_since(self, time: float) -> None:
        """Let everything come that was sent until then, an agent's news last."""
        for agents in (False, True):
            for event, sent in list(self.coming):
                if sent <= time and (queue_of(event) == "Agent") == agents:
                    self.deliver(next(i for i, (e, _) in enumerate(self.coming) if e is event))

    def complete(self) -> bool:
        """Say whether nothing is missing, on its way, or late."""
        quiet = not self.coming and not self.listing and not self.board.reader.stale
        return quiet and not any(self.missed.values()) and not self.gap

    # ---- what has to hold ------------------------------------------------------

    def apply(self, event: BoardEvent) -> None:
        """Hand an event to the board; check all that has to hold before and after."""
        guarded, late = self.guarded(), self._is_late(event)
        same = self._is_same(event)
        before = dict(self.announced)
        actions = self._handle(event)
        if late or same or isinstance(event, FeedLost):
            assert actions == [], f"{event} is late or the same, and asked for {actions}"
            assert self.announced == before
        if isinstance(event, ExportApplied | ExportRemoved):
            assert self.board.reader.point[0] >= event.version
        elif isinstance(event, ImportApplied | ImportRemoved):
            assert self.board.reader.point[1] >= event.version
        if not isinstance(event, FeedLost):
            uid = _uid_of(event)
            self.heard[uid] = max(self.heard.get(uid, 0), _version_of(event))
        self._examine(guarded)

    def _is_late(self, event: BoardEvent) -> bool:
        if isinstance(event, FeedLost):
            return False
        queue, version = queue_of(event), _version_of(event)
        if queue != "Agent" and version <= self.listed.get(queue, -1):
            return True
        known = self.heard.get(_uid_of(event), 0)
        return version <= known

    def _is_same(self, event: BoardEvent) -> bool:
        if isinstance(event, ExportApplied):
            return any(held == event.export for held in self.board.reader.exports())
        if isinstance(event, ImportApplied):
            return any(held == event.import_ for held in self.board.reader.imports())
        return False

    def _handle(self, event: BoardEvent) -> list[Action]:
        point = self.board.reader.point
        actions = self.board.handle(event)
        hinted: dict[PeKey, str] = {}
        changed: dict[PeKey, str | None] = {}
        for action in actions:
            if isinstance(action, RoutesChanged):
                assert self.announced.get(action.pe) != action.version, "nothing changed"
                changed[action.pe] = action.version
            elif isinstance(action, HintAction):
                view = self.board.reader.view(action.pe)
                assert view is not None
                assert (action.version, action.point) == (view.version, view.point)
                hinted[action.pe] = action.version
                self.send(action)
                self.sent += 1
        assert hinted.items() <= changed.items(), "a hint without a change"
        for key, version in changed.items():
            registered = self.board.reader.registration(key)
            if self.announced.get(key) and version and registered and registered.hint:
                assert key in hinted, "a change without a hint"
        self.announced.update(changed)
        queue = event.kind if isinstance(event, Synced | FeedLost) else queue_of(event)
        for kind, old, new in zip(KINDS, point, self.board.reader.point, strict=True):
            assert new == old or queue == kind, "the feeds have a point each"
            assert new >= old or isinstance(event, Synced)
        return actions

    def guarded(self) -> set[Pair]:
        """Return the routes of the board that may not go, whatever comes."""
        known = self.known()
        return {pair for pair in self.shown if self.world.lasts(pair, known)}

    def known(self) -> dict[str, int]:
        """Return for each resource on the board which spec of it that is."""
        held: list[Resource] = [*self.board.reader.exports(), *self.board.reader.imports()]
        return {resource.uid: self.world.index(resource) for resource in held}

    def _examine(self, guarded: set[Pair]) -> None:
        held: list[Resource] = [*self.board.reader.exports(), *self.board.reader.imports()]
        names = [(kind_of(resource), resource.name) for resource in held if resource.name]
        assert len(names) == len(set(names)), "two of one name at one time"
        agents = {key: r for key in PES if (r := self.board.reader.registration(key)) is not None}
        scanned = scan(held, agents)
        self.shown = frozenset(
            (route.export_uid, route.import_uid) for route in self.board.reader.routes()
        )
        assert self.shown == scanned.pairs
        for (kind, uid), status in scanned.statuses.items():
            assert self.board.reader.status(kind, uid) == status
        for key in {*self.board.reader.versions(), *scanned.versions}:
            view = self.board.reader.view(key)
            assert view is not None, f"{key} has ports and no view"
            assert self.announced.get(key) == view.version
            if key in scanned.versions:
                assert view.version == scanned.versions[key], f"{key} is not as the scan has it"
            else:
                assert not view.exports
                assert not view.imports
        assert guarded <= self.shown, f"cut without a reason: {guarded - self.shown}"
        self._compare()

    def _compare(self) -> None:
        """Where all has come, in whatever order, the board is what the world is."""
        for kind in KINDS:
            coming = any(queue_of(event) == kind for event, _ in self.coming)
            if coming or self.missed[kind] or self.listing.get(kind) or kind in self.gap:
                continue
            held = self.board.reader.exports() if kind == "Export" else self.board.reader.imports()
            assert {r.uid: r for r in held} == {r.uid: r for r, _ in self.world.of(kind)}
        if not any(queue_of(event) == "Agent" for event, _ in self.coming):
            for key, (registration, _) in self.world.agents.items():
                assert self.board.reader.registration(key) == registration
            for key in PES:
                if key not in self.world.agents:
                    assert self.board.reader.registration(key) is None, f"{key} was withdrawn"
