"""``POST …/check`` and ``GET …/names``: help for writers of subscriptions and filters."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from typing import Any

from aiohttp import web

from streambroker_core.errors import ExpressionError
from streambroker_core.expression import ExpressionKind, check_filter, parse
from streambroker_core.model import Export, PortKey
from streambroker_core.wire.encoding.fields import Fields
from streambroker_operator.errors import RequestError
from streambroker_operator.rest.guard.authentication import CALLER, not_yours_error
from streambroker_operator.rest.guard.rate_limits import CALLER_LIMITS, caller_name
from streambroker_operator.rest.http import requests
from streambroker_operator.rest.http.paths import CHECK, NAMES
from streambroker_operator.rest.http.responses import json_answer

MAX_TEXT = 4_096
"""Maximum size of a text to check, in bytes."""
MAX_NAMES = 500
"""Maximum number of properties, and of columns, of one answer."""
MAX_VALUES = 20
"""Maximum number of values of a property in an answer."""
_KINDS: dict[str, ExpressionKind] = {"subscription": "subscription", "filter": "filter"}
_TOKEN = re.compile(r"""\w+|"[^"\n]*"?|[^\w\s"]+""")

routes = web.RouteTableDef()


@routes.post(CHECK)
async def check(request: web.Request) -> web.Response:
    """Return the canonical form of an expression, or where its first mistake is."""
    body = Fields(await requests.json_body(request))
    body.allow_only(("kind", "text", "export"))
    kind = body.word("kind", _KINDS, "subscription")
    text = body.text("text", longest=MAX_TEXT) if body.get("text") != "" else ""
    export = _find_export(request, body.optional_text("export", longest=512))
    try:
        expression = parse(text, kind)
        if kind == "filter" and export is not None and export.schema is not None:
            check_filter(expression, export.schema)
    except ExpressionError as error:
        return json_answer(_mistake(error, text))
    return json_answer({"ok": True, "canonical": str(expression)})


def _find_export(request: web.Request, reference: str | None) -> Export | None:
    if reference is None:
        return None
    key = PortKey.parse(reference)
    if not request[CALLER].can_read(key.namespace):
        raise not_yours_error(
            f"This request reads no export of {key.namespace!r}: choose it with ?namespace=."
        )
    found = request.app[requests.RUNTIME].board.holder("Export", key)
    if not isinstance(found, Export):
        raise RequestError(404, "UnknownPort", f"There is no export {key}.")
    return found


def _mistake(error: ExpressionError, text: str) -> dict[str, Any]:
    position = error.position
    token = _TOKEN.match(text, position["offset"])
    return {
        "ok": False,
        "code": error.code,
        "message": str(error),
        "line": position["line"],
        "column": position["column"],
        "endColumn": position["column"] + (1 if token is None else len(token[0])),
    }


@routes.get(NAMES)
async def get_names(request: web.Request) -> web.Response:
    """Return the properties and columns of the exports of a namespace, or of all with ``*``."""
    namespace = requests.parse_namespace_or_all(request)
    board = request.app[requests.RUNTIME].board
    async with request.app[CALLER_LIMITS].scans.turn(caller_name(request)):
        exports = tuple(board.iter_exports())
        return json_answer(await asyncio.to_thread(_collect, exports, namespace))


def _collect(exports: Iterable[Export], namespace: str) -> dict[str, Any]:
    values: dict[str, set[tuple[str, Any]]] = {}
    columns: dict[str, str] = {}
    for export in exports:
        if namespace not in ("*", export.key.namespace):
            continue
        for name, value in (export.properties or {}).items():
            elements = value if isinstance(value, list) else [value]
            values.setdefault(name, set()).update(map(_typed, elements))
        columns.update((column.name, column.type) for column in export.schema or ())
    return {
        "properties": [
            {"name": name, "values": [value for _, value in sorted(values[name])[:MAX_VALUES]]}
            for name in sorted(values)[:MAX_NAMES]
        ],
        "columns": [{"name": name, "type": columns[name]} for name in sorted(columns)[:MAX_NAMES]],
    }


def _typed(value: Any) -> tuple[str, Any]:
    """Return a value with its type: values of one type can be sorted, and 1 is not True."""
    return ("int" if isinstance(value, float) else type(value).__name__, value)
