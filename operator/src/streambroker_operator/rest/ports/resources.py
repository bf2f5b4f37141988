"""``…/export/{port}`` and ``…/import/{port}``: read, put, patch, delete and release resources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from aiohttp import web

from streambroker_core.errors import ManifestError
from streambroker_core.model import Kind, PortKey, Resource
from streambroker_core.wire.encoding.fields import Fields, json_type
from streambroker_core.wire.encoding.merge_patch import merge_patch
from streambroker_core.wire.manifests.ports import read_manifest, read_spec, write_manifest
from streambroker_operator.errors import RequestError
from streambroker_operator.rest.guard.rate_limits import CALLER_LIMITS
from streambroker_operator.rest.http.paths import PORTS
from streambroker_operator.rest.http.preconditions import body_etag, check_match
from streambroker_operator.rest.http.requests import (
    RUNTIME,
    json_body,
    parse_port,
    parse_write_options,
    require_stored,
)
from streambroker_operator.rest.http.responses import json_answer, written_answer
from streambroker_operator.runtime.bodies import resource_body
from streambroker_operator.storage.write_options import OwnerReference, Touched

MAX_OWNERS = 16
"""Maximum number of owner references of a resource."""
_OWNER_KEYS = ("apiVersion", "kind", "name", "uid")
_MANIFEST_KEYS = ("apiVersion", "kind", "metadata", "spec")


async def get(request: web.Request, *, kind: Kind) -> web.Response:
    """Return a resource's manifest with its status; raise 404 if there is none."""
    stored = require_stored(request, kind)
    runtime = request.app[RUNTIME]
    body = resource_body(runtime.board, stored, runtime.port_reports)
    return json_answer(body, headers={"ETag": body_etag(stored.resource, body["status"])})


async def put(request: web.Request, *, kind: Kind) -> web.Response:
    """Create or replace a resource from a spec or a whole manifest.

    Raises:
        RequestError: 412, a condition does not hold.
        TakenError: the port or the name belongs to another resource.
        ManifestError: a field is missing or invalid, or names another port.
    """
    body = await json_body(request)
    key = parse_port(request)
    resource = _read(kind, body, key)
    runtime = request.app[RUNTIME]
    stored = runtime.store.get(kind, key)
    check_match(request, None if stored is None else stored.resource)
    if stored is None:
        request.app[CALLER_LIMITS].check_ports(runtime.board, [(kind, key)])
    written = await runtime.put(resource, options=parse_write_options(request, parse_owners(body)))
    return written_answer(written, status=201 if written.stored.created else 200)


async def patch(request: web.Request, *, kind: Kind) -> web.Response:
    """Change a resource by a merge patch (RFC 7396) of its spec or its whole manifest.

    Raises:
        RequestError: 404, there is none; 412, a condition does not hold.
        TakenError: the name or the port belongs to another resource.
        ManifestError: a field of the result is missing or invalid.
    """
    changes = await json_body(request)
    resource = _apply_patch(kind, changes, _require_matched(request, kind))
    return await write_resource(request, resource, _touched_paths(changes))


async def delete(request: web.Request, *, kind: Kind) -> web.Response:
    """Delete a resource; raise 404 if there is none, 412 if a condition does not hold."""
    key = _require_matched(request, kind).key
    written = await request.app[RUNTIME].delete(kind, key, options=parse_write_options(request))
    if written is None:
        raise RequestError(404, "UnknownPort", f"{key} has been deleted in the meantime.")
    return written_answer(written)


async def release(request: web.Request, *, kind: Kind) -> web.Response:
    """Release the fields changed here, so that what others declare applies again.

    Raises:
        RequestError: 404, there is none; 409, only the broker declares it; 412, a condition does
            not hold.
    """
    key = _require_matched(request, kind).key
    options = parse_write_options(request)
    return written_answer(await request.app[RUNTIME].release(kind, key, options=options))


routes = [
    route
    for kind, path in PORTS.items()
    for route in (
        web.get(path, partial(get, kind=kind)),
        web.put(path, partial(put, kind=kind)),
        web.patch(path, partial(patch, kind=kind)),
        web.delete(path, partial(delete, kind=kind)),
        web.post(path + "/release", partial(release, kind=kind)),
    )
]


async def write_resource(
    request: web.Request, resource: Resource, touched: Touched, *, status: int = 200
) -> web.Response:
    """Store a changed resource; `touched` are the paths of the changed fields."""
    written = await request.app[RUNTIME].put(
        resource, touched=touched, options=parse_write_options(request)
    )
    return written_answer(written, status=status)


def _require_matched(request: web.Request, kind: Kind) -> Resource:
    resource = require_stored(request, kind).resource
    check_match(request, resource)
    return resource


def parse_owners(body: Any) -> tuple[OwnerReference, ...]:
    """Return the owner references of a manifest; empty for a bare spec."""
    metadata = body.get("metadata") if isinstance(body, Mapping) and "apiVersion" in body else None
    if not isinstance(metadata, Mapping):
        return ()
    fields = Fields(metadata, "metadata")
    references = fields.items("ownerReferences", max_items=MAX_OWNERS)
    for index, item in enumerate(references):
        owner = Fields(item, f"{fields.path_to('ownerReferences')}[{index}]")
        owner.allow_only((*_OWNER_KEYS, "controller", "blockOwnerDeletion"))
        for name in _OWNER_KEYS:
            owner.text(name)
        if owner.text("kind") == "Pod":
            raise owner.error_at(
                "kind",
                "is Pod, which a restart of the driver replaces: name an object that outlives"
                " it, for instance the SparkApplication",
            )
    return tuple(references)


def _touched_paths(patch: Any) -> Touched:
    spec = patch.get("spec", {}) if any(name in patch for name in _MANIFEST_KEYS) else patch
    paths: list[tuple[str, ...]] = []
    for name, value in spec.items() if isinstance(spec, Mapping) else ():
        keys = value if isinstance(value, Mapping) else ()
        paths += [(name, key) for key in keys] or [(name,)]
    return tuple(paths)


def _read(kind: Kind, body: Any, key: PortKey) -> Resource:
    if not isinstance(body, Mapping) or "apiVersion" not in body:
        return read_spec(kind, body, key=key)
    fields = Fields(body)
    if fields.get("kind") in list(PORTS) and fields.get("kind") != kind:
        raise fields.error_at("kind", f"is {fields.get('kind')}, but the address has {kind}")
    document = read_manifest(body, namespace=key.namespace)
    check_namespace(document.key.namespace, key.namespace)
    return replace(read_spec(kind, body["spec"], key=key, path="spec"), name=document.name)


def check_namespace(namespace: str, expected: str) -> None:
    """Refuse a manifest of another namespace than the address with a `ManifestError`."""
    if namespace != expected:
        reason = f"is {namespace!r}, but the address has {expected!r}"
        raise ManifestError(path="metadata.namespace", reason=reason)


def _apply_patch(kind: Kind, patch: Any, resource: Resource) -> Resource:
    if not isinstance(patch, Mapping):
        raise ManifestError(path="", reason=f"has to be an object, not {json_type(patch)}")
    is_manifest = any(name in patch for name in _MANIFEST_KEYS)
    current = write_manifest(resource)
    if not resource.name:
        del current["metadata"]["name"]
    return _read(
        kind, merge_patch(current, patch if is_manifest else {"spec": patch}), resource.key
    )
