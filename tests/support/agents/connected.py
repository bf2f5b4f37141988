"""Two agents that a real broker connects; their ports are declared as jobs declare them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from support.agents.agents import AgentProcess
from support.processes.jobs import Broker
from support.processes.ports import free_port

COLUMNS = [{"name": "n", "type": "bigint"}, {"name": "name", "type": "string"}]


class Connected:
    """An exporting and an importing agent, and their broker."""

    def __init__(self, folder: Path, sources: Mapping[str, str] = MappingProxyType({})) -> None:
        self.broker = Broker(folder, sources=sources.get("broker", ""))
        self.exporter, self.importer = (
            AgentProcess(
                folder / job,
                job,
                port=port,
                broker=self.broker.url,
                environment={"PYTHONPATH": sources[job]} if job in sources else None,
            )
            for job, port in (("feed", free_port()), ("alerts", 0))
        )

    def start(self) -> None:
        for agent in (self.exporter, self.importer):
            agent.home.mkdir()
            agent.start()

    @staticmethod
    def declare(
        agent: AgentProcess, kind: str, port: str = "trades", *, again: bool = False, **spec: Any
    ) -> None:
        spec = {**spec, "schema": COLUMNS}
        agent.client.call("declare", kind=kind, port=port, spec=spec, redeclare=again)

    def imported(self, port: str = "trades") -> dict[str, Any]:
        return _viewed(self.importer, "imports", port)

    def exported(self) -> dict[str, Any]:
        return _viewed(self.exporter, "exports", "trades")

    def at(self) -> str | None:
        """Return the address at which the importer looks for the exporter."""
        routes = self.imported().get("routes", [])
        return routes[0]["location"] if routes else None

    def end(self) -> None:
        self.importer.kill()
        self.exporter.kill()
        self.broker.end()


def _viewed(agent: AgentProcess, kind: str, port: str) -> dict[str, Any]:
    """Return a port as its agent sees it; nothing before it has a view."""
    view = agent.client.call("view")["view"] or {}
    found: dict[str, Any] = view.get(kind, {}).get(port, {})
    return found
