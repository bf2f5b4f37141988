"""The agents of a job beside that of its exports: started, kept alive and told of by the driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pe_agent.launcher import AgentProcess

MOST = 64
"""Agents of one job."""


class FellowAgents:
    """The fellows of one agent, and what it was told of them.

    Args:
        home: the agent that publishes the job's exports.
        start: starts the fellow of a number, from 1.
        count: how many fellows there are.

    Raises:
        AgentFailedError: one did not start; those before are ended again.
    """

    def __init__(
        self, home: AgentProcess, start: Callable[[int], AgentProcess], count: int
    ) -> None:
        self._home = home
        self._told: tuple[Any, ...] = ()
        self.processes: list[AgentProcess] = []
        try:
            for number in range(1, count + 1):
                self.processes.append(start(number))
            if count or home.client.call("status").get("fellows"):
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
        agents = [
            {"pe": str(p.pe), "location": p.client.location, "token": p.client.token}
            for p in self.processes
        ]
        self._home.client.call("fellows", agents=agents)
        self._told = now

    def stop(self, *, end_agent: bool) -> None:
        """Let go of all of them; see :meth:`AgentProcess.stop`."""
        for process in self.processes:
            process.stop(end_agent=end_agent)
