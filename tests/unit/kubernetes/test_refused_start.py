"""A start that is refused ends with its own sentence, and leaves nothing open."""

from __future__ import annotations

import gc

import pytest
from aiohttp import web

from streambroker_operator.errors import StoreError
from streambroker_operator.kubernetes.broker import ClusterBroker, Settings
from streambroker_operator.kubernetes.client.kubeconfig import Access


async def nothing(request: web.Request) -> web.Response:
    return web.json_response({"kind": "Status", "code": 404}, status=404)


async def test_a_broker_without_its_secret_closes_its_connections(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = web.Application()
    app.router.add_route("*", "/{any:.*}", nothing)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    settings = Settings(
        access=Access(server=url, namespace="streams"), release="0", namespaces=("streams",)
    )

    try:
        with pytest.raises(StoreError, match="--make-secret"):
            await ClusterBroker(settings).start()
        gc.collect()
    finally:
        await runner.cleanup()

    assert "Unclosed" not in caplog.text
