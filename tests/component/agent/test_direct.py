"""Tasks that read and write object storage themselves, with real agents and the task classes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pe_agent.datasource.batch_reader import StreambrokerBatchReader
from pe_agent.datasource.options import BatchRange
from pe_agent.datasource.slice_reader import Slice
from pe_agent.log.objects.bucket import Bucket, open_bucket
from pe_agent.log.objects.direct import DirectObjects
from pe_agent.transport import object_transfer
from pe_agent.transport.flight_errors import AgentRefusedError
from pe_agent.transport.object_transfer import ObjectTransferError
from pe_agent.transport.rows import object_reader, object_writer
from support.agents.agents import Pair, pair
from support.agents.tasks import STRUCT, Tasks, Writing, options_of
from support.processes.waiting import until
from support.storage.drill import lose_disk
from support.storage.servers import MISSING, is_built, s3_server

SIZE = 2_000
"""Characters of a row: a task's rows exceed MIN_BYTES of the tests."""


@pytest.fixture
def max_bytes() -> int:
    return 1 << 30


@pytest.fixture
def agents(
    bucket: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_bytes: int
) -> Iterator[Pair]:
    monkeypatch.setattr("pe_agent.transport.rows.stage_writer.MIN_BYTES", 10_000)
    monkeypatch.setattr(object_writer, "OBJECT_BYTES", 15_000)
    monkeypatch.setattr(object_reader, "_avoid_until", 0.0)
    for name, value in bucket.items():
        monkeypatch.setenv(name, value)
    yield from pair(tmp_path, environment=bucket, durability="stored", max_bytes=max_bytes)


def objects_of(agents: Pair) -> Bucket:
    (stream,) = agents.exporter.export_status()["streams"]
    return open_bucket(os.environ["STREAMBROKER_STORAGE"]).folder(
        f"{agents.exporter.pe}/streams/{stream}"
    )


