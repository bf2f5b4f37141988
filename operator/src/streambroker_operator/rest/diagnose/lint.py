"""``…/lint``: what looks wrong, in all resources that the caller may read."""

from __future__ import annotations

import asyncio

from aiohttp import web

from streambroker_core.diagnose import lint, scene, survey, tell_findings
from streambroker_operator.rest.guard.authentication import CALLER
from streambroker_operator.rest.guard.fair_queue import TURNS
from streambroker_operator.rest.guard.rate_limits import who_asks
from streambroker_operator.rest.http.paths import API
from streambroker_operator.rest.http.requests import RUNTIME, chosen_namespace, limit_of
from streambroker_operator.rest.http.responses import json_answer

USUAL_FINDINGS = 1_000
MAX_FINDINGS = 100_000

routes = web.RouteTableDef()


@routes.get(API + "/lint")
async def get_lint(request: web.Request) -> web.Response:
    """Answer what looks wrong in a namespace, or in all with ``?namespace=*``."""
    namespace = chosen_namespace(request)
    limit = limit_of(request, MAX_FINDINGS) or USUAL_FINDINGS
    board = request.app[RUNTIME].board
    async with request.app[TURNS].of(who_asks(request)):
        seen = scene(board, survey(board, request[CALLER].namespaces))
        all_findings = await asyncio.to_thread(lint, seen)
    found = [
        finding
        for finding in all_findings
        if finding.about is None or namespace in ("*", finding.about.key.namespace)
    ]
    return json_answer(
        {
            "findings": [
                {"code": one.code, "resource": one.resource, "message": one.message}
                for one in found[:limit]
            ],
            "total": len(found),
            "text": tell_findings(found[:limit], len(found)),
        }
    )
