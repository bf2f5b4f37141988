"""Put the REST interface together: routes, readiness, and problems for all that fails."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from aiohttp import web

from streambroker_core.errors import StreambrokerError
from streambroker_operator.errors import RequestError
from streambroker_operator.rest import exports, imports, lists, pe
from streambroker_operator.rest.answers import problem_answer
from streambroker_operator.rest.asking import MAX_BODY, RUNTIME
from streambroker_operator.runtime import Runtime

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_log = logging.getLogger("streambroker.rest")


def create_app(runtime: Runtime) -> web.Application:
    """Return the application that serves a runtime."""
    app = web.Application(client_max_size=MAX_BODY, middlewares=[_problems, _ready])
    app[RUNTIME] = runtime
    for part in (lists, pe, exports, imports):
        app.add_routes(part.routes)
    return app


@web.middleware
async def _ready(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer nothing from a board that has not seen everything yet."""
    if not request.app[RUNTIME].board.synced:
        raise RequestError(
            503,
            "NotSynced",
            "The broker has not read all resources yet; routes that you have stay.",
            headers={"Retry-After": "1"},
        )
    return await handler(request)


@web.middleware
async def _problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn every failure into a problem document."""
    try:
        response = await handler(request)
    except StreambrokerError as error:
        response = problem_answer(error)
    except web.HTTPException as error:
        response = problem_answer(_http_error(request, error))
    except Exception:
        _log.exception("failed to answer %s %s", request.method, request.path)
        response = problem_answer(
            RequestError(500, "Failed", "The broker failed on this request; its log says why.")
        )
    if request.method not in ("GET", "HEAD"):
        _log.info("%s %s -> %d", request.method, request.path_qs, response.status)
    return response


def _http_error(request: web.Request, error: web.HTTPException) -> RequestError:
    if error.status == 404:
        return RequestError(404, "NotFound", f"There is nothing at {request.path}.")
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        return RequestError(
            405,
            "MethodNotAllowed",
            f"{request.path} takes {allowed}, not {request.method}.",
            headers={"Allow": allowed},
        )
    return RequestError(error.status, "Failed", f"The request cannot be read: {error.reason}.")
