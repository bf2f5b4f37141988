"""What the kubelet and Prometheus ask: ``/livez``, ``/readyz`` and ``/metrics``."""

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
    """Return what counts the answers of REST, to stand before all else."""

    @web.middleware
    async def counted(request: web.Request, handler: Handler) -> web.StreamResponse:
        began = time.perf_counter()
        answer = await handler(request)
        waits = "wait" in request.query or answer.content_type == "text/event-stream"
        seconds = None if waits else time.perf_counter() - began
        metrics.count_answer(request.method, answer.status, seconds)
        return answer

    return counted


def close_when_stopping(closing: Callable[[], bool]) -> Middleware:
    """Return what has callers connect anew, and so elsewhere, once the broker is to end."""

    @web.middleware
    async def parted(request: web.Request, handler: Handler) -> web.StreamResponse:
        answer = await handler(request)
        if closing():
            answer.force_close()
        return answer

    return parted


def create_probes(state: Callable[[], BrokerState], metrics: Metrics) -> web.Application:
    """Return the application that answers them, to everybody and without secrets.

    Args:
        state: how the broker is now.
        metrics: its figures.
    """

    async def alive(_: web.Request) -> web.Response:
        return _answer(check_live(state()))

    async def is_ready(_: web.Request) -> web.Response:
        return _answer(check_ready(state()))

    async def figures(_: web.Request) -> web.Response:
        return web.Response(body=metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    app = web.Application()
    app.add_routes(
        [web.get("/livez", alive), web.get("/readyz", is_ready), web.get("/metrics", figures)]
    )
    return app


def _answer(probe: Probe) -> web.Response:
    return web.Response(text=probe.text, status=probe.status)
