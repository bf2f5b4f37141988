"""``/job/{job}/pe/{pe}``: a PE's view, its registration, its withdrawal."""

from __future__ import annotations

import asyncio
import re
import secrets
from dataclasses import replace

from aiohttp import web

from streambroker_core.errors import ManifestError
from streambroker_core.model import PeKey
from streambroker_core.wire.broker import agent_commands as errand
from streambroker_core.wire.broker import ended_exports as ends
from streambroker_core.wire.broker import key_exchange, registration, view
from streambroker_core.wire.broker.hints import point_text
from streambroker_operator.errors import RequestError
from streambroker_operator.rest.agents.control import COMMAND_TRANSPORT
from streambroker_operator.rest.agents.hint_targets import challenge, with_proven_hint
from streambroker_operator.rest.guard.authentication import (
    CALLER,
    QUIET,
    binding,
    check_withdrawal,
    visible_version,
    visible_view,
)
from streambroker_operator.rest.guard.rate_limits import CALLER_LIMITS
from streambroker_operator.rest.http.paths import PE
from streambroker_operator.rest.http.preconditions import check_etag, parse_etags
from streambroker_operator.rest.http.requests import (
    RUNTIME,
    json_body,
    parse_pe,
    parse_wait,
    require_pe,
)
from streambroker_operator.rest.http.responses import json_answer
from streambroker_operator.security.token_file import is_loopback

routes = web.RouteTableDef()

_SECONDS = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?")


@routes.get(PE)
async def get_view(request: web.Request) -> web.Response:
    """Answer a PE's view, or 304 if the caller has it; with ``?wait=`` after a while."""
    pe = require_pe(request)
    wait_s = parse_wait(request)
    known = parse_etags(request.headers.get("If-None-Match"))
    runtime = request.app[RUNTIME]
    if request[CALLER].can_change(pe.namespace, pe.job):
        _apply_ends(request, pe, polls=bool(known))
    if wait_s and _current_version(request, pe) in known:
        with request.app[CALLER_LIMITS].hold_poll(request):
            await runtime.wait_changed(pe, wait_s)
    version = _current_version(request, require_pe(request))
    headers = {
        "ETag": f'"{version}"',
        "Cache-Control": "no-cache",
        "Point": point_text(runtime.board.point),
    }
    agent = runtime.board.registration(pe)
    if agent is not None:
        headers["Agent"] = registration.registration_tag(runtime.agent_key(pe, agent), agent)
    if request[CALLER].can_change(pe.namespace, pe.job):
        for tag in known:
            runtime.acknowledge(pe, tag, _parse_running_for(request))
        if runtime.needs_acknowledgements:
            headers["Acknowledge"] = "at-once"
        if request.app[COMMAND_TRANSPORT].has_pending(pe):
            headers[errand.HEADER] = "waiting"
    if version in known or "*" in known:
        return web.Response(status=304, headers=headers)
    found = visible_view(request, runtime.view(pe))
    if found is None:
        raise LookupError("a known PE has a view")
    return json_answer(view.encode(found), headers=headers)


def _parse_running_for(request: web.Request) -> float:
    """Return for how long an agent says that it has run its view, in seconds.

    Raises:
        RequestError: 400, that is no number of seconds.
    """
    text = request.headers.get("Running-For", "0")
    if _SECONDS.fullmatch(text) is None:
        raise RequestError(
            400, "HeaderInvalid", f"Running-For is no number of seconds: {text[:64]!r}."
        )
    return float(text)


def _apply_ends(request: web.Request, pe: PeKey, *, polls: bool) -> None:
    """Take in which exports an agent says have ended; one that polls and says none has none.

    So does an agent of an older release. Who asks without having a view may be anybody of the job.

    Raises:
        RequestError: 400, that names what is no port.
    """
    text, runtime = request.headers.get(ends.HEADER), request.app[RUNTIME]
    if text is None and not polls:
        return
    try:
        told = ends.decode(text or "")
    except ManifestError as error:
        raise RequestError(400, "HeaderInvalid", str(error)) from error
    runtime.change_log.publish_exports(runtime.export_reports.apply_ends(pe, told))


def _current_version(request: web.Request, pe: PeKey) -> str | None:
    return visible_version(request, pe, request.app[RUNTIME].board.version(pe))


@routes.put(PE)
async def register(request: web.Request) -> web.Response:
    """Remember where a PE's agent is and answer its key."""
    pe = parse_pe(request)
    sent = await json_body(request)
    body, offered = registration.decode(sent), registration.read_exchange(sent)
    exchange = _exchange(request, pe, body, offered)
    runtime, wanted = request.app[RUNTIME], body
    proof = registration.read_proof(sent)
    body = with_proven_hint(runtime, pe, wanted, request.remote or "", proof)
    check_etag(request, _current_version(request, pe))
    owner = binding(request, pe, body)
    same = runtime.board.registration(pe) == body and owner in (None, runtime.owner(pe))
    if not same:
        request.app[CALLER_LIMITS].check_pe(pe)
        request.app[CALLER_LIMITS].count_registration(pe)
    registered = await runtime.register(pe, body, owner)
    if body.hint != wanted.hint:
        registered = replace(registered, hinted=False)
        challenge(runtime, pe, wanted)
    told = await asyncio.to_thread(registration.encode_answer, registered, exchange, offered)
    answer = json_answer(told, headers={"Cache-Control": "no-store"})
    answer[QUIET] = same
    return answer


def _exchange(
    request: web.Request, pe: PeKey, agent: registration.Registration, offered: bytes | None
) -> registration.Exchange | None:
    """Return what seals an agent's key; None where only the two sides read the connection.

    Raises:
        RequestError: 400 `KeyInClear`, the key would be readable on the network.
    """
    if request.secure or (offered is None and is_loopback(request.remote or "")):
        return None
    if offered is None:
        raise RequestError(
            400,
            "KeyInClear",
            "The answer has the agent's key, and others can read this connection. Use https://, or"
            " send `exchange`, an X25519 public key.",
        )
    private, public = request.app[EXCHANGE_KEYS]
    purpose = registration.key_purpose(pe, agent.instance)
    return registration.Exchange(private=private, public=public, purpose=purpose)


def new_keys() -> tuple[bytes, bytes]:
    """Return a private key and the public key that belongs to it."""
    private = secrets.token_bytes(key_exchange.SIZE)
    return private, key_exchange.public_key(private)


EXCHANGE_KEYS: web.AppKey[tuple[bytes, bytes]] = web.AppKey("exchange keys")
"""The pair of this process by which keys of agents are sealed."""


@routes.delete(PE)
async def withdraw(request: web.Request) -> web.Response:
    """Forget a PE that has no port left."""
    pe = require_pe(request)
    check_etag(request, _current_version(request, pe))
    check_withdrawal(request, pe)
    await request.app[RUNTIME].withdraw(pe)
    return web.Response(status=204)
