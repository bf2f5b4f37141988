"""``GET …/ui``: what the page has to know before anything else."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from aiohttp import web

from streambroker_operator.rest.guard.authentication import (
    CALLER,
    GUARD,
    known_namespaces,
    needs_token,
)
from streambroker_operator.rest.http.paths import ROWS, UI
from streambroker_operator.rest.http.responses import json_answer

routes = web.RouteTableDef()


@routes.get(UI)
async def get_info(request: web.Request) -> web.Response:
    """Return whether a token is needed; with it, also the namespaces that the caller may read."""
    caller = request[CALLER]
    body: dict[str, Any] = {
        # In a cluster, the API server decides about each change.
        "readOnly": caller.role == "reader" and GUARD not in request.app,
        "peek": any(resource.canonical == ROWS for resource in request.app.router.resources()),
        "authentication": needs_token(request),
        "version": version("streambroker-operator"),
    }
    if "Authorization" in request.headers or not needs_token(request):
        names = {*known_namespaces(request), *(caller.namespaces or ())} - {"*"}
        body["namespaces"] = [one for one in sorted(names) if caller.can_read(one)]
        body["allNamespaces"] = caller.can_read("*")
    return json_answer(body)
