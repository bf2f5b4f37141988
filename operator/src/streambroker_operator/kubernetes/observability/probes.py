"""HTTP endpoints for kubelet and Prometheus: ``/livez``, ``/readyz`` and ``/metrics``."""

from __future__ import annotations

import time
from collections.abc import Callable

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from streambroker_operator.kubernetes.observability.health import (
    BrokerState,
    Probe,
    check_live,
    check_ready,
)
from streambroker_operator.kubernetes.observability.metrics import CONTENT_TYPE, Metrics


def count_answers(metrics: Metrics) -> Middleware:
    """Return a middleware that counts REST responses; must be the outermost."""

    @web.middleware
    async def counted(request: web.Request, handler: Handler) -> web.StreamResponse:
        started_at = time.perf_counter()
        response = await handler(request)
        is_long = "wait" in request.query or response.content_type == "text/event-stream"
        seconds = None if is_long else time.perf_counter() - started_at
        metrics.count_answer(request.method, response.status, seconds)
        return response

    return counted


def close_when_stopping(closing: Callable[[], bool]) -> Middleware:
    """Return a middleware that closes connections once the broker stops, so callers reconnect."""

    @web.middleware
    async def parted(request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await handler(request)
        if closing():
            response.force_close()
        return response

    return parted


def create_probes(state: Callable[[], BrokerState], metrics: Metrics) -> web.Application:
    """Return the application with the probes, without authentication and secrets."""

    async def alive(_: web.Request) -> web.Response:
        return _answer(check_live(state()))

    async def is_ready(_: web.Request) -> web.Response:
        return _answer(check_ready(state()))

    async def serve_metrics(_: web.Request) -> web.Response:
        return web.Response(body=metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    app = web.Application()
    app.add_routes(
        [web.get("/livez", alive), web.get("/readyz", is_ready), web.get("/metrics", serve_metrics)]
    )
    return app


def _answer(probe: Probe) -> web.Response:
    return web.Response(text=probe.text, status=probe.status)
