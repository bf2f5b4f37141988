"""``GET /api/asyncapi.json``: the Exports of a namespace as an AsyncAPI document."""

from __future__ import annotations

import asyncio
from importlib.metadata import version

from aiohttp import web

from streambroker_core.catalog.asyncapi import asyncapi_document
from streambroker_core.model import Export
from streambroker_operator.errors import RequestError
from streambroker_operator.rest.guard.rate_limits import caller_name
from streambroker_operator.rest.http.paths import ASYNCAPI
from streambroker_operator.rest.http.requests import parse_namespace_or_all
from streambroker_operator.rest.http.responses import encode_long
from streambroker_operator.rest.lists.list_cache import LIST_CACHES, ListedPort

MAX_EXPORTS = 10_000
"""Maximum number of Exports in a document, as in a page of a list."""

routes = web.RouteTableDef()


@routes.get(ASYNCAPI)
async def get_asyncapi(request: web.Request) -> web.Response:
    """Return the document of a namespace, or of all with ``?namespace=*``."""
    namespace, caller = parse_namespace_or_all(request), caller_name(request)
    cache = request.app[LIST_CACHES]["exports"]
    cached = await cache.get_current(caller)

    def build() -> bytes:
        ports: tuple[ListedPort, ...] = cached.in_namespace(namespace)
        if len(ports) > MAX_EXPORTS:
            raise RequestError(
                422,
                "CatalogTooLarge",
                f"There are {len(ports):,} exports in {namespace!r}, and a document has at most"
                f" {MAX_EXPORTS:,}. Ask for one namespace at a time, or list the exports in pages.",
            )
        resources = (port.stored.resource for port in ports)
        exports = [one for one in resources if isinstance(one, Export)]
        title = "streambroker" if namespace == "*" else f"streambroker {namespace}"
        release = version("streambroker-operator")
        return encode_long(asyncapi_document(exports, title=title, version=release))

    async with cache.queue.turn(caller):
        body = await asyncio.to_thread(build)
    return web.Response(body=body, content_type="application/json")
