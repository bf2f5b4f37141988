"""``…/control``: control tuples from outside, and what became of them; ``…/errands`` for the agent.

The agent gives a tuple its identity and keeps it. The broker checks what is asked, has the agent
do it, and keeps nothing: what is repeated under its ``Request-Id`` the agent knows.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from streambroker_core.control.tuples.request import parse_control_request
from streambroker_core.model import PeKey
from streambroker_core.wire.broker import agent_commands as wire
from streambroker_core.wire.broker.agent_commands import AgentCommand, CommandResult, make_command
from streambroker_core.wire.encoding.fields import Fields
from streambroker_operator.errors import RequestError
from streambroker_operator.rest.guard.authentication import PRINCIPAL, QUIET
from streambroker_operator.rest.http.paths import COMMANDS, EMIT, SEND, TUPLE
from streambroker_operator.rest.http.requests import (
    RUNTIME,
    json_body,
    require_export,
    require_pe,
    require_stored,
)
from streambroker_operator.rest.http.responses import json_answer
from streambroker_operator.runtime.agent_commands import CommandTransport, agent_away_error

COMMAND_TRANSPORT: web.AppKey[CommandTransport] = web.AppKey("asked")

_STATUS: Mapping[str, int] = {
    "NotEmitted": 404,
    "ExportFull": 409,
    "ControlLogFull": 409,
    wire.FAILED: 503,
}
"""Of what an agent refuses; all else is wrong with the tuple."""
_MAX_SEQ = 18
routes = web.RouteTableDef()


@routes.post(EMIT)
async def emit(request: web.Request) -> web.Response:
    """Send a control tuple to the importers of an export."""
    key = require_export(request).key
    what = parse_control_request(await json_body(request)).encode()
    body = {"export": key.port, "request": _request_id(request), "what": what}
    return await _append(request, key.owner, wire.EMIT, body)


@routes.get(EMIT + TUPLE)
async def get_emitted(request: web.Request) -> web.Response:
    """Answer where such a tuple is, and which readers have applied it."""
    key = require_stored(request, "Export").resource.key
    return await _state(request, key.owner, wire.EMITTED, {"export": key.port})


@routes.post(SEND)
async def send(request: web.Request) -> web.Response:
    """Send a control tuple to a job's own operators, through the control log of the PE's agent."""
    pe = require_pe(request)
    what = parse_control_request(
        _with_operator(await json_body(request), request.query.get("operator"))
    )
    body = {"request": _request_id(request), "what": what.encode()}
    return await _append(request, pe, wire.APPEND, body)


@routes.get(SEND + TUPLE)
async def get_sent(request: web.Request) -> web.Response:
    """Answer which queries have applied such a tuple."""
    return await _state(request, require_pe(request), wire.ENTRY, {})


@routes.post(COMMANDS)
async def fetch(request: web.Request) -> web.Response:
    """Take what an agent has done; answer what else waits for it."""
    pe = require_pe(request)
    done = wire.decode_results(await json_body(request))
    found = await request.app[COMMAND_TRANSPORT].fetch(pe, done)
    answer = json_answer(wire.encode_commands(found), headers={"Cache-Control": "no-store"})
    answer[QUIET] = True
    return answer


def _with_operator(body: Any, operator: str | None) -> Any:
    """Return a tuple for the operator that the address names.

    Raises:
        ManifestError: it is for another one.
    """
    if operator is None:
        return body
    fields = Fields(body)
    target = fields.child("target")
    if target.has("operator") and target.get("operator") != operator:
        raise target.error_at(
            "operator", f"is {target.get('operator')!r}, but the address says {operator!r}"
        )
    return {**fields.raw(), "target": {**target.raw(), "operator": operator}}


def _request_id(request: web.Request) -> str:
    """Return what the agent knows the request by: names of different callers are apart."""
    given = request.headers.get("Request-Id")
    if given is None:
        return secrets.token_hex(16)
    return hashlib.sha256(f"{request[PRINCIPAL]}\n{given}".encode()).hexdigest()[:32]


async def _append(
    request: web.Request, pe: PeKey, action: str, body: Mapping[str, Any]
) -> web.Response:
    answer = await _execute(request, pe, make_command(action, body))
    chosen = f"?namespace={pe.namespace}" if "namespace" in request.query else ""
    location = f"{request.path}/{answer['id']}{chosen}"
    return json_answer(answer, status=201, headers={"Location": location})


async def _state(
    request: web.Request, pe: PeKey, action: str, body: Mapping[str, Any]
) -> web.Response:
    log, seq = request.match_info["log"], request.match_info["seq"]
    if not (seq.isascii() and seq.isdigit() and len(seq) <= _MAX_SEQ):
        raise _not_emitted(pe, f"{log}/{seq}")
    asked = make_command(action, {**body, "seq": int(seq)}, secrets.token_hex(16))
    answer = await _execute(request, pe, asked)
    if answer["id"] != f"{log}/{int(seq)}":
        raise _not_emitted(pe, f"{log}/{seq}")
    return json_answer(answer)


def _not_emitted(pe: PeKey, id_: str) -> RequestError:
    return RequestError(
        404,
        "NotEmitted",
        f"The agent of {pe} knows no control tuple {id_[:128]!r} here: it was not emitted, was so"
        " long ago that it is forgotten, or the agent has lost its disk.",
    )


async def _execute(request: web.Request, pe: PeKey, command: AgentCommand) -> Mapping[str, Any]:
    """Have an agent do something; return its answer.

    Raises:
        RequestError: 503, there is none, or it does not answer; what it refuses.
    """
    if request.app[RUNTIME].board.registration(pe) is None:
        raise agent_away_error(f"No agent of {pe} has registered.")
    done = await request.app[COMMAND_TRANSPORT].execute(pe, command)
    if done.answer is not None and isinstance(done.answer.get("id"), str):
        return done.answer
    raise _refusal(pe, done)


def _refusal(pe: PeKey, done: CommandResult) -> RequestError:
    if done.code == "UnknownPort":
        return agent_away_error(f"The agent of {pe} does not know the export yet.")
    code = {"RequestDiffers": "RequestIdReused", "": wire.FAILED}.get(done.code, done.code)
    status = _STATUS.get(code, 422)
    headers = {"Retry-After": "2"} if status == 503 else {}
    return RequestError(status, code, done.detail or f"The agent of {pe} failed.", headers=headers)
