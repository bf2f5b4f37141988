"""All routes, ports or PEs of one moment, drawn in a thread and once for all who ask meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Generic, NamedTuple, TypeVar, get_args

from aiohttp import web

from streambroker_core.board import Status
from streambroker_core.board.views import ACCEPTED, build_route
from streambroker_core.matching import Match, MatchResult
from streambroker_core.model import (
    Export,
    Import,
    Kind,
    PeKey,
    Resource,
    Route,
    kind_of,
    route_order,
)
from streambroker_core.wire.broker.hints import Point
from streambroker_core.wire.broker.registration import Registration
from streambroker_operator.rest.guard.fair_queue import FairQueue
from streambroker_operator.runtime.runtime import Runtime
from streambroker_operator.storage.backend import StoredResource, port_sort_key

MAX_WAITING = 200
"""Requests of one caller that may wait for a picture."""
CACHE_TTL_S = 60.0
"""How long a picture is kept after it was last asked for, in seconds."""

T = TypeVar("T")


class ListedPort(NamedTuple):
    """A resource with its status."""

    stored: StoredResource
    status: Status


class ListedPe(NamedTuple):
    """A PE: its agent, the version of its view, and the names of its ports, in order."""

    pe: PeKey
    agent: Registration | None
    version: str
    exports: tuple[str, ...]
    imports: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListSource(Generic[T]):
    """What can be drawn.

    Attributes:
        prepare: takes from the broker, at once, what is needed; what it returns draws in a thread.
        namespaces: those that an item touches.
    """

    prepare: Callable[[Runtime], Callable[[], tuple[T, ...]]]
    namespaces: Callable[[T], tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedList(Generic[T]):
    """What was there at one moment.

    Attributes:
        number: of the picture; later ones have higher numbers.
        change: counts the changes of the board.
        point: of the board.
        items: in order of their ports.
        namespaces: those that an item touches.
    """

    number: int
    change: int
    point: Point
    items: tuple[T, ...]
    namespaces: Callable[[T], tuple[str, ...]]

    def in_namespace(self, namespace: str) -> tuple[T, ...]:
        """Return the items that touch a namespace, or all for ``*``."""
        if namespace == "*":
            return self.items
        return tuple(item for item in self.items if namespace in self.namespaces(item))


class ListCache(Generic[T]):
    """Draws one subject; what did not change is not drawn anew.

    Args:
        runtime: whose board is drawn.
        source: what of it.
        queue: who draws, or writes all of a picture down in a thread.
    """

    def __init__(self, runtime: Runtime, source: ListSource[T], queue: FairQueue) -> None:
        self._runtime = runtime
        self._source = source
        self.queue = queue
        self._last: CachedList[T] | None = None
        self._last_number = 0
        self._end: asyncio.TimerHandle | None = None

    async def get_current(self, caller: str) -> CachedList[T]:
        """Return what is there now, or was at a moment since a caller asked.

        Raises:
            RequestError: 429, too many of the caller's requests are waiting.
        """
        self._extend_ttl()
        asked_at = self._last_number
        if self._last is None or self._last.change != self._runtime.change_log.count:
            async with self.queue.turn(caller):
                return await self._refresh(asked_at)
        return self._last

    async def _refresh(self, number: int) -> CachedList[T]:
        last, subject = self._last, self._source
        change = self._runtime.change_log.count
        if last is not None and (last.number > number or last.change == change):
            return last
        self._last_number += 1
        begun, point = self._last_number, self._runtime.board.point
        items = await asyncio.to_thread(subject.prepare(self._runtime))
        self._last = CachedList(
            number=begun, change=change, point=point, items=items, namespaces=subject.namespaces
        )
        return self._last

    def _extend_ttl(self) -> None:
        if self._end is not None:
            self._end.cancel()
        self._end = asyncio.get_running_loop().call_later(CACHE_TTL_S, self._forget)

    def _forget(self) -> None:
        self._last = None


class ListCaches:
    """All that is drawn of a broker, one at a time."""

    def __init__(self, runtime: Runtime) -> None:
        turns = FairQueue(MAX_WAITING)
        self.routes = ListCache(runtime, ROUTES_SOURCE, turns)
        self.pes = ListCache(runtime, PES_SOURCE, turns)
        kinds: tuple[Kind, ...] = get_args(Kind)
        self.ports = {kind: ListCache(runtime, _ports_source(kind), turns) for kind in kinds}


LIST_CACHES = web.AppKey("pictures", ListCaches)


def _prepare_routes(runtime: Runtime) -> Callable[[], tuple[Route, ...]]:
    board = runtime.board
    met = [(export, board.outcomes("Export", export.uid)) for export in board.iter_exports()]
    return partial(build_routes, met, tuple(board.iter_imports()))


def _prepare_ports(kind: Kind, runtime: Runtime) -> Callable[[], tuple[ListedPort, ...]]:
    return partial(build_ports, runtime.unordered_resources(kind), runtime.board.statuses())


def _ports_source(kind: Kind) -> ListSource[ListedPort]:
    return ListSource(
        prepare=partial(_prepare_ports, kind),
        namespaces=lambda port: (port.stored.resource.key.namespace,),
    )


def _prepare_pes(runtime: Runtime) -> Callable[[], tuple[ListedPe, ...]]:
    board = runtime.board
    resources: tuple[Resource, ...] = (*board.iter_exports(), *board.iter_imports())
    return partial(build_pes, board.versions(), board.registrations(), resources)


ROUTES_SOURCE = ListSource(
    prepare=_prepare_routes,
    namespaces=lambda route: (route.export.namespace, route.import_.namespace),
)
PES_SOURCE = ListSource(prepare=_prepare_pes, namespaces=lambda found: (found.pe.namespace,))


def build_ports(
    stored: Iterable[StoredResource], statuses: Mapping[tuple[Kind, str], Status]
) -> tuple[ListedPort, ...]:
    """Return resources of one kind with their statuses, in order of their ports.

    Args:
        stored: the resources.
        statuses: of all that are not merely accepted.
    """
    return tuple(
        ListedPort(one, statuses.get((kind_of(one.resource), one.resource.uid), ACCEPTED))
        for one in sorted(stored, key=port_sort_key)
    )


def build_pes(
    versions: Mapping[PeKey, str],
    agents: Mapping[PeKey, Registration],
    resources: Iterable[Resource],
) -> tuple[ListedPe, ...]:
    """Return PEs, in order.

    Args:
        versions: of the views of all that are known.
        agents: what their agents said last.
        resources: all there are; whoever holds a port, it is there once.
    """
    ports: dict[tuple[PeKey, Kind], set[str]] = {}
    for one in resources:
        ports.setdefault((one.key.owner, kind_of(one)), set()).add(one.key.port)
    return tuple(
        ListedPe(
            pe,
            agents.get(pe),
            versions[pe],
            tuple(sorted(ports.get((pe, "Export"), ()))),
            tuple(sorted(ports.get((pe, "Import"), ()))),
        )
        for pe in sorted(versions)
    )


def build_routes(
    export_outcomes: Iterable[tuple[Export, Mapping[str, MatchResult]]], imports: Iterable[Import]
) -> tuple[Route, ...]:
    """Return all routes, in order of the exporters' and the importers' ports.

    Args:
        export_outcomes: the Exports, each with its outcomes by the Import's uid.
        imports: all Imports.
    """
    by_uid = {import_.uid: import_ for import_ in imports}
    routes = (
        build_route(export, by_uid[uid], outcome)
        for export, outcomes in export_outcomes
        for uid, outcome in outcomes.items()
        if isinstance(outcome, Match) and uid in by_uid
    )
    return tuple(sorted(routes, key=route_order))
