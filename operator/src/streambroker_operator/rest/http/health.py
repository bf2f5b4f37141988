"""``GET /healthz`` and ``GET /readyz``: whether the broker runs, and whether it answers.

Both ask nobody who they are, and tell no more than that.
"""

from __future__ import annotations

from aiohttp import web

from streambroker_operator.errors import RequestError
from streambroker_operator.rest.http.requests import RUNTIME
from streambroker_operator.rest.http.responses import json_answer

HEALTH = "/healthz"
READY = "/readyz"
routes = web.RouteTableDef()


@routes.get(HEALTH)
async def get_health(_: web.Request) -> web.Response:
    """Answer that the broker runs and its loop turns."""
    return json_answer({"status": "ok"})


@routes.get(READY)
async def get_readiness(request: web.Request) -> web.Response:
    """Answer that views are answered.

    Raises:
        RequestError: 503, the broker is stopping; before it has read all resources, likewise.
    """
    if request.app[RUNTIME].change_log.closed:
        raise RequestError(
            503, "NotSynced", "The broker is stopping.", headers={"Retry-After": "1"}
        )
    return json_answer({"status": "ready"})
