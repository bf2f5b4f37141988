"""``GET /api/openapi.json``, the OpenAPI description, and the check of query parameters against it.

- ``openapi.yaml`` in package `rest` is the source of truth; tests check every response against it.
- Unknown parameters are refused: ignoring a misspelt one could apply a change to more than
  intended.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from typing import Any

import yaml
from aiohttp import web
from aiohttp.typedefs import Handler

from streambroker_core.wire.encoding.canonical import canonical
from streambroker_operator.rest.http.paths import OPENAPI
from streambroker_operator.rest.http.requests import query_error, route_path

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


@web.middleware
async def check_parameters(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse unknown and wrongly repeated parameters with 400 `QueryInvalid`."""
    allowed = _allowed_parameters(route_path(request), request.method)
    if allowed is not None:
        for name in request.query:
            _check(request, name, allowed)
    return await handler(request)


def _check(request: web.Request, name: str, allowed: Mapping[str, bool]) -> None:
    if name not in allowed:
        near = difflib.get_close_matches(name, allowed, 1)
        suggestion = f" Did you mean {near[0]}?" if near else ""
        names = ", ".join(sorted(allowed)) or "none"
        raise query_error(
            f"The parameter {name[:64]!r} is not known here; known are: {names}.{suggestion}"
        )
    if not allowed[name] and len(request.query.getall(name)) > 1:
        raise query_error(f"The parameter {name!r} is repeated.")


@lru_cache(maxsize=256)
def _allowed_parameters(path: str, method: str) -> Mapping[str, bool] | None:
    """Return whether each parameter may be repeated; None for an unknown path or method."""
    path_item = description()["paths"].get(path, {})
    operation = path_item.get({"HEAD": "get"}.get(method, method.lower()))
    if operation is None:
        return None
    parameters = map(_resolve, [*path_item.get("parameters", ()), *operation.get("parameters", ())])
    return {
        parameter["name"]: parameter["schema"].get("type") == "array"
        for parameter in parameters
        if parameter["in"] == "query"
    }


def _resolve(parameter: Any) -> Any:
    """Return a parameter, or the one that it refers to."""
    reference = parameter.get("$ref")
    if reference is None:
        return parameter
    return description()["components"]["parameters"][reference.rpartition("/")[2]]
