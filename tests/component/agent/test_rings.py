"""Two jobs that publish what they import from each other: a wait that leads back is refused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pe_agent.transport.flight_errors import AgentRefusedError
from support.agents.agents import (
    AgentProcess,
    Plumbing,
    Publishing,
    Reading,
    export_view,
    import_view,
    rows,
)
from support.processes.ports import free_port
from support.processes.waiting import until

SECONDS = 60.0
THERE, BACK = (Plumbing(ports=(port,), max_bytes=10) for port in ("there", "back"))


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[tuple[AgentProcess, AgentProcess]]:
    """Two agents, each with an export that the other imports, both under ``wait``."""
    one, two = (AgentProcess(tmp_path / j, j, port=free_port()) for j in ("one", "two"))
    try:
        for agent in (one, two):
            agent.prepare()
        for agent, other, out, in_ in ((one, two, THERE, BACK), (two, one, BACK, THERE)):
            view = export_view(agent, other.pe, out)
            agent.write_routes(replace(view, imports=import_view(agent, other, in_).imports))
            agent.spawn()
        for agent in (one, two):
            agent.ready()
        yield one, two
    finally:
        one.kill()
        two.kill()


class Relay:
    """A query that publishes what it reads, as Spark would call for it."""

    def __init__(self, agent: AgentProcess, reads: str, publishes: str) -> None:
        self.publishing = Publishing(agent, port=publishes)
        self.reading = Reading(agent, reads)
        self.offset: dict[str, Any] | None = None
        self.planned = False

    def begin(self) -> None:
        self.publishing.agent.client.call(
            "query.begin",
            query=self.publishing.query,
            run=self.publishing.run,
            exports=[self.publishing.port],
            frames=["frame"],
            foreign=False,
        )

    def plan(self) -> bool:
        """Plan a batch; whether there are rows in it."""
        self.begin()
        self.offset = self.reading.next(self.offset, frame="frame")["offset"] or self.offset
        streams = (self.offset or {}).get("streams", {})
        return any(position["next"] for position in streams.values())

    def go_on(self) -> str:
        """Plan a batch, then ask for admission of it; return why that is refused, if it is."""
        if not self.planned:
            self.planned = self.plan()
            return ""
        self.begin()
        try:
            assert "waiting" in self.publishing.admit(1)
        except AgentRefusedError as error:
            if error.code != "SelfWait":
                raise
            return str(error)
        return ""


@pytest.mark.slow
def test_jobs_that_wait_for_each_other_end_with_the_ring_in_the_message(
    jobs: tuple[AgentProcess, AgentProcess],
) -> None:
    relays = [Relay(jobs[0], "back", "there"), Relay(jobs[1], "there", "back")]
    for relay in relays:
        relay.offset = relay.reading.open()
    for relay in relays:
        relay.publishing.publish(0, rows(0, 3))
    began = time.monotonic()
    refused = until(lambda: [why for r in relays if (why := r.go_on())], SECONDS, "a refusal")
    assert time.monotonic() - began >= 5.0, "a wait that may end by itself is no ring yet"
    for why in refused:
        assert "wait for each other in a ring" in why
        assert "default/one/0/there" in why
        assert "default/two/0/back" in why
