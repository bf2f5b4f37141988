"""Parse requests: paths, query parameters, bodies and conditions; errors carry the HTTP status."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from functools import partial
from typing import Any, NoReturn, TypeVar

from aiohttp import web

from streambroker_core.errors import ManifestError
from streambroker_core.model import (
    DEFAULT_NAMESPACE,
    Export,
    Import,
    Kind,
    PeKey,
    PortKey,
    is_label,
)
from streambroker_core.wire.encoding.canonical import JsonObject, JsonValue
from streambroker_core.wire.encoding.quantity import parse_duration
from streambroker_operator.errors import RequestError
from streambroker_operator.rest.http.paths import APPLY, COMMANDS, WHATIF
from streambroker_operator.rest.http.preconditions import check_etag, check_match
from streambroker_operator.runtime.runtime import Runtime
from streambroker_operator.storage.backend import StoredResource
from streambroker_operator.storage.write_options import OwnerReference, WriteOptions

R = TypeVar("R", Export, Import)

RUNTIME = web.AppKey("runtime", Runtime)
HOME = web.RequestKey("home", str)
"""The caller's own namespace; absent if unknown."""

PRINCIPAL = web.RequestKey("principal", str)
"""Name of the caller; ``anonymous`` where the broker has no tokens."""

MAX_BODY = 64 * 1024
"""Maximum size of a request body, in bytes."""
MAX_PROPOSAL = 1024 * 1024
"""Maximum size of a body that has many resources, or rows, in bytes."""
LONG_BODY_PATHS = (APPLY, COMMANDS, WHATIF)
"""Paths that accept such bodies."""
MAX_WAIT_S = 60.0
"""Longest long poll, in seconds."""

_GZIP = 16 + zlib.MAX_WBITS
_JSON = ("application/json", "application/merge-patch+json", "application/octet-stream")


def route_path(request: web.Request) -> str:
    """Return the route template of a request; empty if no route matches."""
    resource = request.match_info.route.resource
    return "" if resource is None else resource.canonical


def query_error(message: str) -> RequestError:
    """Return a 400 error for a query parameter."""
    return RequestError(400, "QueryInvalid", message)


def parse_limit(request: web.Request, most: int) -> int | None:
    """Return ``?limit=``, from 1 to ``most``; None if absent. Refuse other values with 400."""
    return parse_integer(request, "limit", 1, most)


def parse_integer(request: web.Request, name: str, least: int, most: int) -> int | None:
    """Return an integer parameter of at most 9 digits; None if absent. Refuse others with 400."""
    text = request.query.get(name)
    if text is None:
        return None
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
    if not least <= number <= most:
        raise query_error(f"{name}={text!r} is not a whole number from {least} to {most}.")
    return number


def requested_namespace(request: web.Request) -> str:
    """Return ``?namespace=`` unchecked; without it the caller's own namespace."""
    return request.query.get("namespace", request.get(HOME, DEFAULT_NAMESPACE))


def parse_namespace(request: web.Request) -> str:
    """Return the selected namespace; refuse anything but a DNS label with 400."""
    namespace = requested_namespace(request)
    if not is_label(namespace):
        raise query_error(f"The namespace {namespace!r} is not a DNS label.")
    return namespace


def parse_namespace_or_all(request: web.Request) -> str:
    """Return the selected namespace, or ``*`` for all; refuse anything else with 400."""
    return "*" if requested_namespace(request) == "*" else parse_namespace(request)


def parse_pe(request: web.Request) -> PeKey:
    """Return the PE of the path, known or not; PE 0 if the path has only a job.

    Raises:
        ManifestError: invalid PE.
    """
    info = request.match_info
    return PeKey.parse(f"{parse_namespace(request)}/{info['job']}/{info.get('pe', 0)}")


def parse_port(request: web.Request) -> PortKey:
    """Return the port of the path, known or not.

    Raises:
        ManifestError: invalid port.
    """
    return PortKey.parse(f"{parse_pe(request)}/{request.match_info['port']}")


def require_pe(request: web.Request) -> PeKey:
    """Return the PE of the path; raise 404 if it is unknown."""
    info = request.match_info
    try:
        pe = parse_pe(request)
    except ManifestError:
        pe = None
    if pe is None or request.app[RUNTIME].board.version(pe) is None:
        raise RequestError(
            404,
            "UnknownPE",
            f"The broker knows no PE {parse_namespace(request)}/{info['job']}/{info['pe']}; "
            "`GET /pes` lists those it knows. An agent keeps its routes and registers again.",
        )
    return pe


