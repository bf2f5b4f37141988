"""Disk and memory of an exporting agent whose importer does not come back are bounded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from support.agents.agents import AgentProcess, Pair, Publishing, Reading, pair, rows

MAX_BYTES = 1 << 20
SEGMENT = 64 << 20
BATCH = 10_000_000


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    yield from pair(tmp_path_factory.mktemp("disk"), max_bytes=MAX_BYTES)


def wide() -> pa.RecordBatch:
    return rows(0, 1000).set_column(1, "name", pa.array(["x" * (BATCH // 1000)] * 1000))


def resident(agent: AgentProcess) -> int:
    assert agent.process is not None
    status = Path(f"/proc/{agent.process.pid}/status").read_text()
    (line,) = (one for one in status.splitlines() if one.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


def test_a_query_that_fails_again_and_again_takes_one_batch_of_disk(agents: Pair) -> None:
    reader = Reading(agents.importer)
    reader.open()
    Publishing(agents.exporter).publish(0, rows(0, 3))
    agents.importer.kill()
    bound = MAX_BYTES + BATCH * 11 // 10 + 2 * (SEGMENT + 4096)
    sizes, memory = [], []
    for attempt in range(80):
        query = Publishing(agents.exporter, run=f"run-{attempt + 2}")
        assert query.admit(1) == {"admitted": True}
        stage = query.stage(1, wide())
        if attempt % 2:
            agents.exporter.client.call(
                "publisher.abort",
                export="trades",
                query=query.query,
                run=query.run,
                batch=1,
                stages=[stage["stage"]],
            )
        sizes.append(sum(p.stat().st_blocks * 512 for p in agents.exporter.segments()))
        memory.append(resident(agents.exporter))
    assert max(sizes) <= bound
    # The allocator keeps some batches: 60 MB between attempt 40 and 800. A leak is 200 MB or more.
    assert max(memory[40:]) <= max(memory[:40]) + 10 * BATCH
    agents.exporter.restart()
    assert sum(p.stat().st_blocks * 512 for p in agents.exporter.segments()) <= bound
    query = Publishing(agents.exporter, run="run-last")
    assert query.publish(1, wide())["epoch"] == 1
    assert "waiting" in query.admit(2)
    agents.importer.start()
    end = reader.end(None)
    assert reader.read(None, end) == [0, 1, 2, *range(1000)]
