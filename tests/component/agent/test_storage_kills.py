"""An agent is killed at each step of its uploads and of its start with what the bucket has."""

from __future__ import annotations

import contextlib
import re
import shutil
import threading
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from pe_agent.transport.flight_errors import AgentRefusedError, AgentUnreachableError
from support.agents.agents import Pair, Publishing, pair, rows
from support.agents.sources import Run
from support.cuts.points import (
    SEGMENTS,
    STORING,
    TAKING_OVER,
    VARIABLE,
    Cut,
    search_path,
)
from support.processes.waiting import until
from support.storage.drill import ROWS, Load

SECONDS = 60.0
ALWAYS = {
    ("part in the bucket, before it counts", "stored", "lost"),
    ("segment in the bucket, before its mark", "stored", "lost"),
    ("obsolete parts deleted", "stored", "lost"),
    ("objects of a dropped segment deleted", "stored", "lost"),
    ("snapshot in the bucket, before it is noted", "local", "kept"),
    ("mark in the bucket, before the parts are obsolete", "local", "lost"),
    ("parts sealed, before files", "stored", "lost"),
    ("first file there", "stored", "kept"),
    ("snapshots of earlier owners deleted", "stored", "lost"),
}
"""What the ordinary run has of the table."""
EARLY = {
    "before the first snapshot",
    "before a snapshot",
    "snapshot in the bucket, before it is noted",
}
"""Steps that may be over before the first row is read."""
connected = contextlib.contextmanager(pair)
TABLE = list(product((*STORING, *TAKING_OVER), ("stored", "local"), ("kept", "lost")))


@dataclass
class Following:
    """Reads in a thread what comes, over failures of the exporter's agent.

    Attributes:
        rows: what has come, in order.
    """

    run: Run
    rows: list[int] = field(default_factory=list)
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        end = self.run.at
        try:
            while not self._stop.is_set():
                # A batch that was planned is read again until all of it has come, as by Spark.
                # An agent with an empty directory refuses reads that were begun before.
                with contextlib.suppress(AgentUnreachableError):
                    end = self.run.plan() if end == self.run.at else end
                    with contextlib.suppress(AgentRefusedError):
                        self.rows += self.run.read(end) if end != self.run.at else []
        except BaseException as error:
            self.error = error

    def has_begun(self) -> bool:
        """Whether some rows have come."""
        return bool(self.rows)

    def has(self, row: int) -> bool:
        """Whether a row, and so all before it, has come."""
        if self.error is not None:
            raise self.error
        return self.rows[-1:] == [row]

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self.run.stop()


def kill(agents: Pair, disk: str) -> None:
    """Kill the exporter's agent; delete its directory if the disk is ``lost``."""
    agents.exporter.kill()
    if disk == "lost":
        shutil.rmtree(agents.exporter.home)
        agents.exporter.prepare()
        agents.plumb()


def has_full_segment(shared: Path) -> bool:
    """Whether a bucket has something to take over."""
    return any(shared.rglob("*.segment"))


def small(place: Path) -> dict[str, Any]:
    """Return how agents are started whose segments are small, with a bucket in a directory."""
    environment = {
        "STREAMBROKER_STORAGE": f"file://{place}/shared",
        VARIABLE: str(place / "cuts"),
        "PYTHONPATH": search_path(held=True),
        SEGMENTS: "4000",
    }
    return {"environment": environment}


