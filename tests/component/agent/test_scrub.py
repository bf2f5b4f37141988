"""A log of which the start reads only the end: the rest is verified meanwhile, damage is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from pe_agent.transport.flight_errors import AgentRefusedError
from support.agents.agents import AgentProcess, Pair, Publishing, Reading, pair, rows
from support.processes.waiting import until

SECONDS = 30.0


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Pair]:
    yield from pair(tmp_path)


def wide(first: int) -> pa.RecordBatch:
    return rows(first, 10).set_column(1, "name", pa.array(["x" * 500_000] * 10))


def damaged(agent: AgentProcess) -> list[str]:
    return list(agent.export_status()["damaged"])


def test_damage_to_what_the_start_does_not_read_is_found_reported_and_not_sent(
    agents: Pair,
) -> None:
    publisher, reader = Publishing(agents.exporter), Reading(agents.importer)
    start = reader.open()
    for batch in range(3):
        publisher.publish(batch, wide(10 * batch))
    agents.exporter.kill()
    segment, index = sorted(agents.exporter.segments(), key=lambda p: p.suffix, reverse=True)
    assert index.suffix == ".index"
    data = bytearray(segment.read_bytes())
    data[data.index(b"x" * 1000) + 500] ^= 1
    segment.write_bytes(data)

    agents.exporter.start()
    until(lambda: damaged(agents.exporter), SECONDS, "the scrub")
    assert damaged(agents.exporter) == [f"{segment.parent.name}/{segment.name}"]
    until(lambda: str(segment) in agents.exporter.log.read_text(), SECONDS, "the log to say so")
    end = reader.end(start)
    with pytest.raises(AgentRefusedError, match="damaged at offset"):
        reader.read(start, end)
    assert Publishing(agents.exporter, run="run-2").publish(3, rows(30, 1))["epoch"] == 3
