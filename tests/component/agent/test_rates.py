"""Rates of a quota between a real broker and real agents."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pe_agent.transport.object_transfer import open_range
from pe_agent.transport.rows import object_reader, object_writer
from support.agents.agents import AgentProcess, Pair, Plumbing
from support.agents.tasks import Tasks, Writing
from support.processes.jobs import Broker
from support.processes.ports import free_port
from support.processes.waiting import until

QUOTAS = {"default": {"readerBytesPerSecond": "20Ki"}}
SCHEMA = [{"name": "n", "type": "bigint"}, {"name": "name", "type": "string"}]
SIZE = 2_000
SECONDS = 100.0
"""Rates come with the answer to a report, which an agent sends every 30 seconds."""


@pytest.fixture
def agents(
    bucket: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Pair]:
    monkeypatch.setattr("pe_agent.transport.rows.stage_writer.MIN_BYTES", 10_000)
    monkeypatch.setattr(object_writer, "OBJECT_BYTES", 15_000)
    monkeypatch.setattr(object_reader, "_avoid_until", 0.0)
    for name, value in bucket.items():
        monkeypatch.setenv(name, value)
    broker = Broker(tmp_path, options=["--quotas", json.dumps(QUOTAS)])
    feed, alerts = (
        AgentProcess(tmp_path / job, job, port=free_port(), broker=broker.url)
        for job in ("feed", "alerts")
    )
    both = Pair(feed, alerts, Plumbing())
    try:
        for agent in (feed, alerts):
            agent.start()
        yield both
    finally:
        both.stop()
        broker.end()


def declare(agent: AgentProcess, kind: str, **spec: Any) -> None:
    given = {"application": {"name": agent.job}, "schema": SCHEMA, **spec}
    named: dict[str, Any] = {"port": "trades", "redeclare": False}
    schema = SCHEMA if kind == "export" else None
    agent.client.call("declare", kind=kind, spec=given, schema=schema, **named)


def test_a_rate_delays_a_whole_read_and_leaves_no_way_past_the_agent(
    agents: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the agent has the rate, tasks read the bucket themselves."""
    opened: list[str] = []

    def noted(url: str, *args: Any) -> Any:
        opened.append(url)
        return open_range(url, *args)

    monkeypatch.setattr(object_reader, "open_range", noted)
    declare(agents.exporter, "export", properties={"kind": "trades"}, durability="stored")
    declare(agents.importer, "import", subscription='kind == "trades"')
    reads = Tasks(agents, "trades")
    start = reads.reading.open()
    Writing(agents, "trades").publish(0, partitions=2, count=10, size=SIZE)
    end = reads.reading.end(start)
    assert [one for one in reads.tickets(start, end) if one.get("direct")]

    def delayed() -> float:
        assert reads.all(start, end) == list(range(40))
        found = agents.exporter.reader_status(end["reader"])["throttledSeconds"]
        assert isinstance(found, int)
        return found

    until(delayed, SECONDS, "the rate delays the reader")
    opened.clear()
    assert reads.all(start, end) == list(range(40))
    assert not opened