@pytest.mark.parametrize(
    ("step", "durability", "disk"),
    [
        pytest.param(*one, id=": ".join(one), marks=() if one in ALWAYS else pytest.mark.long)
        for one in TABLE
    ],
)
def test_a_kill_loses_only_what_was_not_in_the_bucket(
    tmp_path: Path, step: str, durability: str, disk: str
) -> None:
    how = {**small(tmp_path), "durability": durability, "max_bytes": 30_000}
    loses = durability == "local" and (disk == "lost" or step in TAKING_OVER)
    with connected(tmp_path, **how) as agents:
        run = Run(agents.importer, skip_lost=loses)
        if step not in EARLY:
            # From here on the log drops no epoch that the reader has not read.
            until(partial(has_opened, run), SECONDS, "a route")
        following = Following(run)
        load = Load(agents)
        try:
            if step in TAKING_OVER:
                until(partial(has_full_segment, tmp_path / "shared"), SECONDS, "a segment")
            if step not in EARLY:
                until(following.has_begun, SECONDS, "rows")
            if step in TAKING_OVER:
                kill(agents, "lost")
            cut = Cut(tmp_path / "cuts", step)
            if step in TAKING_OVER:
                agents.exporter.spawn()
            until(cut.reached, SECONDS, f"a process at {step}")
            has_begun = following.has_begun()
            kill(agents, disk)
            agents.exporter.start()
            cut.disarm()
            load.await_more(9)
            load.stop()
            until(lambda: following.has(load.published * ROWS - 1), SECONDS, "all rows")
        finally:
            load.stop()
            following.stop()
        assert following.rows == sorted(set(following.rows))
        missing = set(range(load.published * ROWS)).difference(following.rows)
        lost = following.run.at.get("lost", {}).values()
        # A reader that had read nothing begins with what is there.
        assert not has_begun or len(missing) == ROWS * sum(epochs for epochs, _ in lost)
        if missing:
            assert loses
            assert missing == set(range(min(missing), max(missing) + 1))


@pytest.mark.parametrize("when", ["running", "started again"])
def test_objects_that_something_else_deletes_are_lost_by_name_and_the_export_goes_on(
    tmp_path: Path, when: str
) -> None:
    """Of an agent that has them on its disk, and of one that would fetch them."""
    shared = tmp_path / "shared"
    with connected(tmp_path, **small(tmp_path), durability="stored") as agents:
        strict, lossy = Run(agents.importer), Run(agents.importer, skip_lost=True)
        until(partial(has_opened, strict), SECONDS, "a route")
        load = Load(agents)
        load.await_more(5)
        until(partial(has_full_segment, shared), SECONDS, "a segment")
        load.await_more(5)
        load.stop()
        until(partial(is_uploaded, agents), SECONDS, "uploaded")
        if when == "started again":
            kill(agents, "lost")
            agents.exporter.start()
        min(shared.rglob("*.segment")).unlink()
        end = until(partial(news, strict), SECONDS, "rows")
        if when == "started again":
            with pytest.raises(AgentRefusedError, match="something else has deleted it"):
                strict.read(end)
            (damaged,) = agents.exporter.export_status()["damaged"]
            assert damaged.endswith("0000000001.segment")
        else:
            assert strict.read(end)[0] == 0
        publisher = Publishing(agents.exporter, run="after")
        assert publisher.publish(load.published, rows(load.published * ROWS, ROWS))["published"]

        kill(agents, "lost" if when == "running" else "kept")
        agents.exporter.start()
        (damaged,) = agents.exporter.export_status()["damaged"]
        found = re.fullmatch(r"epochs 0 to (\d+) of stream \w+ \(\d+ rows\) are missing", damaged)
        assert found is not None
        first = int(found[1]) + 1
        until(partial(stops, Run(agents.importer)), SECONDS, "a reader that stops")
        following = Following(lossy)
        try:
            until(lambda: following.has((load.published + 1) * ROWS - 1), SECONDS, "the others")
        finally:
            following.stop()
        assert following.rows == list(range(first * ROWS, (load.published + 1) * ROWS))
        assert list(lossy.at["lost"].values()) == [[first, first * ROWS]]


def news(run: Run) -> dict[str, Any] | None:
    """Return the end of the next batch, None if there is none."""
    end = run.plan()
    return None if end == run.at else end


def stops(run: Run) -> bool:
    """Whether a reader that accepts no loss is refused a plan."""
    try:
        run.at = run.plan()
    except AgentRefusedError as error:
        return error.code == "DataLoss"
    return False


def has_opened(run: Run) -> bool:
    """Take a step; return whether the reader is known to an export by now."""
    run.at = run.plan()
    return bool(run.at["last"])


def is_uploaded(agents: Pair) -> bool:
    return not bool(agents.exporter.export_status()["storage"]["bytes"])


def test_each_row_that_is_always_run_is_one_of_the_table() -> None:
    assert set(TABLE) >= ALWAYS
