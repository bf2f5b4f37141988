"""Authenticate and authorise every request before a handler sees it.

- Paths without an explicit rule require an admin: the default is to refuse.
- Without tokens, every caller that reaches the broker has all rights. A web page in a local browser
  reaches it too, through a DNS name that resolves to this machine. So the broker then accepts only
  host names of this machine, and no cross-origin writes, except with ``--insecure``.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler

from streambroker_core.model import PeKey
from streambroker_core.wire.broker.registration import Registration
from streambroker_core.wire.broker.view import View, with_capabilities
from streambroker_operator.errors import RequestError
from streambroker_operator.rest.http.paths import (
    API,
    APPLY,
    ASYNCAPI,
    CHECK,
    EXPLAIN,
    JOBS,
    PAGE_PATHS,
    UI,
    WHATIF,
)
from streambroker_operator.rest.http.requests import (
    PRINCIPAL,
    RUNTIME,
    requested_namespace,
    route_path,
)
from streambroker_operator.security import audit_log as audit
from streambroker_operator.security.token_file import (
    ANONYMOUS,
    Principal,
    TokenFile,
    can_register,
    is_loopback,
    token_mismatch_message,
)


class Guard(Protocol):
    """Authentication and authorisation that replace the token file."""

    async def identify(self, request: web.Request) -> str:
        """Return the name of the caller.

        Raises:
            RequestError: 401, unknown caller; 429, too many unknown callers at this address;
                503, the identity cannot be checked.
        """
        ...

    async def authorise(self, request: web.Request, namespaces: RequestedNamespaces) -> Principal:
        """Return the permissions of an identified caller for these namespaces.

        Raises:
            RequestError: 403, not allowed; 503, the permissions cannot be checked.
        """
        ...

    def binding(self, request: web.Request) -> str | None:
        """Return the principal to bind a PE's agent to on registration; None to leave it as is."""
        ...


class RequestedNamespaces(NamedTuple):
    """Namespaces that a request concerns.

    Attributes:
        all_of: the caller needs access to each.
        any_of: the caller needs access to at least one, if there are any.
    """

    all_of: tuple[str, ...]
    any_of: tuple[str, ...] = ()


TOKENS = web.AppKey("tokens", TokenFile)
GUARD: web.AppKey[Guard] = web.AppKey("guard")
"""Replaces the token file; absent if unused."""
CALLER = web.RequestKey("caller", Principal)
QUIET = web.ResponseKey("quiet", bool)
"""Set on responses of writes that are not audited, such as routine agent polls."""

UNKNOWN = web.AppKey("unknown", audit.UnknownCallerFilter)
"""Limits the audit lines for unknown callers."""
LOCAL = web.AppKey("local", bool)
"""Whether the broker accepts only host names of this machine."""
PUBLIC_PATHS = ("/healthz", "/readyz", *PAGE_PATHS)
"""Paths that need no authentication and reveal nothing."""
MAX_NAMESPACES = 100
"""Maximum number of namespaces of which a caller learns at once whether it may read them."""

_READING = ("GET", "HEAD", "OPTIONS")
_READ_ONLY_POSTS = (WHATIF, CHECK)
"""Paths whose POST changes nothing."""
_BULK_PATHS = (APPLY,)
"""Paths whose body names the ports to change: the handler checks a job token for each port."""
_PORT_QUERY_PATH = EXPLAIN
"""The only path where `import` and `export` select ports; elsewhere they have no meaning."""
_REALM = {"WWW-Authenticate": 'Bearer realm="streambroker"'}


