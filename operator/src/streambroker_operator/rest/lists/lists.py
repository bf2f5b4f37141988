"""Lists of everything: exports, imports, PEs, routes; whole, or page by page."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar, overload

from aiohttp import web

from streambroker_core.model import Kind
from streambroker_core.wire.broker.hints import Point
from streambroker_core.wire.encoding.canonical import canonical
from streambroker_operator.agents.ended_exports import Endings
from streambroker_operator.agents.liveness import Heard
from streambroker_operator.rest.guard.rate_limits import who_asks
from streambroker_operator.rest.http.paths import API
from streambroker_operator.rest.http.requests import RUNTIME, chosen_namespace, limit_of
from streambroker_operator.rest.lists.list_cache import PICTURES, DrawnPe, DrawnPort, Pictures
from streambroker_operator.rest.lists.snapshots import Item, Page, Selection, Snapshots
from streambroker_operator.runtime.bodies import route_body, shown, shown_pe
from streambroker_operator.runtime.runtime import Runtime

MAX_PAGE = 10_000
AT_ONCE = 100
"""How many items are written before others get their turn."""
SNAPSHOTS = web.AppKey("snapshots", Snapshots)
routes = web.RouteTableDef()

T = TypeVar("T")


class _Taken(NamedTuple):
    """A whole list: the count of the board's changes, its point, and what is listed."""

    change: int
    point: Point
    items: Sequence[Item]


@routes.get(API + "/exports")
async def list_exports(request: web.Request) -> web.Response:
    """Answer the Exports of a namespace, or of all with ``?namespace=*``."""
    return await _listed(request, "exports", _ports(request, "Export"))


@routes.get(API + "/imports")
async def list_imports(request: web.Request) -> web.Response:
    """Answer the Imports of a namespace, or of all with ``?namespace=*``."""
    return await _listed(request, "imports", _ports(request, "Import"))


@routes.get(API + "/pes")
async def list_pes(request: web.Request) -> web.Response:
    """Answer the known PEs of a namespace, or of all with ``?namespace=*``."""
    pictures = request.app[PICTURES].pes
    body = partial(_pe_body, request.app[RUNTIME].heard)
    return await _listed(request, "pes", partial(_drawn, request, pictures, body))


@routes.get(API + "/routes")
async def list_routes(request: web.Request) -> web.Response:
    """Answer the routes that touch a namespace, or all with ``?namespace=*``."""
    pictures = request.app[PICTURES].routes
    return await _listed(request, "routes", partial(_drawn, request, pictures, route_body))


def _ports(request: web.Request, kind: Kind) -> Callable[[], Awaitable[_Taken]]:
    body = partial(_port_body, request.app[RUNTIME].endings)
    return partial(_drawn, request, request.app[PICTURES].ports[kind], body)


async def _listed(
    request: web.Request, what: str, taken: Callable[[], Awaitable[_Taken]]
) -> web.Response:
    snapshots = request.app[SNAPSHOTS]
    selection = Selection(what=what, namespace=chosen_namespace(request), who=who_asks(request))
    limit = limit_of(request, MAX_PAGE)
    now = asyncio.get_running_loop().time()
    token = request.query.get("continue")
    if token is None:
        change, point, items = await taken()
        page = snapshots.first(selection, change, point, items, limit, now)
    else:
        page = snapshots.following(selection, token, limit, now)
    return web.Response(body=await written(page), content_type="application/json")


async def written(page: Page) -> bytes:
    """Return a page as canonical JSON; others get their turn while a long one is written."""
    around: dict[str, Any] = {"items": [], "point": list(page.point)}
    if page.token is not None:
        around |= {"continue": page.token, "remaining": page.remaining}
    before, _, after = canonical(around).partition(b'"items":[]')
    pieces = []
    for start in range(0, len(page.items), AT_ONCE):
        items = page.items[start : start + AT_ONCE]
        pieces.append(b",".join(canonical(item()) for item in items))
        await asyncio.sleep(0)
    return b"".join((before, b'"items":[', b",".join(pieces), b"]", after))


async def _drawn(request: web.Request, pictures: Pictures[T], body: Callable[[T], Any]) -> _Taken:
    namespace = chosen_namespace(request)
    picture = await pictures.of_now(who_asks(request))
    items = await asyncio.to_thread(picture.touching, namespace)
    return _Taken(picture.change, picture.point, _Items(items, body))


def _port_body(endings: Endings, port: DrawnPort) -> Any:
    return shown(port.stored, port.status, endings)


def _pe_body(heard: Heard, found: DrawnPe) -> Any:
    return shown_pe(found.pe, found.agent, found.version, found.exports, found.imports, heard)


class _Items(Sequence[Item], Generic[T]):
    """What was drawn, as items, each made when it is asked for."""

    def __init__(self, drawn: Sequence[T], body: Callable[[T], Any]) -> None:
        self._drawn = drawn
        self._body = body

    def __len__(self) -> int:
        return len(self._drawn)

    @overload
    def __getitem__(self, at: int) -> Item: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[Item]: ...

    def __getitem__(self, at: int | slice) -> Item | Sequence[Item]:
        if isinstance(at, slice):
            return [partial(self._body, one) for one in self._drawn[at]]
        return partial(self._body, self._drawn[at])


def snapshots_of(runtime: Runtime) -> Snapshots:
    """Return an empty memory of lists for a broker."""
    return Snapshots(runtime.changes.session, runtime.secret)
