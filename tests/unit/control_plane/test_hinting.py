"""How often an address gets hints, and which addresses get none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from streambroker_operator.agents import hint_sender as hinting
from streambroker_operator.agents.hint_sender import DatagramRateLimiter, HintSender
from support.brokers.brokers import received, udp_ear
from support.core.resources import pe


@pytest.fixture
async def sender() -> AsyncIterator[HintSender]:
    found = HintSender()
    yield found
    found.close()


async def turn() -> None:
    """Let what was sent go out."""
    for _ in range(3):
        await asyncio.sleep(0)


def test_each_place_has_its_own_pace() -> None:
    pace = DatagramRateLimiter((2.0, 3), (1_000.0, 1_000))
    for _ in range(3):
        assert pace.try_take("a", "host", 0.0)

    assert not pace.try_take("a", "host", 0.4)
    assert pace.try_take("a", "host", 0.5)
    assert pace.try_take("b", "host", 0.4)


def test_many_ports_of_one_address_share_its_pace() -> None:
    paces = DatagramRateLimiter((1.0, 1), (1.0, 5))
    taken = [paces.try_take(f"10.0.0.1:{port}", "10.0.0.1", 0.0) for port in range(1, 9)]

    assert taken == [True] * 5 + [False] * 3
    assert paces.try_take("10.0.0.2:1", "10.0.0.2", 0.0)


async def test_a_place_gets_no_more_than_its_pace_and_the_last_hint_in_the_end(
    sender: HintSender,
) -> None:
    async with udp_ear() as (at, ear):
        for number in range(200):
            sender.send(pe("feed"), at, str(number).encode())
            await turn()
        assert sender.sent <= hinting.PORT_BURST + 10
        while await received(ear) != b"199":
            pass
        assert ear.empty()


async def test_agents_that_give_one_address_share_its_pace(sender: HintSender) -> None:
    async with udp_ear() as (at, ear):
        for number in range(100):
            sender.send(pe(f"job-{number}"), at, str(number).encode())
        await turn()
        assert sender.sent == hinting.PORT_BURST
        got = {await received(ear) for _ in range(100)}

    assert len(got) == 100


async def test_a_hint_to_an_old_address_is_not_sent_any_more(sender: HintSender) -> None:
    async with udp_ear() as (old, old_ear), udp_ear() as (new, new_ear):
        sender.send(pe("feed"), old, b"old")
        sender.send(pe("feed"), new, b"new")
        assert await received(new_ear) == b"new"
        assert old_ear.empty()


@pytest.mark.parametrize(
    "address",
    [
        "224.0.0.1:9",
        "[ff02::1]:9",
        "169.254.169.254:9",
        "[fe80::1]:9",
        "255.255.255.255:9",
        "0.0.0.0:9",
        "[::ffff:224.0.0.1]:9",
        "feed.example:9",
    ],
)
async def test_addresses_that_are_not_of_one_machine_get_nothing(
    sender: HintSender, address: str
) -> None:
    sender.send(pe("feed"), address, b"x")
    sender.challenge(address, b"x")
    await turn()

    assert (sender.sent, sender.failed) == (0, 1)


async def test_challenges_are_few(sender: HintSender) -> None:
    async with udp_ear() as (at, _):
        for _ in range(100):
            sender.challenge(at, b"x")

    assert sender.sent == hinting.CHALLENGE_PORT_BURST
