"""Lists of everything: exports, imports, PEs, routes; whole, or page by page."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from aiohttp import web

from streambroker_core.model import Kind, PeKey, PortKey
from streambroker_core.wire.canonical import canonical
from streambroker_operator.bodies import pe_body, route_body, shown
from streambroker_operator.errors import RequestError
from streambroker_operator.rest.asking import RUNTIME, namespace_of
from streambroker_operator.rest.snapshots import Item, Page, Selection, Snapshots
from streambroker_operator.runtime import Runtime

LISTS = "/api/subscriptions"
MAX_PAGE = 10_000
AT_ONCE = 100
"""How many items are written before others get their turn."""
SNAPSHOTS = web.AppKey("snapshots", Snapshots)
routes = web.RouteTableDef()

T = TypeVar("T")


@routes.get(LISTS + "/exports")
async def list_exports(request: web.Request) -> web.Response:
    """Answer the Exports of a namespace, or of all with ``?namespace=*``."""
    return await _listed(request, "exports", partial(_resources, request, "Export"))


@routes.get(LISTS + "/imports")
async def list_imports(request: web.Request) -> web.Response:
    """Answer the Imports of a namespace, or of all with ``?namespace=*``."""
    return await _listed(request, "imports", partial(_resources, request, "Import"))


@routes.get(LISTS + "/pes")
async def list_pes(request: web.Request) -> web.Response:
    """Answer the known PEs of a namespace, or of all with ``?namespace=*``."""
    return await _listed(request, "pes", partial(_pes, request))


@routes.get(LISTS + "/routes")
async def list_routes(request: web.Request) -> web.Response:
    """Answer the routes that touch a namespace, or all with ``?namespace=*``."""
    return await _listed(request, "routes", partial(_routes, request))


async def _listed(
    request: web.Request, what: str, items: Callable[[], Iterable[Item]]
) -> web.Response:
    runtime = request.app[RUNTIME]
    snapshots = request.app[SNAPSHOTS]
    selection = Selection(what=what, namespace=chosen_namespace(request))
    limit = _limit(request)
    now = asyncio.get_running_loop().time()
    token = request.query.get("continue")
    if token is None:
        page = snapshots.first(
            selection, runtime.changes.count, runtime.board.point, list(items()), limit, now
        )
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


def _limit(request: web.Request) -> int | None:
    text = request.query.get("limit")
    if text is None:
        return None
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    if not 0 < number <= MAX_PAGE:
        raise RequestError(
            400, "QueryInvalid", f"limit={text!r} is no whole number from 1 to {MAX_PAGE}."
        )
    return number


def chosen_namespace(request: web.Request) -> str:
    """Return the namespace that is selected, or ``*`` for all.

    Raises:
        RequestError: 400, it is neither.
    """
    return "*" if request.query.get("namespace") == "*" else namespace_of(request)


def _resources(request: web.Request, kind: Kind) -> Iterable[Item]:
    runtime = request.app[RUNTIME]
    chosen = _choice(request)
    for stored in runtime.all_of(kind):
        if chosen(stored.resource.key):
            yield partial(shown, stored, runtime.board.status(kind, stored.resource.uid))


def _pes(request: web.Request) -> Iterable[Item]:
    runtime = request.app[RUNTIME]
    chosen = _choice(request)
    for pe in runtime.board.pes():
        if chosen(pe):
            yield partial(_itself, pe_body(runtime.board, pe))


def _routes(request: web.Request) -> Iterable[Item]:
    chosen = _choice(request)
    for route in request.app[RUNTIME].board.routes():
        if chosen(route.export) or chosen(route.import_):
            yield partial(route_body, route)


def _itself(body: T) -> T:
    return body


def _choice(request: web.Request) -> Callable[[PeKey | PortKey], bool]:
    namespace = chosen_namespace(request)
    return lambda key: namespace in ("*", key.namespace)


def snapshots_of(runtime: Runtime) -> Snapshots:
    """Return an empty memory of lists for a broker."""
    return Snapshots(runtime.changes.session, runtime.secret)
