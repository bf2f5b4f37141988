"""Fellows that have lost parts of epochs, and readers that go on in spite of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pe_agent.transport.flight_errors import AgentRefusedError, AgentUnreachableError
from support.agents.agents import SCHEMA, AgentProcess
from support.agents.shards import FAR, Job, Writing, job, wide
from support.agents.sources import Run
from support.processes.waiting import until

PORTS = ("replaced", "filtered", "silent", "damaged", "replayed", "strict")
ROWS = 10
"""Of one partition: partition 0 lies at the home, 1 and 2 at the fellows."""


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    filtered = {"filter": "n % 5 == 0"}
    yield from job(tmp_path_factory.mktemp("lost"), PORTS, filtered=filtered)


@pytest.fixture
def feed(agents: Job) -> Job:
    """All agents, present."""
    for fellow in agents.fellows:
        if fellow.process is None:
            fellow.start()
    agents.renew()
    agents.announce()
    agents.present()
    return agents


def publish(feed: Job, port: str, *partitions: int) -> None:
    """Publish epochs 0, 1, … of so many partitions of ten rows; row n of epoch e is 100 e + n."""
    writing = Writing(feed, port)
    for batch, count in enumerate(partitions):
        tasks = [
            writing.task(batch, p, iter([wide(100 * batch + ROWS * p, ROWS)])) for p in range(count)
        ]
        writing.commit(batch, tasks)


def rows_of(*epochs: tuple[int, int]) -> list[int]:
    """Return the rows of epochs, each with its number of partitions."""
    return [100 * e + n for e, partitions in epochs for n in range(ROWS * partitions)]


def planned(run: Run, epochs: int) -> dict[str, Any]:
    """Return the end of a batch of all that was published."""

    def whole() -> dict[str, Any] | None:
        end = run.plan()
        return end if sum(p["next"] for p in end["streams"].values()) == epochs else None

    return until(whole, FAR, f"a plan of {epochs} epochs")


def behind(run: Run, end: dict[str, Any]) -> dict[str, Any]:
    """Return the offset after the one a batch ended with."""
    return until(lambda: found if (found := run.plan()) != end else None, FAR, "the next offset")


def figures(feed: Job, run: Run, port: str) -> list[int]:
    """Return rows delivered, filtered, dropped and lost, and what fellows have to count."""
    reported = feed.home.reader_status(run.at["reader"], port)
    sums = [
        reported["delivered"],
        reported["filtered"],
        reported["dropped"][1],
        reported["lost"][1],
    ]
    return [*sums, reported["counting"]]


def lossy(feed: Job, port: str, **more: Any) -> Run:
    return Run(feed.pair.importer, port, skip_lost=True, **more)


@pytest.mark.parametrize(("port", "step"), [("replaced", 1), ("filtered", 5)])
def test_epochs_are_left_out_of_which_a_fellow_has_lost_its_part(
    feed: Job, port: str, step: int
) -> None:
    publish(feed, port, 3, 1, 2, 1)
    run = lossy(feed, port)
    end = planned(run, 4)
    feed.lose(feed.fellows[0])
    whole = rows_of((1, 1), (3, 1))
    assert sorted(run.read(end)) == [n for n in whole if n % step == 0]
    later = behind(run, end)
    assert list(later["lost"].values()) == [[2, 50]]
    reported = feed.pair.importer.status()["imports"]["readers"][end["reader"]]
    assert reported["lost"] == [2, 50]
    delivered = len(whole) // step
    expected = [delivered, len(whole) - delivered, 0, 50, 0]
    until(lambda: figures(feed, run, port) == expected, FAR, f"figures {expected}")
    assert feed.home.export_status(port)["publishedRows"] == 20 + 50
    run.stop()


def test_a_fellow_that_is_silent_has_lost_nothing(feed: Job) -> None:
    publish(feed, "silent", 1, 3)
    run = lossy(feed, "silent", reconnect=3.0)
    end = planned(run, 2)
    feed.fellows[0].kill()
    with pytest.raises(AgentUnreachableError) as failed:
        run.read(end)
    assert "agent default/feed/1" in str(failed.value)
    assert "epochs 0 to 1 of stream" in str(failed.value)
    assert "Nothing was skipped" in str(failed.value)
    feed.fellows[0].start()
    assert sorted(run.read(end)) == rows_of((0, 1), (1, 3))
    assert "lost" not in run.plan()
    run.stop()


def damage(fellow: AgentProcess, text: bytes) -> None:
    """Turn a bit of the first block in a fellow's log that has a text."""
    for path in sorted((fellow.home / "kept").glob("*/*.segment")):
        found = path.read_bytes()
        if text in found:
            at = found.index(text)
            with path.open("r+b") as file:
                file.seek(at)
                file.write(bytes([found[at] ^ 1]))
            return
    raise AssertionError(f"{text!r} is in no log of {fellow.pe}")


