"""The port at which an agent listens for hints."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pe_agent.job.agent.agent_process import AgentFailedError, AgentProcess
from streambroker_core.model import PeKey
from support.brokers.brokers import running_broker
from support.processes.waiting import until

FEED = PeKey.parse("default/feed/0")


@pytest.fixture
def taken() -> Iterator[socket.socket]:
    """A UDP port of this machine that is in use."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound


def start(home: Path, broker: str, hint_port: int) -> AgentProcess:
    return AgentProcess(
        FEED, home, broker=broker, linger=20, host="127.0.0.1", port=0, hint_port=hint_port
    )


async def hint_of(home: Path, hint_port: int) -> str | None:
    """Start an agent; return what it registers to be sent hints at."""
    async with running_broker(home.with_suffix(".db")) as (broker, _):
        process = await asyncio.to_thread(start, home, broker.url, hint_port)
        find: Callable[..., object] = broker.runtime.board.registration
        try:
            await asyncio.to_thread(until, lambda: find(FEED), 30.0, "a registration")
        finally:
            await asyncio.to_thread(process.stop, end_agent=True)
        found = broker.runtime.board.registration(FEED)
        return None if found is None else found.hint


async def test_an_agent_tells_the_broker_the_port_that_it_was_given_for_hints(
    tmp_path: Path, taken: socket.socket
) -> None:
    port = taken.getsockname()[1]
    taken.close()

    assert await hint_of(tmp_path / "home", port) == f"127.0.0.1:{port}"


async def test_without_one_each_agent_takes_a_free_one(tmp_path: Path) -> None:
    hints = await asyncio.gather(hint_of(tmp_path / "one", 0), hint_of(tmp_path / "other", 0))

    assert None not in hints
    assert hints[0] != hints[1]


@pytest.mark.parametrize("port", [None, 65536])
def test_a_port_that_cannot_be_had_is_an_error_that_names_it(
    port: int | None, tmp_path: Path, taken: socket.socket
) -> None:
    wanted = taken.getsockname()[1] if port is None else port
    with pytest.raises(AgentFailedError, match="AddressInUse") as failed:
        start(tmp_path / "home", "http://127.0.0.1:1", wanted)

    assert f"hints on 127.0.0.1:{wanted} (" in str(failed.value)
    assert "with another `hint_port`" in str(failed.value)
