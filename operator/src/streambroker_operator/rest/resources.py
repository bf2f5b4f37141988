"""``…/export/{port}`` and ``…/import/{port}``: read, declare, merge, withdraw whole resources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from aiohttp import web

from streambroker_core.errors import ManifestError
from streambroker_core.model import Kind, PortKey, Resource
from streambroker_core.wire.fields import Fields, json_type
from streambroker_core.wire.manifest import read_manifest, read_spec, write_manifest
from streambroker_core.wire.merge import merged
from streambroker_operator.errors import RequestError
from streambroker_operator.rest.conditions import check_match, shown_etag
from streambroker_operator.rest.pe import PE
from streambroker_operator.rest.requests import RUNTIME, json_body, port_of, stored_of
from streambroker_operator.rest.responses import json_answer, resource_body, written_answer

PORTS: Mapping[Kind, str] = {"Export": PE + "/export/{port}", "Import": PE + "/import/{port}"}

_WHOLE = ("apiVersion", "kind", "metadata", "spec")


def port_routes(kind: Kind) -> list[web.RouteDef]:
    """Return the routes of whole resources of a kind."""

    async def get(request: web.Request) -> web.Response:
        return show(request, kind)

    async def put(request: web.Request) -> web.Response:
        return await declare(request, kind)

    async def patch(request: web.Request) -> web.Response:
        return await merge(request, kind)

    async def delete(request: web.Request) -> web.Response:
        return withdraw(request, kind)

    path = PORTS[kind]
    return [
        web.get(path, get),
        web.put(path, put),
        web.patch(path, patch),
        web.delete(path, delete),
    ]


routes = [*port_routes("Export"), *port_routes("Import")]


def show(request: web.Request, kind: Kind) -> web.Response:
    """Answer a resource's manifest with its status.

    Raises:
        RequestError: 404, there is none.
    """
    stored = stored_of(request, kind)
    body = resource_body(request.app[RUNTIME].board, stored)
    return json_answer(body, headers={"ETag": shown_etag(stored.resource, body["status"])})


async def declare(request: web.Request, kind: Kind) -> web.Response:
    """Create or replace a resource from a spec, or from a whole manifest.

    Raises:
        RequestError: 412, a condition does not hold.
        TakenError: the port or the name is another resource's.
        ManifestError: a field is missing or wrong, or says another port.
    """
    body = await json_body(request)
    key = port_of(request)
    resource = _read(kind, body, key)
    runtime = request.app[RUNTIME]
    check_match(request, runtime.stored(kind, key))
    written = runtime.put(resource)
    return written_answer(written, status=201 if written.stored.created else 200)


async def merge(request: web.Request, kind: Kind) -> web.Response:
    """Change a resource by a merge patch (RFC 7396) of its spec, or of its whole manifest.

    Raises:
        RequestError: 404, there is none; 412, a condition does not hold.
        TakenError: the name is another resource's, or the port has one.
        ManifestError: a field of the outcome is missing or wrong.
    """
    patch = await json_body(request)
    stored = stored_of(request, kind)
    check_match(request, stored)
    resource = _patched(kind, patch, stored.resource)
    return written_answer(request.app[RUNTIME].put(resource))


def withdraw(request: web.Request, kind: Kind) -> web.Response:
    """Delete a resource.

    Raises:
        RequestError: 404, there is none; 412, a condition does not hold.
    """
    stored = stored_of(request, kind)
    check_match(request, stored)
    written = request.app[RUNTIME].delete(kind, stored.resource.key)
    if written is None:
        raise RequestError(404, "UnknownPort", f"{stored.resource.key} has gone meanwhile.")
    return written_answer(written)


def _read(kind: Kind, body: Any, key: PortKey) -> Resource:
    if not isinstance(body, Mapping) or "apiVersion" not in body:
        return read_spec(kind, body, key=key)
    fields = Fields(body)
    if fields.get("kind") in list(PORTS) and fields.get("kind") != kind:
        raise fields.bad("kind", f"is {fields.get('kind')}, but the address says {kind}")
    document = read_manifest(body, namespace=key.namespace)
    if document.key.namespace != key.namespace:
        raise fields.child("metadata").bad(
            "namespace", f"is {document.key.namespace!r}, but the address says {key.namespace!r}"
        )
    return replace(read_spec(kind, body["spec"], key=key, path="spec"), name=document.name)


def _patched(kind: Kind, patch: Any, resource: Resource) -> Resource:
    if not isinstance(patch, Mapping):
        raise ManifestError(path="", reason=f"has to be an object, not {json_type(patch)}")
    whole = any(name in patch for name in _WHOLE)
    current = write_manifest(resource)
    if not resource.name:
        del current["metadata"]["name"]
    return _read(kind, merged(current, patch if whole else {"spec": patch}), resource.key)
