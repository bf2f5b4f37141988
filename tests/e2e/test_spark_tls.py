"""Two Spark jobs whose agents speak TLS, to each other and to their own drivers and workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pe_agent.transport.flight_errors import AgentUnreachableError
from support.processes.certificates import AGENT, Authority
from support.processes.waiting import until
from support.processes.world import World, check_rows


@pytest.fixture
def secured(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "tls", "agents", AGENT)


@pytest.fixture
def world(tmp_path: Path, secured: Authority) -> Iterator[World]:
    world = World(tmp_path, secured)
    yield world
    world.end()


@pytest.mark.long
def test_every_row_arrives_once_while_both_agents_take_in_another_certificate(
    world: World, secured: Authority
) -> None:
    world.exporter.await_ready()
    world.importer.await_ready()
    world.trades.release(3)
    world.await_files(world.trades)
    for job in ("feed", "alerts"):
        assert world.agent(job).location.startswith("grpc+tls://")

    secured.issue(AGENT)
    for _ in range(4):
        world.trades.release(1)
    until(
        lambda: all(shown(world, job) == secured.fingerprint() for job in ("feed", "alerts")),
        30.0,
        "both agents show the new certificate",
    )
    world.trades.release(2)
    world.await_files(world.trades)

    check_rows(world)
    assert world.exporter.process.poll() is world.importer.process.poll() is None


def shown(world: World, job: str) -> str | None:
    """Return which certificate an agent shows, None while it takes another one in."""
    try:
        return str(world.agent(job).call("status")["certificate"]["sha256"])
    except AgentUnreachableError:
        return None
