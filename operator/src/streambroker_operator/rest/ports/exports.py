"""``…/export/{port}/properties`` and ``…/property/{name}``: properties of an Export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from aiohttp import web

from streambroker_core.model import Export, Properties
from streambroker_core.model.properties import normalise
from streambroker_core.wire.encoding.fields import Fields
from streambroker_core.wire.manifests.ports import MAX_PROPERTIES
from streambroker_operator.errors import RequestError
from streambroker_operator.rest.http.paths import PORTS
from streambroker_operator.rest.http.preconditions import resource_etag
from streambroker_operator.rest.http.requests import json_body, require_resource
from streambroker_operator.rest.http.responses import json_answer
from streambroker_operator.rest.ports.resources import write_resource

PROPERTIES = PORTS["Export"] + "/properties"
PROPERTY = PORTS["Export"] + "/property/{name}"
routes = web.RouteTableDef()


@routes.get(PROPERTIES)
async def get_properties(request: web.Request) -> web.Response:
    """Return all properties of an Export."""
    export, current = _export_with_properties(request)
    return json_answer(dict(current), headers={"ETag": resource_etag(export)})


@routes.put(PROPERTIES)
async def put_properties(request: web.Request) -> web.Response:
    """Replace all properties at once."""
    body = await json_body(request)
    export, _ = _export_with_properties(request)
    return await _set(request, export, Fields(body, "properties").raw(), None)


@routes.patch(PROPERTIES)
async def patch_properties(request: web.Request) -> web.Response:
    """Merge a patch: null removes a property, anything else sets it; others stay."""
    body = await json_body(request)
    export, current = _export_with_properties(request)
    patch = Fields(body, "properties").raw()
    return await _set(request, export, {**current, **patch}, list(patch))


@routes.delete(PROPERTIES)
async def delete_properties(request: web.Request) -> web.Response:
    """Remove the properties in ``?name=``, all or none; without names, all properties."""
    export, current = _export_with_properties(request)
    names = request.query.getall("name", list(current))
    for name in names:
        _require_property(export, current, name)
    remaining = {name: current[name] for name in current if name not in names}
    # Without names, properties added by others until the write are removed, too.
    touched = names if "name" in request.query else None
    return await _set(request, export, remaining, touched)


@routes.get(PROPERTY)
async def get_property(request: web.Request) -> web.Response:
    """Return the value of one property."""
    export, current = _export_with_properties(request)
    name = _require_property(export, current, request.match_info["name"])
    return json_answer(current[name], headers={"ETag": resource_etag(export)})


@routes.put(PROPERTY)
async def put_property(request: web.Request) -> web.Response:
    """Set one property to the value in the body."""
    value = await json_body(request)
    export, current = _export_with_properties(request)
    name = request.match_info["name"]
    if value is None:
        raise RequestError(
            422,
            "PropertyInvalid",
            f"Property `{name}` cannot be null; DELETE removes it.",
            facts={"property": name},
        )
    status = 200 if name in current else 201
    return await _set(request, export, {**current, name: value}, [name], status=status)


@routes.delete(PROPERTY)
async def delete_property(request: web.Request) -> web.Response:
    """Remove one property."""
    export, current = _export_with_properties(request)
    removed = _require_property(export, current, request.match_info["name"])
    remaining = {name: current[name] for name in current if name != removed}
    return await _set(request, export, remaining, [removed])


def _export_with_properties(request: web.Request) -> tuple[Export, Properties]:
    export = require_resource(request, Export)
    if export.properties is None:
        raise RequestError(
            409,
            "WrongKind",
            f"{export.key} is exported by name, as {export.stream_id!r}; it has no properties.",
        )
    return export, export.properties


def _require_property(export: Export, properties: Properties, name: str) -> str:
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
    """Replace all properties of an Export; `touched` names the changed ones, None means all."""
    normalised = normalise(properties)
    if len(normalised) > MAX_PROPERTIES:
        raise RequestError(
            422,
            "PropertyInvalid",
            f"{export.key} would have {len(normalised)} properties, the limit is {MAX_PROPERTIES}.",
        )
    changed = replace(export, properties=normalised)
    every = (("properties",),)
    paths = every if touched is None else tuple(("properties", name) for name in touched)
    return await write_resource(request, changed, paths, status=status)
