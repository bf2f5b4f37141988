"""At which of a job's agents a task stages its rows: partitions are dealt out over all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pe_agent.transport.agent_client import AgentClient
from streambroker_core.errors import StreambrokerError

AGAIN = ("AgentUnreachable", "NotAdmitted")


@dataclass(frozen=True, slots=True)
class Place:
    """One agent that takes a stage; ``more`` is what its command has beside what all have."""

    client: AgentClient
    more: Mapping[str, Any]

    def at_fellow(self) -> bool:
        """Whether it is not the export's own agent."""
        return bool(self.more)


class Places:
    """The agents that a task tries in turn, its partition's own first.

    Args:
        own: the job's own agent, the home of its exports.
        partition: number of the task's partition.
    """

    def __init__(self, own: AgentClient, partition: int) -> None:
        self._own, self._turn, self._tried = own, partition, 0
        self._count = 1

    def next(self, admitted: Mapping[str, Any]) -> Place:
        """Return where to stage, by what the own agent answered to the admission."""
        fellows = admitted.get("fellows", ())
        self._count = 1 + len(fellows)
        at = (self._turn + self._tried) % self._count
        if at == 0:
            return Place(self._own, {})
        fellow = fellows[at - 1]
        home = {name: admitted[name] for name in ("home", "stream", "limit")}
        return Place(AgentClient(fellow["location"], fellow["token"], self._own.trust), home)

    def again(self, place: Place, error: StreambrokerError) -> bool:
        """Whether a stage that came to nothing may be tried at the next agent, or once more.

        What keeps a fellow from taking it, such as its disk, need not keep the others.
        """
        self._tried += 1
        return error.code in AGAIN or (place.at_fellow() and self._tried < self._count)
