"""Jobs that wait for each other in a ring: routes under ``wait`` that lead back to the first job.

An Export that has such a route waits for the reader of the Import at its other end. If the PE of
that reader publishes as well, its Exports may wait in turn, and so on. Where this leads back to the
first PE, a query may come to wait for itself. Whether one does depends on which of its imports a
query publishes, which resources do not say. A route from a PE to itself is no ring here, and
neither is one whose Export gives up after its ``waitLimit``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from streambroker_core.model import Export, PeKey, PortKey, Route

RING = "WaitsInRing"
MAX_NAMED_ROUTES = 8
"""Routes of a ring that a sentence names."""


class WaitEdge(NamedTuple):
    """A route under ``wait``, by its ports."""

    export: PortKey
    import_: PortKey


WaitEdgeSource: TypeAlias = Callable[[PeKey], Iterable[WaitEdge]]
"""Returns the routes to other PEs that the Exports of a PE wait for."""


def wait_edges(export: Export, routes: Iterable[Route]) -> Iterable[WaitEdge]:
    """Yield the routes of an Export for which it waits without end, to other PEs."""
    if export.buffer.wait_limit_s is None:
        for route in routes:
            if route.policy == "wait" and route.import_.owner != route.export.owner:
                yield WaitEdge(route.export, route.import_)


def find_ring_members(seeds: Iterable[PeKey], waits: WaitEdgeSource) -> list[frozenset[PeKey]]:
    """Return the sets of PEs that all wait for each other, of those that some PEs lead to.

    This is Tarjan's algorithm; its own stack stands in for recursion.

    Args:
        seeds: where to begin; every ring that one of them is in, or leads to, is found.
        waits: called once for each PE on the way.
    """
    found: list[frozenset[PeKey]] = []
    order: dict[PeKey, int] = {}
    low: dict[PeKey, int] = {}
    path: dict[PeKey, None] = {}
    for seed in seeds:
        if seed in order:
            continue
        work = [(seed, iter(_visit(order, low, path, seed, waits)))]
        while work:
            pe, rest = work[-1]
            for other in rest:
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
                    found += _pop_component(path, pe)
    return found


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
    """Return the shortest way round from a PE of a ring back to it, route by route."""
    came: dict[PeKey, WaitEdge] = {}
    due = [first]
    for pe in due:
        for edge in sorted(waits(pe)):
            to = edge.import_.owner
            if to not in ring or to in came:
                continue
            came[to] = edge
            if to == first:
                return _trace_back(first, came)
            due.append(to)
    return []


def _trace_back(first: PeKey, arrived_by: dict[PeKey, WaitEdge]) -> list[WaitEdge]:
    found = [arrived_by[first]]
    while found[-1].export.owner != first:
        found.append(arrived_by[found[-1].export.owner])
    return found[::-1]


class Ring(NamedTuple):
    """PEs that all wait for each other, and one way round them."""

    members: frozenset[PeKey]
    cycle: tuple[WaitEdge, ...]

    def describe(self, namespace: str | None = None) -> str:
        """Return a sentence about it, and what ends it.

        Args:
            namespace: the routes that do not touch it are not named; None to name all.
        """
        named = [e for e in self.cycle if namespace in (None, *_edge_namespaces(e))][
            :MAX_NAMED_ROUTES
        ]
        left = len(self.cycle) - len(named)
        more = f", and {left} more" if left else ""
        names = ", ".join(f"{edge.export} waits for {edge.import_}" for edge in named)
        return (
            f"these jobs may wait for each other in a ring: {names}{more}. If their queries publish"
            " what they import, let one of these imports drop, or give one of these Exports a"
            " buffer.waitLimit."
        )


def _edge_namespaces(edge: WaitEdge) -> tuple[str, str]:
    return edge.export.namespace, edge.import_.namespace


def find_rings(seeds: Iterable[PeKey], waits: WaitEdgeSource) -> list[Ring]:
    """Return what `find_ring_members` finds, each with a way round from its first PE."""
    return [
        Ring(members, tuple(find_cycle(min(members), members, waits)))
        for members in find_ring_members(seeds, waits)
    ]


class WaitRings:
    """The rings there are, by PE.

    Args:
        waits: the routes that a PE's Exports wait for.
        is_relay: says whether a PE has both, an Export and an Import; no other is in a ring.
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
        """Look for rings after routes have changed.

        Args:
            changed_pairs: the PEs at both ends of each such route.

        Returns:
            The PEs whose ring is another.
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
