"""Errands of agents where there are several replicas: all of them are at the one that leads.

Callers and agents reach any replica. One that does not lead passes on what it is asked to the one
that does, which is the one that sends hints. Nothing is kept here: who asked is told that it is
not known what came of it where a leader goes, and asks again under the same name.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import aiohttp
from aiohttp import web

from streambroker_core.errors import ManifestError
from streambroker_core.model import PeKey
from streambroker_core.wire.broker import agent_commands as wire
from streambroker_core.wire.broker.agent_commands import AgentCommand, CommandResult
from streambroker_operator.errors import RequestError
from streambroker_operator.kubernetes.replicas import report_relay as relay
from streambroker_operator.runtime.agent_commands import CommandQueue, agent_away_error

PATH = "/api/replicas/errands"
LEADER_MARGIN_S = 2.0
"""How much longer than the one that leads waits for an agent another one waits for it."""

_TRANSPORT_ERRORS = (
    aiohttp.ClientError,
    OSError,
    asyncio.TimeoutError,
    ValueError,
    KeyError,
    TypeError,
)
"""Among them what a replica of an older release answers, which knows of no errands."""


class LeaderCommands:
    """What one replica does with errands.

    Args:
        local_queue: those that agents fetch here, while this replica leads.
        secret: of the broker.
        leads: whether this replica leads.
        leader_address: address of the one that does, as ``http://10.0.0.7:8471``; empty for nobody.
        wait_s: for how long a request waits for an agent, in seconds.
    """

    def __init__(
        self,
        local_queue: CommandQueue,
        secret: bytes,
        leads: Callable[[], bool],
        leader_address: Callable[[], str],
        wait_s: float,
    ) -> None:
        self._local_queue = local_queue
        self._secret = secret
        self._leads = leads
        self._leader_address = leader_address
        self._timeout = aiohttp.ClientTimeout(total=wait_s + LEADER_MARGIN_S)
        self._session: aiohttp.ClientSession | None = None
        self._forwarded: Counter[PeKey] = Counter()

    async def close(self) -> None:
        """Pass nothing on any more."""
        if self._session is not None:
            await self._session.close()

    async def execute(self, pe: PeKey, command: AgentCommand) -> CommandResult:
        """As of `Asked`."""
        if self._leads():
            return await self._local_queue.execute(pe, command)
        self._forwarded[pe] += 1
        try:
            told = await self._forward({"pe": str(pe), "ask": wire.encode_commands([command])})
        finally:
            self._forwarded[pe] -= 1
            if not self._forwarded[pe]:
                del self._forwarded[pe]
        return wire.decode_results(told)[0]

    async def fetch(self, pe: PeKey, results: Sequence[CommandResult]) -> list[AgentCommand]:
        """As of `Asked`."""
        if self._leads():
            return await self._local_queue.fetch(pe, results)
        told = await self._forward({"pe": str(pe), "fetch": wire.encode_results(results)})
        return wire.decode_commands(told)

    def has_pending(self, pe: PeKey) -> bool:
        """As of `Asked`: a replica that does not lead knows of what it has passed on."""
        return self._local_queue.has_pending(pe) if self._leads() else pe in self._forwarded

    async def _forward(self, message: Mapping[str, Any]) -> Any:
        """Have the leader answer.

        Raises:
            RequestError: what it refuses; 503, it does not answer.
        """
        leader = self._leader_address()
        if not leader:
            raise agent_away_error("No replica of the broker leads at the moment.")
        body = json.dumps({"at": time.time(), **message}).encode()
        shown = {"Authorization": relay.sign(self._secret, body)}
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=self._timeout, trust_env=False)
        try:
            async with self._session.post(leader + PATH, data=body, headers=shown) as answer:
                told = json.loads(await answer.read())
                refused = None if answer.status == 200 else (str(told["code"]), str(told["detail"]))
                pause = {"Retry-After": answer.headers.get("Retry-After", "2")}
        except _TRANSPORT_ERRORS as error:
            why = str(error) or type(error).__name__
            raise agent_away_error(f"The replica that leads does not answer: {why}.") from error
        if refused is None:
            return told
        if answer.status not in (429, 503):
            raise agent_away_error(f"The replica that leads refuses this one: {refused[1]}")
        raise RequestError(answer.status, *refused, headers=pause)


def handler(
    local_queue: CommandQueue, secret: bytes, leads: Callable[[], bool]
) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Return what answers `PATH`.

    Args:
        local_queue: the errands of this replica.
        secret: of the broker.
        leads: whether it leads.
    """

    async def passed_on(request: web.Request) -> web.Response:
        try:
            shown = request.headers.get("Authorization", "")
            told = relay.verify(secret, shown, await request.read(), time.time())
            if not leads():
                raise agent_away_error("Another replica of the broker leads now.")
            return web.json_response(await _answer(local_queue, told))
        except (RequestError, ManifestError) as error:
            refused = error if isinstance(error, RequestError) else agent_away_error(str(error))
            body = {"code": refused.code, "detail": str(refused)}
            return web.json_response(body, status=refused.status, headers=refused.headers)

    return passed_on


async def _answer(local_queue: CommandQueue, message: Mapping[str, Any]) -> dict[str, Any]:
    pe = PeKey.parse(str(message.get("pe")))
    if "ask" in message:
        (errand,) = wire.decode_commands(message["ask"])
        return wire.encode_results([await local_queue.execute(pe, errand)])
    return wire.encode_commands(
        await local_queue.fetch(pe, wire.decode_results(message.get("fetch")))
    )
