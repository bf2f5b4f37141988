"""Errands of agents: handed out until they are answered, bounded, and given up in time."""

from __future__ import annotations

import asyncio

import pytest

import streambroker_operator.runtime.agent_commands as module
from streambroker_core.model import PeKey
from streambroker_core.wire.broker.agent_commands import (
    APPEND,
    EMIT,
    EMITTED,
    MAX_COMMANDS,
    AgentCommand,
    CommandResult,
    make_command,
)
from streambroker_operator.errors import RequestError
from streambroker_operator.runtime.agent_commands import CommandQueue
from support.core.resources import pe

FEED, ALERTS = pe("default/feed/0"), pe("default/alerts/0")
DONE = {"id": "log/0"}


def command(number: int, action: str = EMIT, text: str = "") -> AgentCommand:
    return make_command(action, {"what": text}, f"{number:032x}")


class Bench:
    """Errands, and whom they have told."""

    def __init__(self, wait_s: float = 5.0) -> None:
        self.hinted: list[str] = []
        self.thrice = asyncio.Event()
        self.commands = CommandQueue(self.hint, wait_s)

    def hint(self, one: PeKey) -> None:
        self.hinted.append(str(one))
        if len(self.hinted) >= 3:
            self.thrice.set()

    def asked(self, one: AgentCommand) -> asyncio.Task[CommandResult]:
        return asyncio.ensure_future(self.commands.execute(FEED, one))

    async def refusal(self, one: AgentCommand) -> RequestError:
        with pytest.raises(RequestError) as raised:
            await self.commands.execute(FEED, one)
        return raised.value


async def turn() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_the_agent_is_informed_and_who_asked_gets_its_answer() -> None:
    bench = Bench()
    first, second = bench.asked(command(1)), bench.asked(command(2))
    await turn()
    assert bench.hinted == [str(FEED)] * 2
    assert bench.commands.has_pending(FEED)
    assert not bench.commands.has_pending(ALERTS)
    assert await bench.commands.fetch(ALERTS, []) == []

    assert await bench.commands.fetch(FEED, []) == [command(1), command(2)]
    left = await bench.commands.fetch(FEED, [CommandResult(id=command(2).id, answer=DONE)])
    assert left == [command(1)]
    assert (await second).answer == DONE
    refused = CommandResult(id=command(1).id, code="ExportFull", detail="full")
    assert await bench.commands.fetch(FEED, [refused]) == []
    assert await first == refused
    assert not bench.commands.has_pending(FEED)


async def test_an_agent_that_does_not_come_is_informed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "HINT_INTERVAL_S", 0.01)
    bench = Bench(wait_s=60.0)
    asked = bench.asked(command(1))
    await asyncio.wait_for(bench.thrice.wait(), 30)
    await bench.commands.fetch(FEED, [CommandResult(id=command(1).id, answer=DONE)])

    assert (await asked).answer == DONE


async def test_without_an_answer_it_is_said_that_it_is_not_known() -> None:
    bench = Bench(wait_s=0.02)
    refused = await bench.refusal(command(1))

    assert (refused.status, refused.code) == (503, "AgentAway")
    assert "Request-Id" in str(refused)
    assert refused.headers["Retry-After"]


@pytest.mark.parametrize(("action", "stays"), [(EMIT, True), (APPEND, True), (EMITTED, False)])
async def test_what_is_to_be_done_outlives_who_asked_and_a_question_does_not(
    action: str, stays: bool
) -> None:
    bench = Bench(wait_s=0.02)
    await bench.refusal(command(1, action))

    assert bench.commands.has_pending(FEED) is stays
    again = bench.asked(command(1, action))
    await turn()
    assert await bench.commands.fetch(FEED, []) == [command(1, action)]
    await bench.commands.fetch(FEED, [CommandResult(id=command(1).id, answer=DONE)])
    assert (await again).answer == DONE


async def test_what_nobody_asks_for_any_more_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(wait_s=0.02)
    await bench.refusal(command(1))
    monkeypatch.setattr(module, "COMMAND_TTL_S", -1.0)
    await bench.refusal(command(2))

    assert [one.id for one in await bench.commands.fetch(FEED, [])] == [command(1).id]


async def test_two_who_ask_for_the_same_get_one_answer() -> None:
    bench = Bench()
    both = bench.asked(command(1)), bench.asked(command(1))
    await turn()
    assert len(await bench.commands.fetch(FEED, [])) == 1
    await bench.commands.fetch(FEED, [CommandResult(id=command(1).id, answer=DONE)])

    assert [one.answer for one in await asyncio.gather(*both)] == [DONE, DONE]


async def test_an_answer_that_comes_twice_or_to_nothing_is_passed_over() -> None:
    bench = Bench()
    done = CommandResult(id=command(1).id, answer=DONE)
    assert await bench.commands.fetch(FEED, [done, done]) == []
    asked = bench.asked(command(1))
    await turn()
    assert await bench.commands.fetch(FEED, [done, done]) == []
    assert (await asked).answer == DONE


async def test_of_one_agent_only_so_many_wait_and_others_have_their_own() -> None:
    bench = Bench(wait_s=0.02)
    await asyncio.gather(*(bench.refusal(command(n)) for n in range(MAX_COMMANDS)))
    refused = await bench.refusal(command(MAX_COMMANDS))
    assert (refused.status, refused.code) == (429, "TooManyRequests")
    assert (await bench.refusal(command(0))).code == "AgentAway"

    with pytest.raises(RequestError) as raised:
        await bench.commands.execute(ALERTS, command(MAX_COMMANDS))
    assert raised.value.code == "AgentAway"
    done = [CommandResult(id=command(n).id, answer=DONE) for n in range(MAX_COMMANDS)]
    assert await bench.commands.fetch(FEED, done) == []
    assert (await bench.refusal(command(MAX_COMMANDS))).code == "AgentAway"


@pytest.mark.parametrize("limit", [("MAX_COMMAND_BYTES", 100), ("MAX_TOTAL_COMMANDS", 1)])
async def test_all_together_have_a_limit_in_count_and_bytes(
    monkeypatch: pytest.MonkeyPatch, limit: tuple[str, int]
) -> None:
    monkeypatch.setattr(module, *limit)
    bench = Bench(wait_s=0.02)
    assert (await bench.refusal(command(1, text="x" * 50))).code == "AgentAway"
    assert (await bench.refusal(command(2, text="x" * 50))).code == "TooManyRequests"
    with pytest.raises(RequestError) as raised:
        await bench.commands.execute(ALERTS, command(3, text="x" * 50))
    assert raised.value.code == "TooManyRequests"
    assert not bench.commands.has_pending(ALERTS)
