"""Declare and withdraw whole resources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from aiohttp import web

from streambroker_core.model import Kind, PortKey, Resource, kind_of
from streambroker_core.wire.fields import Fields
from streambroker_core.wire.manifest import read_manifest, read_spec
from streambroker_operator.errors import RequestError
from streambroker_operator.rest.answers import written_answer
from streambroker_operator.rest.asking import (
    RUNTIME,
    check_match,
    json_body,
    port_of,
    stored_of,
)
from streambroker_operator.store import Stored


async def declare(request: web.Request, kind: Kind) -> web.Response:
    """Create or replace a resource from a spec, or from a whole manifest.

    Raises:
        RequestError: 412, a condition does not hold; 409, the port is another resource's.
        ManifestError: a field is missing or wrong, or says another port.
    """
    body = await json_body(request)
    key = port_of(request)
    resource = _read(kind, body, key)
    runtime = request.app[RUNTIME]
    stored = runtime.stored(kind, key)
    check_match(request, stored)
    _check_name(resource, stored)
    written = runtime.put(resource)
    return written_answer(written, status=201 if written.stored.created else 200)


def _read(kind: Kind, body: Any, key: PortKey) -> Resource:
    if not isinstance(body, Mapping) or "apiVersion" not in body:
        return read_spec(kind, body, key=key)
    document = read_manifest(body, namespace=key.namespace)
    fields = Fields(body)
    if fields.get("kind") != kind:
        raise fields.bad("kind", f"is {fields.get('kind')}, but the address says {kind}")
    if document.key.namespace != key.namespace:
        raise fields.child("metadata").bad(
            "namespace", f"is {document.key.namespace!r}, but the address says {key.namespace!r}"
        )
    return replace(read_spec(kind, body["spec"], key=key, path="spec"), name=document.name)


def _check_name(resource: Resource, stored: Stored | None) -> None:
    """Refuse a resource for a port that an older one of another name has."""
    taken = "" if stored is None else stored.resource.name
    if taken and resource.name and taken != resource.name:
        raise RequestError(
            409,
            "PortTaken",
            f"{kind_of(resource)} {resource.key} is taken by {taken!r}, which is older. Delete that"
            f" one first, give {resource.name!r} another port, or apply it under the same name.",
        )


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
