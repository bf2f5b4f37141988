"""Assemble the REST application: routes, middlewares, and problem documents for errors."""

from __future__ import annotations

import asyncio
import logging
from weakref import WeakValueDictionary

from aiohttp import web
from aiohttp.typedefs import Handler

from streambroker_core.errors import StreambrokerError
from streambroker_operator.errors import RequestError
from streambroker_operator.rest import diagnose, events
from streambroker_operator.rest.agents import control, pe, reports
from streambroker_operator.rest.console import graph, history, info, page_files, rows, texts
from streambroker_operator.rest.guard import authentication, rate_limits
from streambroker_operator.rest.guard.authentication import Guard
from streambroker_operator.rest.guard.idempotency import UNDER_WAY, replay
from streambroker_operator.rest.guard.rate_limits import CALLER_LIMITS, CallerLimits, RateLimits
from streambroker_operator.rest.http import health, openapi
from streambroker_operator.rest.http.paths import OPENAPI, PAGE_PATHS
from streambroker_operator.rest.http.preconditions import conditional
from streambroker_operator.rest.http.requests import (
    LONG_BODY_PATHS,
    MAX_BODY,
    MAX_PROPOSAL,
    PRINCIPAL,
    RUNTIME,
    route_path,
)
from streambroker_operator.rest.http.responses import not_synced_error, problem_answer
from streambroker_operator.rest.lists import asyncapi, lists, quota
from streambroker_operator.rest.lists.list_cache import LIST_CACHES, ListCaches
from streambroker_operator.rest.ports import apply, exports, imports, resources
from streambroker_operator.rest.ports import rules as patterns
from streambroker_operator.runtime.agent_commands import (
    CommandQueue,
    CommandTransport,
    command_hinter,
)
from streambroker_operator.runtime.runtime import Runtime
from streambroker_operator.security import audit_log as audit
from streambroker_operator.security.token_file import TokenFile

ROUTE_TABLES = (
    openapi.routes,
    health.routes,
    lists.routes,
    asyncapi.routes,
    quota.routes,
    events.routes,
    diagnose.routes,
    graph.routes,
    history.routes,
    texts.routes,
    info.routes,
    apply.routes,
    pe.routes,
    reports.routes,
    resources.routes,
    exports.routes,
    imports.routes,
    control.routes,
    patterns.routes,
)

MAX_HEADERS = 8 * 1024
"""Maximum size of all headers of a request, in bytes."""
MAX_HEADER = 64 * 1024
"""Maximum size of one header in the HTTP parser, in bytes."""

_log = logging.getLogger("streambroker.rest")


def create_app(
    runtime: Runtime,
    tokens: TokenFile | None = None,
    limits: RateLimits | None = None,
    *,
    local: bool = False,
    guard: Guard | None = None,
    commands: CommandTransport | None = None,
    page: bool = False,
    peek: bool = True,
) -> web.Application:
    """Return the application that serves a runtime.

    Args:
        runtime: the runtime.
        tokens: token file; None for no authentication.
        limits: rate limits; None for the defaults.
        local: without tokens, accept only host names of this machine.
        guard: replaces the token file.
        commands: passes commands to agents; None if all agents poll this process.
        page: whether the page is served at ``/ui/``.
        peek: whether callers may look at rows.
    """
    app = web.Application(client_max_size=MAX_BODY, middlewares=_MIDDLEWARES)
    app[RUNTIME] = runtime
    app[authentication.LOCAL] = local
    app[authentication.UNKNOWN] = audit.UnknownCallerFilter()
    limits = RateLimits() if limits is None else limits
    app[CALLER_LIMITS] = CallerLimits(limits)
    app[control.COMMAND_TRANSPORT] = commands or CommandQueue(
        command_hinter(runtime), limits.agent_wait_s
    )
    app[UNDER_WAY] = WeakValueDictionary()
    app[LIST_CACHES] = ListCaches(runtime)
    app[pe.EXCHANGE_KEYS] = pe.new_keys()
    app[diagnose.FORECASTS] = diagnose.Forecasts()
    app[reports.REPORTS] = reports.Reports()
    app[graph.JOB_GRAPHS] = graph.JobGraphs(runtime, app[LIST_CACHES], app[reports.REPORTS])
    if tokens is not None:
        app[authentication.TOKENS] = tokens
    if guard is not None:
        app[authentication.GUARD] = guard
    for route_table in ROUTE_TABLES:
        app.add_routes(route_table)
    if peek:
        app[rows.PEEKS] = asyncio.Semaphore(rows.MAX_PEEKS)
        app.add_routes(rows.routes)
    if page:
        app.add_routes(page_files.page_routes(page_files.find_files()))
    return app


