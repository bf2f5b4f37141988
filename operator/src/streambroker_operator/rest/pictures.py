"""All routes of one moment, drawn in a thread and once for all who ask meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aiohttp import web

from streambroker_core.board.views import route_of
from streambroker_core.matching import Match, Outcome
from streambroker_core.model import Export, Import, Route
from streambroker_core.wire.hints import Point
from streambroker_operator.rest.turns import Turns
from streambroker_operator.runtime import Runtime

MAX_WAITING = 200
"""Requests of one caller that may wait for a picture."""
KEPT_S = 60.0
"""How long a picture is kept after it was last asked for, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """The routes of a board at one moment.

    Attributes:
        number: of the picture; later ones have higher numbers.
        change: counts the changes of the board.
        point: of the board.
        routes: in order of the exporters' and the importers' ports.
    """

    number: int
    change: int
    point: Point
    routes: tuple[Route, ...]

    def touching(self, namespace: str) -> tuple[Route, ...]:
        """Return the routes that touch a namespace, or all for ``*``."""
        if namespace == "*":
            return self.routes
        return tuple(
            route
            for route in self.routes
            if namespace in (route.export.namespace, route.import_.namespace)
        )


class Pictures:
    """Draws routes; what did not change is not drawn anew.

    Args:
        runtime: whose board is drawn.

    Attributes:
        turns: who draws routes, or writes all of them down in a thread.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.turns = Turns(MAX_WAITING)
        self._last: Picture | None = None
        self._begun = 0
        self._end: asyncio.TimerHandle | None = None

    async def of_now(self, who: str) -> Picture:
        """Return the routes as they are, or were at a moment since a caller asked.

        Raises:
            RequestError: 429, too many of the caller's requests are waiting.
        """
        self._keep()
        asked_at = self._begun
        if self._last is None or self._last.change != self._runtime.changes.count:
            async with self.turns.of(who):
                return await self._after(asked_at)
        return self._last

    async def _after(self, number: int) -> Picture:
        last, board = self._last, self._runtime.board
        change = self._runtime.changes.count
        if last is not None and (last.number > number or last.change == change):
            return last
        self._begun += 1
        begun, point = self._begun, board.point
        met = [(export, board.outcomes("Export", export.uid)) for export in board.each_export()]
        routes = await asyncio.to_thread(drawn, met, tuple(board.each_import()))
        self._last = Picture(number=begun, change=change, point=point, routes=routes)
        return self._last

    def _keep(self) -> None:
        if self._end is not None:
            self._end.cancel()
        self._end = asyncio.get_running_loop().call_later(KEPT_S, self._forget)

    def _forget(self) -> None:
        self._last = None


PICTURES = web.AppKey("pictures", Pictures)


def drawn(
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
    return tuple(sorted(routes, key=_place))


def _place(route: Route) -> tuple[str | int, ...]:
    export, import_ = route.export, route.import_
    return (
        *(export.namespace, export.job, export.pe, export.port),
        *(import_.namespace, import_.job, import_.pe, import_.port),
    )