def require_stored(request: web.Request, kind: Kind) -> StoredResource:
    """Return the resource of the path; raise 404 if the PE or the port is unknown."""
    pe = require_pe(request)
    name = request.match_info["port"]
    try:
        stored = request.app[RUNTIME].store.get(kind, parse_port(request))
    except ManifestError:
        stored = None
    if stored is None:
        raise RequestError(404, "UnknownPort", f"{pe} has no {kind.lower()} {name!r}.")
    return stored


def require_resource(request: web.Request, type_: type[R]) -> R:
    """Return the resource of the path; raise 404 if it is unknown, 412 if a condition fails.

    Conditions of a GET are evaluated with its response.
    """
    resource = require_stored(request, "Export" if type_ is Export else "Import").resource
    if request.method not in ("GET", "HEAD"):
        check_match(request, resource)
    if not isinstance(resource, type_):
        raise TypeError("the store keeps kinds apart")
    return resource


def parse_write_options(
    request: web.Request, owners: tuple[OwnerReference, ...] = ()
) -> WriteOptions:
    """Return the options of a write: conditions, owners, and ``?force=`` (400 if not a boolean)."""
    force = request.query.get("force", "false")
    if force not in ("true", "false"):
        raise query_error(f"force={force!r} is neither true nor false.")
    return WriteOptions(
        check=partial(check_etag, request),
        force=force == "true",
        owners=owners,
        principal=request.get(PRINCIPAL, ""),
    )


def parse_wait(request: web.Request) -> float:
    """Return ``?wait=``, the time a GET may wait, in seconds; 0 if absent, 400 if invalid."""
    text = request.query.get("wait")
    if text is None:
        return 0.0
    seconds = parse_duration(text)
    if seconds is None:
        raise query_error(f"wait={text!r} is not a duration; write 30s or 500ms.")
    return min(seconds, MAX_WAIT_S)


async def raw_body(request: web.Request) -> bytes:
    """Return the decompressed body.

    Raises:
        RequestError: 413, too large; 400, incomplete or invalid compression; 415, compressed with
            anything but gzip.
    """
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip"):
        raise RequestError(
            415,
            "NotJson",
            f"The body is encoded as {encoding[:64]!r}; send it plain, or as gzip.",
            headers={"Accept-Encoding": "gzip, identity"},
        )
    try:
        raw = await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise _too_long(request) from error
    except (web.RequestPayloadError, ConnectionError) as error:
        raise _not_json("ended before its declared length, or its connection broke") from error
    return raw if encoding == "identity" else _decompress(request, raw)


def _decompress(request: web.Request, raw: bytes) -> bytes:
    decompressor = zlib.decompressobj(wbits=_GZIP)
    try:
        data = decompressor.decompress(raw, request.client_max_size + 1)
    except zlib.error:
        data = b""
    if len(data) > request.client_max_size:
        raise _too_long(request)
    if not decompressor.eof:
        raise _not_json("is not valid gzip, although Content-Encoding declares it")
    return data


def _too_long(request: web.Request) -> RequestError:
    most = request.client_max_size
    return RequestError(413, "BodyTooLarge", f"The body has more than {most} bytes.")


async def text_body(request: web.Request) -> str:
    """Return the body as text; raise 400 if it is not UTF-8, 413 if it is too large."""
    try:
        return (await raw_body(request)).decode("utf-8")
    except UnicodeDecodeError as error:
        raise _not_json(f"is not UTF-8 at byte {error.start}") from error


async def json_body(request: web.Request) -> Any:
    """Return the parsed JSON body.

    Raises:
        RequestError: 415, another content type; 400, not JSON, or duplicate keys in an object;
            413, too large.
    """
    if request.content_type not in _JSON:
        raise RequestError(
            415,
            "NotJson",
            f"The body is {request.content_type}; send application/json.",
            headers={"Accept": "application/json"},
        )
    text = await text_body(request)
    try:
        return json.loads(
            text, object_pairs_hook=_reject_duplicates, parse_constant=_reject_constant
        )
    except json.JSONDecodeError as error:
        raise _not_json(
            f"is not JSON: {error.msg} at line {error.lineno}, column {error.colno}",
            facts={"position": {"line": error.lineno, "column": error.colno, "offset": error.pos}},
        ) from error
    except (ValueError, RecursionError) as error:
        raise _not_json(f"is not JSON: {error}") from error


def _not_json(problem: str, facts: Mapping[str, Any] | None = None) -> RequestError:
    return RequestError(400, "NotJson", f"The body {problem}.", facts=facts)


def _reject_duplicates(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    result: dict[str, JsonValue] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {key!r} occurs twice")
        result[key] = value
    return result


def _reject_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")
