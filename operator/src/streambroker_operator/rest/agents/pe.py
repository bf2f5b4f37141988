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
from streambroker_operator.rest.agents.control import ASKED
from streambroker_operator.rest.agents.hint_targets import challenge, with_proven_hint
from streambroker_operator.rest.guard.authentication import (
    CALLER,
    QUIET,
    binding,
    check_withdrawal,
    seen_by,
    version_seen_by,
)
from streambroker_operator.rest.guard.rate_limits import GAUGES
from streambroker_operator.rest.http.paths import PE
from streambroker_operator.rest.http.preconditions import check_tag, tags
from streambroker_operator.rest.http.requests import RUNTIME, json_body, known_pe, pe_of, wait_of
from streambroker_operator.rest.http.responses import json_answer
from streambroker_operator.security.token_file import is_loopback

routes = web.RouteTableDef()

_SECONDS = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?")


@routes.get(PE)
async def get_view(request: web.Request) -> web.Response:
    """Answer a PE's view, or 304 if the caller has it; with ``?wait=`` after a while."""
    pe = known_pe(request)
    wait_s = wait_of(request)
    known = tags(request.headers.get("If-None-Match"))
    runtime = request.app[RUNTIME]
    if request[CALLER].owns(pe.namespace, pe.job):
        _take_ends(request, pe, polls=bool(known))
    if wait_s and _current(request, pe) in known:
        with request.app[GAUGES].waiting(request):
            await runtime.changed(pe, wait_s)
    version = _current(request, known_pe(request))
    headers = {
        "ETag": f'"{version}"',
        "Cache-Control": "no-cache",
        "Point": point_text(runtime.board.point),
    }
    agent = runtime.board.registration(pe)
    if agent is not None:
        headers["Agent"] = registration.tag_of(runtime.key(pe, agent), agent)
    if request[CALLER].owns(pe.namespace, pe.job):
        for tag in known:
            runtime.acknowledge(pe, tag, _running_for(request))
        if runtime.wants_acknowledgements:
            headers["Acknowledge"] = "at-once"
        if request.app[ASKED].waits(pe):
            headers[errand.HEADER] = "waiting"
    if version in known or "*" in known:
        return web.Response(status=304, headers=headers)
    found = seen_by(request, runtime.view(pe))
    if found is None:
        raise LookupError("a known PE has a view")
    return json_answer(view.encode(found), headers=headers)


def _running_for(request: web.Request) -> float:
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


def _take_ends(request: web.Request, pe: PeKey, *, polls: bool) -> None:
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
    runtime.changes.show(runtime.endings.take(pe, told))


def _current(request: web.Request, pe: PeKey) -> str | None:
    return version_seen_by(request, pe, request.app[RUNTIME].board.version(pe))


@routes.put(PE)
async def register(request: web.Request) -> web.Response:
    """Remember where a PE's agent is and answer its key."""
    pe = pe_of(request)
    sent = await json_body(request)
    body, offered = registration.decode(sent), registration.read_exchange(sent)
    exchange = _exchange(request, pe, body, offered)
    runtime, wanted = request.app[RUNTIME], body
    proof = registration.read_proof(sent)
    body = with_proven_hint(runtime, pe, wanted, request.remote or "", proof)
    check_tag(request, _current(request, pe))
    owner = binding(request, pe, body)
    same = runtime.board.registration(pe) == body and owner in (None, runtime.owner(pe))
    if not same:
        request.app[GAUGES].check_pe(pe)
        request.app[GAUGES].count_registration(pe)
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
    purpose = registration.purpose_of(pe, agent.instance)
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
    pe = known_pe(request)
    check_tag(request, _current(request, pe))
    check_withdrawal(request, pe)
    await request.app[RUNTIME].withdraw(pe)
    return web.Response(status=204)
