"""An exporter's agent that goes to another address: its readers follow, and miss nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from support.agents.agents import AgentProcess, Publishing, rows
from support.agents.connected import Connected
from support.agents.sources import Run
from support.processes.ports import free_port
from support.processes.waiting import until

SECONDS = 30.0


class Moving(Connected):
    """Two agents and a broker that connects them; the exporter's agent moves."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.publisher = Publishing(self.exporter)

    def begin(self) -> None:
        self.start()
        self.declare(self.exporter, "export", properties={"kind": "trade"})
        self.declare(self.importer, "import", subscription='kind == "trade"', start="earliest")
        until(lambda: self.at() == self.exporter.location, SECONDS, "the route")

    def move(self) -> None:
        """Kill the exporter's agent and start it at another address."""
        self.exporter.kill()
        self.exporter.port = free_port()
        self.exporter.start()

    def away(self) -> dict[str, str]:
        found: dict[str, str] = self.importer.status()["imports"]["away"]
        return found


@pytest.fixture
def moving(tmp_path: Path) -> Iterator[Moving]:
    made = Moving(tmp_path)
    try:
        made.begin()
        yield made
    finally:
        made.end()


def read_next(run: Run) -> list[int]:
    """Return the rows of the next batch that has any."""

    def batch() -> list[int] | None:
        end = run.plan()
        return None if end == run.at else run.read(end)

    return until(batch, SECONDS, "rows")


def test_between_two_batches(moving: Moving) -> None:
    moving.publisher.publish(0, rows(0, 10))
    run = Run(moving.importer, reconnect=SECONDS)
    assert read_next(run) == list(range(10))
    old = moving.exporter.location
    moving.move()
    moving.publisher.publish(1, rows(10, 10))
    assert read_next(run) == list(range(10, 20))
    assert moving.at() == moving.exporter.location != old
    until(lambda: not moving.away(), SECONDS, "nobody is away")
    moving.publisher.publish(2, rows(20, 10))
    assert read_next(run) == list(range(20, 30))
    run.stop()


def wide(first: int) -> pa.RecordBatch:
    return rows(first, 10).set_column(1, "name", pa.array(["x" * 200_000] * 10))


def test_in_the_middle_of_a_read(moving: Moving) -> None:
    run = Run(moving.importer, reconnect=SECONDS)
    moving.publisher.publish(0, *[wide(10 * n) for n in range(14)])
    end = until(lambda: (e := run.plan()) != run.at and e["streams"] and e, SECONDS, "a plan")
    (part,) = run.source.partitions(run.at, end)
    read = run.source.read(part)
    got = [next(read), next(read)]
    moving.move()
    got += read
    assert [n for b in got for n in b.column("n").to_pylist()] == list(range(140))
    run.at = end
    moving.publisher.publish(1, rows(140, 10))
    assert read_next(run) == list(range(140, 150))
    until(lambda: not moving.away(), SECONDS, "nobody is away")
    run.stop()


def test_before_a_planned_batch_is_cut(moving: Moving) -> None:
    moving.publisher.publish(0, rows(0, 10))
    run = Run(moving.importer, reconnect=SECONDS)
    end = until(lambda: (e := run.plan()) != run.at and e["streams"] and e, SECONDS, "a plan")
    moving.move()
    assert run.read(end) == list(range(10))
    run.stop()


def test_before_a_task_reads_at_an_address_that_another_agent_has_by_then(
    moving: Moving, tmp_path: Path
) -> None:
    moving.publisher.publish(0, rows(0, 10))
    run = Run(moving.importer, reconnect=SECONDS)
    end = until(lambda: (e := run.plan()) != run.at and e["streams"] and e, SECONDS, "a plan")
    (part,) = run.source.partitions(run.at, end)
    other = AgentProcess(tmp_path / "other", "other", port=moving.exporter.port)
    other.prepare()
    moving.move()
    other.start()
    try:
        read = [n for batch in run.source.read(part) for n in batch.column("n").to_pylist()]
        assert read == list(range(10))
    finally:
        other.kill()
        run.stop()
