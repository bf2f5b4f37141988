"""``Request-Id`` middleware: executes a change once, however often it is requested."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import sqlite3
from weakref import WeakValueDictionary

from aiohttp import web
from aiohttp.typedefs import Handler

from streambroker_core.model import Kind
from streambroker_core.wire.encoding.canonical import canonical
from streambroker_operator.errors import RequestError
from streambroker_operator.rest.guard.authentication import is_reading
from streambroker_operator.rest.http.paths import PORTS
from streambroker_operator.rest.http.requests import (
    PRINCIPAL,
    RUNTIME,
    parse_port,
    raw_body,
    route_path,
)
from streambroker_operator.rest.http.responses import written_answer
from streambroker_operator.runtime.runtime import WriteResult
from streambroker_operator.storage.responses import RequestKey, StoredResponse

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_DIGEST_HEADERS = ("If-Match", "If-None-Match", "Content-Type")
_STORED_HEADERS = ("ETag", "Content-Type", "Cache-Control", "Location")

UNDER_WAY: web.AppKey[WeakValueDictionary[tuple[str, str], asyncio.Lock]] = web.AppKey("under_way")
"""Locks of the named requests in progress, by caller and id."""

_log = logging.getLogger("streambroker.rest")


@web.middleware
async def replay(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Return the stored response of a repeated request; execute and store a new one.

    Raises:
        RequestError: 400, malformed id; 422, the id was used for another request.
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
    key = RequestKey(principal=request[PRINCIPAL], id=id_, digest=await _digest(request))
    lock = request.app[UNDER_WAY].setdefault((key.principal, key.id), asyncio.Lock())
    async with lock:
        return await _run_once(request, handler, key)


async def _run_once(request: web.Request, handler: Handler, key: RequestKey) -> web.StreamResponse:
    responses = request.app[RUNTIME].store.responses
    previous = responses.find(key)
    if previous is not None and previous.digest != key.digest:
        raise RequestError(
            422,
            "RequestIdReused",
            f"Request-Id {key.id} was used for another request less than 10 minutes ago.",
        )
    if previous is not None and (replayed := _replay_response(request, previous)) is not None:
        return replayed
    responses.begin(key)
    try:
        response = await handler(request)
    finally:
        responses.end()
    _store_response(request, key, response)
    return response


async def _digest(request: web.Request) -> str:
    conditions = {header: request.headers.get(header) for header in _DIGEST_HEADERS}
    request_line = canonical([request.method, request.path_qs, conditions])
    return hashlib.sha256(request_line + b"\n" + await raw_body(request)).hexdigest()


def _store_response(request: web.Request, key: RequestKey, response: web.StreamResponse) -> None:
    if not isinstance(response, web.Response) or not _is_replayable(response):
        return
    headers = {
        header: response.headers[header] for header in _STORED_HEADERS if header in response.headers
    }
    body = response.body if isinstance(response.body, bytes) else b""
    try:
        request.app[RUNTIME].store.responses.store(key, response.status, headers, body)
    except sqlite3.Error:
        # The change is stored with its id: a repetition can still report that it was made.
        _log.exception("the answer of request %s could not be stored", key.id)


def _is_replayable(response: web.Response) -> bool:
    """Return whether the response can be replayed: not if time or another token could change it."""
    secret = response.headers.get("Cache-Control") == "no-store"
    return not secret and response.status < 500 and response.status not in (401, 403, 429)


def _replay_response(request: web.Request, previous: StoredResponse) -> web.Response | None:
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
    """Rebuild the response of a change that was made but whose response was not stored.

    Routes that the change added are reported as kept. None if repeating the request is safe: an
    agent's registration, or a set of changes of which none was made.
    """
    kind = _port_kind(request)
    if kind is None:
        changed = request.method == "POST" and previous.version is not None
        return web.Response(status=204) if changed or request.method == "DELETE" else None
    runtime = request.app[RUNTIME]
    stored = runtime.store.get(kind, parse_port(request))
    deleted = request.method == "DELETE" and route_path(request) == PORTS[kind]
    if stored is None or deleted:
        return web.Response(status=204)
    routes = runtime.board.routes_of(kind, stored.resource.uid)
    return written_answer(WriteResult(stored=stored, retained=tuple(routes)))


def _port_kind(request: web.Request) -> Kind | None:
    path = route_path(request)
    return next((kind for kind, port in PORTS.items() if path.startswith(port)), None)
