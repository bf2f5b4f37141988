"""``GET …/quota``: the quota of a namespace, and how much of it is used."""

from __future__ import annotations

from aiohttp import web

from streambroker_operator.rest.http.paths import QUOTA
from streambroker_operator.rest.http.requests import RUNTIME, parse_namespace
from streambroker_operator.rest.http.responses import json_answer

routes = web.RouteTableDef()


@routes.get(QUOTA)
async def get_quota(request: web.Request) -> web.Response:
    """Return the quota of a namespace; null is no limit."""
    namespace, board = parse_namespace(request), request.app[RUNTIME].board
    quota, used = board.quotas.find(namespace), board.usage(namespace)
    return json_answer(
        {
            "namespace": namespace,
            "ports": {"used": used.ports, "limit": quota.ports},
            "bytes": {"used": used.bytes, "limit": quota.bytes},
            "readerBytesPerSecond": quota.reader_rate,
            "jobBytesPerSecond": quota.job_rate,
        }
    )
