"""Agent commands with several replicas: the leader holds the queue.

Callers and agents reach any replica. A replica that does not lead forwards commands to the leader,
which sends the hints. If the leader changes, the result of a command is unknown. The caller repeats
it under the same name.
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
from streambroker_core.wire.encoding.canonical import JsonObject
from streambroker_operator.errors import RequestError
from streambroker_operator.kubernetes.replicas import report_relay as relay
from streambroker_operator.runtime.agent_commands import CommandQueue, agent_away_error

PATH = "/api/replicas/errands"
LEADER_MARGIN_S = 2.0
"""How much longer a forwarding replica waits for the leader than the leader for the agent."""

_TRANSPORT_ERRORS = (
    aiohttp.ClientError,
    OSError,
    asyncio.TimeoutError,
    ValueError,
    KeyError,
    TypeError,
)
"""Includes the response of an older release, which does not know commands."""


class LeaderCommands:
    """Command transport of one replica.

    Args:
        local_queue: commands that agents fetch here while this replica leads.
        leader_address: returns the leader's address, such as ``http://10.0.0.7:8471``, or "".
        wait_s: seconds that a request waits for an agent.
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
        """Stop forwarding and close the session."""
        if self._session is not None:
            await self._session.close()

    async def execute(self, pe: PeKey, command: AgentCommand) -> CommandResult:
        """Execute a command as `CommandTransport` specifies."""
        if self._leads():
            return await self._local_queue.execute(pe, command)
        self._forwarded[pe] += 1
        try:
            results = await self._forward({"pe": str(pe), "ask": wire.encode_commands([command])})
        finally:
            self._forwarded[pe] -= 1
            if not self._forwarded[pe]:
                del self._forwarded[pe]
        return wire.decode_results(results)[0]

    async def fetch(self, pe: PeKey, results: Sequence[CommandResult]) -> list[AgentCommand]:
        """Fetch commands as `CommandTransport` specifies."""
        if self._leads():
            return await self._local_queue.fetch(pe, results)
        commands = await self._forward({"pe": str(pe), "fetch": wire.encode_results(results)})
        return wire.decode_commands(commands)

    def has_pending(self, pe: PeKey) -> bool:
        """Return whether a command is pending; a non-leader knows only those it forwarded."""
        return self._local_queue.has_pending(pe) if self._leads() else pe in self._forwarded

    async def _forward(self, message: JsonObject) -> Any:
        """Send a message to the leader and return its response.

        Raises:
            RequestError: the error of the leader; 503, the leader does not answer.
        """
        leader = self._leader_address()
        if not leader:
            raise agent_away_error("No replica of the broker is the leader at the moment.")
        body = json.dumps({"at": time.time(), **message}).encode()
        headers = {"Authorization": relay.sign(self._secret, body)}
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=self._timeout, trust_env=False)
        try:
            async with self._session.post(leader + PATH, data=body, headers=headers) as response:
                result = json.loads(await response.read())
                problem = (
                    None if response.status == 200 else (str(result["code"]), str(result["detail"]))
                )
                retry_headers = {"Retry-After": response.headers.get("Retry-After", "2")}
        except _TRANSPORT_ERRORS as error:
            reason = str(error) or type(error).__name__
            raise agent_away_error(f"The leading replica does not answer: {reason}.") from error
        if problem is None:
            return result
        if response.status not in (429, 503):
            raise agent_away_error(f"The leading replica refuses this one: {problem[1]}")
        raise RequestError(response.status, *problem, headers=retry_headers)


def handler(
    local_queue: CommandQueue, secret: bytes, leads: Callable[[], bool]
) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Return the handler for `PATH`, which serves the local queue while this replica leads."""

    async def passed_on(request: web.Request) -> web.Response:
        try:
            authorization = request.headers.get("Authorization", "")
            message = relay.verify(secret, authorization, await request.read(), time.time())
            if not leads():
                raise agent_away_error("Another replica of the broker is the leader now.")
            return web.json_response(await _answer(local_queue, message))
        except (RequestError, ManifestError) as error:
            failure = error if isinstance(error, RequestError) else agent_away_error(str(error))
            body = {"code": failure.code, "detail": str(failure)}
            return web.json_response(body, status=failure.status, headers=failure.headers)

    return passed_on


async def _answer(local_queue: CommandQueue, message: Mapping[str, Any]) -> JsonObject:
    pe = PeKey.parse(str(message.get("pe")))
    if "ask" in message:
        (command,) = wire.decode_commands(message["ask"])
        return wire.encode_results([await local_queue.execute(pe, command)])
    return wire.encode_commands(
        await local_queue.fetch(pe, wire.decode_results(message.get("fetch")))
    )