def test_large_tasks_write_objects_and_readers_read_them_without_the_agent(
    agents: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = Tasks(agents, "trades")
    start = reads.reading.open()
    writing = Writing(agents, "trades")
    writing.publish(0, partitions=2, count=10, size=SIZE)
    keys = objects_of(agents).list("direct")
    assert len(keys) == 4, "each of two tasks has two batches of 20 KB"
    assert {key.rpartition("/")[0] for key in keys} == {"run-1/0"}

    end = reads.reading.end(start)
    opened: list[str] = []
    plain = object_transfer.open_range

    def counted(url: str, offset: int, length: int) -> Any:
        opened.append(url)
        return plain(url, offset, length)

    monkeypatch.setattr(object_reader, "open_range", counted)
    assert reads.all(start, end) == list(range(40))
    assert len(opened) == 4
    (reader,) = agents.exporter.export_status()["readers"].values()
    assert reader["sentRows"] == 40


def test_a_long_ticket_is_cut_to_what_the_agent_needs(agents: Pair) -> None:
    reads = Tasks(agents, "trades")
    start = reads.reading.open()
    Writing(agents, "trades").publish(0, partitions=1, count=10, size=SIZE)
    (ticket,) = reads.tickets(start, reads.reading.end(start))
    assert ticket["direct"]
    assert reads.read({**ticket, "before": [0] * 100_000}) == list(range(20))


def test_a_batch_read_reads_objects_too(agents: Pair) -> None:
    Writing(agents, "trades").publish(0, partitions=2, count=10, size=SIZE)
    options = options_of(agents.importer, "trades", 20.0)
    reader = StreambrokerBatchReader(STRUCT, options, BatchRange())
    slices = reader.partitions()
    assert all(isinstance(one, Slice) and one.value["direct"] for one in slices)
    found = [n for one in slices for b in reader.read(one) for n in b.column("n").to_pylist()]
    assert sorted(found) == list(range(40))


def test_small_tasks_send_their_rows_to_the_agent(agents: Pair) -> None:
    reads = Tasks(agents, "trades")
    start = reads.reading.open()
    Writing(agents, "trades").publish(0, partitions=2, count=2)
    assert objects_of(agents).list("direct") == {}
    assert reads.all(start, reads.reading.end(start)) == list(range(8))


def test_an_agent_without_its_disk_has_the_objects_of_tasks(agents: Pair) -> None:
    reads = Tasks(agents, "trades")
    start = reads.reading.open()
    Writing(agents, "trades").publish(0, partitions=1, count=10, size=SIZE)
    lose_disk(agents)
    Writing(agents, "trades", run="run-2").publish(1, partitions=1, count=10, size=SIZE)
    assert reads.all(start, reads.reading.end(start)) == list(range(40))


def test_a_bucket_that_tasks_cannot_reach_is_read_by_the_agent(
    agents: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = Tasks(agents, "trades")
    start = reads.reading.open()
    Writing(agents, "trades").publish(0, partitions=1, count=10, size=SIZE)

    def refuse(url: str, offset: int, length: int) -> Any:
        raise ObjectTransferError("no way there")

    monkeypatch.setattr(object_reader, "open_range", refuse)
    monkeypatch.setattr(object_reader, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(object_reader, "AVOID_SECONDS", 0.0)
    assert reads.all(start, reads.reading.end(start)) == list(range(20))


@pytest.mark.parametrize("max_bytes", [50_000])
def test_objects_of_attempts_and_of_removed_epochs_are_deleted(agents: Pair) -> None:
    reads = Tasks(agents, "trades")
    start = reads.reading.open()
    writing = Writing(agents, "trades")
    writing.stage(0, partitions=1, count=10, size=SIZE)  # an attempt that is not committed
    writing.publish(0, partitions=1, count=10, size=SIZE)
    folder = objects_of(agents)
    assert len(folder.list("direct")) == 4
    end = reads.reading.end(start)
    assert reads.all(start, end) == list(range(20))
    reads.reading.next(end)  # acknowledges epoch 0; the next one exceeds the buffer
    writing.publish(1, partitions=1, count=10, size=SIZE)
    pending = writing.stage(2, partitions=1, count=10, size=SIZE)
    agents.exporter.kill()
    agents.exporter.start()  # obsolete objects are deleted at the start

    def batches() -> set[str]:
        return {key.split("/")[1] for key in folder.list("direct")}

    until(lambda: batches() == {"1", "2"}, 30.0, "objects of batch 0 deleted")
    writing.commit(2, pending)
    after = reads.reading.end(end)
    assert reads.all(end, after) == list(range(20, 60))


def test_an_object_that_is_gone_is_lost_by_name(agents: Pair) -> None:
    reads = Tasks(agents, "trades")
    start = reads.reading.open()
    Writing(agents, "trades").publish(0, partitions=1, count=10, size=SIZE)
    folder = objects_of(agents)
    (first, *_) = sorted(folder.list("direct"))
    folder.delete([f"direct/{first}"])
    with pytest.raises(AgentRefusedError, match=f"{first}.*lifecycle rules"):
        reads.all(start, reads.reading.end(start))


@pytest.mark.skipif(not is_built(), reason=MISSING)
def test_a_url_that_has_expired_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_server(tmp_path / "s3") as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        direct = DirectObjects(
            open_bucket(environment["STREAMBROKER_STORAGE"]),
            request=lambda _: None,
            save=lambda: None,
            url_seconds=1,
        )
        key = direct.new_key("run", 0)
        url = direct.put_url(key)

        def expired() -> bool:
            try:
                object_transfer.put_object(url, b"late")
            except ObjectTransferError as error:
                return "HTTP 403" in str(error)
            return False

        until(expired, 30.0, "URL expired")
        object_transfer.put_object(direct.put_url(key), b"rows")
        with object_transfer.open_range(direct.get_url(key), 1, 2) as response:
            assert response.read(2) == b"ow"
