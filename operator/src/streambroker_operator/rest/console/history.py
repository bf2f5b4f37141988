"""``GET …/history``: what was changed at ports, when and by which caller."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from streambroker_core.errors import ManifestError
from streambroker_core.model import Kind, PortKey
from streambroker_operator.rest.http import requests
from streambroker_operator.rest.http.paths import HISTORY
from streambroker_operator.rest.http.responses import json_answer
from streambroker_operator.runtime.history import Change

MAX_ENTRIES = 1_000
DEFAULT_ENTRIES = 100
_KINDS: dict[str, Kind] = {"import": "Import", "export": "Export"}

routes = web.RouteTableDef()


@routes.get(HISTORY)
async def get_history(request: web.Request) -> web.Response:
    """Return the changes of a namespace, or of one of its ports, the newest first."""
    namespace = requests.parse_namespace_or_all(request)
    limit = requests.parse_limit(request, MAX_ENTRIES) or DEFAULT_ENTRIES
    named = [(kind, request.query[name]) for name, kind in _KINDS.items() if name in request.query]
    if len(named) > 1:
        raise requests.query_error("Name an import or an export, not both.")
    port = _read_port(*named[0], namespace) if named else None
    history = request.app[requests.RUNTIME].history
    found = history.find(namespace, limit, port)
    return json_answer({"entries": [_body(change) for change in found]})


def _read_port(kind: Kind, text: str, namespace: str) -> tuple[Kind, PortKey]:
    try:
        key = PortKey.parse(text)
    except ManifestError as error:
        raise requests.query_error(f"{error.reason}.") from error
    if namespace not in ("*", key.namespace):
        raise requests.query_error(
            f"{key} is not in the namespace {namespace}: choose it with ?namespace=."
        )
    return kind, key


def _body(change: Change) -> dict[str, Any]:
    moment = datetime.fromtimestamp(change.time, UTC)
    return {
        "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "kind": change.kind,
        "port": str(change.port),
        "principal": change.principal,
        "action": change.action,
        "generation": change.generation,
        "changes": [
            {"field": name, "old": old, "new": new} for name, (old, new) in change.fields.items()
        ],
    }
