"""Agents with an archive: a reader that starts in it, and one that starts at a time."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from streambroker_core.model import Archive
from support.agents.agents import Pair, Publishing, Reading, pair, rows
from support.storage.drill import lose_disk

ROWS, EPOCHS = 100, 8
BUFFER = 20_000
"""Bytes of about two epochs."""


def wide(epoch: int) -> pa.RecordBatch:
    return rows(ROWS * epoch, ROWS).set_column(1, "name", pa.array(["x" * 100] * ROWS))


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Pair]:
    """Agents without a route, and an export that has published more than its buffer."""
    storage = {"STREAMBROKER_STORAGE": f"file://{tmp_path}/shared"}
    for both in pair(
        tmp_path,
        environment=storage,
        durability="stored",
        max_bytes=BUFFER,
        archive=Archive(max_age_s=3600.0),
        connected=False,
    ):
        publisher = Publishing(both.exporter)
        for epoch in range(EPOCHS):
            publisher.publish(epoch, wide(epoch))
        yield both


def connect(agents: Pair, start: str) -> None:
    agents.plumb(connected=True, start=start)
    agents.exporter.restart()
    agents.importer.restart()


def read_all(agents: Pair, until: int, max_bytes: int = 1) -> list[int]:
    """Return the rows of all batches until a row number, an epoch in each."""
    reader, found = Reading(agents.importer, max_bytes=max_bytes), list[int]()
    start = None
    while not found or found[-1] < until - 1:
        end = reader.end(start)
        found += reader.read(start, end)
        start = end
    return found


def test_a_reader_of_the_archive_reads_all_of_it_and_the_export_goes_on(agents: Pair) -> None:
    connect(agents, "earliest")
    reader = Reading(agents.importer, max_bytes=1)
    end = reader.end(None)
    assert reader.read(None, end) == list(range(ROWS))
    publisher = Publishing(agents.exporter)
    for epoch in range(EPOCHS, EPOCHS + 4):
        publisher.publish(epoch, wide(epoch))
    (status,) = agents.exporter.export_status()["readers"].values()
    assert (status["archived"], status["lag"][0] >= EPOCHS) == (True, True)
    assert read_all(agents, ROWS * (EPOCHS + 4)) == list(range(ROWS * (EPOCHS + 4)))


def test_an_archive_outlives_the_disk(agents: Pair) -> None:
    lose_disk(agents)
    connect(agents, "earliest")
    assert read_all(agents, ROWS * EPOCHS) == list(range(ROWS * EPOCHS))


def test_a_reader_starts_with_the_first_epoch_from_a_time_on(agents: Pair) -> None:
    time = datetime.now(UTC).isoformat()
    Publishing(agents.exporter).publish(EPOCHS, wide(EPOCHS))
    connect(agents, time)
    assert read_all(agents, ROWS * (EPOCHS + 1))[0] == ROWS * EPOCHS


def test_a_reader_starts_a_while_ago(agents: Pair) -> None:
    connect(agents, "-1h")
    assert read_all(agents, ROWS * EPOCHS) == list(range(ROWS * EPOCHS))
