"""All routes, ports or PEs of one moment, drawn in a thread and once for all who ask meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Generic, NamedTuple, TypeVar, get_args

from aiohttp import web

from streambroker_core.board import Status
from streambroker_core.board.views import ACCEPTED, route_of
from streambroker_core.matching import Match, Outcome
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
from streambroker_operator.rest.guard.fair_queue import Turns
from streambroker_operator.runtime.runtime import Runtime
from streambroker_operator.storage.backend import Stored, by_port

MAX_WAITING = 200
"""Requests of one caller that may wait for a picture."""
KEPT_S = 60.0
"""How long a picture is kept after it was last asked for, in seconds."""

T = TypeVar("T")


class DrawnPort(NamedTuple):
    """A resource with its status."""

    stored: Stored
    status: Status


class DrawnPe(NamedTuple):
    """A PE: its agent, the version of its view, and the names of its ports, in order."""

    pe: PeKey
    agent: Registration | None
    version: str
    exports: tuple[str, ...]
    imports: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject(Generic[T]):
    """What can be drawn.

    Attributes:
        seen: takes from the broker, at once, what is needed; what it returns draws in a thread.
        namespaces: those that an item touches.
    """

    seen: Callable[[Runtime], Callable[[], tuple[T, ...]]]
    namespaces: Callable[[T], tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture(Generic[T]):
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

    def touching(self, namespace: str) -> tuple[T, ...]:
        """Return the items that touch a namespace, or all for ``*``."""
        if namespace == "*":
            return self.items
        return tuple(item for item in self.items if namespace in self.namespaces(item))


class Pictures(Generic[T]):
    """Draws one subject; what did not change is not drawn anew.

    Args:
        runtime: whose board is drawn.
        subject: what of it.
        turns: who draws, or writes all of a picture down in a thread.
    """

    def __init__(self, runtime: Runtime, subject: Subject[T], turns: Turns) -> None:
        self._runtime = runtime
        self._subject = subject
        self.turns = turns
        self._last: Picture[T] | None = None
        self._begun = 0
        self._end: asyncio.TimerHandle | None = None

    async def of_now(self, who: str) -> Picture[T]:
        """Return what is there now, or was at a moment since a caller asked.

        Raises:
            RequestError: 429, too many of the caller's requests are waiting.
        """
        self._keep()
        asked_at = self._begun
        if self._last is None or self._last.change != self._runtime.changes.count:
            async with self.turns.of(who):
                return await self._after(asked_at)
        return self._last

    async def _after(self, number: int) -> Picture[T]:
        last, subject = self._last, self._subject
        change = self._runtime.changes.count
        if last is not None and (last.number > number or last.change == change):
            return last
        self._begun += 1
        begun, point = self._begun, self._runtime.board.point
        items = await asyncio.to_thread(subject.seen(self._runtime))
        self._last = Picture(
            number=begun, change=change, point=point, items=items, namespaces=subject.namespaces
        )
        return self._last

    def _keep(self) -> None:
        if self._end is not None:
            self._end.cancel()
        self._end = asyncio.get_running_loop().call_later(KEPT_S, self._forget)

    def _forget(self) -> None:
        self._last = None


class Gallery:
    """All that is drawn of a broker, one at a time."""

    def __init__(self, runtime: Runtime) -> None:
        turns = Turns(MAX_WAITING)
        self.routes = Pictures(runtime, ROUTES, turns)
        self.pes = Pictures(runtime, PES, turns)
        kinds: tuple[Kind, ...] = get_args(Kind)
        self.ports = {kind: Pictures(runtime, _ports_of(kind), turns) for kind in kinds}


PICTURES = web.AppKey("pictures", Gallery)


def _routes_seen(runtime: Runtime) -> Callable[[], tuple[Route, ...]]:
    board = runtime.board
    met = [(export, board.outcomes("Export", export.uid)) for export in board.each_export()]
    return partial(drawn_routes, met, tuple(board.each_import()))


def _ports_seen(kind: Kind, runtime: Runtime) -> Callable[[], tuple[DrawnPort, ...]]:
    return partial(drawn_ports, runtime.each_of(kind), runtime.board.statuses())


def _ports_of(kind: Kind) -> Subject[DrawnPort]:
    return Subject(
        seen=partial(_ports_seen, kind),
        namespaces=lambda port: (port.stored.resource.key.namespace,),
    )


def _pes_seen(runtime: Runtime) -> Callable[[], tuple[DrawnPe, ...]]:
    board = runtime.board
    resources: tuple[Resource, ...] = (*board.each_export(), *board.each_import())
    return partial(drawn_pes, board.versions(), board.registrations(), resources)


ROUTES = Subject(
    seen=_routes_seen,
    namespaces=lambda route: (route.export.namespace, route.import_.namespace),
)
PES = Subject(seen=_pes_seen, namespaces=lambda found: (found.pe.namespace,))


def drawn_ports(
    stored: Iterable[Stored], statuses: Mapping[tuple[Kind, str], Status]
) -> tuple[DrawnPort, ...]:
    """Return resources of one kind with their statuses, in order of their ports.

    Args:
        stored: the resources.
        statuses: of all that are not merely accepted.
    """
    return tuple(
        DrawnPort(one, statuses.get((kind_of(one.resource), one.resource.uid), ACCEPTED))
        for one in sorted(stored, key=by_port)
    )


def drawn_pes(
    versions: Mapping[PeKey, str],
    agents: Mapping[PeKey, Registration],
    resources: Iterable[Resource],
) -> tuple[DrawnPe, ...]:
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
        DrawnPe(
            pe,
            agents.get(pe),
            versions[pe],
            tuple(sorted(ports.get((pe, "Export"), ()))),
            tuple(sorted(ports.get((pe, "Import"), ()))),
        )
        for pe in sorted(versions)
    )


def drawn_routes(
    met: Iterable[tuple[Export, Mapping[str, Outcome]]], imports: Iterable[Import]
) -> tuple[Route, ...]:
    """Return all routes, in order of the exporters' and the importers' ports.

    Args:
        met: the Exports, each with its outcomes by the Import's uid.
        imports: all Imports.
    """
    by_uid = {import_.uid: import_ for import_ in imports}
    routes = (
        route_of(export, by_uid[uid], outcome)
        for export, outcomes in met
        for uid, outcome in outcomes.items()
        if isinstance(outcome, Match) and uid in by_uid
    )
    return tuple(sorted(routes, key=route_order))
