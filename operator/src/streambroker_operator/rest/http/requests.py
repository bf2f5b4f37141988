"""Read requests: addresses, bodies, conditions. What is wrong raises with its status."""

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
from streambroker_core.wire.encoding.quantity import parse_duration
from streambroker_operator.errors import RequestError
from streambroker_operator.rest.http.paths import APPLY, WHATIF
from streambroker_operator.rest.http.preconditions import check_etag, check_match
from streambroker_operator.runtime.runtime import Runtime
from streambroker_operator.storage.backend import StoredResource
from streambroker_operator.storage.write_options import WriteOptions

R = TypeVar("R", Export, Import)

RUNTIME = web.AppKey("runtime", Runtime)
HOME = web.RequestKey("home", str)
"""The caller's own namespace; absent where nobody knows of one."""

MAX_BODY = 64 * 1024
"""Bytes of a request's body."""
MAX_PROPOSAL = 1024 * 1024
"""Bytes of the body of a request that is about many resources."""
LONG_BODY_PATHS = (APPLY, WHATIF)
"""Paths of such requests."""
MAX_WAIT_S = 60.0
"""Longest long poll, in seconds."""

_GZIP = 16 + zlib.MAX_WBITS
_JSON = ("application/json", "application/merge-patch+json", "application/octet-stream")


def route_path(request: web.Request) -> str:
    """Return the path of a request as the router has it; empty where it has none."""
    resource = request.match_info.route.resource
    return "" if resource is None else resource.canonical


def parse_limit(request: web.Request, most: int) -> int | None:
    """Return ``?limit=``, from 1 to ``most``; None if it is not given.

    Raises:
        RequestError: 400, it is something else.
    """
    return parse_integer(request, "limit", 1, most)


def parse_integer(request: web.Request, name: str, least: int, most: int) -> int | None:
    """Return a parameter that is a whole number of at most 9 digits; None if it is not given.

    Raises:
        RequestError: 400, it is something else.
    """
    text = request.query.get(name)
    if text is None:
        return None
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
    if not least <= number <= most:
        raise RequestError(
            400, "QueryInvalid", f"{name}={text!r} is no whole number from {least} to {most}."
        )
    return number


def requested_namespace(request: web.Request) -> str:
    """Return what ``?namespace=`` says, whatever that is; the caller's own namespace without it."""
    return request.query.get("namespace", request.get(HOME, DEFAULT_NAMESPACE))


def parse_namespace(request: web.Request) -> str:
    """Return the namespace that ``?namespace=`` selects.

    Raises:
        RequestError: 400, it is no DNS label.
    """
    namespace = requested_namespace(request)
    if not is_label(namespace):
        raise RequestError(400, "QueryInvalid", f"The namespace {namespace!r} is no DNS label.")
    return namespace


def parse_namespace_or_all(request: web.Request) -> str:
    """Return the namespace that is selected, or ``*`` for all.

    Raises:
        RequestError: 400, it is neither.
    """
    return "*" if requested_namespace(request) == "*" else parse_namespace(request)


def parse_pe(request: web.Request) -> PeKey:
    """Return the PE of the address, whether it is known or not; of a job its first one.

    Raises:
        ManifestError: it cannot be one.
    """
    info = request.match_info
    return PeKey.parse(f"{parse_namespace(request)}/{info['job']}/{info.get('pe', 0)}")


def parse_port(request: web.Request) -> PortKey:
    """Return the port of the address, whether it is known or not.

    Raises:
        ManifestError: it cannot be one.
    """
    return PortKey.parse(f"{parse_pe(request)}/{request.match_info['port']}")


