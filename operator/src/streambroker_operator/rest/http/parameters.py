"""Query parameters: what a path takes stands in its description, and everything else is refused.

A misspelt parameter would otherwise be left out without a word, and a change made to more
than was meant.
"""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import Any

from aiohttp import web

from streambroker_operator.errors import RequestError
from streambroker_operator.rest.http.openapi import description
from streambroker_operator.rest.http.requests import route_path

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def check_parameters(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse parameters that the description does not have, or has once, and are given twice.

    Raises:
        RequestError: 400 `QueryInvalid`.
    """
    known = _allowed_parameters(route_path(request), request.method)
    if known is not None:
        for name in request.query:
            _check(request, name, known)
    return await handler(request)


def _check(request: web.Request, name: str, allowed: Mapping[str, bool]) -> None:
    if name not in allowed:
        near = difflib.get_close_matches(name, allowed, 1)
        meant = f" Did you mean {near[0]}?" if near else ""
        takes = ", ".join(sorted(allowed)) or "none"
        raise RequestError(
            400,
            "QueryInvalid",
            f"The parameter {name[:64]!r} is not known here; known are: {takes}.{meant}",
        )
    if not allowed[name] and len(request.query.getall(name)) > 1:
        raise RequestError(400, "QueryInvalid", f"The parameter {name!r} is given more than once.")


@lru_cache(maxsize=256)
def _allowed_parameters(path: str, method: str) -> Mapping[str, bool] | None:
    """Return the parameters of a path, and whether each may be repeated; None for no such path."""
    found: Mapping[str, Any] | None = description()["paths"].get(path)
    operation = None if found is None else found.get({"HEAD": "get"}.get(method, method.lower()))
    if found is None or operation is None:
        return None
    parameters = map(_resolve, [*found.get("parameters", ()), *operation.get("parameters", ())])
    return {
        one["name"]: one["schema"].get("type") == "array"
        for one in parameters
        if one["in"] == "query"
    }


def _resolve(parameter: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = parameter.get("$ref")
    if reference is None:
        return parameter
    found: Mapping[str, Any] = description()["components"]["parameters"][
        reference.rpartition("/")[2]
    ]
    return found
