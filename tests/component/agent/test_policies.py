"""Policies between real agents: no way of reading has more than they leave."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pe_agent.datasource.batch_reader import StreambrokerBatchReader
from pe_agent.datasource.options import BatchRange
from pe_agent.transport.agent_client import AgentClient, send
from pe_agent.transport.flight_errors import AgentRefusedError
from pe_agent.transport.rows import object_reader, object_writer
from streambroker_core.model.policies import NO_POLICIES, Policies
from streambroker_core.wire.agent_rpc.peer import PeerObjects
from streambroker_core.wire.encoding.fields import Fields
from streambroker_core.wire.encoding.policies import read_policies
from support.agents.agents import Pair, Publishing, pair, rows
from support.agents.tasks import STRUCT, Tasks, Writing, options_of
from support.processes.waiting import until

SIZE = 2_000
HASH = sha256(b"x" * SIZE).hexdigest()


def policies(*items: Mapping[str, Any], default: str = "allow") -> Policies:
    return read_policies(Fields({"policies": items, "policyDefault": default}), None)


PARTNER = policies(
    {"for": {"job": "alerts"}, "filter": "n % 2 == 0"},
    {"filter": "n < 30", "mask": [{"column": "name", "with": "hash"}]},
)
LEFT = list(range(0, 30, 2))


@pytest.fixture
def agents(
    bucket: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Pair]:
    monkeypatch.setattr("pe_agent.transport.rows.stage_writer.MIN_BYTES", 10_000)
    monkeypatch.setattr(object_writer, "OBJECT_BYTES", 15_000)
    monkeypatch.setattr(object_reader, "_avoid_until", 0.0)
    for name, value in bucket.items():
        monkeypatch.setenv(name, value)
    yield from pair(tmp_path, environment=bucket, durability="stored", policies=PARTNER)


def found_in(batches: list[pa.RecordBatch]) -> list[tuple[int, str]]:
    return sorted((row["n"], row["name"]) for b in batches for row in b.to_pylist())


def test_no_way_of_reading_has_more_than_policies_leave(
    agents: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(*_: Any) -> Any:
        raise AssertionError("a task reads the bucket itself")

    monkeypatch.setattr(object_reader, "open_range", opened)
    reads = Tasks(agents, "trades")
    start = reads.reading.open()
    Writing(agents, "trades").publish(0, partitions=2, count=10, size=SIZE)
    end = reads.reading.end(start)

    tickets = reads.tickets(start, end)
    assert not [ticket for ticket in tickets if ticket.get("direct")]
    assert sorted(n for ticket in tickets for n in reads.read(ticket)) == LEFT
    for ticket in tickets:
        asked = PeerObjects(ticket=ticket)
        assert send(AgentClient(ticket["location"]), asked).ranges is None
        assert reads.read({**ticket, "direct": True}) == reads.read(ticket)
    batches = [b for ticket in tickets for b in reads.reading.batches(ticket)]
    assert found_in(batches) == [(n, HASH) for n in LEFT]

    options = options_of(agents.importer, "trades", 20.0)
    batch = StreambrokerBatchReader(STRUCT, options, BatchRange())
    archived = [b for one in batch.partitions() for b in batch.read(one)]
    assert found_in(archived) == [(n, HASH) for n in LEFT]

    looked = agents.exporter.client.call("export.peek", export="trades", limit=100)
    assert [tuple(row) for row in looked["rows"]] == [(n, HASH) for n in LEFT]
    assert looked["policies"].startswith("policies[0] and policies[1]: rows where")


def test_a_tighter_policy_counts_for_a_planned_batch_over_a_restart(agents: Pair) -> None:
    reads = Tasks(agents, "trades")
    start = reads.reading.open()
    Writing(agents, "trades").publish(0, partitions=2, count=10, size=SIZE)
    end = reads.reading.end(start)
    tickets = reads.tickets(start, end)
    agents.plumb(policies=policies({"filter": "n > 20", "columns": ["n", "name"]}))
    agents.exporter.restart()
    left = [n for n in LEFT if n > 20]
    assert sorted(n for ticket in tickets for n in reads.read(ticket)) == left
    assert reads.all(start, end) == left

    agents.plumb(policies=policies({"columns": ["n"]}))
    agents.exporter.restart()
    with pytest.raises(AgentRefusedError, match=r"withhold the column `name`") as refused:
        reads.read(tickets[0])
    assert refused.value.code == "PolicyDenied"


def test_an_agent_without_the_policies_gives_nothing_for_a_capability_that_needs_them(
    tmp_path: Path,
) -> None:
    for both in pair(tmp_path, policies=policies({"columns": []}, default="deny")):
        Publishing(both.exporter).publish(0, rows(0, 10))
        both.exporter.kill()
        both.plumb(policies=NO_POLICIES)
        importer = both.importer.home / "routes.json"
        unaware = importer.read_text()
        both.plumb(policies=PARTNER)
        aware = importer.read_text()
        assert aware != unaware
        both.plumb(policies=NO_POLICIES)
        importer.write_text(aware)
        both.exporter.start()
        both.importer.restart()
        reading = Tasks(both, "trades").reading

        def refused(reading: Any = reading, both: Pair = both) -> str:
            reading.next(None)
            (status,) = both.importer.status()["imports"]["readers"].values()
            return " ".join(status["refused"].values())

        text = until(refused, 20.0, "the refusal")
        assert "does not have the policies of the export yet" in text
