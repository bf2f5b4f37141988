"""Under which names a broker is asked, and what it tells without knowing by whom."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from streambroker_core.board import Synced
from streambroker_operator.broker import Broker
from streambroker_operator.runtime.feed import Feed
from support.brokers.brokers import EXPORT, Rest, running_broker
from support.brokers.conformance import assert_conforms

X = "/job/feed/pe/0/export/trades"
TOKEN = "0123456789abcdef0123456789abcdef"


@pytest.fixture
async def rest(tmp_path: Path) -> AsyncIterator[Rest]:
    async with running_broker(tmp_path / "broker.db") as (_, client):
        yield client


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8470", "127.0.0.1.evil.example", "[::2]:1", "", "[", "@"]
)
async def test_a_local_broker_answers_to_no_name_of_elsewhere(rest: Rest, host: str) -> None:
    for answer in (await rest("PUT", X, EXPORT, Host=host), await rest("GET", "/pes", Host=host)):
        assert (answer.status, answer.code) == (403, "HostRefused")
    assert (await rest("GET", "/exports")).body["items"] == []


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8470", "127.0.0.1", "127.0.0.1:1", "127.8.8.8", "[::1]:8470"]
)
async def test_a_local_broker_answers_to_names_of_its_machine(rest: Rest, host: str) -> None:
    assert (await rest("PUT", X, EXPORT, Host=host)).status == 201


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://evil.example", 403),
        ("http://evil.example:8470", 403),
        ("null", 403),
        ("http://[", 403),
        ("http://localhost:3000", 201),
        ("http://127.0.0.1:8470", 201),
    ],
)
async def test_a_page_of_elsewhere_changes_nothing(rest: Rest, origin: str, status: int) -> None:
    answer = await rest("PUT", X, EXPORT, Origin=origin)
    read = await rest("GET", "/exports", Origin=origin)

    assert (answer.status, read.status) == (status, 200)
    assert len(read.body["items"]) == (status == 201)


@pytest.mark.parametrize("how", ["tokens", "insecure"])
async def test_a_broker_that_others_may_reach_answers_to_every_name(
    tmp_path: Path, how: str
) -> None:
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text(f"tokens: [{{name: ops, token: {TOKEN}, role: admin}}]")
    tokens.chmod(0o600)
    more: dict[str, Any] = {"tokens": tokens} if how == "tokens" else {"insecure": True}
    broker = Broker(db=tmp_path / "broker.db", port=0, **more)
    await broker.start()
    try:
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session:
            rest = Rest(broker.url, session)
            answer = await rest("PUT", X, EXPORT, Host="broker.example")
    finally:
        await broker.stop()

    assert answer.status == 201


async def probed(url: str, path: str) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.get(url + path) as answer:
        text = await answer.read()
        assert_conforms("GET", path, answer.status, answer.headers, text)
        body = await answer.json(content_type=None)
    return answer.status, body.get("status" if answer.status == 200 else "code")


async def test_whether_a_broker_lives_and_answers_is_reported_without_a_token(
    tmp_path: Path,
) -> None:
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text(f"tokens: [{{name: ops, token: {TOKEN}, role: admin}}]")
    tokens.chmod(0o600)
    broker = Broker(db=tmp_path / "broker.db", port=0, tokens=tokens)
    await broker.start()
    try:
        found = [await probed(broker.url, path) for path in ("/healthz", "/readyz")]
        closed = await probed(broker.url, "/api/openapi.json")
        broker.runtime.change_log.closed = True
        ending = [await probed(broker.url, path) for path in ("/healthz", "/readyz")]
    finally:
        await broker.stop()

    assert found == [(200, "ok"), (200, "ready")]
    assert closed == (401, "TokenMissing")
    assert ending == [(200, "ok"), (503, "NotSynced")]


async def test_a_broker_lives_before_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Feed, "start", lambda _: None)
    async with running_broker(tmp_path / "broker.db") as (broker, _):
        before = [await probed(broker.url, path) for path in ("/healthz", "/readyz")]
        for kind in ("Export", "Import"):
            broker.runtime.feed.deliver(Synced(kind=kind, listed=(), version=1))
        after = [await probed(broker.url, path) for path in ("/healthz", "/readyz")]

    assert before == [(200, "ok"), (503, "NotSynced")]
    assert after == [(200, "ok"), (200, "ready")]