@web.middleware
async def _allow_long_bodies(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Allow large bodies of many resources or rows; must be the first of `_MIDDLEWARES`."""
    if route_path(request) in LONG_BODY_PATHS:
        request = request.clone(client_max_size=MAX_PROPOSAL)
    return await handler(request)


@web.middleware
async def _log_write(request: web.Request, handler: Handler) -> web.StreamResponse:
    response = await handler(request)
    if request.method not in ("GET", "HEAD") and PRINCIPAL in request:
        _log.info("%s %s -> %d", request.method, request.path_qs, response.status)
    return response


_UNSYNCED_PATHS = (OPENAPI, health.HEALTH, *PAGE_PATHS)


@web.middleware
async def _limit_headers(request: web.Request, handler: Handler) -> web.StreamResponse:
    if sum(len(name) + len(value) for name, value in request.raw_headers) > MAX_HEADERS:
        raise RequestError(
            431, "HeadersTooLarge", f"The headers have more than {MAX_HEADERS} bytes together."
        )
    return await handler(request)


@web.middleware
async def _require_synced(request: web.Request, handler: Handler) -> web.StreamResponse:
    if not request.app[RUNTIME].board.synced and route_path(request) not in _UNSYNCED_PATHS:
        raise not_synced_error("The broker has not read all resources yet; existing routes stay.")
    return await handler(request)


@web.middleware
async def _to_problem(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except StreambrokerError as error:
        return problem_answer(error)
    except web.HTTPException as error:
        return _http_problem(request, error)
    except Exception:
        _log.exception("failed to answer %s %s", request.method, request.path)
        return problem_answer(
            RequestError(500, "Failed", "The broker failed on this request; see its log.")
        )


def _http_problem(request: web.Request, error: web.HTTPException) -> web.Response:
    if error.status == 404:
        problem = RequestError(404, "NotFound", f"There is nothing at {request.path}.")
    elif isinstance(error, web.HTTPMethodNotAllowed):
        headers = _methods(error)
        if request.method == "OPTIONS":
            return web.Response(status=204, headers=headers)
        problem = RequestError(
            405,
            "MethodNotAllowed",
            f"{request.path} allows {headers['Allow']}, not {request.method}.",
            headers=headers,
        )
    else:
        reason = f"The request cannot be read: {error.reason}."
        problem = RequestError(error.status, "Failed", reason)
    return problem_answer(problem)


def _methods(error: web.HTTPMethodNotAllowed) -> dict[str, str]:
    methods = sorted({*error.allowed_methods, "OPTIONS"})
    patch = {"Accept-Patch": "application/merge-patch+json"} if "PATCH" in methods else {}
    return {"Allow": ", ".join(methods), **patch}


_MIDDLEWARES = (
    _allow_long_bodies,
    authentication.audit_writes,
    _log_write,
    _to_problem,
    _limit_headers,
    rate_limits.limit_unknown,
    authentication.identify,
    rate_limits.limit_callers,
    authentication.authorise,
    _require_synced,
    replay,
    _to_problem,  # again inside `replay`: errors are stored as responses, too
    openapi.check_parameters,
    conditional,
)
