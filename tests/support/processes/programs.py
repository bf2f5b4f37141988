"""The program of a job without its Spark session: a broker, an agent, and a PE object."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from pe_agent.job.agent.agent_process import AgentProcess
from pe_agent.pe import PE
from pe_agent.transport.broker_client import BrokerAnswer, BrokerClient, pe_path
from streambroker_core.model import PeKey
from support.processes.jobs import Broker
from support.processes.waiting import until

SECONDS = 30.0
HERE = pe_path("alerts", 0)


class World:
    """A broker, an agent, and the PE object of a job's program without its Spark session."""

    def __init__(self, folder: Path, broker: Broker, job: str = "alerts") -> None:
        self.folder, self.broker = folder, broker
        self.key = PeKey.parse(f"default/{job}/0")
        self.process = self.agent_of(job, broker.url)
        self.pe = self.pe_of(broker.url)
        self.direct = BrokerClient(broker.url, "default")
        self.count = 0

    def agent_of(self, job: str, url: str | None) -> AgentProcess:
        return AgentProcess(
            PeKey.parse(f"default/{job}/0"),
            self.folder / job,
            broker=url,
            linger=20,
            host="127.0.0.1",
            port=0,
        )

    def pe_of(self, url: str | None) -> PE:
        broker = None if url is None else BrokerClient(url, self.key.namespace)
        return PE(cast(Any, None), self.key, self.process, broker, {"name": "market.Alerts"})

    def ask(self, method: str, path: str, body: Any = None) -> BrokerAnswer:
        return self.direct.request(method, f"{HERE}/{path}", body)

    def generation(self, port: str) -> int:
        return int(self.ask("GET", port).body["metadata"]["generation"])

    def declare(self, kind: str, **spec: Any) -> str:
        """Declare a port of a new name by REST, and return the name."""
        self.count += 1
        name = f"{kind}{self.count}"
        self.ask("PUT", f"{kind}/{name}", spec)
        return name

    def followed(self, kind: str, port: str) -> str:
        seen = lambda: self.pe.view_cache.port_in_view(kind, port)  # noqa: E731
        until(seen, SECONDS, f"{kind} {port} at the agent")
        return port


@contextmanager
def made(folder: Path) -> Iterator[World]:
    broker = Broker(folder)
    world = World(folder, broker)
    try:
        yield world
    finally:
        world.process.stop(end_agent=True)
        world.broker.end()
