"""What really is, in virtual time: resources and agents with their versions and their history."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Any

from streambroker_core.board import (
    AgentRegistered,
    Board,
    BoardEvent,
    ExportApplied,
    ExportRemoved,
    ImportApplied,
    ImportRemoved,
    PeWithdrawn,
    Status,
    Synced,
)
from streambroker_core.matching import Match, ScanMatcher, match
from streambroker_core.model import Export, Import, Kind, PeKey, Resource, kind_of
from streambroker_core.wire.broker.registration import Registration
from support.core.resources import export_of, import_of, pe

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
        # With columns of its own: which generation runs must not depend on the Exports here.
        {
            "subscription": 'kind == "trade"',
            "filter": "size == 1",
            "schema": [{"name": "size", "type": "bigint"}],
        },
    ),
}
VARIANTS = 5
MOST = 8
"""How many resources there are at once."""

Pair = tuple[str, str]


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
    views = {key: board.reader.view(key) for key in sorted(board.reader.versions())}
    return Scan(
        pairs=frozenset((route.export_uid, route.import_uid) for route in board.reader.routes()),
        versions={key: view.version for key, view in views.items() if view is not None},
        statuses={(kind_of(r), r.uid): board.reader.status(kind_of(r), r.uid) for r in of},
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
        agents = {key: registration for key, (registration, _) in self.agents.items()}
        return scan((resource for resource, _ in self.held.values()), agents)

    def picked(self, pick: int) -> Resource | None:
        """Return one of the resources; None where there are none."""
        found = list(self.held.values())
        return found[pick % len(found)][0] if found else None

    def make(self, kind: Kind, where: str, variant: int, name: str) -> BoardEvent | None:
        """Create a resource, unless its name is taken or there are enough."""
        taken = {(kind_of(r), r.name) for r, _ in self.held.values() if r.name}
        if (kind, name) in taken or len(self.held) >= MOST:
            return None
        self.born += 1
        template = _template(kind, where, variant)
        uid = f"{kind[0]}{self.born}"
        return self.write(replace(template, uid=uid, created=float(self.born), name=name))

    def change(self, old: Resource, variant: int) -> BoardEvent:
        """Give a resource another spec, or the same again."""
        template = _template(kind_of(old), f"{old.key.job}/{old.key.port}", variant)
        new = replace(
            template, uid=old.uid, created=old.created, name=old.name, generation=old.generation + 1
        )
        return self.write(new)

    def write(self, resource: Resource) -> BoardEvent:
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

    def delete(self, gone: Resource) -> BoardEvent:
        self.counter += 1
        del self.held[gone.uid]
        self.past[gone.uid].append(None)
        removed = ExportRemoved if isinstance(gone, Export) else ImportRemoved
        return removed(uid=gone.uid, version=self.counter)

    def register(self, key: PeKey, registration: Registration) -> BoardEvent:
        """Remember an agent as the store does: the same again gets no new version."""
        found = self.agents.get(key)
        if found is None or found[0] != registration:
            self.agent_counter += 1
            self.agents[key] = (registration, self.agent_counter)
        self.known.add(key)
        return AgentRegistered(pe=key, registration=registration, version=self.agents[key][1])

    def withdraw(self, key: PeKey) -> BoardEvent | None:
        """Forget a PE that has no port left."""
        if key not in self.known or any(r.key.owner == key for r, _ in self.held.values()):
            return None
        self.agent_counter += 1
        self.agents.pop(key, None)
        self.known.discard(key)
        return PeWithdrawn(pe=key, version=self.agent_counter)

    def save(self) -> None:
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