def test_a_damaged_block_of_a_fellow_fails_strict_readers_and_is_left_out_by_others(
    feed: Job,
) -> None:
    marks = [f"mark {n} of block" for n in range(3)]
    writing = Writing(feed, "damaged")
    for batch, mark in enumerate(marks):
        writing.commit(batch, [writing.task(batch, 1, iter([marked(batch, mark)]))])
    strict, run = Run(feed.pair.importer, "damaged"), lossy(feed, "damaged")
    wanted, end = planned(strict, 3), planned(run, 3)
    damage(feed.fellows[0], marks[1].encode())
    with pytest.raises(AgentRefusedError) as failed:
        strict.read(wanted)
    message = str(failed.value)
    assert failed.value.code == "DataLoss"
    assert (
        f"agent default/feed/1 does not have its part of epoch 1 of stream {only(end)}" in message
    )
    assert f"of {feed.home.pe}/damaged: " in message
    assert "checksum" in message
    strict.stop()
    assert sorted(run.read(end)) == [0, 2]
    assert list(behind(run, end)["lost"].values()) == [[1, 1]]
    run.stop()
    # With what it has, this one would not start again, which other tests have it do.
    feed.lose(feed.fellows[0])


def only(offset: dict[str, Any]) -> str:
    (stream,) = offset["streams"]
    return str(stream)


def marked(number: int, text: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": [number], "name": [text]}, schema=SCHEMA)


def test_a_batch_that_was_cut_without_epochs_is_so_again_when_they_are_back(
    feed: Job, tmp_path: Path
) -> None:
    publish(feed, "replayed", 1, 2)
    run = lossy(feed, "replayed")
    start, end = run.at, planned(run, 2)
    victim, copy = feed.fellows[0], tmp_path / "copy"
    victim.kill()
    victim.home.rename(copy)
    victim.prepare()
    victim.start()
    feed.announce()
    feed.renew()
    assert run.read(end) == rows_of((0, 1))
    run.stop()

    victim.kill()
    victim.home.rename(tmp_path / "empty")
    copy.rename(victim.home)
    victim.start()
    feed.announce()
    feed.renew()
    feed.home.restart()
    again = lossy(feed, "replayed", at=start)
    assert again.read(end) == rows_of((0, 1))
    assert list(behind(again, end)["lost"].values()) == [[1, 20]]
    again.stop()


def test_a_strict_reader_stops_in_every_run_and_goes_on_when_it_is_lossy(feed: Job) -> None:
    publish(feed, "strict", 1, 2, 1)
    first = Run(feed.pair.importer, "strict")
    start, end = first.at, planned(first, 3)
    feed.lose(feed.fellows[0])
    for run in (first, Run(feed.pair.importer, "strict", at=start)):
        with pytest.raises(AgentRefusedError, match="agent default/feed/1 does not have its part"):
            run.read(end)
        assert run.at == start
        run.stop()
    again = lossy(feed, "strict", at=start)
    assert sorted(again.read(end)) == rows_of((0, 1), (2, 1))
    again.stop()
