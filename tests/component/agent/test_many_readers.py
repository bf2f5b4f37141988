"""200 readers of one export: their plans go together, and each gets every row once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pe_agent.transport.rows.block_reader import BlockReader
from support.agents.agents import Pair, Publishing, Reading, pair, rows
from support.processes.waiting import until

READERS, EPOCHS, ROWS = 200, 6, 10
SECONDS = 60.0


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Pair]:
    yield from pair(tmp_path)


def read_all(agents: Pair, number: int) -> list[int]:
    """Return the rows of all epochs, batch by batch."""
    reading = Reading(agents.importer, session=f"session-{number}")
    blocks = BlockReader(None, SECONDS, lambda: agents.importer.client)
    offset: dict[str, Any] | None = None
    read: list[int] = []

    def is_read() -> bool:
        nonlocal offset
        end = reading.next(offset, wait=1.0, mint=f"{number:032x}", max_bytes=1)["offset"]
        if end is not None:
            for ticket in reading.slices(offset, end):
                for batch, _ in blocks.read({**ticket, "query": None}):
                    read.extend(batch.column("n").to_pylist())
            offset = end
        return len(read) >= EPOCHS * ROWS

    until(is_read, SECONDS, f"all rows at reader {number}")
    return read


def test_each_of_many_readers_gets_every_row_once_although_the_exporters_agent_is_killed(
    agents: Pair,
) -> None:
    publisher = Publishing(agents.exporter)
    with ThreadPoolExecutor(READERS) as pool:
        reading = [pool.submit(read_all, agents, number) for number in range(READERS)]
        for epoch in range(EPOCHS):
            if epoch == EPOCHS // 2:
                agents.exporter.restart()
            until(
                lambda e=epoch: publisher.admit(e).get("admitted"),  # type: ignore[misc]
                SECONDS,
                "room",
            )
            publisher.publish(epoch, rows(ROWS * epoch, ROWS))
        expected = list(range(EPOCHS * ROWS))
        assert [n for n, one in enumerate(reading) if one.result() != expected] == []
    readers = agents.exporter.export_status()["readers"].values()
    assert len(readers) == READERS
    assert {one["dropped"][1] + one["lost"][0] for one in readers} == {0}
