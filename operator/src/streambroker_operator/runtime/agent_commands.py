"""Queue of commands for agents, which poll because the broker cannot call them.

- Nothing is stored on disk. A caller gets the agent's own result, or an error and repeats the
  request under the same name. The agent makes sure that a repetition changes nothing more.
- A command is sent with each fetch until the agent returns its result, because the agent may be
  killed in between.
- A changing command outlives its caller for a while, so that an agent without hints executes it
  before the request is repeated. A query is dropped with its caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from streambroker_core.model import PeKey
from streambroker_core.wire.broker import hints
from streambroker_core.wire.broker.agent_commands import (
    APPEND,
    EMIT,
    MAX_COMMANDS,
    AgentCommand,
    CommandResult,
)
from streambroker_operator.cooperative import loop_time
from streambroker_operator.errors import RequestError
from streambroker_operator.runtime.runtime import Runtime

COMMAND_TTL_S = 60.0
"""How long a command stays queued after the last request for it, in seconds: two polls."""
HINT_INTERVAL_S = 1.0
"""Interval between hints to an agent that has not answered, in seconds."""
MAX_TOTAL_COMMANDS = 5_000
MAX_COMMAND_BYTES = 32 << 20
_DURABLE_ACTIONS = (EMIT, APPEND)


class CommandTransport(Protocol):
    """Passes commands to agents and returns their results."""

    async def execute(self, pe: PeKey, command: AgentCommand) -> CommandResult:
        """Have an agent execute a command; return its result.

        Raises:
            RequestError: 503, no result in time; 429, too many commands are waiting.
        """
        ...

    async def fetch(self, pe: PeKey, results: Sequence[CommandResult]) -> list[AgentCommand]:
        """Accept an agent's results; return the commands that wait for it.

        Raises:
            RequestError: 503, the replica that holds the commands cannot be reached.
        """
        ...

    def has_pending(self, pe: PeKey) -> bool:
        """Return whether commands wait for an agent, as far as this process knows."""
        ...


@dataclass(slots=True)
class _PendingCommand:
    command: AgentCommand
    size: int
    expires_at: float
    reply: asyncio.Future[CommandResult] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class CommandQueue:
    """Commands queued in this process, by PE; requests wait for results for `wait_s` seconds."""

    def __init__(self, send_hint: Callable[[PeKey], None], wait_s: float) -> None:
        self._send_hint = send_hint
        self._wait_s = wait_s
        self._pending: dict[PeKey, dict[str, _PendingCommand]] = {}
        self._count = self._bytes = 0

    async def execute(self, pe: PeKey, command: AgentCommand) -> CommandResult:
        """Execute a command; a queued command with the same id is joined, not added again."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        pending = self._enqueue(pe, command, began)
        try:
            while not pending.reply.done():
                remaining = began + self._wait_s - loop.time()
                if remaining <= 0:
                    raise agent_away_error(
                        f"The agent of {pe} has not answered for {self._wait_s:g} s."
                    )
                self._send_hint(pe)
                await asyncio.wait([pending.reply], timeout=min(HINT_INTERVAL_S, remaining))
            return pending.reply.result()
        finally:
            if command.action not in _DURABLE_ACTIONS:
                self._remove(pe, command.id)

    def _enqueue(self, pe: PeKey, command: AgentCommand, now: float) -> _PendingCommand:
        self._expire(now)
        queued = self._pending.get(pe, {})
        pending = queued.get(command.id)
        if pending is None:
            size = len(command.text)
            full = len(queued) >= MAX_COMMANDS or self._count >= MAX_TOTAL_COMMANDS
            if full or self._bytes + size > MAX_COMMAND_BYTES:
                raise _too_many_error(pe)
            pending = _PendingCommand(command, size, now)
            self._pending.setdefault(pe, {})[command.id] = pending
            self._count += 1
            self._bytes += size
        pending.expires_at = now + COMMAND_TTL_S
        return pending

    def _remove(self, pe: PeKey, id_: str) -> _PendingCommand | None:
        queued = self._pending.get(pe, {})
        removed = queued.pop(id_, None)
        if removed is not None:
            self._count -= 1
            self._bytes -= removed.size
        if not queued:
            self._pending.pop(pe, None)
        return removed

    def _expire(self, now: float) -> None:
        expired = [
            (pe, id_)
            for pe, by_id in self._pending.items()
            for id_, pending in by_id.items()
            if pending.expires_at < now
        ]
        for pe, id_ in expired:
            self._remove(pe, id_)

    async def fetch(self, pe: PeKey, results: Sequence[CommandResult]) -> list[AgentCommand]:
        """Complete the waiting requests; return the commands still queued."""
        for result in results:
            pending = self._remove(pe, result.id)
            if pending is not None and not pending.reply.done():
                pending.reply.set_result(result)
        self._expire(loop_time())
        return [result.command for result in self._pending.get(pe, {}).values()]

    def has_pending(self, pe: PeKey) -> bool:
        """Return whether commands of a PE are queued."""
        return pe in self._pending


def command_hinter(runtime: Runtime) -> Callable[[PeKey], None]:
    """Return a function that sends an agent a hint about a waiting command."""

    def send_hint(pe: PeKey) -> None:
        registration = runtime.board.registration(pe)
        if registration is None or registration.hint is None:
            return
        key, point = runtime.agent_key(pe, registration), runtime.board.point
        runtime.sender.send(
            pe, registration.hint, hints.encode(key, str(pe), hints.COMMANDS, point)
        )

    return send_hint


def agent_away_error(reason: str) -> RequestError:
    """Return the 503 error for an agent that cannot be reached."""
    return RequestError(
        503,
        "AgentAway",
        f"{reason} It is not known whether the agent has performed the request: repeat it with"
        " the same Request-Id once the job runs and its agent reaches the broker. It is"
        " performed only once.",
        headers={"Retry-After": "2"},
    )


def _too_many_error(pe: PeKey) -> RequestError:
    return RequestError(
        429,
        "TooManyRequests",
        f"Too many commands wait for the agent of {pe}, or for all agents. Nothing was sent; try"
        " again after 5 s, and check whether the agent runs.",
        headers={"Retry-After": "5"},
    )
