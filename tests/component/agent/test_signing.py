"""Agents sign their requests where the broker takes signatures, and show their token elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from pe_agent.agent.agent import Agent
from pe_agent.agent.broker.link import BrokerLink
from pe_agent.agent.broker.request_signer import PAUSE_SECONDS, Signer
from pe_agent.transport.broker_client import pe_path
from pe_agent.transport.tokens import Token
from streambroker_client.errors import BrokerRefusedError, BrokerUnavailableError
from streambroker_core.model import PeKey
from streambroker_core.wire.broker import request_signature as signature
from streambroker_operator.broker import Broker
from support.brokers.brokers import EXPORT
from support.kubernetes.guarded import TOKEN, Guarded, guarded_broker

FEED = PeKey.parse("default/feed/0")
SIGNED, BEARER = signature.SCHEME, "Bearer"
PORT = f"{pe_path('feed', 0)}/export/trades"
Linked = Callable[[str, str], BrokerLink]


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Guarded]:
    async with guarded_broker(tmp_path / "broker.db") as found:
        yield found


@pytest.fixture
def linked(tmp_path: Path) -> Iterator[Linked]:
    """Make links of one agent; their rounds are made by hand."""
    hosts = Agent(FEED, tmp_path, progress=lambda *_: None)
    made: list[BrokerLink] = []

    def link(url: str, token: str) -> BrokerLink:
        made.append(
            BrokerLink(
                hosts,
                url,
                location="grpc+tcp://127.0.0.1:1",
                instance="ab" * 8,
                host="127.0.0.1",
                token=Token(token),
            )
        )
        return made[-1]

    yield link
    for one in made:
        one.close()
    hosts.close()


async def rounds(link: BrokerLink, count: int = 1) -> None:
    for _ in range(count):
        await asyncio.to_thread(link._sync)


async def test_a_registered_agent_comes_through_while_the_api_server_is_away(
    broker: Guarded, linked: Linked
) -> None:
    link = linked(broker.url, TOKEN)
    await rounds(link)
    assert {scheme for _, scheme in broker.shown} == {BEARER}

    broker.away = True
    broker.shown.clear()
    link._registrar._next = 0.0
    await rounds(link)
    declared = await asyncio.to_thread(link._client.request, "PUT", PORT, EXPORT)
    await rounds(link)

    assert broker.shown == [(method, SIGNED) for method in ("PUT", "GET", "PUT", "GET")]
    assert declared.status == 201
    view = link._agent.routes.view
    assert view is not None
    assert list(view.exports) == ["trades"]


async def test_an_agent_that_is_not_registered_waits_for_the_api_server(
    broker: Guarded, linked: Linked
) -> None:
    broker.away = True
    with pytest.raises(BrokerUnavailableError, match="requests a pause"):
        await rounds(linked(broker.url, TOKEN))

    assert broker.shown == [("PUT", BEARER)]


async def test_where_a_signature_is_refused_the_agent_registers_again_with_its_token(
    broker: Guarded, linked: Linked, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, now = linked(broker.url, TOKEN), [0.0]
    monkeypatch.setattr(link._signer, "_clock", lambda: now[0])
    monkeypatch.setattr(link._signer, "_not_before", 0.0)
    await rounds(link)
    broker.forgets = True
    broker.shown.clear()
    await rounds(link, 2)

    again = [("GET", SIGNED), ("PUT", BEARER), ("GET", BEARER)]
    assert broker.shown == [*again, ("GET", BEARER)]
    now[0] = PAUSE_SECONDS
    await rounds(link, 2)
    assert broker.shown[4:] == [("GET", BEARER), *again]


async def test_an_agent_whose_token_is_refused_signs_with_the_key_that_it_has(
    broker: Guarded, linked: Linked
) -> None:
    await rounds(linked(broker.url, TOKEN))
    link = linked(broker.url, "of-another-pod")
    broker.shown.clear()
    with pytest.raises(BrokerRefusedError, match="does not know this token"):
        await rounds(link)
    await rounds(link)

    assert broker.shown == [("PUT", BEARER), ("PUT", SIGNED), ("GET", SIGNED)]


async def test_where_token_and_signature_are_refused_it_is_the_token_that_is_reported(
    broker: Guarded, linked: Linked
) -> None:
    await rounds(linked(broker.url, TOKEN))
    broker.forgets = True
    link = linked(broker.url, "of-another-pod")
    for _ in range(4):
        with pytest.raises(BrokerRefusedError, match="does not know this token"):
            await rounds(link)

    assert broker.shown.count(("PUT", SIGNED)) == 1


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "open"])
async def test_with_an_embedded_broker_nothing_is_signed(
    tmp_path: Path, linked: Linked, tokens: bool
) -> None:
    file = tmp_path / "tokens.yaml"
    file.write_text("tokens: [{name: feed, token: first-token-of-feed, jobs: [default/feed]}]")
    embedded = Broker(db=tmp_path / "other.db", port=0, tokens=file if tokens else None)
    await embedded.start()
    try:
        link = linked(embedded.url, "first-token-of-feed")
        await rounds(link, 2)
        if tokens:
            link._registrar._token.value = "another-token-of-feed"
            with pytest.raises(BrokerRefusedError):
                await rounds(link)
    finally:
        await embedded.stop()

    assert link._agent.key
    assert link._signer.header("GET", "/", b"") is None


def test_no_two_signatures_are_of_one_time() -> None:
    signer = Signer(FEED, "ab" * 8, lambda: b"key", wall_clock=lambda: 1000.0)
    signer.on_answer({"acknowledge": "at-once"})
    headers = [signer.header("GET", "/", b"") for _ in range(3)]
    times = [signature.read(header).time_us for header in headers if header is not None]

    assert times == [1_000_000_000, 1_000_000_001, 1_000_000_002]
