"""``…/export/{port}/properties`` and ``…/property/{name}``: what an Export says of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from aiohttp import web

from streambroker_core.model import Export, Properties
from streambroker_core.model.properties import normalise
from streambroker_core.wire.encoding.fields import Fields
from streambroker_core.wire.manifests.ports import MAX_PROPERTIES
from streambroker_operator.errors import RequestError
from streambroker_operator.rest.http.paths import PORTS
from streambroker_operator.rest.http.preconditions import resource_etag
from streambroker_operator.rest.http.requests import (
    RUNTIME,
    json_body,
    parse_write_options,
    require_export,
    require_stored,
)
from streambroker_operator.rest.http.responses import json_answer, written_answer
from streambroker_operator.storage.write_options import Touched

PROPERTIES = PORTS["Export"] + "/properties"
PROPERTY = PORTS["Export"] + "/property/{name}"
routes = web.RouteTableDef()


@routes.get(PROPERTIES)
async def get_properties(request: web.Request) -> web.Response:
    """Answer all properties of an Export."""
    stored = require_stored(request, "Export")
    return json_answer(
        dict(_properties(stored.resource)), headers={"ETag": resource_etag(stored.resource)}
    )


@routes.put(PROPERTIES)
async def put_properties(request: web.Request) -> web.Response:
    """Replace all properties at once."""
    body = await json_body(request)
    export, _ = _export_with_properties(request)
    return await _set(request, export, Fields(body, "properties").raw(), None)


@routes.patch(PROPERTIES)
async def patch_properties(request: web.Request) -> web.Response:
    """Merge a patch: null removes, anything else sets, the rest stays."""
    body = await json_body(request)
    export, known = _export_with_properties(request)
    patch = Fields(body, "properties").raw()
    return await _set(request, export, {**known, **patch}, list(patch))


@routes.delete(PROPERTIES)
async def delete_properties(request: web.Request) -> web.Response:
    """Remove the properties that ``?name=`` gives, all of them or none; without names, all."""
    export, known = _export_with_properties(request)
    names = request.query.getall("name", list(known))
    for name in names:
        _require_property(export, known, name)
    left = {name: known[name] for name in known if name not in names}
    # All of them is all there are by then, too.
    touched = names if "name" in request.query else None
    return await _set(request, export, left, touched)


@routes.get(PROPERTY)
async def get_property(request: web.Request) -> web.Response:
    """Answer one property's value."""
    stored = require_stored(request, "Export")
    known = _properties(stored.resource)
    name = _require_property(stored.resource, known, request.match_info["name"])
    return json_answer(known[name], headers={"ETag": resource_etag(stored.resource)})


@routes.put(PROPERTY)
async def put_property(request: web.Request) -> web.Response:
    """Set one property to the value in the body."""
    value = await json_body(request)
    export, known = _export_with_properties(request)
    name = request.match_info["name"]
    if value is None:
        raise RequestError(
            422,
            "PropertyInvalid",
            f"Property `{name}` cannot be null; DELETE removes it.",
            facts={"property": name},
        )
    status = 200 if name in known else 201
    return await _set(request, export, {**known, name: value}, [name], status=status)


@routes.delete(PROPERTY)
async def delete_property(request: web.Request) -> web.Response:
    """Remove one property."""
    export, known = _export_with_properties(request)
    gone = _require_property(export, known, request.match_info["name"])
    left = {name: known[name] for name in known if name != gone}
    return await _set(request, export, left, [gone])


def _export_with_properties(request: web.Request) -> tuple[Export, Properties]:
    export = require_export(request)
    return export, _properties(export)


def _properties(export: Any) -> Properties:
    if not isinstance(export, Export) or export.properties is None:
        raise RequestError(
            409,
            "WrongKind",
            f"{export.key} is exported by name, as {export.stream_id!r}; it has no properties.",
        )
    return export.properties


def _require_property(export: Any, properties: Properties, name: str) -> str:
    if name not in properties:
        raise RequestError(
            404, "UnknownProperty", f"{export.key} has no property {name!r}; nothing was changed."
        )
    return name


async def _set(
    request: web.Request,
    export: Export,
    properties: Mapping[str, object],
    touched: Sequence[str] | None,
    *,
    status: int = 200,
) -> web.Response:
    """Make properties what they should be.

    Args:
        request: the change.
        export: whose they are.
        properties: all of them.
        touched: those that are meant; None for all.
        status: of the answer.
    """
    found = normalise(properties)
    if len(found) > MAX_PROPERTIES:
        raise RequestError(
            422,
            "PropertyInvalid",
            f"{export.key} would have {len(found)} properties, the limit is {MAX_PROPERTIES}.",
        )
    whole: Touched = (("properties",),)
    meant = whole if touched is None else tuple(("properties", name) for name in touched)
    written = await request.app[RUNTIME].put(
        replace(export, properties=found), touched=meant, options=parse_write_options(request)
    )
    return written_answer(written, status=status)
