"""``GET …/rows``: the last rows of an export, which its agent reads for a person who looks.

This is the only data of users that passes through the broker: for a browser, which cannot call an
agent. So it needs a right of its own, is bounded and audited, and can be switched off.
"""

from __future__ import annotations

import asyncio
import secrets

from aiohttp import web

from streambroker_core.expression import parse
from streambroker_core.model import Export
from streambroker_core.wire.broker.agent_commands import MAX_PEEK_ROWS, PEEK, make_command
from streambroker_operator.rest.agents.control import execute_command
from streambroker_operator.rest.guard.authentication import (
    CALLER,
    GUARD,
    not_yours_error,
)
from streambroker_operator.rest.guard.rate_limits import too_many_error
from streambroker_operator.rest.http.paths import ROWS
from streambroker_operator.rest.http.requests import PRINCIPAL, parse_limit, require_resource
from streambroker_operator.rest.http.responses import json_answer
from streambroker_operator.security import audit_log as audit

DEFAULT_ROWS = 50
MAX_PEEKS = 4
"""Maximum number of requests at the same time, of all callers."""
PEEKS: web.AppKey[asyncio.Semaphore] = web.AppKey("peeks", asyncio.Semaphore)

routes = web.RouteTableDef()


@routes.get(ROWS)
async def get_rows(request: web.Request) -> web.Response:
    """Return the last rows of an export that pass a filter."""
    key, caller = require_resource(request, Export).key, request[CALLER]
    if GUARD not in request.app and not caller.can_change(key.owner.namespace, key.owner.job):
        raise not_yours_error(
            f"The token {caller.name!r} may not look at rows of {key}: this takes the token of the"
            " job or an admin's."
        )
    filter_, columns = request.query.get("filter") or None, request.query.get("columns")
    if filter_ is not None:
        parse(filter_, "filter")
    body = {
        "export": key.port,
        "filter": filter_,
        "columns": [one.strip() for one in columns.split(",")] if columns else None,
        "limit": parse_limit(request, MAX_PEEK_ROWS) or DEFAULT_ROWS,
        "after": request.query.get("after"),
        "arrow": request.query.get("format") == "arrow",
    }
    peeks = request.app[PEEKS]
    if peeks.locked():
        raise too_many_error(f"There are already {MAX_PEEKS} requests for rows.", 1.0)
    audit.write_record(
        {"principal": request[PRINCIPAL], "action": "peek", "export": str(key), "filter": filter_}
    )
    async with peeks:
        command = make_command(PEEK, body, secrets.token_hex(16))
        found = await execute_command(request, key.owner, command)
    return json_answer(found, headers={"Cache-Control": "no-store"})
