"""``Request-Id``: a change that is asked for twice under one name is made once."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from streambroker_core.model import Kind
from streambroker_core.wire.encoding.canonical import canonical
from streambroker_operator.errors import RequestError
from streambroker_operator.rest.guard.authentication import PRINCIPAL, is_reading
from streambroker_operator.rest.http.paths import PORTS
from streambroker_operator.rest.http.requests import RUNTIME, parse_port, raw_body, route_path
from streambroker_operator.rest.http.responses import written_answer
from streambroker_operator.runtime.runtime import WriteResult
from streambroker_operator.storage.responses import RequestKey, StoredResponse

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_DIGEST_HEADERS = ("If-Match", "If-None-Match", "Content-Type")
_STORED_HEADERS = ("ETag", "Content-Type", "Cache-Control", "Location")

UNDER_WAY = web.AppKey("under_way", dict[tuple[str, str], asyncio.Future[None]])
"""The named requests that are not answered yet, by caller and id; done with the answer."""

_log = logging.getLogger("streambroker.rest")


@web.middleware
async def replay(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer a repeated request as the first time; make the change of a new one once.

    Raises:
        RequestError: 400, the id has another form; 422, it stood for another request.
    """
    id_ = request.headers.get("Request-Id")
    if id_ is None or is_reading(request):
        return await handler(request)
    if _ID.fullmatch(id_) is None:
        raise RequestError(
            400,
            "RequestIdInvalid",
            "Request-Id has to be 1 to 64 letters, digits, dots, underscores and hyphens.",
        )
    name = RequestKey(principal=request[PRINCIPAL], id=id_, digest=await _digest(request))
    async with _serialise(request.app[UNDER_WAY], (name.principal, name.id)):
        return await _run_once(request, handler, name)


@asynccontextmanager
async def _serialise(
    under_way: dict[tuple[str, str], asyncio.Future[None]], key: tuple[str, str]
) -> AsyncIterator[None]:
    """Wait until no request of this name is under way; be the one that is."""
    while key in under_way:
        await asyncio.wait([under_way[key]])
    done = under_way[key] = asyncio.get_running_loop().create_future()
    try:
        yield
    finally:
        del under_way[key]
        done.set_result(None)


async def _run_once(request: web.Request, handler: Handler, key: RequestKey) -> web.StreamResponse:
    answered = request.app[RUNTIME].responses
    known = answered.find(key)
    if known is not None and known.digest != key.digest:
        raise RequestError(
            422,
            "RequestIdReused",
            f"Request-Id {key.id} stood for another request less than 10 minutes ago.",
        )
    if known is not None and (again := _replay_response(request, known)) is not None:
        return again
    answered.begin(key)
    try:
        response = await handler(request)
    finally:
        answered.end()
    _store_response(request, key, response)
    return response


async def _digest(request: web.Request) -> str:
    conditions = {header: request.headers.get(header) for header in _DIGEST_HEADERS}
    named = canonical([request.method, request.path_qs, conditions])
    return hashlib.sha256(named + b"\n" + await raw_body(request)).hexdigest()


def _store_response(request: web.Request, key: RequestKey, response: web.StreamResponse) -> None:
    if not isinstance(response, web.Response) or not _is_replayable(response):
        return
    headers = {
        header: response.headers[header] for header in _STORED_HEADERS if header in response.headers
    }
    body = response.body if isinstance(response.body, bytes) else b""
    try:
        request.app[RUNTIME].responses.store(key, response.status, headers, body)
    except sqlite3.Error:
        # The change is made and has its name: a repetition will be told that much.
        _log.exception("the answer of request %s could not be kept", key.id)


def _is_replayable(response: web.Response) -> bool:
    """Say whether an answer is the one to give again; not if time or a token could change it."""
    secret = response.headers.get("Cache-Control") == "no-store"
    return not secret and response.status < 500 and response.status not in (401, 403, 429)


def _replay_response(request: web.Request, previous: StoredResponse) -> web.Response | None:
    """Return the answer to a repetition; None where doing it again is the answer."""
    if previous.status is None:
        response = _rebuild_response(request, previous)
    else:
        response = web.Response(
            body=previous.body, status=previous.status, headers=previous.headers
        )
    if response is not None:
        response.headers["Replayed"] = "true"
    return response


def _rebuild_response(request: web.Request, previous: StoredResponse) -> web.Response | None:
    """Say what can still be said of a change that was made, but whose answer was not kept.

    Routes that it added are among those that are kept. Registering an agent changes
    nothing the second time, and a set of changes of which none was made is tried again.
    """
    kind = _port_kind(request)
    if kind is None:
        changed = request.method == "POST" and previous.version is not None
        return web.Response(status=204) if changed or request.method == "DELETE" else None
    runtime = request.app[RUNTIME]
    stored = runtime.get_stored(kind, parse_port(request))
    gone = request.method == "DELETE" and route_path(request) == PORTS[kind]
    if stored is None or gone:
        return web.Response(status=204)
    routes = runtime.board.routes_of(kind, stored.resource.uid)
    return written_answer(WriteResult(stored=stored, retained=tuple(routes)))


def _port_kind(request: web.Request) -> Kind | None:
    path = route_path(request)
    return next((kind for kind, port in PORTS.items() if path.startswith(port)), None)
