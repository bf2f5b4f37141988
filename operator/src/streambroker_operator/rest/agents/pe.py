"""``/job/{job}/pe/{pe}``: view, registration and withdrawal of a PE."""

from __future__ import annotations

import asyncio
import re
import secrets
from dataclasses import replace

from aiohttp import web

from streambroker_core.errors import ManifestError
from streambroker_core.model import PeKey
from streambroker_core.wire.broker import agent_commands, key_exchange, registration, view
from streambroker_core.wire.broker import ended_exports as ends
from streambroker_core.wire.broker.hints import point_text
from streambroker_operator.errors import RequestError
from streambroker_operator.rest.agents.control import COMMAND_TRANSPORT
from streambroker_operator.rest.agents.hint_targets import challenge, with_proven_hint
from streambroker_operator.rest.guard import authentication
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
    """Return a PE's view, or 304 if the caller has it; ``?wait=`` delays the 304."""
    pe = require_pe(request)
    wait_s = parse_wait(request)
    known_tags = parse_etags(request.headers.get("If-None-Match"))
    runtime = request.app[RUNTIME]
    if request[authentication.CALLER].can_change(pe.namespace, pe.job):
        _apply_ends(request, pe, polls=bool(known_tags))
    if wait_s and _current_version(request, pe) in known_tags:
        with request.app[CALLER_LIMITS].polls.hold(request):
            await runtime.publisher.wait_changed(pe, wait_s)
    version = _current_version(request, require_pe(request))
    headers = {
        "ETag": f'"{version}"',
        "Cache-Control": "no-cache",
        "Point": point_text(runtime.board.point),
    }
    agent = runtime.board.registration(pe)
    if agent is not None:
        headers["Agent"] = registration.registration_tag(runtime.agent_key(pe, agent), agent)
    if request[authentication.CALLER].can_change(pe.namespace, pe.job):
        for tag in known_tags:
            runtime.publisher.acknowledge(pe, tag, _parse_running_for(request))
        if runtime.publisher.needs_acknowledgements:
            headers["Acknowledge"] = "at-once"
        if request.app[COMMAND_TRANSPORT].has_pending(pe):
            headers[agent_commands.HEADER] = "waiting"
    if version in known_tags or "*" in known_tags:
        return web.Response(status=304, headers=headers)
    visible = authentication.visible_view(request, runtime.view(pe))
    if visible is None:
        raise LookupError("a known PE has a view")
    return json_answer(view.encode(visible), headers=headers)


def _parse_running_for(request: web.Request) -> float:
    """Return how many seconds an agent has been running its view; refuse anything else with 400."""
    text = request.headers.get("Running-For", "0")
    if _SECONDS.fullmatch(text) is None:
        raise RequestError(
            400, "HeaderInvalid", f"Running-For is not a number of seconds: {text[:64]!r}."
        )
    return float(text)


def _apply_ends(request: web.Request, pe: PeKey, *, polls: bool) -> None:
    """Apply the ended exports that an agent reports with its poll; refuse invalid ports with 400.

    - A poll of an agent without the header reports none; agents of older releases send no header.
    - A request without a known view and header is ignored: it may not be the agent's.
    """
    text, runtime = request.headers.get(ends.HEADER), request.app[RUNTIME]
    if text is None and not polls:
        return
    try:
        reported = ends.decode(text or "")
    except ManifestError as error:
        raise RequestError(400, "HeaderInvalid", str(error)) from error
    runtime.change_log.publish_reported(runtime.port_reports.apply_ends(pe, reported))


def _current_version(request: web.Request, pe: PeKey) -> str | None:
    return authentication.visible_version(request, pe, request.app[RUNTIME].board.version(pe))


@routes.put(PE)
async def register(request: web.Request) -> web.Response:
    """Store a PE's agent; return its key."""
    pe = parse_pe(request)
    sent = await json_body(request)
    body, offered = registration.decode(sent), registration.read_exchange(sent)
    exchange = _exchange(request, pe, body, offered)
    runtime, requested = request.app[RUNTIME], body
    proof = registration.read_proof(sent)
    body = with_proven_hint(runtime, pe, requested, request.remote or "", proof)
    check_etag(request, _current_version(request, pe))
    owner = authentication.binding(request, pe, body)
    same = runtime.board.registration(pe) == body and owner in (None, runtime.store.owner(pe))
    if not same:
        limits = request.app[CALLER_LIMITS]
        limits.check_pe(pe)
        limits.registrations.count(f"{pe.namespace}/{pe.job}")
    registered = await runtime.register(pe, body, owner)
    if body.hint != requested.hint:
        registered = replace(registered, hinted=False)
        challenge(runtime, pe, requested)
    body_json = await asyncio.to_thread(registration.encode_answer, registered, exchange, offered)
    response = json_answer(body_json, headers={"Cache-Control": "no-store"})
    response[authentication.QUIET] = same
    return response


def _exchange(
    request: web.Request, pe: PeKey, agent: registration.Registration, offered: bytes | None
) -> registration.Exchange | None:
    """Return the parameters that encrypt an agent's key; None if nobody else reads the connection.

    Refuses with 400 `KeyInClear` if the key would be readable on the network.
    """
    if request.secure or (offered is None and is_loopback(request.remote or "")):
        return None
    if offered is None:
        raise RequestError(
            400,
            "KeyInClear",
            "The answer contains the agent's key, and others can read this connection. Use"
            " https://, or send `exchange`, an X25519 public key.",
        )
    private, public = request.app[EXCHANGE_KEYS]
    purpose = registration.key_purpose(pe, agent.instance)
    return registration.Exchange(private=private, public=public, purpose=purpose)


def new_keys() -> tuple[bytes, bytes]:
    """Return a new private key and its public key."""
    private = secrets.token_bytes(key_exchange.SIZE)
    return private, key_exchange.public_key(private)


EXCHANGE_KEYS: web.AppKey[tuple[bytes, bytes]] = web.AppKey("exchange keys")
"""Key pair of this process; encrypts the keys of agents."""


@routes.delete(PE)
async def withdraw(request: web.Request) -> web.Response:
    """Remove a PE that has no ports."""
    pe = require_pe(request)
    check_etag(request, _current_version(request, pe))
    authentication.check_owner(request, pe)
    await request.app[RUNTIME].withdraw(pe)
    return web.Response(status=204)
