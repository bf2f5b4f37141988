"""The board against a feed that doubles, reorders, delays and loses events."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from streambroker_core.board import (
    AgentRegistered,
    Board,
    Event,
    ExportApplied,
    ExportRemoved,
    FeedLost,
    ImportApplied,
    ImportRemoved,
    RoutesChanged,
    Synced,
)
from streambroker_core.model import Export, Kind, Resource, kind_of
from support.resources import board_of, export_of, import_of, pe, registration

JOBS = ("a", "b")
PORTS = ("p", "q")
KINDS: tuple[Kind, Kind] = ("Export", "Import")
EXPORT_SPECS: tuple[dict[str, Any], ...] = (
    {"properties": {"kind": "trade"}},
    {"properties": {"kind": "quote"}},
    {"properties": {"kind": "trade"}, "allowFilter": False},
    {"streamId": "s", "application": {"name": "app"}},
    {"properties": {"kind": "trade"}, "schema": [{"name": "price", "type": "double"}]},
)
IMPORT_SPECS: tuple[dict[str, Any], ...] = (
    {"subscription": 'kind == "trade"'},
    {"subscription": 'kind == "trade" || kind == "quote"', "filter": "price > 1.0"},
    {"streams": [{"streamId": "s"}]},
    {"subscription": 'kind == "quote"', "onCongestion": "drop"},
    {"subscription": 'kind == "trade"', "filter": "size == 1"},
)
Pair = tuple[str, str]


@dataclass
class World:
    """What really is: resources with their versions, under one counter."""

    counter: int = 0
    born: int = 0
    held: dict[str, tuple[Resource, int]] = field(default_factory=dict)

    def of(self, kind: Kind) -> tuple[tuple[Resource, int], ...]:
        return tuple(pair for pair in self.held.values() if kind_of(pair[0]) == kind)

    def copy(self) -> World:
        return World(counter=self.counter, born=self.born, held=dict(self.held))

    def pairs(self) -> set[Pair]:
        return pairs_of(board_of(*(resource for resource, _ in self.held.values())))


def pairs_of(board: Board) -> set[Pair]:
    return {(route.export_uid, route.import_uid) for route in board.routes()}


def applied(resource: Resource, version: int) -> Event:
    if isinstance(resource, Export):
        return ExportApplied(export=resource, version=version)
    return ImportApplied(import_=resource, version=version)


class FaultyFeed(RuleBasedStateMachine):
    """A world, a board, and a feed between them that cannot be trusted."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.saved: World | None = None
        self.board = Board()
        self.pending: list[Event] = []
        self.taken: dict[Kind, Synced] = {}
        self.claims: dict[object, set[str]] = {}
        self.protected: set[Pair] = set()
        self.seen: dict[object, str | None] = {}
        for kind in KINDS:
            self.tell(Synced(kind=kind, listed=(), version=0))

    # ---- the world changes -----------------------------------------------

    @rule(
        kind=st.sampled_from(KINDS),
        job=st.sampled_from(JOBS),
        port=st.sampled_from(PORTS),
        variant=st.integers(0, 4),
        name=st.sampled_from(("", "one", "two")),
    )
    def create(self, kind: Kind, job: str, port: str, variant: int, name: str) -> None:
        taken = {(kind_of(r), r.name) for r, _ in self.world.held.values() if r.name}
        if (kind, name) in taken or len(self.world.held) >= 8:
            return
        self.world.born += 1
        born = self.world.born
        uid = f"{kind[0]}{born}-{self.world.counter}"
        build = export_of if kind == "Export" else import_of
        spec = (EXPORT_SPECS if kind == "Export" else IMPORT_SPECS)[variant]
        made: Resource = build(f"{job}/{port}", uid=uid, created=float(born), **spec)
        self.write(replace(made, name=name))

    @precondition(lambda self: self.world.held)
    @rule(pick=st.integers(0, 99), variant=st.integers(0, 4))
    def change(self, pick: int, variant: int) -> None:
        old, _ = self.picked(pick)
        where = f"{old.key.job}/{old.key.port}"
        build = export_of if isinstance(old, Export) else import_of
        spec = (EXPORT_SPECS if isinstance(old, Export) else IMPORT_SPECS)[variant]
        new: Resource = build(where, uid=old.uid, created=old.created, **spec)
        self.write(replace(new, name=old.name, generation=old.generation + 1))

    @precondition(lambda self: self.world.held)
    @rule(pick=st.integers(0, 99))
    def write_status(self, pick: int) -> None:
        self.write(self.picked(pick)[0])

    @precondition(lambda self: self.world.held)
    @rule(pick=st.integers(0, 99))
    def delete(self, pick: int) -> None:
        gone, _ = self.picked(pick)
        self.world.counter += 1
        del self.world.held[gone.uid]
        removed = ExportRemoved if isinstance(gone, Export) else ImportRemoved
        self.pending.append(removed(uid=gone.uid, version=self.world.counter))
        self.protected &= self.world.pairs()

    def picked(self, pick: int) -> tuple[Resource, int]:
        return list(self.world.held.values())[pick % len(self.world.held)]

    def write(self, resource: Resource) -> None:
        self.world.counter += 1
        self.world.held[resource.uid] = (resource, self.world.counter)
        for claim in claims_of(resource):
            self.claims.setdefault(claim, set()).add(resource.uid)
        self.pending.append(applied(resource, self.world.counter))
        self.protected &= self.world.pairs()

    # ---- the feed brings it, or does not -----------------------------------

    @precondition(lambda self: self.pending)
    @rule(pick=st.integers(0, 99), again=st.booleans())
    def deliver(self, pick: int, again: bool) -> None:
        place = pick % len(self.pending)
        event = self.pending[place]
        if not again:
            del self.pending[place]
        self.tell(event)

    @precondition(lambda self: self.pending)
    @rule(pick=st.integers(0, 99))
    def lose(self, pick: int) -> None:
        del self.pending[pick % len(self.pending)]

    @rule(kind=st.sampled_from(KINDS))
    def take_list(self, kind: Kind) -> None:
        self.taken[kind] = Synced(kind=kind, listed=self.world.of(kind), version=self.world.counter)

    @precondition(lambda self: self.taken)
    @rule(pick=st.integers(0, 9))
    def bring_list(self, pick: int) -> None:
        kind = sorted(self.taken)[pick % len(self.taken)]
        self.tell(self.taken.pop(kind))

    @rule(kind=st.sampled_from(KINDS))
    def break_off(self, kind: Kind) -> None:
        self.tell(FeedLost(kind=kind))

    @rule()
    def save(self) -> None:
        self.saved = self.world.copy()

    @precondition(lambda self: self.saved is not None)
    @rule()
    def restore(self) -> None:
        """The store goes back to a saved state, and its versions with it."""
        assert self.saved is not None
        born = self.world.born
        self.world, self.saved = self.saved, None
        self.world.born = born
        self.pending.clear()
        self.taken.clear()
        self.protected &= self.world.pairs()
        for kind in KINDS:
            self.tell(FeedLost(kind=kind))
            self.tell(Synced(kind=kind, listed=self.world.of(kind), version=self.world.counter))
        assert self.board.point == (self.world.counter, self.world.counter)

    @rule(job=st.sampled_from(JOBS), location=st.sampled_from(("grpc+tcp://h:1", "grpc+tcp://h:2")))
    def register(self, job: str, location: str) -> None:
        self.tell(AgentRegistered(pe=pe(job), registration=registration(location)))

    @rule()
    def bring_lists(self) -> None:
        """Two fresh lists, and the board is what the world is."""
        self.taken.clear()
        for kind in KINDS:
            self.tell(Synced(kind=kind, listed=self.world.of(kind), version=self.world.counter))

        assert pairs_of(self.board) == self.world.pairs()
        assert resources_of(self.board) == {uid: r for uid, (r, _) in self.world.held.items()}

    # ---- what has to hold --------------------------------------------------

    def tell(self, event: Event) -> None:
        for action in self.board.handle(event):
            if isinstance(action, RoutesChanged):
                assert self.seen.get(action.pe) != action.version
                self.seen[action.pe] = action.version
        shown = pairs_of(self.board)
        assert self.protected <= shown, f"{event} cut {self.protected - shown}"
        self.protected |= {
            pair
            for pair in shown & self.world.pairs()
            if all(self.up_to_date(uid) and self.unrivalled(uid) for uid in pair)
        }

    def up_to_date(self, uid: str) -> bool:
        return resources_of(self.board)[uid] == self.world.held[uid][0]

    def unrivalled(self, uid: str) -> bool:
        claims = claims_of(self.world.held[uid][0])
        return all(len(self.claims[claim]) == 1 for claim in claims)

    @invariant()
    def equals_the_scan(self) -> None:
        scanned = board_of(*self.board.exports(), *self.board.imports())
        for job in JOBS:
            agent = self.board.registration(pe(job))
            if agent is not None:
                scanned.handle(AgentRegistered(pe=pe(job), registration=agent))
        for key in scanned.pes():
            mine, other = self.board.view(key), scanned.view(key)
            assert mine is not None
            assert other is not None
            assert replace(mine, point=(0, 0)) == replace(other, point=(0, 0))


def resources_of(board: Board) -> dict[str, Resource]:
    everything: list[Resource] = [*board.exports(), *board.imports()]
    return {resource.uid: resource for resource in everything}


def claims_of(resource: Resource) -> list[object]:
    found: list[object] = [(kind_of(resource), resource.key)]
    if resource.name:
        found.append((kind_of(resource), resource.name))
    if isinstance(resource, Export) and resource.stream_id:
        found.append((resource.key.job, resource.stream_id))
    return found


FaultyFeed.TestCase.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None, derandomize=False
)
TestBoardUnderFaults = FaultyFeed.TestCase
