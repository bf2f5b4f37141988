"""Cached lists of all routes, ports or PEs, built in a thread and shared by concurrent readers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

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
from streambroker_operator.rest.guard.rate_limits import FairQueue
from streambroker_operator.rest.lists.snapshots import Snapshots
from streambroker_operator.runtime.runtime import Runtime
from streambroker_operator.storage.backend import StoredResource, port_sort_key

MAX_WAITING = 200
"""Waiting requests of one caller, at most."""
CACHE_TTL_S = 60.0
"""How long a list is cached after its last use, in seconds."""

T = TypeVar("T")


class ListedPort(NamedTuple):
    """A resource with its status."""

    stored: StoredResource
    status: Status


class ListedPe(NamedTuple):
    """A PE: its agent, the version of its view, and its port names in order."""

    pe: PeKey
    agent: Registration | None
    version: str
    exports: tuple[str, ...]
    imports: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListSource(Generic[T]):
    """Builds one kind of list.

    Attributes:
        prepare: captures state on the event loop; its result builds the list in a thread.
        namespaces: returns the namespaces of an item.
    """

    prepare: Callable[[Runtime], Callable[[], tuple[T, ...]]]
    namespaces: Callable[[T], tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedList(Generic[T]):
    """A list at one moment.

    Attributes:
        number: sequence number of the list.
        change: number of the last event in the change log.
        point: of the board.
        items: sorted by port.
        namespaces: returns the namespaces of an item.
    """

    number: int
    change: int
    point: Point
    items: tuple[T, ...]
    namespaces: Callable[[T], tuple[str, ...]]

    def in_namespace(self, namespace: str) -> tuple[T, ...]:
        """Return the items of a namespace, or all for ``*``."""
        if namespace == "*":
            return self.items
        return tuple(item for item in self.items if namespace in self.namespaces(item))


class ListCache(Generic[T]):
    """Cache of one list; rebuilds it only if the change log has advanced.

    `queue` orders callers that build the list, or encode all of it in a thread.
    """

    def __init__(self, runtime: Runtime, source: ListSource[T], queue: FairQueue) -> None:
        self._runtime = runtime
        self._source = source
        self.queue = queue
        self._last: CachedList[T] | None = None
        self._last_number = 0
        self._end: asyncio.TimerHandle | None = None

    async def get_current(self, caller: str) -> CachedList[T]:
        """Return a list that is current, or was current at some time after this call began.

        Raises:
            RequestError: 429, too many of the caller's requests are waiting.
        """
        self._extend_ttl()
        last_number = self._last_number
        if self._last is None or self._last.change != self._runtime.change_log.count:
            async with self.queue.turn(caller):
                return await self._refresh(last_number)
        return self._last

    async def _refresh(self, number: int) -> CachedList[T]:
        last, source = self._last, self._source
        change = self._runtime.change_log.count
        if last is not None and (last.number > number or last.change == change):
            return last
        self._last_number += 1
        new_number, point = self._last_number, self._runtime.board.point
        items = await asyncio.to_thread(source.prepare(self._runtime))
        self._last = CachedList(
            number=new_number, change=change, point=point, items=items, namespaces=source.namespaces
        )
        return self._last

    def _extend_ttl(self) -> None:
        if self._end is not None:
            self._end.cancel()
        self._end = asyncio.get_running_loop().call_later(CACHE_TTL_S, self._forget)

    def _forget(self) -> None:
        self._last = None


class ListCaches:
    """Caches of all lists by name, and the snapshots that readers continue.

    They share one queue, so one list is built at a time.
    """

    def __init__(self, runtime: Runtime) -> None:
        queue = FairQueue(MAX_WAITING)
        self.routes = ListCache(runtime, ROUTES_SOURCE, queue)
        self.snapshots = Snapshots(runtime.change_log.session, runtime.store.secret)
        self._by_name: dict[str, ListCache[Any]] = {
            "exports": ListCache(runtime, _ports_source("Export"), queue),
            "imports": ListCache(runtime, _ports_source("Import"), queue),
            "pes": ListCache(runtime, PES_SOURCE, queue),
            "routes": self.routes,
        }

    def __getitem__(self, name: str) -> ListCache[Any]:
        return self._by_name[name]


LIST_CACHES = web.AppKey("pictures", ListCaches)


def _prepare_routes(runtime: Runtime) -> Callable[[], tuple[Route, ...]]:
    board = runtime.board
    export_outcomes = [
        (export, board.outcomes("Export", export.uid)) for export in board.iter_exports()
    ]
    return partial(build_routes, export_outcomes, tuple(board.iter_imports()))


def _prepare_ports(kind: Kind, runtime: Runtime) -> Callable[[], tuple[ListedPort, ...]]:
    return partial(build_ports, runtime.store.unordered_resources(kind), runtime.board.statuses())


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
    """Return resources of one kind, sorted by port; without an entry the status is accepted."""
    return tuple(
        ListedPort(one, statuses.get((kind_of(one.resource), one.resource.uid), ACCEPTED))
        for one in sorted(stored, key=port_sort_key)
    )


def build_pes(
    versions: Mapping[PeKey, str],
    agents: Mapping[PeKey, Registration],
    resources: Iterable[Resource],
) -> tuple[ListedPe, ...]:
    """Return all PEs of `versions`, sorted; a port that several resources claim is listed once."""
    ports: dict[tuple[PeKey, Kind], set[str]] = {}
    for resource in resources:
        ports.setdefault((resource.key.owner, kind_of(resource)), set()).add(resource.key.port)
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
    """Return all routes, sorted by export and import port, from match results by Import uid."""
    by_uid = {import_.uid: import_ for import_ in imports}
    routes = (
        build_route(export, by_uid[uid], outcome)
        for export, outcomes in export_outcomes
        for uid, outcome in outcomes.items()
        if isinstance(outcome, Match) and uid in by_uid
    )
    return tuple(sorted(routes, key=route_order))
