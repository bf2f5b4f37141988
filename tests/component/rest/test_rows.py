"""``GET …/rows``: who may look at rows, how many at the same time, and what is recorded of it."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import aiohttp
import pytest

from streambroker_core.wire.broker.agent_commands import PEEK, CommandResult
from streambroker_operator.broker import Broker
from streambroker_operator.rest.console import rows
from streambroker_operator.rest.guard.rate_limits import RateLimits
from streambroker_operator.security import audit_log as audit
from support.agents.emitting import AGENT, CommandAgent, command_agent
from support.brokers.brokers import EXPORT, Rest, bearer, running_broker

FEED = "/job/feed/pe/0"
ROWS = f"{FEED}/export/trades/rows"
ANSWER = {"stream": "s", "position": "s:1", "columns": [], "rows": [], "truncated": False}


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents of the tests that answer a look at rows."""
    usual = CommandAgent.answer

    def answer(agent: CommandAgent, command: object) -> CommandResult:
        if getattr(command, "action", "") != PEEK:
            return usual(agent, command)  # type: ignore[arg-type]
        agent.done.append(command)  # type: ignore[arg-type]
        return CommandResult(id=command.id, answer=ANSWER)  # type: ignore[attr-defined]

    monkeypatch.setattr(CommandAgent, "answer", answer)


@pytest.mark.usefixtures("answers")
async def test_rows_take_the_token_of_the_job_or_of_an_admin(
    guarded: Rest, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, audit.LOGGER):
        async with command_agent(guarded, FEED, **bearer("ops")):
            allowed = await guarded("GET", f"{ROWS}?filter=price%20%3E%201", **bearer("ops"))
            refused = await guarded("GET", ROWS, **bearer("job"))
    assert (allowed.status, allowed.body) == (200, ANSWER)
    assert (refused.status, refused.code) == (403, "NotYours")
    records = [json.loads(one.message) for one in caplog.records if '"peek"' in one.message]
    assert [(one["principal"], one["export"], one["filter"]) for one in records] == [
        ("ops", "default/feed/0/trades", "price > 1")
    ]


async def test_no_more_than_four_look_at_the_same_time(tmp_path: Path) -> None:
    """The agent does not answer, so each waits for three seconds."""
    limits = RateLimits(agent_wait_s=3.0)
    async with running_broker(tmp_path / "broker.db", limits) as (_, rest):
        assert (await rest("PUT", f"{FEED}/export/trades", EXPORT)).status == 201
        assert (await rest("PUT", FEED, AGENT, data=None)).status == 200
        found = await asyncio.gather(*(rest("GET", ROWS) for _ in range(rows.MAX_PEEKS + 1)))
    codes = [one.code for one in found]
    assert sorted(codes) == [*["AgentAway"] * rows.MAX_PEEKS, "TooManyRequests"]


async def test_rows_may_be_switched_off(tmp_path: Path) -> None:
    broker = Broker(db=tmp_path / "broker.db", port=0, peek=False)
    await broker.start()
    try:
        async with aiohttp.ClientSession() as session:
            rest = Rest(broker.url, session)
            assert (await rest("GET", ROWS)).status == 404
            assert (await rest("GET", "/ui")).body["peek"] is False
    finally:
        await broker.stop()
