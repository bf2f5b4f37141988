"""``GET /api/openapi.json``: the OpenAPI description of the REST interface.

``openapi.yaml`` in package `rest` is the source of truth; tests check every response against it.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import resources
from typing import Any

import yaml
from aiohttp import web

from streambroker_core.wire.encoding.canonical import canonical
from streambroker_operator.rest.http.paths import OPENAPI

routes = web.RouteTableDef()


@lru_cache(maxsize=1)
def description() -> dict[str, Any]:
    """Return the OpenAPI document."""
    text = (resources.files("streambroker_operator.rest") / "openapi.yaml").read_text(
        encoding="utf-8"
    )
    document: dict[str, Any] = yaml.safe_load(text)
    return document


@lru_cache(maxsize=1)
def _encoded() -> bytes:
    return canonical(description())


@routes.get(OPENAPI)
async def get_description(_: web.Request) -> web.Response:
    """Return the OpenAPI document."""
    return web.Response(body=_encoded(), content_type="application/json")
