"""ETags, and what ``If-Match`` and ``If-None-Match`` ask of them.

A port's own ETag is ``"<uid>.<generation>"``: it names the spec. Where an answer
shows name and status, too, a hash of them follows after ``+``; a condition on a change
looks at the part before it, because a status changes without anybody's doing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from streambroker_core.model import Resource
from streambroker_core.wire.encoding.canonical import digest
from streambroker_operator.errors import RequestError
from streambroker_operator.storage.backend import StoredResource

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def resource_etag(resource: Resource) -> str:
    """Return a resource's ETag, in its quotes."""
    return f'"{resource.uid}.{resource.generation}"'


def body_etag(resource: Resource, status: Any) -> str:
    """Return the ETag of an answer that shows a resource with its name and its status."""
    more = digest([resource.name, status])[:16]
    return f'"{resource.uid}.{resource.generation}+{more}"'


def parse_etags(header: str | None) -> set[str]:
    """Return the ETags of a condition, without quotes and weakness."""
    parts = (part.strip() for part in (header or "").split(","))
    return {part.removeprefix("W/").strip('"') for part in parts if part}


def check_match(request: web.Request, stored: StoredResource | None) -> None:
    """Look at ``If-Match`` and ``If-None-Match`` before a resource is changed.

    Raises:
        RequestError: 412, the resource is not what the caller takes it for.
    """
    check_etag(request, None if stored is None else resource_etag(stored.resource).strip('"'))


def check_etag(request: web.Request, current: str | None) -> None:
    """Look at ``If-Match`` and ``If-None-Match`` before a change of what has an ETag.

    Args:
        request: with the conditions.
        current: the ETag without quotes; None where there is nothing yet.

    Raises:
        RequestError: 412, a condition does not hold.
    """
    wanted = _strip_status(request.headers.get("If-Match"))
    unwanted = _strip_status(request.headers.get("If-None-Match"))
    if wanted and (current is None or not ({current, "*"} & wanted)):
        now = "it does not exist" if current is None else f'it is "{current}" now'
        raise RequestError(412, "ConditionFailed", f"If-Match does not hold: {now}.")
    if current is not None and {current, "*"} & unwanted:
        raise RequestError(
            412, "ConditionFailed", f'If-None-Match does not hold: it exists as "{current}".'
        )


def _strip_status(header: str | None) -> set[str]:
    return {tag.partition("+")[0] for tag in parse_etags(header)}


@web.middleware
async def conditional(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give every answer to a GET an ETag, and answer 304 to those who have it."""
    response = await handler(request)
    if request.method not in ("GET", "HEAD") or response.status != 200:
        return response
    if not isinstance(response, web.Response) or not isinstance(response.body, bytes):
        return response
    headers = response.headers
    headers.setdefault("Cache-Control", "no-cache")
    if "ETag" not in headers:
        headers["ETag"] = f'"{hashlib.sha256(response.body).hexdigest()[:32]}"'
    current = headers["ETag"].strip('"')
    wanted = parse_etags(request.headers.get("If-Match"))
    if wanted and not {current, current.partition("+")[0], "*"} & wanted:
        raise RequestError(
            412, "ConditionFailed", f'If-Match does not hold: it is "{current}" now.'
        )
    if {current, "*"} & parse_etags(request.headers.get("If-None-Match")):
        kept = {name: headers[name] for name in ("ETag", "Cache-Control")}
        return web.Response(status=304, headers=kept)
    return response