def require_pe(request: web.Request) -> PeKey:
    """Return the PE of the address.

    Raises:
        RequestError: 404, the broker does not know it.
    """
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
    """Return the resource of the address.

    Raises:
        RequestError: 404, there is no such PE or no such port.
    """
    pe = require_pe(request)
    name = request.match_info["port"]
    try:
        stored = request.app[RUNTIME].get_stored(kind, parse_port(request))
    except ManifestError:
        stored = None
    if stored is None:
        raise RequestError(404, "UnknownPort", f"{pe} has no {kind.lower()} {name!r}.")
    return stored


def require_export(request: web.Request) -> Export:
    """Return the Export of the address, after looking at ``If-Match``."""
    return _require_matched(request, "Export", Export)


def require_import(request: web.Request) -> Import:
    """Return the Import of the address, after looking at ``If-Match``."""
    return _require_matched(request, "Import", Import)


def _require_matched(request: web.Request, kind: Kind, type_: type[R]) -> R:
    stored = require_stored(request, kind)
    check_match(request, stored)
    if not isinstance(stored.resource, type_):
        raise TypeError("the store keeps kinds apart")
    return stored.resource


def parse_write_options(
    request: web.Request, owners: tuple[Mapping[str, Any], ...] = ()
) -> WriteOptions:
    """Return on what terms a change is asked for: its conditions, and ``?force=``.

    Args:
        request: the change.
        owners: ``ownerReferences`` of what it may make.

    Raises:
        RequestError: 400, ``force`` is neither true nor false.
    """
    force = request.query.get("force", "false")
    if force not in ("true", "false"):
        raise RequestError(400, "QueryInvalid", f"force={force!r} is neither true nor false.")
    return WriteOptions(check=partial(check_etag, request), force=force == "true", owners=owners)


def parse_wait(request: web.Request) -> float:
    """Return how long a GET may wait for a change, in seconds; 0 without ``?wait=``.

    Raises:
        RequestError: 400, it is no duration.
    """
    text = request.query.get("wait")
    if text is None:
        return 0.0
    seconds = parse_duration(text)
    if seconds is None:
        raise RequestError(
            400, "QueryInvalid", f"wait={text!r} is no duration; write 30s or 500ms."
        )
    return min(seconds, MAX_WAIT_S)


async def raw_body(request: web.Request) -> bytes:
    """Return the body, unpacked.

    Raises:
        RequestError: 413, it is too long; 400, it is not packed as it says; 415, it is packed
            in another way than gzip.
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
        raise RequestError(400, "NotJson", "The body does not end as it says.") from error
    return raw if encoding == "identity" else _decompress(request, raw)


def _decompress(request: web.Request, raw: bytes) -> bytes:
    unpacker = zlib.decompressobj(wbits=_GZIP)
    try:
        found = unpacker.decompress(raw, request.client_max_size + 1)
    except zlib.error:
        found = b""
    if len(found) > request.client_max_size:
        raise _too_long(request)
    if not unpacker.eof:
        raise RequestError(400, "NotJson", "The body cannot be unpacked as it says.")
    return found


def _too_long(request: web.Request) -> RequestError:
    most = request.client_max_size
    return RequestError(413, "BodyTooLarge", f"The body has more than {most} bytes.")


async def text_body(request: web.Request) -> str:
    """Return the body as text.

    Raises:
        RequestError: 400, it is not UTF-8; 413, it is too long.
    """
    try:
        return (await raw_body(request)).decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(
            400, "NotJson", f"The body is not UTF-8 at byte {error.start}."
        ) from error


async def json_body(request: web.Request) -> Any:
    """Return the body as JSON.

    Raises:
        RequestError: 415, it says it is something else; 400, it is no JSON, or
            an object has a key twice; 413, it is too long.
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
        raise RequestError(
            400,
            "NotJson",
            f"The body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}.",
            facts={"position": {"line": error.lineno, "column": error.colno, "offset": error.pos}},
        ) from error
    except (ValueError, RecursionError) as error:
        raise RequestError(400, "NotJson", f"The body is not JSON: {error}.") from error


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} stands there twice")
        found[key] = value
    return found


def _reject_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")
