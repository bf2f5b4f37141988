"""Errands among replicas: the one that leads has them, others pass on, and nobody else may."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from streambroker_core.wire.broker.agent_commands import (
    EMIT,
    MAX_COMMANDS,
    CommandResult,
    make_command,
)
from streambroker_operator.errors import RequestError
from streambroker_operator.kubernetes.replicas.command_relay import PATH, LeaderCommands, handler
from streambroker_operator.runtime.agent_commands import CommandQueue
from support.core.resources import pe

SECRET, FEED = b"s" * 32, pe("default/feed/0")
COMMAND = make_command(EMIT, {"what": "x"}, "0" * 32)
DONE = CommandResult(id=COMMAND.id, answer={"id": "log/0"})
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Leader:
    """A replica that leads, or has led."""

    def __init__(self, wait_s: float = 5.0) -> None:
        self.leads = True
        self.own = CommandQueue(lambda _: None, wait_s)
        self.handler: Handler = handler(self.own, SECRET, lambda: self.leads)


@asynccontextmanager
async def follower(
    leader: Leader, secret: bytes = SECRET, wait_s: float = 5.0
) -> AsyncIterator[LeaderCommands]:
    """A replica that does not lead."""
    app = web.Application()
    app.router.add_post(PATH, leader.handler)
    async with TestServer(app) as server:
        own = CommandQueue(lambda _: None, wait_s)
        address = str(server.make_url("")).rstrip("/")
        found = LeaderCommands(own, secret, lambda: False, lambda: address, wait_s)
        try:
            yield found
        finally:
            await found.close()


async def refusal(asked: Awaitable[object]) -> RequestError:
    with pytest.raises(RequestError) as raised:
        await asked
    return raised.value


async def test_what_is_asked_and_fetched_elsewhere_is_at_the_one_that_leads() -> None:
    leader = Leader()
    async with follower(leader) as other:
        asked = asyncio.ensure_future(other.execute(FEED, COMMAND))
        while not leader.own.has_pending(FEED):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert other.has_pending(FEED)
        assert await other.fetch(FEED, []) == [COMMAND]
        assert await other.fetch(FEED, [DONE]) == []
        assert await asked == DONE
        assert not other.has_pending(FEED)


async def test_what_the_one_that_leads_refuses_is_refused() -> None:
    leader = Leader(wait_s=0.01)
    async with follower(leader) as other:
        away = await refusal(other.execute(FEED, COMMAND))
        for number in range(MAX_COMMANDS):
            one = make_command(EMIT, {}, f"{number:032x}")
            assert (await refusal(leader.own.execute(FEED, one))).status == 503
        full = await refusal(other.execute(FEED, make_command(EMIT, {}, "f" * 32)))

    assert (away.status, away.code, away.headers) == (503, "AgentAway", {"Retry-After": "2"})
    assert (full.status, full.code, full.headers) == (429, "TooManyRequests", {"Retry-After": "5"})


async def no_json(_: web.Request) -> web.Response:
    raise web.HTTPNotFound


async def no_problem(_: web.Request) -> web.Response:
    return web.Response(text=json.dumps([1]), status=500)


async def silent(_: web.Request) -> web.Response:
    await asyncio.sleep(5.0)
    return web.Response()


@pytest.mark.parametrize("answers", [no_json, no_problem, silent])
async def test_a_leader_that_cannot_answer_is_an_agent_that_is_away(
    answers: Handler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "streambroker_operator.kubernetes.replicas.command_relay.LEADER_MARGIN_S", 0.0
    )
    leader = Leader()
    leader.handler = answers
    async with follower(leader, wait_s=0.2) as other:
        found = [await refusal(other.execute(FEED, COMMAND)), await refusal(other.fetch(FEED, []))]

    assert [(one.status, one.code) for one in found] == [(503, "AgentAway")] * 2


async def test_who_leads_no_more_and_who_has_another_secret_gets_nothing() -> None:
    leader = Leader()
    async with follower(leader, secret=b"o" * 32) as other:
        assert "refuses this one" in str(await refusal(other.fetch(FEED, [DONE])))
    leader.leads = False
    async with follower(leader) as other:
        assert "Another replica" in str(await refusal(other.fetch(FEED, [])))


async def test_without_a_leader_nothing_is_taken() -> None:
    own = CommandQueue(lambda _: None, 5.0)
    alone = LeaderCommands(own, SECRET, lambda: False, lambda: "", 5.0)

    assert "No replica of the broker is the leader" in str(
        await refusal(alone.execute(FEED, COMMAND))
    )


async def test_the_one_that_leads_passes_nothing_on() -> None:
    own = CommandQueue(lambda _: None, 5.0)
    alone = LeaderCommands(own, SECRET, lambda: True, lambda: "http://127.0.0.1:9", 5.0)
    asked = asyncio.ensure_future(alone.execute(FEED, COMMAND))
    await asyncio.sleep(0)
    assert alone.has_pending(FEED)
    assert await alone.fetch(FEED, []) == [COMMAND]
    await alone.fetch(FEED, [DONE])
    assert await asked == DONE
