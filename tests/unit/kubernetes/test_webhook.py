"""The certificate of the webhook: made, shared by replicas, renewed, and trusted by the server."""

from __future__ import annotations

import asyncio
import base64
import ssl
import time
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from streambroker_operator.errors import RequestError
from streambroker_operator.kubernetes.client.http_api import Answer
from streambroker_operator.kubernetes.client.objects import Objects, StaleError
from streambroker_operator.kubernetes.webhook.server import DAYS, RENEW_S, Webhook
from streambroker_operator.rest.listen import listen
from streambroker_operator.security.self_signed import is_valid_for
from support.kubernetes.fake_server import Api, Call

Object = Any
NAME = "DNS:streambroker-webhook.sb.svc"


class Server(Api):
    """Holds a Secret and a ValidatingWebhookConfiguration."""

    def __init__(self, client: Object | None = None) -> None:
        self.secret: Object | None = {"metadata": {"name": "s", "resourceVersion": "1"}}
        service = {"name": "streambroker-webhook", "namespace": "sb", "port": 443}
        self.client = client or {"service": service}
        self.writes: list[str] = []

    async def take(self, call: Call) -> Answer:
        secret = "/secrets/" in call.path
        if call.method == "PATCH":
            self.writes.append("secret" if secret else "configuration")
            return self._secret_written(call.body) if secret else self._pointed(call.body)
        if secret:
            return Answer(status=404) if self.secret is None else self._shown(self.secret)
        hooks = [{"name": "resources.streambroker.io", "clientConfig": self.client}]
        return self._shown({"metadata": {"name": "c"}, "webhooks": hooks})

    def _shown(self, found: Object) -> Answer:
        return Answer(status=200, body=deepcopy(found))

    def _secret_written(self, body: Mapping[str, Any]) -> Answer:
        assert self.secret is not None
        version = self.secret["metadata"]["resourceVersion"]
        if body["metadata"]["resourceVersion"] != version:
            return Answer(status=409)
        metadata = {"name": "s", "resourceVersion": str(int(version) + 1)}
        self.secret = {"metadata": metadata, "data": dict(body["data"])}
        return self._shown(self.secret)

    def _pointed(self, body: Mapping[str, Any]) -> Answer:
        (hook,) = body["webhooks"]
        self.client = {**self.client, **hook["clientConfig"]}
        return self._shown({"metadata": {"name": "c"}})

    def pair(self) -> dict[str, bytes]:
        assert self.secret is not None
        return {name: base64.b64decode(text) for name, text in self.secret["data"].items()}

    @property
    def trusted(self) -> bytes:
        return base64.b64decode(self.client["caBundle"])


def webhook(server: Server, ahead_s: float = 0.0) -> Webhook:
    return Webhook(
        Objects(server),
        namespace="sb",
        secret_name="s",
        configuration="c",
        key=b"k" * 32,
        review=lambda asked: {"apiVersion": str(asked), "kind": "", "response": {}},
        clock=lambda: time.time() + ahead_s,
    )


def good(folder: Path, authority: bytes, pair: Mapping[str, bytes], at: float) -> bool:
    (folder / "ca.crt").write_bytes(authority)
    (folder / "server.crt").write_bytes(pair["tls.crt"])
    return is_valid_for(folder, NAME, at)


def test_the_first_replica_makes_the_certificate_and_the_others_take_it(tmp_path: Path) -> None:
    server = Server()
    asyncio.run(webhook(server).reconcile())
    made = server.pair()
    assert server.trusted == made["ca.crt"]
    assert server.client["service"]["path"].startswith("/reviews/")
    assert good(tmp_path, server.trusted, made, time.time() + (DAYS - 1) * 86_400)
    assert not good(tmp_path, server.trusted, made, time.time() + (DAYS + 1) * 86_400)

    other = webhook(server)
    asyncio.run(other.reconcile())
    asyncio.run(other.reconcile())
    assert server.writes == ["secret", "configuration"]
    assert server.pair() == made


def test_a_certificate_is_renewed_in_time_and_the_one_before_stays_trusted(tmp_path: Path) -> None:
    server = Server()
    asyncio.run(webhook(server).reconcile())
    before = server.pair()
    life = DAYS * 86_400.0
    asyncio.run(webhook(server, life - RENEW_S - 3_600).reconcile())
    assert server.pair() == before
    asyncio.run(webhook(server, life - RENEW_S + 3_600).reconcile())
    after = server.pair()
    assert after["tls.crt"] != before["tls.crt"]
    for pair in (before, after):
        assert good(tmp_path, server.trusted, pair, time.time() + 60)

    asyncio.run(webhook(server, life - RENEW_S + 7_200).reconcile())
    assert server.trusted.count(b"BEGIN") == 2


@pytest.mark.parametrize("entry", ["tls.key", "tls.crt", "ca.crt"])
def test_a_secret_that_is_damaged_is_made_again(entry: str) -> None:
    server = Server()
    asyncio.run(webhook(server).reconcile())
    assert server.secret is not None
    server.secret["data"][entry] = "no base64"
    asyncio.run(webhook(server).reconcile())
    assert set(server.pair()) == {"ca.crt", "tls.crt", "tls.key"}
    assert server.writes.count("secret") == 2


def test_of_two_replicas_that_make_one_the_first_wins() -> None:
    server = Server()

    async def both() -> list[object]:
        looks = (webhook(server).reconcile() for _ in range(2))
        return list(await asyncio.gather(*looks, return_exceptions=True))

    results = asyncio.run(both())
    assert [type(one) for one in results].count(StaleError) == 1
    made = server.pair()
    asyncio.run(webhook(server).reconcile())
    assert server.pair() == made
    assert server.trusted == made["ca.crt"]


def test_what_the_chart_has_not_made_is_named() -> None:
    server = Server()
    server.secret = None
    with pytest.raises(RequestError, match="Secret sb/s does not exist"):
        asyncio.run(webhook(server).reconcile())


def test_only_the_path_of_the_configuration_is_answered_over_tls() -> None:
    async def calls() -> list[tuple[int, str]]:
        server = Server({"url": "https://127.0.0.1:1/"})
        hook = webhook(server)
        runner, url = await listen(hook.app, "127.0.0.1", 0, connection_limits=(9, 9), tls=hook.tls)
        await hook.reconcile()
        path = server.client["url"].removeprefix("https://127.0.0.1:1")
        trust = ssl.create_default_context(cadata=server.trusted.decode())
        found = []
        async with aiohttp.ClientSession() as session:
            for where, data in ((path, b'{"a": 1}'), (path, b"{"), ("/reviews/x", b"{}")):
                async with session.post(url + where, data=data, ssl=trust) as answer:
                    found.append((answer.status, (await answer.text())[:24]))
        await runner.cleanup()
        return found

    done, broken, unknown = asyncio.run(calls())
    assert done == (200, """{"apiVersion": "{'a': 1}""")
    assert (broken[0], unknown[0]) == (400, 404)
