"""``GET`` of the lists of exports, imports, PEs and routes; whole or in pages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from aiohttp import web

from streambroker_core.wire.encoding.canonical import JsonValue, canonical
from streambroker_operator.cooperative import loop_time
from streambroker_operator.rest.guard.rate_limits import caller_name
from streambroker_operator.rest.http.paths import API
from streambroker_operator.rest.http.requests import RUNTIME, parse_limit, parse_namespace_or_all
from streambroker_operator.rest.lists.list_cache import LIST_CACHES, ListedPe, ListedPort
from streambroker_operator.rest.lists.snapshots import Page, Selection
from streambroker_operator.runtime.bodies import build_pe_body, build_resource_body, route_body
from streambroker_operator.runtime.runtime import Runtime

MAX_PAGE = 10_000
ITEMS_PER_TURN = 100
"""Items encoded before other tasks get a turn."""


def _list_route(name: str, body: Callable[[Runtime, Any], Any]) -> web.RouteDef:
    async def get(request: web.Request) -> web.Response:
        return await _answer_list(request, name, body)

    return web.get(f"{API}/{name}", get)


async def _answer_list(
    request: web.Request, list_name: str, body: Callable[[Runtime, Any], Any]
) -> web.Response:
    """Return the items of a namespace, or of all with ``?namespace=*``."""
    caches = request.app[LIST_CACHES]
    selection = Selection(
        list_name=list_name, namespace=parse_namespace_or_all(request), reader=caller_name(request)
    )
    limit = parse_limit(request, MAX_PAGE)
    now = loop_time()
    token = request.query.get("continue")
    if token is None:
        cached = await caches[list_name].get_current(selection.reader)
        items = await asyncio.to_thread(cached.in_namespace, selection.namespace)
        page = caches.snapshots.first_page(
            selection, cached.change, cached.point, items, limit, now
        )
    else:
        page = caches.snapshots.next_page(selection, token, limit, now)
    encoded = await encode_page(page, partial(body, request.app[RUNTIME]))
    return web.Response(body=encoded, content_type="application/json")


async def encode_page(page: Page, body: Callable[[Any], Any]) -> bytes:
    """Return a page as canonical JSON; yields to other tasks while a long page is encoded.

    `body` returns the JSON of an item.
    """
    envelope: dict[str, JsonValue] = {"items": [], "point": list(page.point)}
    if page.token is not None:
        envelope |= {"continue": page.token, "remaining": page.remaining}
    before, _, after = canonical(envelope).partition(b'"items":[]')
    pieces = []
    for start in range(0, len(page.items), ITEMS_PER_TURN):
        items = page.items[start : start + ITEMS_PER_TURN]
        pieces.append(b",".join(canonical(body(item)) for item in items))
        await asyncio.sleep(0)
    return b"".join((before, b'"items":[', b",".join(pieces), b"]", after))


def _port_body(runtime: Runtime, port: ListedPort) -> Any:
    return build_resource_body(port.stored, port.status, runtime.port_reports)


def _pe_body(runtime: Runtime, pe: ListedPe) -> Any:
    return build_pe_body(pe.pe, pe.agent, pe.version, pe.exports, pe.imports, runtime.liveness)


routes = [
    _list_route("exports", _port_body),
    _list_route("imports", _port_body),
    _list_route("pes", _pe_body),
    _list_route("routes", lambda _, route: route_body(route)),
]
