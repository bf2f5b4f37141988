"""``GET`` of the lists of exports, imports, PEs and routes; whole or in pages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar, overload

from aiohttp import web

from streambroker_core.model import Kind
from streambroker_core.wire.broker.hints import Point
from streambroker_core.wire.encoding.canonical import canonical
from streambroker_operator.agents.ended_exports import ExportReports
from streambroker_operator.agents.liveness import AgentLiveness
from streambroker_operator.rest.guard.rate_limits import caller_name
from streambroker_operator.rest.http.paths import API
from streambroker_operator.rest.http.requests import RUNTIME, parse_limit, parse_namespace_or_all
from streambroker_operator.rest.lists.list_cache import LIST_CACHES, ListCache, ListedPe, ListedPort
from streambroker_operator.rest.lists.snapshots import Item, Page, Selection, Snapshots
from streambroker_operator.runtime.bodies import build_pe_body, build_resource_body, route_body
from streambroker_operator.runtime.runtime import Runtime

MAX_PAGE = 10_000
ITEMS_PER_TURN = 100
"""Items encoded before other tasks get a turn."""
SNAPSHOTS = web.AppKey("snapshots", Snapshots)
routes = web.RouteTableDef()

T = TypeVar("T")


class _ListContent(NamedTuple):
    change: int
    point: Point
    items: Sequence[Item]


@routes.get(API + "/exports")
async def list_exports(request: web.Request) -> web.Response:
    """Return the Exports of a namespace, or of all with ``?namespace=*``."""
    return await _answer_list(request, "exports", _ports(request, "Export"))


@routes.get(API + "/imports")
async def list_imports(request: web.Request) -> web.Response:
    """Return the Imports of a namespace, or of all with ``?namespace=*``."""
    return await _answer_list(request, "imports", _ports(request, "Import"))


@routes.get(API + "/pes")
async def list_pes(request: web.Request) -> web.Response:
    """Return the known PEs of a namespace, or of all with ``?namespace=*``."""
    cache = request.app[LIST_CACHES].pes
    body = partial(_pe_body, request.app[RUNTIME].liveness)
    return await _answer_list(request, "pes", partial(_load_cached, request, cache, body))


@routes.get(API + "/routes")
async def list_routes(request: web.Request) -> web.Response:
    """Return the routes that touch a namespace, or all with ``?namespace=*``."""
    cache = request.app[LIST_CACHES].routes
    return await _answer_list(request, "routes", partial(_load_cached, request, cache, route_body))


def _ports(request: web.Request, kind: Kind) -> Callable[[], Awaitable[_ListContent]]:
    body = partial(_port_body, request.app[RUNTIME].export_reports)
    return partial(_load_cached, request, request.app[LIST_CACHES].ports[kind], body)


async def _answer_list(
    request: web.Request, list_name: str, load: Callable[[], Awaitable[_ListContent]]
) -> web.Response:
    snapshots = request.app[SNAPSHOTS]
    selection = Selection(
        list_name=list_name, namespace=parse_namespace_or_all(request), reader=caller_name(request)
    )
    limit = parse_limit(request, MAX_PAGE)
    now = asyncio.get_running_loop().time()
    token = request.query.get("continue")
    if token is None:
        change, point, items = await load()
        page = snapshots.first_page(selection, change, point, items, limit, now)
    else:
        page = snapshots.next_page(selection, token, limit, now)
    return web.Response(body=await encode_page(page), content_type="application/json")


async def encode_page(page: Page) -> bytes:
    """Return a page as canonical JSON; yields to other tasks while a long page is encoded."""
    envelope: dict[str, Any] = {"items": [], "point": list(page.point)}
    if page.token is not None:
        envelope |= {"continue": page.token, "remaining": page.remaining}
    before, _, after = canonical(envelope).partition(b'"items":[]')
    pieces = []
    for start in range(0, len(page.items), ITEMS_PER_TURN):
        items = page.items[start : start + ITEMS_PER_TURN]
        pieces.append(b",".join(canonical(item()) for item in items))
        await asyncio.sleep(0)
    return b"".join((before, b'"items":[', b",".join(pieces), b"]", after))


async def _load_cached(
    request: web.Request, cache: ListCache[T], body: Callable[[T], Any]
) -> _ListContent:
    namespace = parse_namespace_or_all(request)
    cached = await cache.get_current(caller_name(request))
    items = await asyncio.to_thread(cached.in_namespace, namespace)
    return _ListContent(cached.change, cached.point, _Items(items, body))


def _port_body(export_reports: ExportReports, port: ListedPort) -> Any:
    return build_resource_body(port.stored, port.status, export_reports)


def _pe_body(liveness: AgentLiveness, pe: ListedPe) -> Any:
    return build_pe_body(pe.pe, pe.agent, pe.version, pe.exports, pe.imports, liveness)


class _Items(Sequence[Item], Generic[T]):
    """Lazy sequence of items over cached entries."""

    def __init__(self, entries: Sequence[T], body: Callable[[T], Any]) -> None:
        self._entries = entries
        self._body = body

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, at: int) -> Item: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[Item]: ...

    def __getitem__(self, at: int | slice) -> Item | Sequence[Item]:
        if isinstance(at, slice):
            return [partial(self._body, entry) for entry in self._entries[at]]
        return partial(self._body, self._entries[at])


def create_snapshots(runtime: Runtime) -> Snapshots:
    """Return an empty `Snapshots` for a broker."""
    return Snapshots(runtime.change_log.session, runtime.secret)
