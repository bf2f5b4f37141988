"""Two Spark jobs and a broker, each killed in the middle: every row once, none lost, none torn."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from pe_agent.agent.process import read_address
from support.processes.waiting import until
from support.processes.world import PASSES, SECONDS, World, check_rows
from support.spark.checkpoints import batches, committed


@pytest.fixture(params=["classic", "connect"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """Two jobs; the driver of each is a Spark Connect server, or the job's own process."""
    world = World(tmp_path, connect=request.param == "connect")
    yield world
    world.end()


@pytest.mark.slow
def test_every_row_arrives_once_while_everything_is_changed_and_killed(world: World) -> None:
    world.exporter.await_ready()
    world.importer.await_ready()
    world.trades.release(3)
    world.await_files(world.trades)

    world.rest("/filter", {"filter": 'price < 30.0 && name != "name 3"'})
    world.trades.release(3)
    world.importer.kill()
    world.trades.release(3)
    world.importer = world.importer.restart()
    world.trades.release(1)
    world.await_files(world.trades)

    world.broker.kill()
    world.trades.release(2)
    world.await_files(world.trades)
    world.broker = world.broker.restart()
    world.trades.release(2)
    world.await_files(world.trades)

    world.rest("/streams", {"subscription": 'kind == "trades" || kind == "quotes"'})
    world.quotes.release(4)
    world.trades.release(4)
    # Spark itself refuses a checkpoint that was cut in the middle of its very first batch.
    until(lambda: committed(world.folder / "ck-quotes") >= 0, SECONDS, "a first batch of quotes")
    world.exporter.kill()
    os.kill(world.exporter.agent_pid(), signal.SIGKILL)
    world.quotes.release(2)
    world.exporter = world.exporter.restart()
    world.exporter.await_ready()
    world.trades.release(2)
    world.await_files(world.trades)
    world.await_files(world.quotes)

    check_rows(world)
    pinned = {b.end.filter for b in batches(world.checkpoint)}
    assert pinned == set(PASSES)
    readers = [
        json.dumps(r["dropped"])
        for e in world.agent("feed").call("status")["exports"].values()
        for r in e["readers"].values()
    ]
    assert readers == ["[0, 0]", "[0, 0]"]


def kill(world: World, what: str) -> None:
    """Kill one process, or a driver with its agent, and start again what nobody else restarts."""
    if what == "broker":
        world.broker.kill()
        world.broker = world.broker.restart()
        return
    job, _, part = what.partition(" ")
    if part != "driver":
        found = read_address(world.folder / f"home-{job}")
        assert found is not None
        with contextlib.suppress(ProcessLookupError):  # killed before, and not yet started again
            os.kill(int(found["pid"]), signal.SIGKILL)
    if part == "agent":
        return
    name = "exporter" if job == "feed" else "importer"
    getattr(world, name).kill()
    setattr(world, name, getattr(world, name).restart())


TARGETS = [
    "broker",
    "feed agent",
    "feed driver",
    "feed both",
    "alerts agent",
    "alerts driver",
    "alerts both",
]


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("seed", range(4))
def test_every_row_arrives_once_whatever_is_killed_and_when(world: World, seed: int) -> None:
    """Kill all parts in a drawn order, at drawn moments of a stream that does not stop.

    A query whose agent dies under a task fails, as Spark has it; its driver is then started again.
    """
    drawn = random.Random(seed)
    world.reviving = True
    world.exporter.await_ready()
    world.importer.await_ready()
    world.trades.release(1)
    world.await_files(world.trades)
    order = drawn.sample(TARGETS, len(TARGETS))
    for what in order:
        world.trades.release(drawn.randint(1, 4))
        if drawn.random() < 0.5:
            world.await_files(world.trades)
            world.trades.release(drawn.randint(1, 3))
        kill(world, what)
    world.trades.release(2)
    world.await_files(world.trades)

    check_rows(world)
