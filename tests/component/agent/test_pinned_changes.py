"""What is changed while a batch is planned holds from the next one on, also for a replay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import LongType, StructType

from pe_agent.datasource.options import OptionError
from support.agents.agents import Publishing, rows
from support.agents.connected import Connected
from support.agents.sources import Run
from support.processes.waiting import until

SECONDS = 30.0
EXPORT = "default/feed/0/trades"
KIND = 'kind == "trade"'
EVEN, THIRD = "n % 2 == 0", "n % 3 == 0"
NUMBERS = StructType().add("n", LongType())


@pytest.fixture
def connected(tmp_path: Path) -> Iterator[Connected]:
    made = Connected(tmp_path)
    try:
        made.start()
        made.declare(made.exporter, "export", properties={"kind": "trade"})
        yield made
    finally:
        made.end()


def reaches(run: Run, epochs: int) -> dict[str, Any]:
    """Return the end of a batch that reads all epochs below ``epochs``."""

    def found() -> dict[str, Any] | None:
        end = run.plan()
        return end if [p["next"] for p in end["streams"].values()] == [epochs] else None

    return until(found, SECONDS, f"a plan up to epoch {epochs}")


def reader(connected: Connected, end: dict[str, Any]) -> dict[str, Any]:
    """Return the reader's figures at its own agent."""
    readers = connected.importer.status()["imports"]["readers"]
    found: dict[str, Any] = readers[end["reader"]]
    return found


def restart(connected: Connected, run: Run) -> None:
    """Kill both agents and start them again; the query's process has ended before."""
    run.stop()
    for agent in (connected.exporter, connected.importer):
        agent.restart()


def counted(connected: Connected, run: Run, rows: tuple[int, int]) -> Callable[[], bool]:
    """Return whether so many rows are delivered and filtered, once all is acknowledged."""

    def reported() -> bool:
        run.plan()
        figures = connected.exporter.reader_status(run.at["reader"])
        return (figures["delivered"], figures["filtered"]) == rows

    return reported


def test_a_filter_holds_from_one_epoch_on_and_a_replay_has_that_of_then(
    connected: Connected,
) -> None:
    wanted: dict[str, Any] = {"subscription": KIND, "start": "earliest"}
    connected.declare(connected.importer, "import", filter=EVEN, **wanted)
    publisher = Publishing(connected.exporter)
    for batch in range(2):
        publisher.publish(batch, rows(10 * batch, 10), rows(100 + 10 * batch, 10))
    run = Run(connected.importer)
    end = reaches(run, 2)

    connected.declare(connected.importer, "import", again=True, filter=THIRD, **wanted)
    until(lambda: connected.imported().get("filter") == THIRD, SECONDS, "the filter is known")
    publisher.publish(2, rows(20, 10), rows(120, 10))
    restart(connected, run)
    again = Run(connected.importer, at=run.at)

    then = [n for first in (0, 100, 10, 110) for n in range(first, first + 10) if n % 2 == 0]
    assert again.read(end) == then
    last = reaches(again, 3)
    (stream,) = last["streams"]
    assert (end["filter"], last["filter"]) == (EVEN, THIRD)
    now = [n for first in (20, 120) for n in range(first, first + 10) if n % 3 == 0]
    assert again.read(last) == now
    assert reader(connected, last)["pinned"]["from"] == {EXPORT: {stream: 2}}
    passed = len(then) + len(now)
    until(counted(connected, again, (passed, 60 - passed)), SECONDS, "each row is counted once")
    again.stop()


def test_fewer_columns_hold_from_one_epoch_on_and_a_replay_has_those_of_then(
    connected: Connected,
) -> None:
    connected.declare(connected.importer, "import", subscription=KIND, start="earliest")
    publisher = Publishing(connected.exporter)
    publisher.publish(0, rows(0, 10))
    run = Run(connected.importer)
    end = reaches(run, 1)
    publisher.publish(1, rows(10, 10))
    restart(connected, run)
    again = Run(connected.importer, at=run.at, schema=NUMBERS)

    (part,) = again.source.partitions(again.at, end)
    assert part.value["columns"] == ["n", "name"]
    assert again.read(end) == list(range(10))
    last = reaches(again, 2)
    (part,) = again.source.partitions(again.at, last)
    assert part.value["columns"] == ["n"]
    assert again.read(last) == list(range(10, 20))
    (stream,) = last["streams"]
    assert reader(connected, last)["pinned"]["from"] == {EXPORT: {stream: 1}}
    again.stop()


def test_more_columns_than_a_planned_batch_has_are_refused_until_it_is_read(
    connected: Connected,
) -> None:
    connected.declare(connected.importer, "import", subscription=KIND, start="earliest")
    publisher = Publishing(connected.exporter)
    publisher.publish(0, rows(0, 10))
    run = Run(connected.importer, schema=NUMBERS)
    end = reaches(run, 1)
    restart(connected, run)

    wider = Run(connected.importer, at=run.at)
    with pytest.raises(
        OptionError, match=r"not contain column 'name'.* with n\. Run .* availableNow"
    ):
        wider.source.partitions(wider.at, end)
    wider.stop()
    as_before = Run(connected.importer, at=run.at, schema=NUMBERS)
    assert as_before.read(end) == list(range(10))
    as_before.stop()
    publisher.publish(1, rows(10, 10))
    wider = Run(connected.importer, at=end)
    assert wider.read(reaches(wider, 2)) == list(range(10, 20))
    wider.stop()


@pytest.mark.parametrize(("start", "read"), [("earliest", [2, 3]), ("latest", [3])])
def test_a_route_that_returns_goes_on_where_it_was_or_at_the_end_and_nothing_is_lost(
    connected: Connected, start: str, read: list[int]
) -> None:
    connected.declare(connected.importer, "import", subscription=KIND, start=start)
    publisher = Publishing(connected.exporter)
    run = Run(connected.importer)
    until(lambda: run.plan().get("last"), SECONDS, "the route is open")
    for batch in range(2):
        publisher.publish(batch, rows(10 * batch, 10))
    assert run.read(reaches(run, 2)) == list(range(20))

    connected.declare(connected.importer, "import", again=True, subscription="false", start=start)
    until(lambda: not connected.exported().get("routes"), SECONDS, "the exporter has cut it")
    until(lambda: not connected.at(), SECONDS, "the importer has cut it")
    publisher.publish(2, rows(20, 10))
    assert run.plan() == run.at
    connected.declare(connected.importer, "import", again=True, subscription=KIND, start=start)
    until(lambda: connected.exported().get("routes"), SECONDS, "the exporter has it again")
    until(connected.at, SECONDS, "the importer has it again")
    publisher.publish(3, rows(30, 10))

    assert run.read(reaches(run, 4)) == [
        n for epoch in read for n in range(10 * epoch, 10 * epoch + 10)
    ]
    figures = connected.exporter.reader_status(run.at["reader"])
    assert (figures["dropped"], figures["lost"]) == ([0, 0], [0, 0])
    assert "lost" not in run.at
    assert run.at["dropped"] == {}
    run.stop()
