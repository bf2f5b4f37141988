"""Choice of the job's agent at which a task stages rows: partitions are spread over all agents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pe_agent.transport.agent_client import AgentClient
from streambroker_core.errors import StreambrokerError
from streambroker_core.wire.agent_rpc.publisher import Admitted

RETRYABLE_CODES = ("AgentUnreachable", "NotAdmitted")


@dataclass(frozen=True, slots=True)
class StageTarget:
    """An agent to stage at; ``extra_fields`` are added to its command, empty for the own agent."""

    client: AgentClient
    extra_fields: Mapping[str, Any]


class StageTargets:
    """The agents that a task tries in turn, its partition's first; ``home`` owns the exports."""

    def __init__(self, home: AgentClient, partition: int) -> None:
        self._home, self._partition, self._tried = home, partition, 0
        self._count = 1

    def next_target(self, admitted: Admitted) -> StageTarget:
        """Return where to stage, from the own agent's response to the admission."""
        shard_agents = admitted.shard_agents
        self._count = 1 + len(shard_agents)
        at = (self._partition + self._tried) % self._count
        if at == 0:
            return StageTarget(self._home, {})
        chosen = shard_agents[at - 1]
        extra_fields = {
            "home": admitted.home,
            "stream": admitted.stream,
            "limit": admitted.limit,
        }
        client = AgentClient(chosen.location, chosen.token, self._home.trust)
        return StageTarget(client, extra_fields)

    def should_retry(self, target: StageTarget, error: StreambrokerError) -> bool:
        """Return whether a failed stage may be retried at the next agent, or at the same one.

        What prevents one shard agent from staging, such as its disk, may not affect the others.
        """
        self._tried += 1
        others_left = bool(target.extra_fields) and self._tried < self._count
        return error.code in RETRYABLE_CODES or others_left
