"""Find jobs that may wait for each other: cycles of routes under ``wait``.

An Export with such a route waits for the reader of the Import. If the reader's PE also exports,
its Exports may wait in turn, and so on. If this leads back to the first PE, a query may wait for
itself. Whether it does depends on which of its imports a query publishes; resources do not state
that. Not counted: routes from a PE to itself, and Exports with a ``waitLimit``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from streambroker_core.model import Export, PeKey, PortKey, Route

RING = "WaitsInRing"
MAX_NAMED_ROUTES = 8
"""Maximum number of routes that a ring's sentence names."""


class WaitEdge(NamedTuple):
    """A route under ``wait``, as a pair of ports."""

    export: PortKey
    import_: PortKey


WaitEdgeSource: TypeAlias = Callable[[PeKey], Iterable[WaitEdge]]
"""Returns the routes to other PEs for which the Exports of a PE wait."""


def wait_edges(export: Export, routes: Iterable[Route]) -> Iterable[WaitEdge]:
    """Yield the routes to other PEs for which an Export waits without a limit."""
    if export.buffer.wait_limit_s is None:
        for route in routes:
            if route.policy == "wait" and route.import_.owner != route.export.owner:
                yield WaitEdge(route.export, route.import_)


def find_ring_members(seeds: Iterable[PeKey], waits: WaitEdgeSource) -> list[frozenset[PeKey]]:
    """Return the strongly connected sets of PEs that are reachable from some PEs.

    Tarjan's algorithm with an explicit stack instead of recursion. Sets of one PE are left out.
    `waits` is called once for each visited PE.
    """
    rings: list[frozenset[PeKey]] = []
    order: dict[PeKey, int] = {}
    low: dict[PeKey, int] = {}
    path: dict[PeKey, None] = {}
    for seed in seeds:
        if seed in order:
            continue
        work = [(seed, iter(_visit(order, low, path, seed, waits)))]
        while work:
            pe, remaining = work[-1]
            for other in remaining:
                if other not in order:
                    work.append((other, iter(_visit(order, low, path, other, waits))))
                    break
                if other in path:
                    low[pe] = min(low[pe], order[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[pe])
                if low[pe] == order[pe]:
                    rings += _pop_component(path, pe)
    return rings


def _visit(
    order: dict[PeKey, int],
    low: dict[PeKey, int],
    path: dict[PeKey, None],
    pe: PeKey,
    waits: WaitEdgeSource,
) -> list[PeKey]:
    order[pe] = low[pe] = len(order)
    path[pe] = None
    return list(dict.fromkeys(edge.import_.owner for edge in waits(pe)))


def _pop_component(path: dict[PeKey, None], first: PeKey) -> list[frozenset[PeKey]]:
    members = []
    while True:
        pe, _ = path.popitem()
        members.append(pe)
        if pe == first:
            return [frozenset(members)] if len(members) > 1 else []


def find_cycle(first: PeKey, ring: frozenset[PeKey], waits: WaitEdgeSource) -> list[WaitEdge]:
    """Return the shortest cycle of routes through a PE within its ring."""
    arrived_by: dict[PeKey, WaitEdge] = {}
    queue = [first]
    for pe in queue:
        for edge in sorted(waits(pe)):
            to = edge.import_.owner
            if to not in ring or to in arrived_by:
                continue
            arrived_by[to] = edge
            if to == first:
                return _trace_back(first, arrived_by)
            queue.append(to)
    return []


def _trace_back(first: PeKey, arrived_by: dict[PeKey, WaitEdge]) -> list[WaitEdge]:
    cycle = [arrived_by[first]]
    while cycle[-1].export.owner != first:
        cycle.append(arrived_by[cycle[-1].export.owner])
    return cycle[::-1]


class Ring(NamedTuple):
    """PEs that all wait for each other, and one cycle through some of them."""

    members: frozenset[PeKey]
    cycle: tuple[WaitEdge, ...]

    def describe(self, namespace: str | None = None) -> str:
        """Return a sentence about the ring and how to resolve it.

        With a `namespace`, it only names routes with an end in that namespace.
        """
        named = [e for e in self.cycle if namespace in (None, *_edge_namespaces(e))][
            :MAX_NAMED_ROUTES
        ]
        omitted = len(self.cycle) - len(named)
        more = f", and {omitted} more" if omitted else ""
        names = ", ".join(f"{edge.export} waits for {edge.import_}" for edge in named)
        return (
            f"these jobs may wait for each other in a ring: {names}{more}. If their queries publish"
            " what they import, let one of these imports drop, or give one of these Exports a"
            " buffer.waitLimit."
        )


def _edge_namespaces(edge: WaitEdge) -> tuple[str, str]:
    return edge.export.namespace, edge.import_.namespace


def find_rings(seeds: Iterable[PeKey], waits: WaitEdgeSource) -> list[Ring]:
    """Return the result of `find_ring_members`, each with a cycle through its first PE."""
    return [
        Ring(members, tuple(find_cycle(min(members), members, waits)))
        for members in find_ring_members(seeds, waits)
    ]


class WaitRings:
    """Current rings by PE.

    A PE in a ring has both an Export and an Import, which `is_relay` tests.
    """

    def __init__(self, waits: WaitEdgeSource, is_relay: Callable[[PeKey], bool]) -> None:
        self._waits = waits
        self.is_relay = is_relay
        self._ring_by_pe: dict[PeKey, Ring] = {}

    def get(self, pe: PeKey) -> Ring | None:
        """Return the ring that a PE is in."""
        return self._ring_by_pe.get(pe)

    def list_all(self) -> list[Ring]:
        """Return all rings, in order of their first PEs."""
        return sorted(set(self._ring_by_pe.values()), key=lambda ring: min(ring.members))

    def update(self, changed_pairs: Iterable[tuple[PeKey, PeKey]]) -> set[PeKey]:
        """Update the rings after routes have changed; return the PEs whose ring changed.

        `changed_pairs` are the (exporter, importer) PEs of each changed route.
        """
        seeds: set[PeKey] = set()
        for exporter, importer in changed_pairs:
            if self.is_relay(exporter) and self.is_relay(importer):
                seeds.add(importer)
            known = self._ring_by_pe.get(exporter)
            if known is not None:
                seeds |= known.members
        before = {pe: self._ring_by_pe.pop(pe) for pe in seeds if pe in self._ring_by_pe}
        now = {pe: ring for ring in find_rings(sorted(seeds), self._waits) for pe in ring.members}
        before.update({pe: self._ring_by_pe[pe] for pe in now if pe in self._ring_by_pe})
        self._ring_by_pe.update(now)
        return {pe for pe in {*before, *now} if before.get(pe) != now.get(pe)}
