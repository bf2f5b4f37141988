"""Agents on a bucket: a disk that is lost, two agents of one PE, a server that is away."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from pe_agent.transport.flight_errors import AgentRefusedError
from support.agents.agents import AgentProcess, Pair, Publishing, Reading, pair, rows
from support.brokers.brokers import Rest, running_broker
from support.processes.ports import free_port
from support.processes.waiting import until, until_async
from support.storage.drill import drill, lose_disk
from support.storage.servers import MISSING, is_built, s3_server

EXPORT = "/job/feed/pe/0/export/trades"


@pytest.fixture
def agents(bucket: Mapping[str, str], tmp_path: Path) -> Iterator[Pair]:
    yield from pair(tmp_path, environment=bucket, durability="stored")


def test_a_disk_that_is_lost_under_load_loses_and_doubles_no_row(
    bucket: Mapping[str, str], tmp_path: Path
) -> None:
    published, reader = drill(tmp_path, dict(bucket), runs=3, seed=1)
    assert (reader.expected, reader.lost, reader.doubled) == (published, 0, 0)


def test_a_reader_goes_on_in_the_same_stream(agents: Pair) -> None:
    publisher, reader = Publishing(agents.exporter), Reading(agents.importer)
    start = reader.open()
    publisher.publish(0, rows(0, 3))
    end = reader.end(start)
    assert reader.read(start, end) == [0, 1, 2]
    publisher.publish(1, rows(3, 3))
    (stream,) = agents.exporter.export_status()["streams"]

    lose_disk(agents)
    again = Publishing(agents.exporter, run="run-2")
    assert again.publish(1, rows(3, 3))["published"] is False
    again.publish(2, rows(6, 3))
    after = reader.end(end)
    assert reader.read(end, after) == [3, 4, 5, 6, 7, 8]
    assert list(agents.exporter.export_status()["streams"]) == [stream]
    assert agents.exporter.export_status()["storage"]["superseded"] is False


def test_of_two_agents_the_one_that_was_suspended_publishes_nothing(
    agents: Pair, bucket: Mapping[str, str], tmp_path: Path
) -> None:
    old = agents.exporter
    Publishing(old).publish(0, rows(0, 3))
    assert old.process is not None
    os.kill(old.process.pid, signal.SIGSTOP)
    new = AgentProcess(tmp_path / "second", "feed", port=free_port(), environment=bucket)
    new.prepare()
    shutil.copy(old.home / "routes.json", new.home)
    new.start()
    try:
        assert Publishing(new, run="run-2").publish(1, rows(3, 3))["epoch"] == 1
        os.kill(old.process.pid, signal.SIGCONT)
        with pytest.raises(AgentRefusedError, match="another agent of this PE") as refused:
            Publishing(old).publish(1, rows(3, 3))
        assert refused.value.code == "Superseded"
        assert old.export_status()["storage"]["superseded"] is True
        assert Publishing(new, run="run-2").publish(2, rows(6, 3))["epoch"] == 2
    finally:
        new.kill()


@pytest.mark.skipif(not is_built(), reason=MISSING)
def test_a_local_export_goes_on_while_the_server_is_away(tmp_path: Path) -> None:
    with s3_server(tmp_path / "s3") as environment:
        for agents in pair(tmp_path, environment=environment, durability="local"):
            uploaded = partial(is_uploaded, agents.exporter)
            publisher = Publishing(agents.exporter)
            publisher.publish(0, rows(0, 3))
            until(uploaded, 30, "uploaded")
            server = int(environment["PID"])
            os.kill(server, signal.SIGSTOP)
            publisher.publish(1, rows(3, 3))
            assert not uploaded()
            os.kill(server, signal.SIGCONT)
            until(uploaded, 90, "uploaded again")


async def test_a_bucket_that_is_away_is_in_the_status_of_the_export_until_it_is_back(
    tmp_path: Path,
) -> None:
    bucket, aside, file = (tmp_path / name for name in ("bucket", "aside", "file"))
    environment = {"STREAMBROKER_STORAGE": f"file://{bucket}"}
    async with running_broker(tmp_path / "broker.db") as (_, rest):
        await rest("PUT", EXPORT, {"properties": {"kind": "trade"}})
        agent = AgentProcess(tmp_path / "feed", "feed", broker=rest.url, environment=environment)
        publisher = Publishing(agent)
        try:
            await asyncio.to_thread(begun, agent)
            await asyncio.to_thread(publisher.publish, 0, rows(0, 3))
            assert await stored(rest, "UpToDate") == ""
            file.touch()
            bucket.rename(aside)
            file.rename(bucket)
            await asyncio.to_thread(publisher.publish, 1, rows(3, 3))
            message = await stored(rest, "StorageUnavailable")
            bucket.unlink()
            aside.rename(bucket)
            assert await stored(rest, "UpToDate") == ""
        finally:
            agent.kill()
    assert message.startswith(f"file://{bucket}/default/feed/0")
    assert "Not a directory" in message
    assert "Check endpoint, bucket and network. Less than 64 KiB are not uploaded" in message


async def stored(rest: Rest, reason: str) -> str:
    """Wait until the export's status has a reason; return its message."""

    async def found() -> dict[str, str] | None:
        await rest("GET", "/top")  # agents report each second while metrics are watched
        state: dict[str, str] = (await rest("GET", EXPORT)).body["status"].get("stored", {})
        return state if state.get("reason") == reason else None

    return (await until_async(found, 60, reason, pause_s=0.1))["message"]


def begun(agent: AgentProcess) -> None:
    agent.start()
    until(lambda: agent.status()["exports"], 30, "the agent knows its exports")


def is_uploaded(agent: AgentProcess) -> bool:
    return not agent.export_status()["storage"]["bytes"]
