"""Write answers: JSON with ETags, what a change did, and problems."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from streambroker_core.errors import StreambrokerError, TakenError
from streambroker_core.wire.broker import problem as problems
from streambroker_core.wire.encoding.canonical import canonical
from streambroker_operator.errors import RequestError
from streambroker_operator.rest.http.preconditions import resource_etag
from streambroker_operator.runtime.bodies import route_body
from streambroker_operator.runtime.runtime import WriteResult


def json_answer(
    body: Any, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    """Return an answer with canonical JSON."""
    return web.Response(
        body=canonical(body), status=status, headers=headers, content_type="application/json"
    )


def long_answer(body: Mapping[str, Any]) -> web.Response:
    """Return an answer with the same canonical JSON, for long lists in a thread.

    It is written item by item: in one go, nobody else would get their turn meanwhile.
    """
    members = [canonical(name) + b":" + _encode_long(body[name]) for name in sorted(body)]
    return web.Response(body=b"{" + b",".join(members) + b"}", content_type="application/json")


def _encode_long(value: Any) -> bytes:
    if not isinstance(value, list):
        return canonical(value)
    return b"[" + b",".join([canonical(item) for item in value]) + b"]"


def written_answer(written: WriteResult, *, status: int = 200) -> web.Response:
    """Return what a change did: identity, version, and routes kept, added and cut."""
    stored = written.stored
    resource = stored.resource
    body = {
        "uid": resource.uid,
        "generation": resource.generation,
        "version": stored.version,
        "created": stored.created,
        "changed": stored.changed,
        "routes": {
            "kept": [route_body(route) for route in written.retained],
            "added": [route_body(route) for route in written.added],
            "cut": [{**route_body(cut.route), "reason": cut.reason} for cut in written.cut],
        },
        **({"warnings": list(stored.warnings)} if stored.warnings else {}),
    }
    return json_answer(body, status=status, headers={"ETag": resource_etag(resource)})


def problem_answer(error: StreambrokerError) -> web.Response:
    """Return the problem of an error; what the user wrote wrongly is 422, what is taken 409."""
    headers: dict[str, str] = {}
    if isinstance(error, RequestError):
        headers = error.headers
        found = problems.Problem(
            status=error.status, code=error.code, detail=str(error), facts=error.facts
        )
    else:
        found = problems.from_error(error, 409 if isinstance(error, TakenError) else 422)
    return web.Response(
        text=json.dumps(problems.encode(found)),
        status=found.status,
        headers=headers,
        content_type=problems.CONTENT_TYPE,
    )
