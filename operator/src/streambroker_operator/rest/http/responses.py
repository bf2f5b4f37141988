"""Build responses: JSON with ETags, results of writes, and problem documents."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from streambroker_core.errors import StreambrokerError, TakenError
from streambroker_core.model import Resource, Rule
from streambroker_core.wire.broker import problem as problems
from streambroker_core.wire.encoding.canonical import JsonObject, canonical
from streambroker_operator.errors import RequestError
from streambroker_operator.rest.http.preconditions import resource_etag
from streambroker_operator.runtime.bodies import route_body
from streambroker_operator.runtime.runtime import WriteResult
from streambroker_operator.storage.backend import StoredResource, StoredRule


def json_answer(
    body: Any, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    """Return a response with canonical JSON."""
    return web.Response(
        body=canonical(body), status=status, headers=headers, content_type="application/json"
    )


def long_answer(body: JsonObject) -> web.Response:
    """Return a response with canonical JSON, for long lists that are encoded in a thread."""
    return web.Response(body=encode_long(body), content_type="application/json")


def encode_long(body: JsonObject) -> bytes:
    """Return canonical JSON.

    Items are encoded one by one, because a single call would block the event loop.
    """
    members = [canonical(name) + b":" + _encode_member(body[name]) for name in sorted(body)]
    return b"{" + b",".join(members) + b"}"


def _encode_member(value: Any) -> bytes:
    if isinstance(value, dict):
        members = [canonical(name) + b":" + canonical(value[name]) for name in sorted(value)]
        return b"{" + b",".join(members) + b"}"
    if not isinstance(value, list):
        return canonical(value)
    return b"[" + b",".join([canonical(item) for item in value]) + b"]"


def written_answer(written: WriteResult, *, status: int = 200) -> web.Response:
    """Return the result of a write: identity, version, and routes kept, added and cut."""
    routes = {
        "kept": [route_body(route) for route in written.retained],
        "added": [route_body(route) for route in written.added],
        "cut": [{**route_body(cut.route), "reason": cut.reason} for cut in written.cut],
    }
    return stored_answer(written.stored.resource, written.stored, status=status, routes=routes)


def stored_answer(
    current: Resource | Rule, stored: StoredResource | StoredRule, *, status: int = 200, **more: Any
) -> web.Response:
    """Return the identity and version of what a write stored."""
    body = {
        "uid": current.uid,
        "generation": current.generation,
        "version": stored.version,
        "created": stored.created,
        "changed": stored.changed,
        **more,
        **({"warnings": list(stored.warnings)} if stored.warnings else {}),
    }
    return json_answer(body, status=status, headers={"ETag": resource_etag(current)})


def problem_answer(error: StreambrokerError) -> web.Response:
    """Return the problem document of an error: 409 for `TakenError`, 422 for other user errors."""
    headers: dict[str, str] = {}
    if isinstance(error, RequestError):
        headers = error.headers
        problem = problems.Problem(
            status=error.status, code=error.code, detail=str(error), facts=error.facts
        )
    else:
        problem = problems.from_error(error, 409 if isinstance(error, TakenError) else 422)
    return web.Response(
        text=json.dumps(problems.encode(problem)),
        status=problem.status,
        headers=headers,
        content_type=problems.CONTENT_TYPE,
    )


def not_synced_error(message: str) -> RequestError:
    """Return a 503 error of a broker that starts or stops."""
    return RequestError(503, "NotSynced", message, headers={"Retry-After": "1"})
