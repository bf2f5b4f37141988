"""The agents of a job beside that of its exports: started, kept alive and told of by the driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pe_agent.job.agent_process import AgentProcess
from pe_agent.transport.agent_client import AgentClient
from streambroker_core.errors import StreambrokerError
from streambroker_core.model import PeKey

MOST = 64
"""Agents of one job."""


class FellowsInvalidError(StreambrokerError):
    """Agents that cannot be fellows of a job; none was started."""

    code = "ArgumentInvalid"


def counted(agents: int | Sequence[tuple[str, str]]) -> tuple[int, Sequence[tuple[str, str]]]:
    """Return how many fellows are to be started, and those that run elsewhere.

    Args:
        agents: how many agents there are in all, or address and token of the fellows.

    Raises:
        FellowsInvalidError: none, or too many.
    """
    number = agents if isinstance(agents, int) else 1 + len(agents)
    if not 1 <= number <= MOST:
        raise FellowsInvalidError(f"agents={agents!r}: a job has from 1 to {MOST} agents.")
    return (agents - 1, ()) if isinstance(agents, int) else (0, agents)


class FellowAgents:
    """The fellows of one agent, and what it was told of them.

    Args:
        home: the agent that publishes the job's exports.
        start: starts the fellow of a number, from 1.
        count: how many fellows are to be started.
        elsewhere: fellows that run already, and whom others start and end.

    Raises:
        AgentFailedError: one did not start; those before are ended again.
        AgentUnreachableError, AgentRefusedError: one elsewhere does not answer, or not to us.
        FellowsInvalidError: one elsewhere is of another job, or two are of one PE.
    """

    def __init__(
        self,
        home: AgentProcess,
        start: Callable[[int], AgentProcess],
        count: int,
        elsewhere: Sequence[AgentClient] = (),
    ) -> None:
        self._home = home
        self._elsewhere = _named(home.pe, elsewhere)
        self._told: tuple[Any, ...] = ()
        self.processes: list[AgentProcess] = []
        try:
            for number in range(1, count + 1):
                self.processes.append(start(number))
            if count or elsewhere or home.client.call("status").get("fellows"):
                self.tell()
                home.beat.append(self.tell)
        except BaseException:
            self.stop(end_agent=True)
            raise

    def tell(self) -> None:
        """Tell the home its fellows, if it does not know: after a start, its own or one of them."""
        clients = [p.client for p in self.processes]
        now = (self._home.client, *clients)
        if now == self._told:
            return
        started = {str(p.pe): p.client for p in self.processes}
        agents = [
            {"pe": pe, "location": client.location, "token": client.token}
            for pe, client in {**started, **self._elsewhere}.items()
        ]
        self._home.client.call("fellows", agents=agents)
        self._told = now

    def stop(self, *, end_agent: bool) -> None:
        """Let go of all of them; see :meth:`AgentProcess.stop`."""
        for process in self.processes:
            process.stop(end_agent=end_agent)


def _named(home: PeKey, elsewhere: Sequence[AgentClient]) -> dict[str, AgentClient]:
    found: dict[str, AgentClient] = {}
    for client in elsewhere:
        pe = PeKey.parse(client.call("status")["pe"])
        if (pe.namespace, pe.job) != (home.namespace, home.job) or str(pe) in {str(home), *found}:
            raise FellowsInvalidError(
                f"the agent at {client.location} is of PE {pe}. The agents of {home.namespace}/"
                f"{home.job} are to be of that job, each of another PE than {home.pe} and the rest."
            )
        found[str(pe)] = client
    return found
