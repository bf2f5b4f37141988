"""Ask every caller who they are, before anything else looks at the request.

What is not known to be allowed is refused: a new path is an admin's until it says otherwise.

Without tokens whoever reaches the broker may do everything, and a page in a browser of this
machine reaches it, too: under a name of its own that it lets lead here. So only names of this
machine are answered to, and no change that a page of elsewhere asks for.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from aiohttp import web

from streambroker_core.model import PeKey
from streambroker_core.wire.broker.registration import Registration
from streambroker_core.wire.broker.view import View, with_capabilities
from streambroker_operator.errors import RequestError
from streambroker_operator.rest.http.paths import API, APPLY, EXPLAIN, JOBS, WHATIF
from streambroker_operator.rest.http.requests import RUNTIME, requested_namespace, route_path
from streambroker_operator.security import audit_log as audit
from streambroker_operator.security.token_file import (
    ANONYMOUS,
    Principal,
    TokenFile,
    can_register,
    is_loopback,
    token_mismatch_message,
)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Guard(Protocol):
    """Says who calls and what they may do, where others than the token file know it."""

    async def identify(self, request: web.Request) -> str:
        """Return the name of the caller.

        Raises:
            RequestError: 401, nobody known; 429, too many of its address were not; 503, nobody
                could say.
        """
        ...

    async def authorise(self, request: web.Request, namespaces: RequestedNamespaces) -> Principal:
        """Return the caller, and what it may do.

        Args:
            request: whose caller is identified.
            namespaces: that the request reads or changes.

        Raises:
            RequestError: 403, they may not; 503, nobody could say.
        """
        ...

    def binding(self, request: web.Request) -> str | None:
        """Return the name to bind a PE's agent to by its registration; None to change nothing."""
        ...


class RequestedNamespaces(NamedTuple):
    """Namespaces that a request is about.

    Attributes:
        all_of: each of them.
        any_of: one of them, if there are any.
    """

    all_of: tuple[str, ...]
    any_of: tuple[str, ...] = ()


TOKENS = web.AppKey("tokens", TokenFile)
GUARD: web.AppKey[Guard] = web.AppKey("guard")
"""Who guards the broker in the place of a token file; absent where nobody does."""
CALLER = web.RequestKey("caller", Principal)
PRINCIPAL = web.RequestKey("principal", str)
"""Name of the caller; ``anonymous`` where the broker has no tokens."""
QUIET = web.ResponseKey("quiet", bool)
"""The answer of a write that wrote nothing worth telling, such as an agent's usual call."""

UNKNOWN = web.AppKey("unknown", audit.UnknownCallerFilter)
"""Which requests of unknown callers get a line of audit."""
LOCAL = web.AppKey("local", bool)
"""The broker answers to names of this machine alone."""
PUBLIC_PATHS = ("/healthz", "/readyz")
"""Paths that tell nothing, and tell it to everybody."""

_READING = ("GET", "HEAD", "OPTIONS")
_READ_ONLY_POSTS = (WHATIF,)
"""Paths whose POST changes nothing."""
_BULK_PATHS = (APPLY,)
"""Paths that name in the body what they change: a job's token is checked there, port by port."""
_PORT_QUERY_PATH = EXPLAIN
"""The path that selects by the ports it names; everywhere else these parameters mean nothing."""
_REALM = {"WWW-Authenticate": 'Bearer realm="streambroker"'}


