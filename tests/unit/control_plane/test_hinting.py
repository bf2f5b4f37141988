"""Hints to host names: slow names keep nothing waiting, and never more than so many."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from streambroker_operator import hinting
from streambroker_operator.hinting import HintSender
from support.brokers import received, udp_ear
from support.resources import pe


class Names:
    """Looks names up once it may; all lead to one address.

    Attributes:
        asked: the names that were looked up.
        port: where they lead to.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.port = 0
        self.free = threading.Event()

    def __call__(self, host: str, port: int, **_: Any) -> list[Any]:
        self.asked.append(host)
        assert self.free.wait(10.0)
        if host == "nowhere":
            raise socket.gaierror("no such name")
        return [(socket.AF_INET, socket.SOCK_DGRAM, 0, "", ("127.0.0.1", self.port))]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    found = Names()
    monkeypatch.setattr("socket.getaddrinfo", found)
    yield found
    found.free.set()


@pytest.fixture
async def sender() -> AsyncIterator[HintSender]:
    found = HintSender()
    yield found
    found.close()


async def turn() -> None:
    """Let what was sent go out."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_slow_names_delay_no_address(names: Names, sender: HintSender) -> None:
    async with udp_ear() as (at, ear):
        for number in range(10):
            sender.send(pe(f"slow-{number}"), f"slow-{number}:9", b"late")
        sender.send(pe("quick"), at, b"at once")
        assert await received(ear) == b"at once"
        # Others who need a thread have theirs.
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "done"), 5.0) == "done"
        names.free.set()
        await sender.settled()


async def test_of_several_hints_the_last_goes_to_a_name_that_was_looked_up_once(
    names: Names, sender: HintSender
) -> None:
    async with udp_ear() as (at, ear):
        names.port = int(at.rpartition(":")[2])
        for datagram in (b"first", b"second", b"third"):
            sender.send(pe("feed"), "feed.example:9", datagram)
            await turn()
        names.free.set()
        await sender.settled()
        assert await received(ear) == b"third"
        assert ear.empty()

    assert names.asked == ["feed.example"]


async def test_no_more_names_wait_than_may(
    names: Names, sender: HintSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hinting, "MAX_LOOKUPS", 3)
    names.port = 9
    for number in range(5):
        sender.send(pe(f"p{number}"), f"name-{number}:9", b"x")
    await turn()
    assert sender.failed == 2
    names.free.set()
    await sender.settled()
    sender.send(pe("again"), "again:9", b"x")
    await turn()
    await sender.settled()

    assert (sender.sent, sender.failed) == (4, 2)


async def test_a_name_that_leads_nowhere_is_counted(names: Names, sender: HintSender) -> None:
    names.free.set()
    sender.send(pe("feed"), "nowhere:9", b"x")
    await turn()
    await sender.settled()

    assert (sender.sent, sender.failed) == (0, 1)
