"""An agent that only does errands, for brokers in tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from streambroker_core.wire.broker.agent_commands import (
    APPEND,
    EMIT,
    AgentCommand,
    CommandResult,
    decode_commands,
    encode_results,
)
from support.brokers.brokers import Rest

LOG = "0123456789abcdef"
AGENT: dict[str, Any] = {"instance": "ab" * 8, "location": "grpc+tcp://127.0.0.1:1", "hint": None}


class CommandAgent:
    """Remembers requests as an agent does: the same one again has the same number.

    Attributes:
        done: every errand that was done, in order.
        refuses: code and detail of the answer to all that is asked; None to do it.
        applied: whether readers have applied all.
    """

    def __init__(self) -> None:
        self.done: list[AgentCommand] = []
        self.requests: list[tuple[str, str]] = []
        self.refuses: tuple[str, str] | None = None
        self.applied = False

    def answer(self, command: AgentCommand) -> CommandResult:
        self.done.append(command)
        if self.refuses is not None:
            code, detail = self.refuses
            return CommandResult(id=command.id, code=code, detail=detail)
        if command.action not in (EMIT, APPEND):
            seq = int(command.body["seq"])
            if seq >= len(self.requests):
                return CommandResult(id=command.id, code="NotEmitted", detail="there is none.")
            return CommandResult(id=command.id, answer=self._state(seq))
        name = (command.action, command.body["request"])
        if name not in self.requests:
            self.requests.append(name)
        return CommandResult(id=command.id, answer=self._state(self.requests.index(name)))

    def _state(self, seq: int) -> Mapping[str, Any]:
        readers = [{"reader": "r", "applied": self.applied}]
        return {"id": f"{LOG}/{seq}", "seq": seq, "readers": readers, "applied": self.applied}

    async def round(self, rest: Rest, pe: str, **headers: str) -> None:
        """Fetch, do and answer until nothing waits."""
        done: list[CommandResult] = []
        path, mark, query = pe.partition("?")
        while True:
            where = f"{path}/errands{mark}{query}"
            answer = await rest("POST", where, encode_results(done), data=None, **headers)
            assert answer.status == 200, answer.body
            commands = decode_commands(answer.body)
            if not commands:
                return
            done = [self.answer(one) for one in commands]


@asynccontextmanager
async def command_agent(rest: Rest, pe: str, **headers: str) -> AsyncIterator[CommandAgent]:
    """Register an agent that asks again and again, without hints."""
    assert (await rest("PUT", pe, AGENT, data=None, **headers)).status == 200
    one = CommandAgent()

    async def run() -> None:
        while True:
            await one.round(rest, pe, **headers)
            await asyncio.sleep(0.01)

    task = asyncio.ensure_future(run())
    try:
        yield one
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
