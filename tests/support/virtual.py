"""Brokers in virtual time: what really is, and feeds that bring it late, twice, or not at all.

The world knows the truth and its whole history. A `Replica` is a real board behind a feed;
after each event it is compared with a scan of what it knows, and no route may go whose two
resources and match have existed all along.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Any, Literal

from streambroker_core.board import (
    Action,
    AgentRegistered,
    Board,
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
    Synced,
)
from streambroker_core.matching import Match, ScanMatcher, match
from streambroker_core.model import Export, Import, Kind, PeKey, Resource, kind_of
from streambroker_core.wire.registration import Registration
from support.resources import export_of, import_of, pe

KINDS: tuple[Kind, Kind] = ("Export", "Import")
JOBS = ("a", "b", "c")
PORTS = ("p", "q")
PES = tuple(pe(job) for job in JOBS)
SPECS: Mapping[Kind, tuple[dict[str, Any], ...]] = {
    "Export": (
        {"properties": {"kind": "trade"}},
        {"properties": {"kind": "quote"}},
        {"properties": {"kind": "trade"}, "allowFilter": False},
        {"streamId": "s", "application": {"name": "app"}},
        {"properties": {"kind": "trade"}, "schema": [{"name": "price", "type": "double"}]},
    ),
    "Import": (
        {"subscription": 'kind == "trade"'},
        {"subscription": 'kind == "trade" || kind == "quote"', "filter": "price > 1.0"},
        {"streams": [{"streamId": "s"}]},
        {"subscription": 'kind == "quote"', "onCongestion": "drop"},
        {"subscription": 'kind == "trade"', "filter": "size == 1"},
    ),
}
VARIANTS = 5
MOST = 8
"""How many resources there are at once."""

Pair = tuple[str, str]
Queue = Literal["Export", "Import", "Agent"]


@cache
def _template(kind: Kind, where: str, variant: int) -> Resource:
    build = export_of if kind == "Export" else import_of
    made: Resource = build(where, **SPECS[kind][variant])
    return made


@dataclass(frozen=True)
class Scan:
    """What follows from resources and registrations if every pair is tried."""

    pairs: frozenset[Pair]
    versions: Mapping[PeKey, str]
    statuses: Mapping[tuple[Kind, str], Status | None]
    of: tuple[Resource, ...]


_scans: dict[object, Scan] = {}


def scan(resources: Iterable[Resource], agents: Mapping[PeKey, Registration]) -> Scan:
    """Fill a board that tries every pair from nothing; equal questions are answered once."""
    of = tuple(resources)
    key = (frozenset(map(id, of)), frozenset(agents.items()))
    if key not in _scans:
        if len(_scans) > 20_000:
            _scans.clear()
        _scans[key] = _scan(of, agents)
    return _scans[key]


def _scan(of: tuple[Resource, ...], agents: Mapping[PeKey, Registration]) -> Scan:
    board = Board(ScanMatcher())
    for key, registration in agents.items():
        board.handle(AgentRegistered(pe=key, registration=registration))
    for kind in KINDS:
        listed = tuple((r, 1) for r in of if kind_of(r) == kind)
        board.handle(Synced(kind=kind, listed=listed, version=1))
    views = {key: board.view(key) for key in board.pes()}
    return Scan(
        pairs=frozenset((route.export_uid, route.import_uid) for route in board.routes()),
        versions={key: view.version for key, view in views.items() if view is not None},
        statuses={(kind_of(r), r.uid): board.status(kind_of(r), r.uid) for r in of},
        of=of,
    )


@lru_cache(maxsize=4096)
def _fits(export: int, import_: int, pair: _ById) -> bool:
    return isinstance(match(pair.export, pair.import_), Match)


@dataclass(frozen=True)
class _ById:
    """Two resources that compare by identity, for a cache; they stay alive as long as it."""

    export: Export = field(compare=False)
    import_: Import = field(compare=False)


def fits(export: Resource | None, import_: Resource | None) -> bool:
    """Say whether two resources match; one that is gone matches nothing."""
    if not isinstance(export, Export) or not isinstance(import_, Import):
        return False
    return _fits(id(export), id(import_), _ById(export, import_))


@dataclass
class World:
    """What really is: resources and agents with their versions, and how they came to be.

    Attributes:
        held: resources with their versions, by uid.
        past: every spec a uid ever had, in order; None for a time without it.
        claims: who ever wanted a port or a stream id.
        agents: registrations with their versions, by PE.
    """

    counter: int = 0
    agent_counter: int = 0
    born: int = 0
    held: dict[str, tuple[Resource, int]] = field(default_factory=dict)
    past: dict[str, list[Resource | None]] = field(default_factory=dict)
    claims: dict[object, dict[str, Resource]] = field(default_factory=dict)
    agents: dict[PeKey, tuple[Registration, int]] = field(default_factory=dict)
    known: set[PeKey] = field(default_factory=set)
    saved: tuple[int, dict[str, tuple[Resource, int]]] | None = None
    saved_agents: dict[PeKey, tuple[Registration, int]] = field(default_factory=dict)

    def of(self, kind: Kind) -> tuple[tuple[Resource, int], ...]:
        """Return the resources of one kind with their versions."""
        return tuple(pair for pair in self.held.values() if kind_of(pair[0]) == kind)

    def scanned(self) -> Scan:
        """Return what follows from the truth."""
        agents = {key: registration for key, (registration, _) in self.agents.items()}
        return scan((resource for resource, _ in self.held.values()), agents)

    def picked(self, pick: int) -> Resource | None:
        """Return one of the resources; None where there are none."""
        found = list(self.held.values())
        return found[pick % len(found)][0] if found else None

    def make(self, kind: Kind, where: str, variant: int, name: str) -> Event | None:
        """Create a resource, unless its name is taken or there are enough."""
        taken = {(kind_of(r), r.name) for r, _ in self.held.values() if r.name}
        if (kind, name) in taken or len(self.held) >= MOST:
            return None
        self.born += 1
        template = _template(kind, where, variant)
        uid = f"{kind[0]}{self.born}"
        return self.write(replace(template, uid=uid, created=float(self.born), name=name))

    def change(self, old: Resource, variant: int) -> Event:
        """Give a resource another spec, or the same again."""
        template = _template(kind_of(old), f"{old.key.job}/{old.key.port}", variant)
        new = replace(
            template,
            uid=old.uid,
            created=old.created,
            name=old.name,
            generation=old.generation + 1,
        )
        return self.write(new)

    def write(self, resource: Resource) -> Event:
        """Store a resource at a new version; an equal one is a write of its status."""
        self.counter += 1
        self.held[resource.uid] = (resource, self.counter)
        past = self.past.setdefault(resource.uid, [])
        if not past or past[-1] != resource:
            past.append(resource)
        for claim in _claims_of(resource):
            self.claims.setdefault(claim, {})[resource.uid] = resource
        self.known.add(resource.key.owner)
        if isinstance(resource, Export):
            return ExportApplied(export=resource, version=self.counter)
        return ImportApplied(import_=resource, version=self.counter)

    def delete(self, gone: Resource) -> Event:
        """Delete a resource."""
        self.counter += 1
        del self.held[gone.uid]
        self.past[gone.uid].append(None)
        removed = ExportRemoved if isinstance(gone, Export) else ImportRemoved
        return removed(uid=gone.uid, version=self.counter)

    def register(self, key: PeKey, registration: Registration) -> Event:
        """Remember an agent as the store does: the same again gets no new version."""
        found = self.agents.get(key)
        if found is None or found[0] != registration:
            self.agent_counter += 1
            self.agents[key] = (registration, self.agent_counter)
        self.known.add(key)
        return AgentRegistered(pe=key, registration=registration, version=self.agents[key][1])

    def withdraw(self, key: PeKey) -> Event | None:
        """Forget a PE that has no port left."""
        if key not in self.known or any(r.key.owner == key for r, _ in self.held.values()):
            return None
        self.agent_counter += 1
        self.agents.pop(key, None)
        self.known.discard(key)
        return PeWithdrawn(pe=key, version=self.agent_counter)

    def save(self) -> None:
        """Keep a copy of the store."""
        self.saved = (self.counter, dict(self.held))
        self.saved_agents = dict(self.agents)

    def restore(self, *, agents: bool) -> bool:
        """Go back to the copy, versions and all; False where there is none."""
        if self.saved is None:
            return False
        self.counter, held = self.saved
        if agents:
            self.agents = dict(self.saved_agents)
        self.held, self.saved = dict(held), None
        for uid, past in self.past.items():
            now = self.held[uid][0] if uid in self.held else None
            if past[-1] != now:
                past.append(now)
        self.known |= {r.key.owner for r, _ in self.held.values()}
        return True

    def index(self, resource: Resource) -> int:
        """Return where in its past a resource as somebody knows it stands."""
        return next(i for i, spec in enumerate(self.past[resource.uid]) if spec == resource)

    def lasts(self, pair: Pair, since: Mapping[str, int]) -> bool:
        """Say whether a pair exists and matches, in every mix of what the two were ``since``."""
        exports, imports = (self.past[uid][since[uid] :] for uid in pair)
        if not all(fits(export, import_) for export in exports for import_ in imports):
            return False
        return not any(self._rivalled(uid) for uid in pair)

    def _rivalled(self, uid: str) -> bool:
        """Say whether an older one ever wanted what this one has, under another name."""
        mine = self.held[uid][0]
        return any(
            (other.created, other.uid) < (mine.created, uid)
            and not (mine.name and other.name == mine.name and kind_of(other) == kind_of(mine))
            for claim in _claims_of(mine)
            for other in self.claims[claim].values()
        )


def _claims_of(resource: Resource) -> Iterator[object]:
    yield (kind_of(resource), resource.key)
    if isinstance(resource, Export) and resource.stream_id:
        yield (resource.key.job, resource.stream_id)


def queue_of(event: Event) -> Queue:
    """Return which feed brings an event."""
    if isinstance(event, ExportApplied | ExportRemoved):
        return "Export"
    return "Import" if isinstance(event, ImportApplied | ImportRemoved) else "Agent"


def _uid_of(event: Event) -> str:
    if isinstance(event, ExportApplied):
        return event.export.uid
    if isinstance(event, ImportApplied):
        return event.import_.uid
    if isinstance(event, ExportRemoved | ImportRemoved):
        return event.uid
    assert isinstance(event, AgentRegistered | PeWithdrawn)
    return str(event.pe)


def _version_of(event: Event) -> int:
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
    send: Callable[[Hint], None]
    board: Board = field(default_factory=Board)
    coming: list[tuple[Event, float]] = field(default_factory=list)
    past: list[Event] = field(default_factory=list)
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
            half = (self.board.synced, self.board.pes(), self.announced)
            assert half == (False, [], {}), "a board that is half filled is not to be seen"
            self._list(Synced(kind=kind, listed=self.world.of(kind), version=self.world.counter))
        self._examine(guarded)
        assert self.board.point == (self.world.counter, self.world.counter)

    def deliver(self, place: int) -> None:
        """Let an event come that is on its way; it may be none that can come now."""
        event, _ = self.coming[place]
        if queue_of(event) in self.gap or not self._may_come(event):
            return
        del self.coming[place]
        self.past = [*self.past[-30:], event]
        self.tell(event)

    def _may_come(self, event: Event) -> bool:
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
            self.tell(found[pick % len(found)])

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
        self.gap.discard(kind)
        self.listed[kind] = event.version
        self.missed[kind] = {v for v in self.missed[kind] if v > event.version}
        for resource, _ in event.listed:
            uid = resource.uid
            self.heard[uid] = max(self.heard.get(uid, 0), event.version)

    def break_off(self, kind: Kind) -> None:
        """Lose the feed; a list that was on its way does not come."""
        self.listing.pop(kind, None)
        self.tell(FeedLost(kind=kind))

    def begin_session(self, *, silent: bool) -> None:
        """Feel that the store was restored: the feeds end, the next lists begin new ones.

        Args:
            silent: nobody says so where the next lists say it themselves, by being of an older
                version than the last ones.
        """
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
            if self.missed[kind] or kind in self.gap or self.board.stale:
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
        quiet = not self.coming and not self.listing and not self.board.stale
        return quiet and not any(self.missed.values()) and not self.gap

    # ---- what has to hold ------------------------------------------------------

    def tell(self, event: Event) -> None:
        """Hand an event to the board; check all that has to hold before and after."""
        guarded, late = self.guarded(), self._is_late(event)
        same = self._is_same(event)
        before = dict(self.announced)
        actions = self._handle(event)
        if late or same or isinstance(event, FeedLost):
            assert actions == [], f"{event} is late or the same, and asked for {actions}"
            assert self.announced == before
        if isinstance(event, ExportApplied | ExportRemoved):
            assert self.board.point[0] >= event.version
        elif isinstance(event, ImportApplied | ImportRemoved):
            assert self.board.point[1] >= event.version
        if not isinstance(event, FeedLost):
            uid = _uid_of(event)
            self.heard[uid] = max(self.heard.get(uid, 0), _version_of(event))
        self._examine(guarded)

    def _is_late(self, event: Event) -> bool:
        if isinstance(event, FeedLost):
            return False
        queue, version = queue_of(event), _version_of(event)
        if queue != "Agent" and version <= self.listed.get(queue, -1):
            return True
        known = self.heard.get(_uid_of(event), 0)
        return version <= known

    def _is_same(self, event: Event) -> bool:
        if isinstance(event, ExportApplied):
            return any(held == event.export for held in self.board.exports())
        if isinstance(event, ImportApplied):
            return any(held == event.import_ for held in self.board.imports())
        return False

    def _handle(self, event: Event) -> list[Action]:
        point = self.board.point
        actions = self.board.handle(event)
        hinted: dict[PeKey, str] = {}
        changed: dict[PeKey, str | None] = {}
        for action in actions:
            if isinstance(action, RoutesChanged):
                assert self.announced.get(action.pe) != action.version, "nothing changed"
                changed[action.pe] = action.version
            elif isinstance(action, Hint):
                view = self.board.view(action.pe)
                assert view is not None
                assert (action.version, action.point) == (view.version, view.point)
                hinted[action.pe] = action.version
                self.send(action)
                self.sent += 1
        assert hinted.items() <= changed.items(), "a hint without a change"
        for key, version in changed.items():
            registered = self.board.registration(key)
            if self.announced.get(key) and version and registered and registered.hint:
                assert key in hinted, "a change without a hint"
        self.announced.update(changed)
        queue = event.kind if isinstance(event, Synced | FeedLost) else queue_of(event)
        for kind, old, new in zip(KINDS, point, self.board.point, strict=True):
            assert new == old or queue == kind, "the feeds have a point each"
            assert new >= old or isinstance(event, Synced)
        return actions

    def guarded(self) -> set[Pair]:
        """Return the routes of the board that may not go, whatever comes."""
        known = self.known()
        return {pair for pair in self.shown if self.world.lasts(pair, known)}

    def known(self) -> dict[str, int]:
        """Return for each resource on the board which spec of it that is."""
        held: list[Resource] = [*self.board.exports(), *self.board.imports()]
        return {resource.uid: self.world.index(resource) for resource in held}

    def _examine(self, guarded: set[Pair]) -> None:
        held: list[Resource] = [*self.board.exports(), *self.board.imports()]
        names = [(kind_of(resource), resource.name) for resource in held if resource.name]
        assert len(names) == len(set(names)), "two of one name at one time"
        agents = {key: r for key in PES if (r := self.board.registration(key)) is not None}
        scanned = scan(held, agents)
        self.shown = frozenset(
            (route.export_uid, route.import_uid) for route in self.board.routes()
        )
        assert self.shown == scanned.pairs
        for (kind, uid), status in scanned.statuses.items():
            assert self.board.status(kind, uid) == status
        for key in {*self.board.pes(), *scanned.versions}:
            view = self.board.view(key)
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
            held = self.board.exports() if kind == "Export" else self.board.imports()
            assert {r.uid: r for r in held} == {r.uid: r for r, _ in self.world.of(kind)}
        if not any(queue_of(event) == "Agent" for event, _ in self.coming):
            for key, (registration, _) in self.world.agents.items():
                assert self.board.registration(key) == registration
            for key in PES:
                if key not in self.world.agents:
                    assert self.board.registration(key) is None, f"{key} was withdrawn"
