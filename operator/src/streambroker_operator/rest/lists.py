"""Lists of everything: exports, imports, PEs, routes."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from streambroker_core.model import Kind, PeKey, PortKey
from streambroker_operator.rest.answers import json_answer, resource_body, route_body
from streambroker_operator.rest.asking import RUNTIME, namespace_of
from streambroker_operator.runtime import Runtime

LISTS = "/api/subscriptions"
routes = web.RouteTableDef()


@routes.get(LISTS + "/exports")
async def list_exports(request: web.Request) -> web.Response:
    """Answer the Exports of a namespace, or of all with ``?namespace=*``."""
    return _resources(request, "Export")


@routes.get(LISTS + "/imports")
async def list_imports(request: web.Request) -> web.Response:
    """Answer the Imports of a namespace, or of all with ``?namespace=*``."""
    return _resources(request, "Import")


@routes.get(LISTS + "/pes")
async def list_pes(request: web.Request) -> web.Response:
    """Answer the known PEs of a namespace, or of all with ``?namespace=*``."""
    runtime = request.app[RUNTIME]
    items = [_pe_body(runtime, pe) for pe in runtime.board.pes() if _chosen(request, pe)]
    return json_answer({"items": items, "point": list(runtime.board.point)})


@routes.get(LISTS + "/routes")
async def list_routes(request: web.Request) -> web.Response:
    """Answer the routes that touch a namespace, or all with ``?namespace=*``."""
    runtime = request.app[RUNTIME]
    items = [
        route_body(route)
        for route in runtime.board.routes()
        if _chosen(request, route.export) or _chosen(request, route.import_)
    ]
    return json_answer({"items": items, "point": list(runtime.board.point)})


def _resources(request: web.Request, kind: Kind) -> web.Response:
    runtime = request.app[RUNTIME]
    items = [
        resource_body(runtime, stored)
        for stored in runtime.all_of(kind)
        if _chosen(request, stored.resource.key)
    ]
    return json_answer({"items": items, "point": list(runtime.board.point)})


def _pe_body(runtime: Runtime, pe: PeKey) -> dict[str, Any]:
    registration = runtime.board.registration(pe)
    view = runtime.board.view(pe)
    return {
        "namespace": pe.namespace,
        "job": pe.job,
        "pe": pe.pe,
        "location": None if registration is None else registration.location,
        "version": None if view is None else view.version,
        "exports": [] if view is None else sorted(view.exports),
        "imports": [] if view is None else sorted(view.imports),
    }


def _chosen(request: web.Request, key: PeKey | PortKey) -> bool:
    everywhere = request.query.get("namespace") == "*"
    return everywhere or key.namespace == namespace_of(request)
