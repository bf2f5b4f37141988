"""Batch reads by the classes of the data source, of real agents."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pe_agent.datasource.batch_reader import StreambrokerBatchReader
from pe_agent.datasource.options import BatchRange
from pe_agent.transport.flight_errors import AgentRefusedError, AgentUnreachableError
from streambroker_core.model import Archive
from support.agents.agents import Pair, Publishing, Reading, error_code, pair, rows
from support.agents.tasks import STRUCT, options_of
from support.processes.waiting import until

ROWS, EPOCHS = 10, 6
BUFFER = 3000
"""Bytes of three epochs."""


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Pair]:
    archive = Archive(max_bytes=BUFFER)
    for both in pair(tmp_path, max_bytes=BUFFER, archive=archive, grace=600.0):
        publish(both, 0, EPOCHS)
        yield both


def publish(agents: Pair, first: int, count: int) -> None:
    publisher = Publishing(agents.exporter)
    for epoch in range(first, first + count):
        publisher.publish(epoch, rows(ROWS * epoch, ROWS))


def batch(agents: Pair, **more: Any) -> StreambrokerBatchReader:
    port, reconnect = more.pop("port", "trades"), more.pop("reconnect", 20.0)
    options = options_of(agents.importer, port, reconnect)
    return StreambrokerBatchReader(STRUCT, options, BatchRange(**more))


def read(reader: StreambrokerBatchReader, partitions: Any = None) -> list[int]:
    found = list[int]()
    for one in reader.partitions() if partitions is None else partitions:
        found += [n for b in reader.read(one) for n in b.column("n").to_pylist()]
    return sorted(found)


def kept(agents: Pair) -> list[int]:
    """Return the rows that the export has, from its status."""
    (stream,) = agents.exporter.export_status()["streams"].values()
    return list(range(ROWS * (stream["next"] - stream["retained"]), ROWS * stream["next"]))


def claimed(agents: Pair) -> int:
    """Return the bytes that readers claim."""
    status = agents.exporter.export_status()
    return sum(int(s["bytes"]) for s in status["streams"].values()) - int(status["unclaimed"])


def test_a_batch_read_has_what_the_export_keeps_and_leaves_nothing(agents: Pair) -> None:
    assert read(batch(agents)) == kept(agents) != []
    until(lambda: claimed(agents) == 0, 10.0, "claims released")
    assert read(batch(agents)) == kept(agents)
    assert agents.exporter.export_status()["readers"] == {}
    assert agents.importer.status()["imports"]["readers"] == {}


def test_a_batch_read_is_a_snapshot_that_does_not_hold_up_the_export(agents: Pair) -> None:
    reader, before = batch(agents), kept(agents)
    partitions = reader.partitions()
    publish(agents, EPOCHS, 20)
    assert claimed(agents) > 0
    assert read(reader, partitions) == before
    until(lambda: claimed(agents) == 0, 10.0, "claims released")
    until(lambda: kept(agents)[0] > before[-1], 10.0, "epochs of the plan removed")


def test_tasks_may_repeat_a_read_while_its_epochs_are_kept(agents: Pair) -> None:
    reader = batch(agents)
    partitions = reader.partitions()
    first = read(reader, partitions)
    until(lambda: claimed(agents) == 0, 10.0, "claims released")
    assert read(reader, partitions) == first


def test_a_read_is_not_repeated_without_epochs_that_are_gone(agents: Pair) -> None:
    reader = batch(agents)
    partitions, before = reader.partitions(), kept(agents)
    read(reader, partitions)
    publish(agents, EPOCHS, 20)
    until(lambda: kept(agents)[0] > before[-1], 10.0, "epochs of the plan removed")
    with pytest.raises(AgentRefusedError, match="the snapshot of import trades has ended"):
        read(reader, partitions)


def test_the_claims_last_until_the_last_task_has_read(agents: Pair) -> None:
    agents.exporter.client.call("publisher.renounce", export="trades", query="query-1")
    Publishing(agents.exporter, query="query-2").publish(0, rows(0, ROWS))  # in a second stream
    reader = batch(agents)
    first, last = reader.partitions()
    for _ in range(3):
        read(reader, [first])
        assert claimed(agents) > 0
    read(reader, [last])
    until(lambda: claimed(agents) == 0, 10.0, "claims released")


def test_a_batch_read_is_from_a_time_to_a_time(agents: Pair) -> None:
    start = datetime.now(UTC).isoformat()
    publish(agents, EPOCHS, 1)
    end = datetime.now(UTC).isoformat()
    publish(agents, EPOCHS + 1, 1)
    middle = list(range(ROWS * EPOCHS, ROWS * (EPOCHS + 1)))
    assert read(batch(agents, start=start, end=end)) == middle
    assert read(batch(agents, start=start)) == [*middle, *(n + ROWS for n in middle)]
    assert read(batch(agents, start="-1h", end="-30m")) == []


def test_a_batch_read_counts_nothing_for_a_query_of_the_import(agents: Pair) -> None:
    query = Reading(agents.importer)
    end = query.end(None)
    before = agents.exporter.reader_status(end["reader"])
    read(batch(agents))
    after = agents.exporter.reader_status(end["reader"])
    ages = dict.fromkeys(("lagSeconds", "stalledSeconds"))
    assert {**after, **ages} == {**before, **ages}
    assert query.read(None, end) == kept(agents)


def test_the_filter_of_a_batch_read_narrows_that_of_the_import(agents: Pair) -> None:
    agents.plumb(filter="n < 55")
    agents.importer.restart()
    assert read(batch(agents, filter="n >= 52")) == [52, 53, 54]
    assert error_code(batch(agents, filter="n >=").partitions) != "AgentUnreachable"


def test_a_batch_read_fails_while_an_exporter_is_away(agents: Pair) -> None:
    agents.exporter.kill()
    with pytest.raises(AgentUnreachableError):
        batch(agents, reconnect=0.1).partitions()


def test_a_batch_read_of_an_import_that_is_not_declared_is_refused(agents: Pair) -> None:
    with pytest.raises(AgentRefusedError, match="does not exist"):
        batch(agents, port="other").partitions()
