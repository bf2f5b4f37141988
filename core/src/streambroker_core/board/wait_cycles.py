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
MAX_TOLD = 8
"""Routes of a ring that a sentence names."""


class Edge(NamedTuple):
    """A route under ``wait``, by its ports."""

    export: PortKey
    import_: PortKey


Waits: TypeAlias = Callable[[PeKey], Iterable[Edge]]
"""Returns the routes to other PEs that the Exports of a PE wait for."""


def waiting(export: Export, routes: Iterable[Route]) -> Iterable[Edge]:
    """Yield the routes of an Export for which it waits without end, to other PEs."""
    if export.buffer.wait_limit_s is None:
        for route in routes:
            if route.policy == "wait" and route.import_.owner != route.export.owner:
                yield Edge(route.export, route.import_)


def rings(seeds: Iterable[PeKey], waits: Waits) -> list[frozenset[PeKey]]:
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
        work = [(seed, iter(_reached(order, low, path, seed, waits)))]
        while work:
            pe, rest = work[-1]
            for other in rest:
                if other not in order:
                    work.append((other, iter(_reached(order, low, path, other, waits))))
                    break
                if other in path:
                    low[pe] = min(low[pe], order[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[pe])
                if low[pe] == order[pe]:
                    found += _closed(path, pe)
    return found


def _reached(
    order: dict[PeKey, int], low: dict[PeKey, int], path: dict[PeKey, None], pe: PeKey, waits: Waits
) -> list[PeKey]:
    order[pe] = low[pe] = len(order)
    path[pe] = None
    return list(dict.fromkeys(edge.import_.owner for edge in waits(pe)))


def _closed(path: dict[PeKey, None], first: PeKey) -> list[frozenset[PeKey]]:
    members = []
    while True:
        pe, _ = path.popitem()
        members.append(pe)
        if pe == first:
            return [frozenset(members)] if len(members) > 1 else []


def round_of(first: PeKey, ring: frozenset[PeKey], waits: Waits) -> list[Edge]:
    """Return the shortest way round from a PE of a ring back to it, route by route."""
    came: dict[PeKey, Edge] = {}
    due = [first]
    for pe in due:
        for edge in sorted(waits(pe)):
            to = edge.import_.owner
            if to not in ring or to in came:
                continue
            came[to] = edge
            if to == first:
                return _back(first, came)
            due.append(to)
    return []


def _back(first: PeKey, came: dict[PeKey, Edge]) -> list[Edge]:
    found = [came[first]]
    while found[-1].export.owner != first:
        found.append(came[found[-1].export.owner])
    return found[::-1]


class Ring(NamedTuple):
    """PEs that all wait for each other, and one way round them."""

    members: frozenset[PeKey]
    round: tuple[Edge, ...]

    def told(self, namespace: str | None = None) -> str:
        """Return a sentence about it, and what ends it.

        Args:
            namespace: the routes that do not touch it are not named; None to name all.
        """
        named = [e for e in self.round if namespace in (None, *_namespaces(e))][:MAX_TOLD]
        left = len(self.round) - len(named)
        more = f", and {left} more" if left else ""
        names = ", ".join(f"{edge.export} waits for {edge.import_}" for edge in named)
        return (
            f"these jobs may wait for each other in a ring: {names}{more}. If their queries publish"
            " what they import, let one of these imports drop, or give one of these Exports a"
            " buffer.waitLimit."
        )


def _namespaces(edge: Edge) -> tuple[str, str]:
    return edge.export.namespace, edge.import_.namespace


def found_rings(seeds: Iterable[PeKey], waits: Waits) -> list[Ring]:
    """Return what `rings` finds, each with a way round from its first PE."""
    return [
        Ring(members, tuple(round_of(min(members), members, waits)))
        for members in rings(seeds, waits)
    ]


class Rings:
    """The rings there are, by PE.

    Args:
        waits: the routes that a PE's Exports wait for.
        relays: says whether a PE has both, an Export and an Import; no other is in a ring.
    """

    def __init__(self, waits: Waits, relays: Callable[[PeKey], bool]) -> None:
        self._waits = waits
        self._relays = relays
        self._of: dict[PeKey, Ring] = {}

    def of(self, pe: PeKey) -> Ring | None:
        """Return the ring that a PE is in."""
        return self._of.get(pe)

    def all(self) -> list[Ring]:
        """Return all rings, in order of their first PEs."""
        return sorted(set(self._of.values()), key=lambda ring: min(ring.members))

    def look(self, touched: Iterable[tuple[PeKey, PeKey]]) -> set[PeKey]:
        """Look for rings after routes have changed.

        Args:
            touched: the PEs at both ends of each such route.

        Returns:
            The PEs whose ring is another.
        """
        seeds: set[PeKey] = set()
        for exporter, importer in touched:
            if self._relays(exporter) and self._relays(importer):
                seeds.add(importer)
            known = self._of.get(exporter)
            if known is not None:
                seeds |= known.members
        before = {pe: self._of.pop(pe) for pe in seeds if pe in self._of}
        now = {pe: ring for ring in found_rings(sorted(seeds), self._waits) for pe in ring.members}
        before.update({pe: self._of[pe] for pe in now if pe in self._of})
        self._of.update(now)
        return {pe for pe in {*before, *now} if before.get(pe) != now.get(pe)}
