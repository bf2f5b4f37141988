"""``…/lint``: probable mistakes in all resources that the caller may read."""

from __future__ import annotations

import asyncio

from aiohttp import web

from streambroker_core.diagnose import collect_lint_input, lint, render_findings, take_snapshot
from streambroker_operator.rest.guard.authentication import CALLER
from streambroker_operator.rest.guard.fair_queue import FAIR_QUEUE
from streambroker_operator.rest.guard.rate_limits import caller_name
from streambroker_operator.rest.http.paths import API
from streambroker_operator.rest.http.requests import RUNTIME, parse_limit, parse_namespace_or_all
from streambroker_operator.rest.http.responses import json_answer

DEFAULT_FINDINGS = 1_000
MAX_FINDINGS = 100_000

routes = web.RouteTableDef()


@routes.get(API + "/lint")
async def get_lint(request: web.Request) -> web.Response:
    """Return the findings of a namespace, or of all with ``?namespace=*``."""
    namespace = parse_namespace_or_all(request)
    limit = parse_limit(request, MAX_FINDINGS) or DEFAULT_FINDINGS
    board = request.app[RUNTIME].board
    async with request.app[FAIR_QUEUE].turn(caller_name(request)):
        lint_input = collect_lint_input(board, take_snapshot(board, request[CALLER].namespaces))
        all_findings = await asyncio.to_thread(lint, lint_input)
    selected = [
        finding
        for finding in all_findings
        if finding.about is None or namespace in ("*", finding.about.key.namespace)
    ]
    return json_answer(
        {
            "findings": [
                {"code": one.code, "resource": one.resource, "message": one.message}
                for one in selected[:limit]
            ],
            "total": len(selected),
            "text": render_findings(selected[:limit], len(selected)),
        }
    )
