"""Rows of two jobs while what connects them is away: the API server, and the leading broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from support.agents.agents import AgentProcess, Publishing, Reading, rows
from support.agents.connected import Connected
from support.clusters.api_server import ApiServer
from support.clusters.replicas import Operator, SignedAgent, make_key, operator
from support.processes.waiting import until

OUTAGE_S = 40.0
"""Longer than a Lease (15 seconds) and a poll (33 seconds) last."""
GAP_S = 3.0


@contextmanager
def agent(api: ApiServer, folder: Path, job: str, broker: Operator) -> Iterator[AgentProcess]:
    """Run the agent of a job that asks one broker, as a pod of that job."""
    found = AgentProcess(folder / job, job, broker=broker.url)
    found.home.mkdir()
    token = found.home / "token"
    token.write_text(SignedAgent(api, "default", job).token)
    found.main = (*found.main, "--token-file", str(token))
    try:
        yield found.start()
    finally:
        found.kill()


@dataclass
class Rows:
    """Rows that are published one by one, each after the one before was read."""

    publishing: Publishing
    reading: Reading
    offset: dict[str, Any]
    count: int = 0
    longest_s: float = field(default=0.0, init=False)

    def flow(self, seconds: float) -> None:
        """Publish and read for some time; note the longest time between two rows."""
        until_s = time.monotonic() + seconds
        last = time.monotonic()
        while last < until_s:
            self.publishing.publish(self.count, rows(self.count, 1))
            end = self.reading.end(self.offset, 30.0)
            assert self.reading.read(self.offset, end) == [self.count]
            self.offset, self.count = end, self.count + 1
            now = time.monotonic()
            self.longest_s, last = max(self.longest_s, now - last), now


@pytest.mark.long
@pytest.mark.timeout(300)
def test_no_reader_waits_while_the_leader_is_killed_and_the_api_server_is_away(
    own_api: ApiServer, tmp_path: Path
) -> None:
    make_key(own_api, "default")
    with ExitStack() as running:
        leader = running.enter_context(operator(own_api, tmp_path, "default"))
        until(lambda: leader.leads, 20.0, "it leads")
        other = running.enter_context(operator(own_api, tmp_path, "default"))
        exporter = running.enter_context(agent(own_api, tmp_path, "feed", leader))
        importer = running.enter_context(agent(own_api, tmp_path, "alerts", other))
        Connected.declare(exporter, "export", "trades", properties={"kind": "trade"})
        Connected.declare(importer, "import", "in", subscription='kind == "trade"')
        for one, kind, port in ((exporter, "exports", "trades"), (importer, "imports", "in")):
            # At worst a sweep finds the change, and the next poll brings it.
            until(lambda: routes(one, kind, port), 110.0, f"{kind} have a route")  # noqa: B023
        reading = Reading(importer, port="in")
        found = Rows(Publishing(exporter), reading, reading.open())
        found.flow(3.0)

        leader.kill()
        own_api.stop()
        found.flow(OUTAGE_S)
        assert not other.leads, "without an API server nothing leads"
        assert found.longest_s <= GAP_S

        own_api.start()
        until(lambda: other.leads, 60.0, "the other replica leads")
        found.flow(3.0)
        assert found.longest_s <= GAP_S


def routes(one: AgentProcess, kind: str, port: str) -> list[Any]:
    """Return the routes of a port as its agent has them."""
    view = one.client.call("view")["view"] or {}
    found: list[Any] = view.get(kind, {}).get(port, {}).get("routes", [])
    return found