@web.middleware
async def identify(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Identify the caller of a request."""
    _check_names(request)
    guard = request.app.get(GUARD)
    if guard is not None and not _is_public(request):
        request[PRINCIPAL] = await guard.identify(request)
    else:
        request[CALLER] = ANONYMOUS if _is_public(request) else _caller(request)
        request[PRINCIPAL] = request[CALLER].name
    return await handler(request)


def needs_token(request: web.Request) -> bool:
    """Return whether this broker authenticates its callers."""
    return GUARD in request.app or TOKENS in request.app


def _is_public(request: web.Request) -> bool:
    """Return whether a request needs no token: without one the page learns whether it needs one."""
    path = route_path(request)
    return path in PUBLIC_PATHS or (path == UI and "Authorization" not in request.headers)


@web.middleware
async def authorise(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Check that the caller may do what the request asks."""
    # For unknown paths and methods, 404 or 405 is the better response.
    if request.match_info.http_exception is None:
        if CALLER in request:
            _check_access(request, request[CALLER])
        else:
            request[CALLER] = await request.app[GUARD].authorise(
                request, _requested_namespaces(request)
            )
    return await handler(request)


def _check_names(request: web.Request) -> None:
    """Refuse host names of other machines, and cross-origin writes, with 403 `HostRefused`."""
    if TOKENS in request.app or not request.app.get(LOCAL, False):
        return
    host = request.headers.get("Host")
    if host is not None and not is_loopback(_parse_host(f"//{host}")):
        raise RequestError(
            403,
            "HostRefused",
            "This broker has no tokens and accepts only names of this machine, not"
            f" {host[:128]!r}. Use 127.0.0.1 or localhost, give it tokens, or start it with"
            " --insecure.",
        )
    origin = request.headers.get("Origin")
    if origin is not None and not is_reading(request) and not is_loopback(_parse_host(origin)):
        raise RequestError(
            403, "HostRefused", f"Cross-origin writes from {origin[:128]!r} are not allowed."
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
    headers = request.headers.getall("Authorization", [])
    scheme, _, token = headers[0].strip().partition(" ") if len(headers) == 1 else ("", "", "")
    if scheme.lower() != "bearer" or not token:
        raise RequestError(
            401,
            "TokenMissing",
            "This broker requires a token: send the header `Authorization: Bearer <token>`. Jobs"
            " and the command line take it from STREAMBROKER_TOKEN.",
            headers=_REALM,
        )
    principal = tokens.current().find(token.strip())
    if principal is None:
        raise RequestError(
            401,
            "TokenWrong",
            "The broker does not know this token. Was it replaced? Ask the operator of the"
            " broker for a current one.",
            headers={"WWW-Authenticate": _REALM["WWW-Authenticate"] + ', error="invalid_token"'},
        )
    return principal


async def is_still_authorised(request: web.Request) -> bool:
    """Return whether a running request's caller still has the same identity and permissions."""
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
        # A failed check is no revocation.
        return error.status in (429, 503)


def _check_access(request: web.Request, caller: Principal) -> None:
    """Refuse what the caller may not do with 403 `NotYours`."""
    if is_reading(request):
        for namespace in _namespaces(request, caller):
            if not caller.can_read(namespace):
                mine = ", ".join(sorted({entry for entry, _ in caller.jobs}))
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
            f"The token {caller.name!r} may neither read nor change anything; use another one."
        )
    mine = ", ".join(sorted("/".join(entry) for entry in caller.jobs))
    aim = f"job {namespace}/{job}" if job is not None else request.path
    raise not_yours_error(
        f"The token {caller.name!r} may change the ports of {mine} and no others; {aim} is not"
        " among them. Use the token of that job, or an admin's."
    )


def not_yours_error(message: str) -> RequestError:
    """Return a 403 error for a known caller."""
    return RequestError(403, "NotYours", message)


def is_reading(request: web.Request) -> bool:
    """Return whether a request changes nothing."""
    return request.method in _READING or (
        request.method == "POST" and route_path(request) in _READ_ONLY_POSTS
    )


def _namespaces(request: web.Request, caller: Principal) -> list[str]:
    """Return the namespaces that the caller must be able to read."""
    if route_path(request) == UI and caller.namespaces:
        return []  # the answer has only those that the caller may read
    requested = _requested_namespaces(request)
    # A reader of one side may see what its views show of the other; the handler checks that.
    return [
        *requested.all_of,
        *([] if any(map(caller.can_read, requested.any_of)) else requested.any_of),
    ]


def _requested_namespaces(request: web.Request) -> RequestedNamespaces:
    path = route_path(request)
    if not path.startswith((API, JOBS, ASYNCAPI)):
        return RequestedNamespaces(())
    if path == UI:
        own = requested_namespace(request)
        return RequestedNamespaces((), ("*", own, *known_namespaces(request)))
    chosen = requested_namespace(request)
    ports = [request.query[name] for name in ("import", "export") if name in request.query]
    if path != _PORT_QUERY_PATH or not ports:
        return RequestedNamespaces((chosen,))
    named = tuple(port.partition("/")[0] for port in ports)
    return RequestedNamespaces((chosen,) if "namespace" in request.query else (), named)


def known_namespaces(request: web.Request) -> list[str]:
    """Return the first namespaces that have Exports or Imports, in order."""
    board = request.app[RUNTIME].board
    names = {one.key.namespace for one in board.iter_exports()}
    names |= {one.key.namespace for one in board.iter_imports()}
    return sorted(names)[:MAX_NAMESPACES]


def visible_view(request: web.Request, view: View | None) -> View | None:
    """Return the part of a view that the caller may see.

    Capabilities grant access to data of other jobs, so only the PE's own job receives them. The
    view without capabilities has a different version.
    """
    if view is None or request[CALLER].can_change(view.pe.namespace, view.pe.job):
        return view
    bare = with_capabilities(view, lambda _port, _route: None)
    version = visible_version(request, view.pe, view.version)
    return replace(bare, version=version or "")


def visible_version(request: web.Request, pe: PeKey, version: str | None) -> str | None:
    """Return the version of the part of a view that the caller may see."""
    if version is None or request[CALLER].can_change(pe.namespace, pe.job):
        return version
    return f"{version}.bare"


def binding(request: web.Request, pe: PeKey, registration: Registration) -> str | None:
    """Return the principal to bind a PE's agent to; None for none.

    Raises:
        RequestError: 403, the registered agent differs and is bound to another token.
    """
    guard = request.app.get(GUARD)
    if guard is not None:
        return guard.binding(request)
    if TOKENS not in request.app:
        return None
    same = request.app[RUNTIME].board.registration(pe) == registration
    check_owner(request, pe, is_registered=same)
    return request[CALLER].name


def check_owner(request: web.Request, pe: PeKey, *, is_registered: bool = False) -> None:
    """Refuse to replace or remove a PE's agent that is bound to another token, with 403.

    `is_registered` means that the request registers the same agent again.
    """
    tokens, owner = request.app.get(TOKENS), request.app[RUNTIME].store.owner(pe)
    if tokens is None or owner is None:
        return
    if not can_register(
        request[CALLER], owner, is_registered=is_registered, tokens=tokens.current()
    ):
        raise not_yours_error(token_mismatch_message(pe, owner))


@web.middleware
async def audit_writes(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Write an audit line for every write; must enclose all middlewares that refuse requests.

    Audit lines for unknown callers are limited per minute. Routine agent polls that change nothing
    are not audited.
    """
    response = await handler(request)
    if is_reading(request) or response.get(QUIET, False) or not audit.is_enabled():
        return response
    path, left_out = request.path_qs, 0
    if PRINCIPAL not in request:
        skipped = request.app[UNKNOWN].admit(request.remote, time.monotonic())
        if skipped is None:
            return response
        path, left_out = path[: audit.MAX_PATH], skipped
    body = _body(response)
    # The result of a bulk change has its routes at the top level, not below `routes`.
    routes = _object(body.get("routes")) or body
    results = body.get("results", ())
    audit.write_record(
        {
            "principal": request.get(PRINCIPAL),
            "address": request.remote,
            "method": request.method,
            "path": path,
            "requestId": request.headers.get("Request-Id", "")[:64] or None,
            "status": response.status,
            "code": body.get("code"),
            "generation": body.get("generation"),
            "added": len(routes.get("added", ())),
            "cut": len(routes.get("cut", ())),
            "replayed": "Replayed" in response.headers,
            **({"changes": [_change_text(one) for one in results]} if results else {}),
            **({"leftOut": left_out} if left_out else {}),
        }
    )
    return response


def _change_text(result: Any) -> str:
    return f"{result['kind'].lower()} {result['port']} {result['became']}"


def _body(answer: web.StreamResponse) -> dict[str, Any]:
    """Return the JSON object of a response; empty for anything else."""
    if not isinstance(answer, web.Response) or not isinstance(answer.body, bytes):
        return {}
    try:
        return _object(json.loads(answer.body))
    except ValueError:
        return {}


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
