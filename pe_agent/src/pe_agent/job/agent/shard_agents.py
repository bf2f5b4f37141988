"""The shard agents of a job: started, kept alive and reported to the publishing agent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pe_agent.job.agent.agent_process import AgentProcess
from pe_agent.transport.agent_client import AgentClient, send
from streambroker_core.errors import StreambrokerError
from streambroker_core.model import PeKey
from streambroker_core.wire.agent_rpc.job import GetStatus
from streambroker_core.wire.agent_rpc.publisher import AgentAddress
from streambroker_core.wire.agent_rpc.stages import SetShardAgents

MAX_AGENTS = 64
"""Maximum number of agents of one job."""


class ShardAgentsInvalidError(StreambrokerError):
    """The shard agents of a job are invalid; none was started."""

    code = "ArgumentInvalid"


def parse_agents(agents: int | Sequence[tuple[str, str]]) -> tuple[int, Sequence[tuple[str, str]]]:
    """Return how many shard agents to start, and those elsewhere; raise if out of range."""
    number = agents if isinstance(agents, int) else 1 + len(agents)
    if not 1 <= number <= MAX_AGENTS:
        raise ShardAgentsInvalidError(
            f"agents={agents!r}: a job has from 1 to {MAX_AGENTS} agents."
        )
    return (agents - 1, ()) if isinstance(agents, int) else (0, agents)


class ShardAgentProcesses:
    """The shard agents of one agent, and what was last reported of them.

    Args:
        publisher: the agent that publishes the job's exports.
        start: starts the shard agent of a number, from 1.
        count: number of shard agents to start.
        remote: shard agents that already run, and are started and stopped elsewhere.

    Raises:
        AgentFailedError: one did not start; those before are ended again.
        AgentUnreachableError, AgentRefusedError: a remote one does not answer, or refuses.
        ShardAgentsInvalidError: a remote one is of another job, or two are of one PE.
    """

    def __init__(
        self,
        publisher: AgentProcess,
        start: Callable[[int], AgentProcess],
        count: int,
        remote: Sequence[AgentClient] = (),
    ) -> None:
        self._publisher = publisher
        self._remote = _remote_by_pe(publisher.pe, remote)
        self._reported: tuple[Any, ...] = ()
        self.processes: list[AgentProcess] = []
        try:
            for number in range(1, count + 1):
                self.processes.append(start(number))
            if count or remote or send(publisher.client, GetStatus()).get("fellows"):
                self.report()
                publisher.beat_callbacks.append(self.report)
        except BaseException:
            self.stop(end_agent=True)
            raise

    def report(self) -> None:
        """Report the shard agents to the publisher if one, or the publisher, was (re)started."""
        clients = [p.client for p in self.processes]
        current = (self._publisher.client, *clients)
        if current == self._reported:
            return
        started = {str(p.pe): p.client for p in self.processes}
        agents = [
            AgentAddress(pe=pe, location=client.location, token=client.token)
            for pe, client in {**started, **self._remote}.items()
        ]
        send(self._publisher.client, SetShardAgents(agents=agents))
        self._reported = current

    def stop(self, *, end_agent: bool) -> None:
        """Release all of them; see :meth:`AgentProcess.stop`."""
        for process in self.processes:
            process.stop(end_agent=end_agent)


def _remote_by_pe(publisher_pe: PeKey, remote: Sequence[AgentClient]) -> dict[str, AgentClient]:
    by_pe: dict[str, AgentClient] = {}
    for client in remote:
        pe = PeKey.parse(send(client, GetStatus())["pe"])
        if (pe.namespace, pe.job) != (publisher_pe.namespace, publisher_pe.job) or str(pe) in {
            str(publisher_pe),
            *by_pe,
        }:
            raise ShardAgentsInvalidError(
                f"the agent at {client.location} is of PE {pe}. The agents of"
                f" {publisher_pe.namespace}/{publisher_pe.job} have to belong to that job, each"
                f" with a PE other than {publisher_pe.pe} and those of the rest."
            )
        by_pe[str(pe)] = client
    return by_pe
