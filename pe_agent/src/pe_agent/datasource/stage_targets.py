"""At which of a job's agents a task stages its rows: partitions are dealt out over all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pe_agent.transport.agent_client import AgentClient
from streambroker_core.errors import StreambrokerError

RETRYABLE_CODES = ("AgentUnreachable", "NotAdmitted")


@dataclass(frozen=True, slots=True)
class StageTarget:
    """One agent that takes a stage; ``extra_fields`` are what its command has beside the usual."""

    client: AgentClient
    extra_fields: Mapping[str, Any]

    def is_shard_agent(self) -> bool:
        """Whether it is not the export's own agent."""
        return bool(self.extra_fields)


class StageTargets:
    """The agents that a task tries in turn, its partition's own first.

    Args:
        home: the job's own agent, the home of its exports.
        partition: number of the task's partition.
    """

    def __init__(self, home: AgentClient, partition: int) -> None:
        self._home, self._partition, self._tried = home, partition, 0
        self._count = 1

    def next_target(self, admitted: Mapping[str, Any]) -> StageTarget:
        """Return where to stage, by what the own agent answered to the admission."""
        fellows = admitted.get("fellows", ())
        self._count = 1 + len(fellows)
        at = (self._partition + self._tried) % self._count
        if at == 0:
            return StageTarget(self._home, {})
        fellow = fellows[at - 1]
        home = {name: admitted[name] for name in ("home", "stream", "limit")}
        return StageTarget(AgentClient(fellow["location"], fellow["token"], self._home.trust), home)

    def should_retry(self, target: StageTarget, error: StreambrokerError) -> bool:
        """Whether a stage that came to nothing may be tried at the next agent, or once more.

        What keeps a fellow from taking it, such as its disk, need not keep the others.
        """
        self._tried += 1
        return error.code in RETRYABLE_CODES or (
            target.is_shard_agent() and self._tried < self._count
        )
