"""Waits that would never end, and streams that do: between real agents."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pe_agent.transport.agent_client import AgentClient
from support.agents.agents import AgentProcess, Pair, Publishing, Reading, error_code, pair, rows
from support.brokers.brokers import Rest, running_broker

TRIES = 3
"""How often a busy machine may be late."""
PORTS = ("full", "ending", "reopened")
SOON = 10.0
"""Seconds; an agent that has nothing to tell polls every 30."""


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    yield from pair(
        tmp_path_factory.mktemp("ends"),
        ports=PORTS,
        only={"full": {"max_bytes": 10, "start": "earliest"}},
    )


def watch(agents: Pair, port: str, seen: dict[str, Any], wait: float) -> dict[str, Any]:
    """Ask the exporter for news of a port, as the importer's agent would."""
    route = agents.importer.client.call("view")["view"]["imports"][port]["routes"][0]
    imports = {f"{agents.importer.pe}/{port}": {"capability": route["capability"], "readers": []}}
    asked = {route["export"]: {**seen, "imports": imports}}
    client = AgentClient(agents.exporter.location)
    answer = client.call("peer.watch", exports=asked, wait=wait, lease=5.0, timeout=wait + 20)
    reported: dict[str, Any] = answer["exports"][route["export"]]
    return reported


def finish(agents: Pair, port: str) -> None:
    agents.exporter.client.call("publisher.finish", export=port, query="query-1", run="run-1")


def test_a_query_that_reads_what_it_publishes_is_refused_when_it_would_wait(agents: Pair) -> None:
    publisher, reader = Publishing(agents.exporter, port="full"), Reading(agents.importer, "full")
    publisher.publish(0, rows(0, 3))
    (ticket,) = reader.slices(None, reader.end(None))
    assert "waiting" in publisher.admit(1)
    reader.batches({**ticket, "query": "query-2"})
    assert "waiting" in publisher.admit(1)
    reader.batches({**ticket, "query": publisher.query})
    assert error_code(publisher.admit, 1) == "SelfWait"
    reader.batches(ticket)
    assert error_code(publisher.admit, 1) == "SelfWait"


def test_an_end_is_news_for_those_who_want_to_know_it(agents: Pair) -> None:
    publisher = Publishing(agents.exporter, port="ending")
    for batch in range(TRIES):
        publisher.publish(batch, rows(3 * batch, 3))
        reported = watch(agents, "ending", {"heads": None}, 0)
        assert reported["ended"] is False
        with ThreadPoolExecutor() as others:
            began = time.monotonic()
            answer = others.submit(watch, agents, "ending", reported, 10.0)
            finish(agents, "ending")
            assert answer.result() == {**reported, "ended": True}
        if time.monotonic() - began < 9:
            break
    else:
        raise AssertionError("each answer came only after its time")
    began = time.monotonic()
    watch(agents, "ending", {"heads": reported["heads"]}, 0.3)
    assert time.monotonic() - began >= 0.3
    agents.exporter.restart()
    assert watch(agents, "ending", {"heads": None}, 0) == answer.result()


def test_an_end_is_taken_back_by_the_next_epoch(agents: Pair) -> None:
    publisher = Publishing(agents.exporter, port="reopened")
    publisher.publish(0, rows(0, 3))
    finish(agents, "reopened")
    assert agents.exporter.export_status("reopened")["ended"]
    publisher.publish(0, rows(0, 3))
    assert watch(agents, "reopened", {"heads": None}, 0)["ended"]
    publisher.publish(1, rows(3, 3))
    reported = watch(agents, "reopened", {"heads": None}, 0)
    assert (reported["ended"], list(reported["heads"].values())) == (False, [2])
    fenced = {"export": "reopened", "query": "query-2", "run": "run-1"}
    call = agents.exporter.client.call
    assert error_code(call, "publisher.finish", **fenced) == "PublisherInUse"


async def shows(rest: Rest, ended: bool) -> None:
    """Wait until the broker says that of the export."""
    for _ in range(int(SOON / 0.05)):
        status = (await rest("GET", "/job/feed/pe/0/export/trades")).body["status"]
        if status["ended"] is ended:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(status)


async def test_the_broker_hears_of_an_end_at_once_and_when_it_is_taken_back(
    tmp_path: Path,
) -> None:
    agent = AgentProcess(tmp_path / "feed", "feed")
    publisher = Publishing(agent)
    finish: dict[str, Any] = {"export": "trades", "query": publisher.query, "run": publisher.run}
    try:
        async with running_broker(tmp_path / "broker.db") as (broker, rest):
            await rest("PUT", "/job/feed/pe/0/export/trades", {"properties": {"kind": "trade"}})
            agent.broker = broker.url
            await asyncio.to_thread(agent.start)
            agent.client.call("declare", kind="export", port="trades", spec=None)
            for batch in (0, 1):
                await asyncio.to_thread(publisher.publish, batch, rows(3 * batch, 3))
                await shows(rest, ended=False)
                await asyncio.to_thread(agent.client.call, "publisher.finish", **finish)
                await shows(rest, ended=True)
        agent.kill()
        async with running_broker(tmp_path / "broker.db") as (broker, rest):
            agent.broker = broker.url
            await asyncio.to_thread(agent.start)
            await shows(rest, ended=True)
    finally:
        agent.kill()
