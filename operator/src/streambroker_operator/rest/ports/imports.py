"""``…/import/{port}/filter``, ``/subscription`` and ``/streams``: what an Import subscribes to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from aiohttp import web

from streambroker_core.model import Import
from streambroker_core.wire.encoding.canonical import JsonValue
from streambroker_core.wire.encoding.fields import Fields, json_type
from streambroker_core.wire.manifests.ports import read_expression, read_streams, write_streams
from streambroker_operator.errors import RequestError
from streambroker_operator.rest.http.paths import PORTS
from streambroker_operator.rest.http.preconditions import resource_etag
from streambroker_operator.rest.http.requests import json_body, require_resource, text_body
from streambroker_operator.rest.http.responses import json_answer
from streambroker_operator.rest.ports.resources import write_resource

IMPORT = PORTS["Import"]
routes = web.RouteTableDef()


@routes.get(IMPORT + "/filter")
async def get_filter(request: web.Request) -> web.Response:
    """Return an Import's filter; null if it has none."""
    import_ = require_resource(request, Import)
    return json_answer({"filter": import_.filter}, headers={"ETag": resource_etag(import_)})


@routes.put(IMPORT + "/filter")
async def put_filter(request: web.Request) -> web.Response:
    """Set the filter; an empty one clears it. ``text/plain`` bodies are the bare text."""
    fields = await _text_field(request, "filter")
    import_ = require_resource(request, Import)
    changed = replace(import_, filter=read_expression(fields, "filter"))
    return await _put(request, changed, "filter")


@routes.get(IMPORT + "/subscription")
async def get_subscription(request: web.Request) -> web.Response:
    """Return an Import's subscription; null if it has none yet."""
    import_ = require_resource(request, Import)
    _check_not_by_name(import_)
    return json_answer(
        {"subscription": import_.subscription}, headers={"ETag": resource_etag(import_)}
    )


@routes.put(IMPORT + "/subscription")
async def put_subscription(request: web.Request) -> web.Response:
    """Set the subscription; filter and scope do not change."""
    fields = await _text_field(request, "subscription")
    import_ = require_resource(request, Import)
    _check_not_by_name(import_)
    changed = replace(import_, subscription=read_expression(fields, "subscription"))
    return await _put(request, changed, "subscription")


@routes.get(IMPORT + "/streams")
async def get_streams(request: web.Request) -> web.Response:
    """Return an Import's subscription, or its streams by name."""
    import_ = require_resource(request, Import)
    body: dict[str, JsonValue] = {"applicationScope": import_.application_scope}
    if import_.streams:
        body["streams"] = write_streams(import_.streams)
    else:
        body["subscription"] = import_.subscription
    return json_answer(body, headers={"ETag": resource_etag(import_)})


@routes.put(IMPORT + "/streams")
async def put_streams(request: web.Request) -> web.Response:
    """Replace subscription or streams; the filter stays, and the scope unless the body has one."""
    fields = Fields(await json_body(request))
    fields.allow_only(("streams", "subscription", "applicationScope"))
    streams = read_streams(fields, "streams")
    subscription = read_expression(fields, "subscription")
    if streams and subscription is not None:
        raise fields.error_at("streams", "and subscription exclude each other; leave one out")
    import_ = require_resource(request, Import)
    changed = replace(
        import_,
        streams=streams,
        subscription=subscription,
        application_scope=fields.text("applicationScope", import_.application_scope),
    )
    scope = ["applicationScope"] if fields.has("applicationScope") else []
    return await _put(request, changed, "streams", "subscription", *scope)


async def _put(request: web.Request, changed: Import, *fields: str) -> web.Response:
    return await write_resource(request, changed, tuple((field,) for field in fields))


def _check_not_by_name(import_: Import) -> None:
    if import_.streams:
        raise RequestError(
            409,
            "WrongKind",
            f"{import_.key} imports by name and has no subscription; PUT …/streams changes that.",
        )


async def _text_field(request: web.Request, name: str) -> Fields:
    """Return ``{name: text}`` from an object, a bare JSON text, null, or ``text/plain``."""
    if request.content_type == "text/plain":
        return Fields({name: await text_body(request)})
    body = await json_body(request)
    if body is None or isinstance(body, str):
        return Fields({name: body})
    if not isinstance(body, Mapping):
        raise RequestError(
            422,
            "ManifestInvalid",
            f"The body is {json_type(body)}; send a text or an object with the field {name}.",
        )
    fields = Fields(body)
    fields.allow_only((name,))
    if name not in body:
        raise fields.error_at(name, "is required; null or an empty text clears it")
    return fields
