"""``GET /healthz`` and ``GET /readyz``: liveness and readiness probes.

They need no authentication and reveal nothing else.
"""

from __future__ import annotations

from aiohttp import web

from streambroker_operator.rest.http.requests import RUNTIME
from streambroker_operator.rest.http.responses import json_answer, not_synced_error

HEALTH = "/healthz"
READY = "/readyz"
routes = web.RouteTableDef()


@routes.get(HEALTH)
async def get_health(_: web.Request) -> web.Response:
    """Answer that the broker runs and its event loop responds."""
    return json_answer({"status": "ok"})


@routes.get(READY)
async def get_readiness(request: web.Request) -> web.Response:
    """Answer that the broker serves views; raise 503 while it stops.

    A middleware raises 503 until all resources are loaded.
    """
    if request.app[RUNTIME].change_log.closed:
        raise not_synced_error("The broker is stopping.")
    return json_answer({"status": "ready"})
