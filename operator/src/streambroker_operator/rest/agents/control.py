"""``…/control``: emit control tuples and query their state; ``…/snapshots``; ``…/errands``.

The agent assigns identities and stores the tuples. The broker checks a request, has the agent
execute it and stores nothing: the agent recognises a repeated ``Request-Id``.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web

from streambroker_core.control.tuples.request import parse_control_request
from streambroker_core.deprecation import CHANGED_DELIVERY
from streambroker_core.model import Export, PeKey
from streambroker_core.wire.broker import agent_commands as wire
from streambroker_core.wire.broker.agent_commands import AgentCommand, CommandResult, make_command
from streambroker_core.wire.broker.snapshot import check_name
from streambroker_core.wire.encoding.canonical import JsonObject
from streambroker_core.wire.encoding.fields import Fields
from streambroker_operator.errors import RequestError
from streambroker_operator.rest.guard.authentication import QUIET
from streambroker_operator.rest.http.paths import COMMANDS, EMIT, SEND, SNAPSHOT, TUPLE
from streambroker_operator.rest.http.requests import (
    PRINCIPAL,
    RUNTIME,
    json_body,
    require_pe,
    require_resource,
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
"""HTTP status by error code of an agent; 422 for all other codes."""
_MAX_SEQ = 18
routes = web.RouteTableDef()


@routes.post(EMIT)
async def emit(request: web.Request) -> web.Response:
    """Send a control tuple to the importers of an export."""
    key = require_resource(request, Export).key
    control, warnings = _parse_control(await json_body(request))
    body: JsonObject = {"export": key.port, "request": _request_id(request), "what": control}
    return await _append(request, key.owner, wire.EMIT, body, warnings)


@routes.get(EMIT + TUPLE)
async def get_emitted(request: web.Request) -> web.Response:
    """Return the state of an emitted tuple, and which readers have applied it."""
    key = require_resource(request, Export).key
    return await _state(request, key.owner, wire.EMITTED, {"export": key.port})


@routes.post(SEND)
async def send(request: web.Request) -> web.Response:
    """Send a control tuple to a job's own operators, through the control log of the PE's agent."""
    pe = require_pe(request)
    control, warnings = _parse_control(
        _with_operator(await json_body(request), request.query.get("operator"))
    )
    body: JsonObject = {"request": _request_id(request), "what": control}
    return await _append(request, pe, wire.APPEND, body, warnings)


@routes.get(SEND + TUPLE)
async def get_sent(request: web.Request) -> web.Response:
    """Return which queries have applied a sent tuple."""
    return await _state(request, require_pe(request), wire.ENTRY, {})


@routes.put(SNAPSHOT)
async def take_snapshot(request: web.Request) -> web.Response:
    """Have an agent take a snapshot, once; a repeated request returns its state."""
    pe = require_pe(request)
    body: JsonObject = {"name": check_name(request.match_info["name"])}
    command = make_command(wire.SNAPSHOT, body, secrets.token_hex(16))
    answer = await execute_command(request, pe, command)
    status = 202 if answer.get("state") == "running" else 200
    return json_answer(answer, status=status, headers={"Cache-Control": "no-store"})


@routes.post(COMMANDS)
async def fetch(request: web.Request) -> web.Response:
    """Accept an agent's results; return the commands that wait for it."""
    pe = require_pe(request)
    results = wire.decode_results(await json_body(request))
    commands = await request.app[COMMAND_TRANSPORT].fetch(pe, results)
    response = json_answer(wire.encode_commands(commands), headers={"Cache-Control": "no-store"})
    response[QUIET] = True
    return response


def _parse_control(body: Any) -> tuple[JsonObject, list[str]]:
    """Return a control tuple as agents read it, and warnings for the caller."""
    control = parse_control_request(body).encode()
    return control, [] if Fields(body).has("delivery") else [CHANGED_DELIVERY]


def _with_operator(body: Any, operator: str | None) -> Any:
    """Return the tuple with the operator of the query as its target; refuse a different one."""
    if operator is None:
        return body
    fields = Fields(body)
    target = fields.child("target")
    if target.has("operator") and target.get("operator") != operator:
        raise target.error_at(
            "operator", f"is {target.get('operator')!r}, but the address has {operator!r}"
        )
    return {**fields.raw(), "target": {**target.raw(), "operator": operator}}


def _request_id(request: web.Request) -> str:
    """Return the id for the agent; ids of different callers never collide."""
    request_id = request.headers.get("Request-Id")
    if request_id is None:
        return secrets.token_hex(16)
    return hashlib.sha256(f"{request[PRINCIPAL]}\n{request_id}".encode()).hexdigest()[:32]


async def _append(
    request: web.Request,
    pe: PeKey,
    action: str,
    body: JsonObject,
    warnings: Sequence[str],
) -> web.Response:
    result = await _execute(request, pe, make_command(action, body))
    query = f"?namespace={pe.namespace}" if "namespace" in request.query else ""
    location = f"{request.path}/{result['id']}{query}"
    answer = {**result, **({"warnings": list(warnings)} if warnings else {})}
    return json_answer(answer, status=201, headers={"Location": location})


async def _state(request: web.Request, pe: PeKey, action: str, body: JsonObject) -> web.Response:
    log, seq = request.match_info["log"], request.match_info["seq"]
    if not (seq.isascii() and seq.isdigit() and len(seq) <= _MAX_SEQ):
        raise _not_emitted(pe, f"{log}/{seq}")
    command = make_command(action, {**body, "seq": int(seq)}, secrets.token_hex(16))
    result = await _execute(request, pe, command)
    if result["id"] != f"{log}/{int(seq)}":
        raise _not_emitted(pe, f"{log}/{seq}")
    return json_answer(result)


def _not_emitted(pe: PeKey, id_: str) -> RequestError:
    return RequestError(
        404,
        "NotEmitted",
        f"The agent of {pe} knows no control tuple {id_[:128]!r} here: it was never emitted, is"
        " too old to be remembered, or the agent has lost its disk.",
    )


async def _execute(request: web.Request, pe: PeKey, command: AgentCommand) -> Mapping[str, Any]:
    answer = await execute_command(request, pe, command)
    if not isinstance(answer.get("id"), str):
        raise _refusal(pe, CommandResult(id=command.id))
    return answer


async def execute_command(
    request: web.Request, pe: PeKey, command: AgentCommand
) -> Mapping[str, Any]:
    """Have an agent execute a command; return its answer, or raise 503 or the agent's refusal."""
    if request.app[RUNTIME].board.registration(pe) is None:
        raise agent_away_error(f"No agent of {pe} has registered.")
    result = await request.app[COMMAND_TRANSPORT].execute(pe, command)
    if result.answer is not None:
        return result.answer
    raise _refusal(pe, result)


def _refusal(pe: PeKey, done: CommandResult) -> RequestError:
    if done.code == "UnknownPort":
        return agent_away_error(f"The agent of {pe} does not know the export yet.")
    code = {"RequestDiffers": "RequestIdReused", "": wire.FAILED}.get(done.code, done.code)
    status = _STATUS.get(code, 422)
    headers = {"Retry-After": "2"} if status == 503 else {}
    return RequestError(status, code, done.detail or f"The agent of {pe} failed.", headers=headers)