@web.middleware
async def identify(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Let a request through whose caller is known."""
    _check_names(request)
    guard = request.app.get(GUARD)
    if guard is not None and route_path(request) not in PUBLIC_PATHS:
        request[PRINCIPAL] = await guard.identify(request)
    else:
        request[CALLER] = ANONYMOUS if route_path(request) in PUBLIC_PATHS else _caller(request)
        request[PRINCIPAL] = request[CALLER].name
    return await handler(request)


@web.middleware
async def authorise(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Let a request through whose caller may do that."""
    # Where there is nothing, or not by this method, the answer for that is the better one.
    if request.match_info.http_exception is None:
        if CALLER in request:
            _check_access(request, request[CALLER])
        else:
            request[CALLER] = await request.app[GUARD].authorise(
                request, _requested_namespaces(request)
            )
    return await handler(request)


def _check_names(request: web.Request) -> None:
    """Refuse what is asked under a name that is not of this machine, or by a page of elsewhere.

    Raises:
        RequestError: 403 `HostRefused`.
    """
    if TOKENS in request.app or not request.app.get(LOCAL, False):
        return
    host = request.headers.get("Host")
    if host is not None and not is_loopback(_parse_host(f"//{host}")):
        raise RequestError(
            403,
            "HostRefused",
            f"This broker has no tokens and answers to names of this machine alone, not to"
            f" {host[:128]!r}. Use 127.0.0.1 or localhost, give it tokens, or start it with"
            " --insecure.",
        )
    origin = request.headers.get("Origin")
    if origin is not None and not is_reading(request) and not is_loopback(_parse_host(origin)):
        raise RequestError(
            403, "HostRefused", f"A page of {origin[:128]!r} may change nothing in this broker."
        )


def _parse_host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _caller(request: web.Request) -> Principal:
    tokens = request.app.get(TOKENS)
    if tokens is None:
        return ANONYMOUS
    shown = request.headers.getall("Authorization", [])
    scheme, _, token = shown[0].strip().partition(" ") if len(shown) == 1 else ("", "", "")
    if scheme.lower() != "bearer" or not token:
        raise RequestError(
            401,
            "TokenMissing",
            "This broker wants a token: send the header `Authorization: Bearer <token>`. Jobs and"
            " the command line take it from STREAMBROKER_TOKEN.",
            headers=_REALM,
        )
    found = tokens.current().find(token.strip())
    if found is None:
        raise RequestError(
            401,
            "TokenWrong",
            "The broker does not know this token. Was it replaced? Ask whoever keeps the broker's"
            " token file.",
            headers={"WWW-Authenticate": _REALM["WWW-Authenticate"] + ', error="invalid_token"'},
        )
    return found


async def is_still_authorised(request: web.Request) -> bool:
    """Say whether the caller of a request that goes on is known still, and as the same."""
    guard = request.app.get(GUARD)
    try:
        if guard is None:
            return _caller(request) == request[CALLER]
        same = await guard.identify(request) == request[PRINCIPAL]
        return (
            same
            and await guard.authorise(request, _requested_namespaces(request)) == request[CALLER]
        )
    except RequestError as error:
        # That nobody can say it at the moment takes nothing away.
        return error.status in (429, 503)


def _check_access(request: web.Request, caller: Principal) -> None:
    """Refuse what the caller may not do.

    Raises:
        RequestError: 403 `NotYours`.
    """
    if is_reading(request):
        for namespace in _namespaces(request, caller):
            if not caller.can_read(namespace):
                mine = ", ".join(sorted({found for found, _ in caller.jobs}))
                raise not_yours_error(
                    f"The token {caller.name!r} reads only the namespace {mine}, not"
                    f" {namespace!r}: choose it with ?namespace=, or use another token."
                )
        return
    namespace = requested_namespace(request)
    job = request.match_info.get("job")
    if caller.can_change(namespace, job) or (
        caller.role == "job" and route_path(request) in _BULK_PATHS
    ):
        return
    if caller.role == "reader":
        raise not_yours_error(
            f"The token {caller.name!r} may read and change nothing; use another one."
        )
    mine = ", ".join(sorted("/".join(found) for found in caller.jobs))
    aim = f"job {namespace}/{job}" if job is not None else request.path
    raise not_yours_error(
        f"The token {caller.name!r} may change the ports of {mine} and no others; {aim} is not"
        " among them. Use the token of that job, or an admin's."
    )


def not_yours_error(message: str) -> RequestError:
    """Return the refusal of somebody who is known and may not do that."""
    return RequestError(403, "NotYours", message)


def is_reading(request: web.Request) -> bool:
    """Say whether a request changes nothing."""
    return request.method in _READING or (
        request.method == "POST" and route_path(request) in _READ_ONLY_POSTS
    )


def _namespaces(request: web.Request, caller: Principal) -> list[str]:
    """Return the namespaces that a caller has to read for what a request asks about."""
    asked = _requested_namespaces(request)
    # Who reads one side is told of the other what its views show; the handler sees to that.
    return [*asked.all_of, *([] if any(map(caller.can_read, asked.any_of)) else asked.any_of)]


def _requested_namespaces(request: web.Request) -> RequestedNamespaces:
    """Return the namespaces that a request is about."""
    path = route_path(request)
    if not path.startswith((API, JOBS)):
        return RequestedNamespaces(())
    chosen = requested_namespace(request)
    found = [request.query[name] for name in ("import", "export") if name in request.query]
    if path != _PORT_QUERY_PATH or not found:
        return RequestedNamespaces((chosen,))
    named = tuple(port.partition("/")[0] for port in found)
    return RequestedNamespaces((chosen,) if "namespace" in request.query else (), named)


def visible_view(request: web.Request, view: View | None) -> View | None:
    """Return a view as the caller may see it.

    Capabilities open the data of others to whoever has them, so only the PE's own job gets
    them. What is shown without is another version.
    """
    if view is None or request[CALLER].can_change(view.pe.namespace, view.pe.job):
        return view
    bare = with_capabilities(view, lambda _port, _route: None)
    version = visible_version(request, view.pe, view.version)
    return replace(bare, version=version or "")


def visible_version(request: web.Request, pe: PeKey, version: str | None) -> str | None:
    """Return the version of a view as the caller may see it."""
    if version is None or request[CALLER].can_change(pe.namespace, pe.job):
        return version
    return f"{version}.bare"


def binding(request: web.Request, pe: PeKey, registration: Registration) -> str | None:
    """Return the name to bind a PE's agent to: of a token, or of who guards; None for nothing.

    Raises:
        RequestError: 403, the PE's agent is another one, and of another token.
    """
    guard, tokens = request.app.get(GUARD), request.app.get(TOKENS)
    if guard is not None:
        return guard.binding(request)
    if tokens is None:
        return None
    runtime, caller = request.app[RUNTIME], request[CALLER]
    owner, known = runtime.owner(pe), runtime.board.registration(pe)
    same = known == registration
    if owner is not None and not can_register(
        caller, owner, is_registered=same, tokens=tokens.current()
    ):
        raise not_yours_error(token_mismatch_message(pe, owner))
    return caller.name


def check_withdrawal(request: web.Request, pe: PeKey) -> None:
    """Refuse to free a PE's agent from the token it is bound to.

    Raises:
        RequestError: 403, it is bound to another token.
    """
    tokens, owner = request.app.get(TOKENS), request.app[RUNTIME].owner(pe)
    if tokens is None or owner is None:
        return
    if not can_register(request[CALLER], owner, is_registered=False, tokens=tokens.current()):
        raise not_yours_error(token_mismatch_message(pe, owner))


@web.middleware
async def audit_writes(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Write a line of audit for every write, done or refused; has to stand outermost.

    Of callers that are not known there are only so many lines a minute.

    An agent that says the same as before writes nothing, and is not told of.
    """
    answer = await handler(request)
    if is_reading(request) or answer.get(QUIET, False) or not audit.is_enabled():
        return answer
    path, left_out = request.path_qs, 0
    if PRINCIPAL not in request:
        taken = request.app[UNKNOWN].admit(request.remote, time.monotonic())
        if taken is None:
            return answer
        path, left_out = path[: audit.MAX_PATH], taken
    body = _body(answer)
    # What a set of changes did to routes is not below a name of its own.
    routes = _object(body.get("routes")) or body
    results = body.get("results", ())
    audit.write_record(
        {
            "principal": request.get(PRINCIPAL),
            "address": request.remote,
            "method": request.method,
            "path": path,
            "requestId": request.headers.get("Request-Id", "")[:64] or None,
            "status": answer.status,
            "code": body.get("code"),
            "generation": body.get("generation"),
            "added": len(routes.get("added", ())),
            "cut": len(routes.get("cut", ())),
            "replayed": "Replayed" in answer.headers,
            **({"changes": [_change_text(one) for one in results]} if results else {}),
            **({"leftOut": left_out} if left_out else {}),
        }
    )
    return answer


def _change_text(result: Any) -> str:
    return f"{result['kind'].lower()} {result['port']} {result['became']}"


def _body(answer: web.StreamResponse) -> dict[str, Any]:
    """Return the object that an answer consists of; an empty one for anything else."""
    if not isinstance(answer, web.Response) or not isinstance(answer.body, bytes):
        return {}
    try:
        return _object(json.loads(answer.body))
    except ValueError:
        return {}


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
