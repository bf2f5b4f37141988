"""The kill table on real Spark: at a named step one process of two jobs is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from support.cuts.points import (
    AGENT,
    BROKER,
    DRIVER,
    DROPPING,
    EXPORTING,
    FAILING,
    FEED_AGENT,
    FEED_DRIVER,
    FEED_WORKER,
    OUTSIDE,
    STAND_IN,
    STEPS,
    VARIABLE,
    WORKER,
    Cut,
)
from support.processes.waiting import until
from support.processes.world import SECONDS, World, check_rows
from support.spark.checkpoints import committed

ONE_EACH = [
    ("published, not answered", FEED_DRIVER),
    ("stage answered, before the task ends", FEED_WORKER),
    ("epoch on the disk, before the store", FEED_AGENT),
    ("plan saved, not answered", AGENT),
    ("partitions answered, before the tasks", DRIVER),
    ("between two blocks in the task", WORKER),
    ("published, not answered", BROKER),
]
OPENING = {
    "before the stream's log is made",
    "log made, before the stream is in the store",
    "stream in the store, before its first rows",
}
"""Passed once, before the table begins."""
PASSED = [
    name
    for name, step in STEPS.items()
    if not step.call.startswith(STAND_IN) and name not in {*OPENING, *FAILING, *DROPPING, *OUTSIDE}
]
TABLE = [
    (step, victim)
    for step in PASSED
    for victim in dict.fromkeys(
        (STEPS[step].where, *((FEED_DRIVER, FEED_AGENT) if step in EXPORTING else (DRIVER, AGENT)))
    )
    if (step, victim) not in ONE_EACH
]
ABORTED = ["before publish", "epoch on the disk, before the store"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Two jobs that have exchanged their first rows; their processes stop at armed steps."""
    folder = tmp_path_factory.mktemp("kills")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(folder / "cuts"))
        world = World(folder, attempts=4)
        try:
            world.exporter.await_ready()
            world.importer.await_ready()
            world.reviving = True
            world.trades.release(1)
            world.await_files(world.trades)
            yield world
        finally:
            world.end()


def kill(world: World, victim: str, at: int) -> None:
    """Kill a process; ``at`` is the one that stands at the step."""
    if victim == BROKER:
        world.broker.kill()
    elif victim == FEED_DRIVER:
        world.exporter.kill()
    elif victim == DRIVER:
        world.importer.kill()
    elif victim in (FEED_AGENT, AGENT):
        job = world.exporter if victim == FEED_AGENT else world.importer
        os.kill(job.agent_pid(), signal.SIGKILL)
    else:
        os.kill(at, signal.SIGKILL)


def play(world: World, step: str, victim: str) -> None:
    """Cut a step while rows flow, start again who was killed, and count every row so far."""
    cut = Cut(world.folder / "cuts", step, 1)
    try:
        world.trades.release(2)
        at = until(cut.reached, SECONDS, f"a process at: {step}")
        kill(world, victim, at)
        cut.go()
        if victim == BROKER:
            world.broker = world.broker.restart()
        world.trades.release(1)
        world.await_files(world.trades)
    finally:
        cut.disarm()

    assert committed(world.checkpoint) >= 0
    check_rows(world)


@pytest.mark.long
@pytest.mark.parametrize(("step", "victim"), ONE_EACH, ids=map(": ".join, ONE_EACH))
def test_every_row_arrives_once_whichever_process_is_killed_at(
    world: World, step: str, victim: str
) -> None:
    play(world, step, victim)


@pytest.mark.long
@pytest.mark.parametrize(("step", "victim"), TABLE, ids=map(": ".join, TABLE))
def test_every_row_arrives_once_in_the_whole_table(world: World, step: str, victim: str) -> None:
    play(world, step, victim)


@pytest.mark.long
@pytest.mark.parametrize("step", ABORTED)
def test_a_batch_whose_commit_failed_is_aborted_by_spark_and_published_once(
    world: World, step: str
) -> None:
    """The agent stands still at the step until Spark has given the query up, and then goes on."""
    cut = Cut(world.folder / "cuts", step, 1)
    exporter = world.exporter
    try:
        world.trades.release(2)
        until(cut.reached, SECONDS, f"the agent at: {step}")
        until(lambda: exporter.process.poll() is not None, SECONDS, "the query has failed")
        cut.go()
        world.await_files(world.trades)
    finally:
        cut.disarm()

    assert "AgentUnreachable" in exporter.said()
    check_rows(world)
