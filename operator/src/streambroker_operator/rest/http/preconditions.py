"""ETags, and the conditions ``If-Match`` and ``If-None-Match``.

The ETag of a port is ``"<uid>.<generation>"`` and identifies its spec. Responses that also show
name and status append ``+`` and a hash of them. Conditions of writes ignore that suffix, because
a status may change without a write.
"""

from __future__ import annotations

import hashlib
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from streambroker_core.model import Resource, Rule
from streambroker_core.wire.encoding.canonical import digest
from streambroker_operator.errors import RequestError


def resource_etag(resource: Resource | Rule) -> str:
    """Return the ETag of a resource or rule, with quotes."""
    return f'"{resource.uid}.{resource.generation}"'


def body_etag(resource: Resource | Rule, status: Any) -> str:
    """Return the ETag of a response that shows a resource with name and status."""
    suffix = digest([resource.name, status])[:16]
    return f'"{resource.uid}.{resource.generation}+{suffix}"'


def parse_etags(header: str | None) -> set[str]:
    """Return the ETags of a condition, without quotes and weak prefix."""
    parts = (part.strip() for part in (header or "").split(","))
    return {part.removeprefix("W/").strip('"') for part in parts if part}


def check_match(request: web.Request, current: Resource | Rule | None) -> None:
    """Check ``If-Match`` and ``If-None-Match`` against a resource; raise 412 on failure."""
    check_etag(request, None if current is None else resource_etag(current).strip('"'))


def check_etag(request: web.Request, current: str | None) -> None:
    """Check the conditions against an unquoted ETag (None: no object); raise 412 on failure."""
    match_tags = _strip_status(request.headers.get("If-Match"))
    none_match_tags = _strip_status(request.headers.get("If-None-Match"))
    if match_tags and (current is None or not ({current, "*"} & match_tags)):
        now = "it does not exist" if current is None else f'it is "{current}" now'
        raise RequestError(412, "ConditionFailed", f"If-Match is not satisfied: {now}.")
    if current is not None and {current, "*"} & none_match_tags:
        raise RequestError(
            412, "ConditionFailed", f'If-None-Match is not satisfied: it exists as "{current}".'
        )


def _strip_status(header: str | None) -> set[str]:
    return {tag.partition("+")[0] for tag in parse_etags(header)}


@web.middleware
async def conditional(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Add an ETag to every successful GET, and evaluate its conditions (304, 412)."""
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
    match_tags = parse_etags(request.headers.get("If-Match"))
    if match_tags and not {current, current.partition("+")[0], "*"} & match_tags:
        raise RequestError(
            412, "ConditionFailed", f'If-Match is not satisfied: it is "{current}" now.'
        )
    if {current, "*"} & parse_etags(request.headers.get("If-None-Match")):
        retained = {name: headers[name] for name in ("ETag", "Cache-Control")}
        return web.Response(status=304, headers=retained)
    return response
