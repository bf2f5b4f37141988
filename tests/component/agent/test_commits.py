"""The sink's commit, called as Spark calls it: it cannot be interrupted, so it must not be long."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pe_agent.datasource import sink
from pe_agent.datasource.sink import Staged, StreambrokerStreamWriter
from pe_agent.datasource.source import StreambrokerDataSource
from pe_agent.transport.flight_errors import AgentUnreachableError
from support.agents.agents import AgentProcess, Pair, Publishing, pair, rows
from support.cuts.queries import COLUMNS
from support.processes.frozen import freeze
from support.processes.waiting import until


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Pair]:
    yield from pair(tmp_path)


def staged(agents: Pair) -> tuple[StreambrokerStreamWriter, Staged]:
    """Return a writer as Spark makes it for a commit, and the message of a task."""
    agent = agents.exporter
    publisher = Publishing(agent, ddl="`line` bigint, `price` double, `name` string")
    publisher.admit(0)
    message = Staged("trades", publisher.query, publisher.run, 0, 0, publisher.stage(0, rows(0, 4)))
    options = {"export": "trades", "agent": agent.location, "agentToken": agent.address["token"]}
    writer = StreambrokerDataSource(options).streamWriter(schema=COLUMNS, overwrite=False)
    assert isinstance(writer, StreambrokerStreamWriter)
    return writer, message


def stand_still(agent: AgentProcess) -> None:
    assert agent.process is not None
    freeze(agent.process.pid)


@pytest.mark.parametrize("away", [AgentProcess.kill, stand_still], ids=["dead", "frozen"])
def test_a_commit_gives_up_soon_though_reconnect_is_a_minute(
    agents: Pair, away: Callable[[AgentProcess], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, message = staged(agents)
    assert sink.COMMIT_SECONDS == 10.0
    monkeypatch.setattr(sink, "COMMIT_SECONDS", 1.5)
    away(agents.exporter)
    began = time.monotonic()

    with pytest.raises(AgentUnreachableError):
        writer.commit([message], 0)
    writer.abort([message], 0)

    assert 1.0 < time.monotonic() - began < writer._options.reconnect / 2 == 30.0


def test_a_commit_waits_for_an_agent_that_is_started_again(agents: Pair) -> None:
    writer, message = staged(agents)
    agents.exporter.kill()
    agents.exporter.spawn()

    writer.commit([message], 0)

    agents.exporter.ready()
    until(lambda: agents.exporter.export_status()["publisher"]["batch"] == 0, 10, "published")
