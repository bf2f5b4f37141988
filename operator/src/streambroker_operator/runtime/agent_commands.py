"""What is asked of agents, which nobody can call: it waits here until they fetch and answer it.

Rule 1: nothing is kept on a disk. Whoever asks gets the agent's own answer, or is told that none
    came and asks again under the same name; the agent sees to it that this changes nothing more.
Rule 2: an errand is handed out with each fetch until it is answered: an agent may be killed
    between the two.
Rule 3: what is to be done waits on for a while when whoever asked has gone, so that an agent that
    comes by polls alone does it before it is asked for again. A question goes with who asked it.
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
from streambroker_operator.errors import RequestError
from streambroker_operator.runtime.runtime import Runtime

COMMAND_TTL_S = 60.0
"""For how long an errand waits for the agent after it was last asked for: two polls."""
HINT_INTERVAL_S = 1.0
"""After how many seconds an agent that has not answered is sent the next hint."""
MAX_TOTAL_COMMANDS = 5_000
MAX_COMMAND_BYTES = 32 << 20
_DURABLE_ACTIONS = (EMIT, APPEND)


class CommandTransport(Protocol):
    """Who hands errands to agents, and their answers back."""

    async def execute(self, pe: PeKey, command: AgentCommand) -> CommandResult:
        """Have an agent do something; return what it answers.

        Raises:
            RequestError: 503, it did not answer in time; 429, too much waits for agents.
        """
        ...

    async def fetch(self, pe: PeKey, results: Sequence[CommandResult]) -> list[AgentCommand]:
        """Take an agent's answers; return what waits for it.

        Raises:
            RequestError: 503, who would know cannot be reached.
        """
        ...

    def has_pending(self, pe: PeKey) -> bool:
        """Say whether something waits for an agent, as far as this process knows."""
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
    """The errands of this process, by PE.

    Args:
        send_hint: sends an agent a hint that something waits.
        wait_s: for how long a request waits for the agent.
    """

    def __init__(self, send_hint: Callable[[PeKey], None], wait_s: float) -> None:
        self._send_hint = send_hint
        self._wait_s = wait_s
        self._pending: dict[PeKey, dict[str, _PendingCommand]] = {}
        self._count = self._bytes = 0

    async def execute(self, pe: PeKey, command: AgentCommand) -> CommandResult:
        """As of `CommandTransport`; one that waits already under that id is the same."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        one = self._enqueue(pe, command, began)
        try:
            while not one.reply.done():
                left = began + self._wait_s - loop.time()
                if left <= 0:
                    raise agent_away_error(
                        f"The agent of {pe} has not answered for {self._wait_s:g} s."
                    )
                self._send_hint(pe)
                await asyncio.wait([one.reply], timeout=min(HINT_INTERVAL_S, left))
            return one.reply.result()
        finally:
            if command.action not in _DURABLE_ACTIONS:
                self._remove(pe, command.id)

    def _enqueue(self, pe: PeKey, command: AgentCommand, now: float) -> _PendingCommand:
        self._expire(now)
        of_pe = self._pending.get(pe, {})
        one = of_pe.get(command.id)
        if one is None:
            size = len(command.text)
            full = len(of_pe) >= MAX_COMMANDS or self._count >= MAX_TOTAL_COMMANDS
            if full or self._bytes + size > MAX_COMMAND_BYTES:
                raise _too_many_error(pe)
            one = _PendingCommand(command, size, now)
            self._pending.setdefault(pe, {})[command.id] = one
            self._count += 1
            self._bytes += size
        one.expires_at = now + COMMAND_TTL_S
        return one

    def _remove(self, pe: PeKey, id_: str) -> _PendingCommand | None:
        of_pe = self._pending.get(pe, {})
        one = of_pe.pop(id_, None)
        if one is not None:
            self._count -= 1
            self._bytes -= one.size
        if not of_pe:
            self._pending.pop(pe, None)
        return one

    def _expire(self, now: float) -> None:
        late = [
            (pe, id_)
            for pe, of in self._pending.items()
            for id_, o in of.items()
            if o.expires_at < now
        ]
        for pe, id_ in late:
            self._remove(pe, id_)

    async def fetch(self, pe: PeKey, results: Sequence[CommandResult]) -> list[AgentCommand]:
        """As of `CommandTransport`."""
        for one in results:
            known = self._remove(pe, one.id)
            if known is not None and not known.reply.done():
                known.reply.set_result(one)
        self._expire(asyncio.get_running_loop().time())
        return [one.command for one in self._pending.get(pe, {}).values()]

    def has_pending(self, pe: PeKey) -> bool:
        """As of `CommandTransport`."""
        return pe in self._pending


def command_hinter(runtime: Runtime) -> Callable[[PeKey], None]:
    """Return what tells an agent of a broker that an errand waits for it."""

    def tell(pe: PeKey) -> None:
        registration = runtime.board.registration(pe)
        if registration is None or registration.hint is None:
            return
        key, point = runtime.agent_key(pe, registration), runtime.board.point
        runtime.sender.send(
            pe, registration.hint, hints.encode(key, str(pe), hints.COMMANDS, point)
        )

    return tell


def agent_away_error(reason: str) -> RequestError:
    """Return the refusal of what needs an agent that cannot be reached."""
    return RequestError(
        503,
        "AgentAway",
        f"{reason} It is not known whether it has done it: send the same request with the same"
        " Request-Id once the job runs and its agent reaches the broker, and it is done once.",
        headers={"Retry-After": "2"},
    )


def _too_many_error(pe: PeKey) -> RequestError:
    return RequestError(
        429,
        "TooManyRequests",
        f"Too much waits for the agent of {pe}, or for all agents. Nothing was sent; try again"
        " after 5 s, and look whether the agent runs.",
        headers={"Retry-After": "5"},
    )
