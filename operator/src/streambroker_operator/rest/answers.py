"""Write answers: JSON with ETags, what a change did, and problems."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from streambroker_core.board import Status
from streambroker_core.errors import StreambrokerError
from streambroker_core.model import Route, kind_of
from streambroker_core.wire import problem as problems
from streambroker_core.wire.canonical import canonical
from streambroker_core.wire.manifest import write_manifest
from streambroker_operator.errors import RequestError
from streambroker_operator.rest.asking import etag_of
from streambroker_operator.runtime import Runtime, Written
from streambroker_operator.store import Stored


def json_answer(
    body: Any, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    """Return an answer with canonical JSON."""
    return web.Response(
        body=canonical(body), status=status, headers=headers, content_type="application/json"
    )


def written_answer(written: Written, *, status: int = 200) -> web.Response:
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
            "kept": [route_body(route) for route in written.kept],
            "added": [route_body(route) for route in written.added],
            "cut": [{**route_body(cut.route), "reason": cut.reason} for cut in written.cut],
        },
    }
    return json_answer(body, status=status, headers={"ETag": etag_of(resource)})


def route_body(route: Route) -> dict[str, Any]:
    """Return a route as JSON-like data."""
    return {
        "export": str(route.export),
        "import": str(route.import_),
        "filter": route.filter,
        "policy": route.policy,
    }


def resource_body(runtime: Runtime, stored: Stored) -> dict[str, Any]:
    """Return a resource's manifest with its status."""
    resource = stored.resource
    status = runtime.board.status(kind_of(resource), resource.uid)
    body = write_manifest(resource, version=stored.version)
    return {**body, "status": {} if status is None else _status_body(status)}


def _status_body(status: Status) -> dict[str, Any]:
    return {
        "accepted": status.accepted,
        "reason": status.reason,
        "message": status.message,
        "matches": status.matches,
        "topMatches": [str(key) for key in status.peers],
        "refused": [
            {"export": str(pair.export), "reason": pair.reason, "message": pair.message}
            for pair in status.refused
        ],
    }


def problem_answer(error: StreambrokerError) -> web.Response:
    """Return the problem of an error; what the user wrote wrongly is 422."""
    headers: dict[str, str] = {}
    if isinstance(error, RequestError):
        headers = error.headers
        found = problems.Problem(
            status=error.status, code=error.code, detail=str(error), facts=error.facts
        )
    else:
        found = problems.of_error(error, 422)
    return web.Response(
        text=json.dumps(problems.encode(found)),
        status=found.status,
        headers=headers,
        content_type=problems.CONTENT_TYPE,
    )
