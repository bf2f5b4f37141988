"""A reader that goes on over epochs that are gone: how much it says it lost, and what it reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.agents.agents import Pair, Publishing, error_code, pair, rows
from support.agents.sources import Run
from support.processes.waiting import until

SECONDS = 30.0
SMALL = 20_000


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Pair]:
    yield from pair(tmp_path, grace=0.2, max_bytes=SMALL)


def publish(agents: Pair, first: int, count: int) -> None:
    """Publish batches of ten rows, once nobody is waited for any more."""
    publisher = Publishing(agents.exporter)
    for batch in range(first, first + count):
        until(lambda b=batch: "admitted" in publisher.admit(b), SECONDS, "room")  # type: ignore[misc]
        publisher.publish(batch, rows(10 * batch, 10))


def stream(agents: Pair) -> dict[str, Any]:
    (only,) = agents.exporter.export_status()["streams"].values()
    return dict(only)


def gone(agents: Pair) -> int:
    """Return how many epochs are gone: those below the first that is there."""
    found = stream(agents)
    return int(found["next"] - found["retained"])


def publish_until_gone(agents: Pair, epochs: int) -> int:
    while gone(agents) < epochs:
        publish(agents, stream(agents)["next"], 1)
    return gone(agents)


def read_all(run: Run, count: int) -> list[int]:
    """Return the rows of batches until there are so many."""
    read: list[int] = []

    def more() -> bool:
        if (end := run.plan()) != run.at:
            read.extend(run.read(end))
        return len(read) >= count

    until(more, SECONDS, f"{count} rows")
    return read


def numbers(first: int, next_: int) -> list[int]:
    return list(range(10 * first, 10 * next_))


def test_what_was_removed_while_the_reader_was_away_is_counted(agents: Pair) -> None:
    publish(agents, 0, 2)
    run = Run(agents.importer)
    assert read_all(run, 20) == numbers(0, 2)
    run.plan()
    run.stop()
    first = publish_until_gone(agents, 4)
    assert error_code(Run(agents.importer, at=run.at).plan) == "DataLoss"

    again = Run(agents.importer, at=run.at, skip_lost=True)
    last = stream(agents)["next"]
    assert read_all(again, 10 * (last - first)) == numbers(first, last)
    assert list(again.at["lost"].values()) == [[first - 2, 10 * (first - 2)]]
    figures = agents.importer.status()["imports"]["readers"][again.at["reader"]]
    assert figures["lost"] == [first - 2, 10 * (first - 2)]
    again.stop()


def test_a_planned_batch_is_read_without_what_is_gone_of_it(agents: Pair) -> None:
    publish(agents, 0, 4)
    run = Run(agents.importer)

    def whole() -> dict[str, Any] | None:
        end = run.plan()
        return end if [p["next"] for p in end["streams"].values()] == [4] else None

    end = until(whole, SECONDS, "a plan")
    run.stop()
    first = publish_until_gone(agents, 1)
    assert first < 4
    strict = Run(agents.importer, at=run.at)
    assert error_code(strict.read, end) == "DataLoss"
    strict.stop()

    again = Run(agents.importer, at=run.at, skip_lost=True)
    assert again.read(end) == numbers(first, 4)
    assert "lost" not in again.at
    until(lambda: again.plan() != end, SECONDS, "the count")
    assert list(again.plan()["lost"].values()) == [[first, 10 * first]]
    again.stop()
