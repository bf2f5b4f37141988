"""Agents are killed at each step and started again: nothing is lost, nothing comes twice."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from pe_agent.transport import agent_client as client
from pe_agent.transport.agent_client import AgentClient
from pe_agent.transport.flight_errors import AgentUnreachableError
from support.agents.agents import Pair, Publishing, Reading, error_code, pair, rows
from support.processes.frozen import frozen
from support.processes.waiting import until

SMALL = 20_000
PORTS = (
    "staged",
    "answered",
    "raced",
    "planned",
    "middle",
    "importer",
    "dropped",
    "freed",
    "lease",
    "frozen",
)


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    small = {"max_bytes": SMALL}
    only = {"planned": {"policy": "drop", **small}, "dropped": {"policy": "drop", **small}}
    directory = tmp_path_factory.mktemp("kills")
    yield from pair(directory, ports=PORTS, only={**only, "freed": small})


def wide(first: int, count: int, size: int = 1000) -> pa.RecordBatch:
    return rows(first, count).set_column(1, "name", pa.array(["x" * size] * count))


def streams(agents: Pair, port: str) -> list[dict[str, Any]]:
    return list(agents.exporter.export_status(port)["streams"].values())


def test_a_stage_survives_the_exporters_agent_and_is_published_whole(agents: Pair) -> None:
    publisher = Publishing(agents.exporter, port="staged")
    publisher.admit(0)
    stages = [publisher.stage(0, rows(0, 4), rows(4, 4)), publisher.stage(0, rows(8, 4))]
    agents.exporter.restart()
    assert publisher.commit(0, stages)["epoch"] == 0
    reader = Reading(agents.importer, port="staged")
    end = reader.end(None)
    assert reader.read(None, end) == list(range(12))


def test_an_epoch_whose_answer_was_lost_is_published_once(agents: Pair) -> None:
    publisher = Publishing(agents.exporter, port="answered")
    publisher.admit(0)
    stage = publisher.stage(0, rows(0, 4))
    assert publisher.commit(0, [stage])["published"]
    agents.exporter.restart()
    assert publisher.commit(0, [stage])["published"] is False
    assert error_code(lambda: publisher.commit(0, [{**stage, "rows": 5}])) == "BatchDiffers"
    replay = Publishing(agents.exporter, port="answered", run="run-2")
    assert replay.publish(0, rows(0, 4))["published"] is False
    assert error_code(lambda: publisher.commit(1, [])) == "Fenced"
    assert [(s["next"], s["rows"]) for s in streams(agents, "answered")] == [(1, 4)]


def test_a_kill_while_batches_are_published_leaves_each_whole_and_once(agents: Pair) -> None:
    publisher = Publishing(agents.exporter, port="raced")
    began = threading.Event()

    def publish_on() -> None:
        batch = 0
        while True:
            try:
                publisher.publish(batch, rows(batch * 10, 10))
            except Exception:
                return
            batch += 1
            if batch == 3:
                began.set()

    thread = threading.Thread(target=publish_on)
    thread.start()
    assert began.wait(20)
    agents.exporter.kill()
    thread.join(20)
    assert not thread.is_alive()
    agents.exporter.start()
    last = agents.exporter.export_status("raced")["publisher"]["batch"]
    replay = Publishing(agents.exporter, port="raced", run="run-2")
    assert replay.publish(last, rows(last * 10, 10))["published"] is False
    assert replay.publish(last + 1, rows(last * 10 + 10, 10))["published"]
    reader = Reading(agents.importer, port="raced")
    assert reader.read(None, reader.end(None)) == list(range((last + 2) * 10))


def test_a_plan_outlives_the_exporters_agent_though_the_log_is_over_full(agents: Pair) -> None:
    publisher = Publishing(agents.exporter, port="planned")
    reader = Reading(agents.importer, port="planned")
    start = reader.open()
    publisher.publish(0, wide(0, 10))
    end = reader.end(start)
    agents.exporter.restart()
    for batch in range(1, 8):
        publisher.publish(batch, wide(batch * 10, 10))
    assert reader.read(start, end) == list(range(10))


def test_a_read_that_broke_off_goes_on_behind_the_blocks_it_has(agents: Pair) -> None:
    publisher = Publishing(agents.exporter, port="middle")
    reader = Reading(agents.importer, port="middle")
    start = reader.open()
    publisher.publish(0, *[wide(n * 10, 10, size=200_000) for n in range(14)])
    end = reader.end(start)
    (ticket,) = reader.slices(start, end)
    got: list[int] = []
    done = 0
    blocks = AgentClient(ticket["location"]).get({**ticket, "skip": 0})
    while done < 2:
        got += next(blocks)[0].column("n").to_pylist()
        done += 1
    agents.exporter.kill()
    with contextlib.suppress(AgentUnreachableError):
        for batch, _ in blocks:
            got += batch.column("n").to_pylist()
            done += 1
    assert 2 <= done < 14
    agents.exporter.start()
    for batch in reader.batches(ticket, skip=done):
        got += batch.column("n").to_pylist()
    assert got == list(range(140))


def test_after_a_kill_of_the_importers_agent_partitions_come_first(agents: Pair) -> None:
    publisher = Publishing(agents.exporter, port="importer")
    reader = Reading(agents.importer, port="importer")
    start = reader.open()
    publisher.publish(0, rows(0, 5))
    end = reader.end(start)
    before = reader.slices(start, end)
    agents.importer.restart()
    again = Reading(agents.importer, port="importer", session="session-2")
    assert again.slices(start, end) == before
    assert again.read(start, end) == [0, 1, 2, 3, 4]
    publisher.publish(1, rows(5, 5))
    assert again.read(end, again.end(end)) == [5, 6, 7, 8, 9]


def test_what_was_dropped_is_counted_exactly_over_a_restart(agents: Pair) -> None:
    publisher = Publishing(agents.exporter, port="dropped")
    reader = Reading(agents.importer, port="dropped")
    start = reader.open()
    publisher.publish(0, wide(0, 3))
    end = reader.end(start)
    got = reader.read(start, end)
    reader.next(end)
    for batch in range(1, 9):
        publisher.publish(batch, wide(batch * 10, 6 + batch))
    agents.exporter.restart()
    last = reader.end(end)
    got += reader.read(end, last)
    ((_, rows_dropped),) = last["dropped"].values()
    assert rows_dropped > 0
    assert len(got) + rows_dropped == 3 + sum(6 + b for b in range(1, 9))
    reader.next(last)
    status = agents.exporter.reader_status(last["reader"], "dropped")
    assert status["delivered"] == len(got)
    assert status["dropped"][1] == rows_dropped


def test_a_change_to_drop_frees_a_writer_that_waits(agents: Pair) -> None:
    publisher = Publishing(agents.exporter, port="freed")
    reader = Reading(agents.importer, port="freed")
    reader.open()
    publisher.publish(0, wide(0, 30))
    assert "waiting" in publisher.admit(1)
    agents.exporter.restart()
    assert "waiting" in publisher.admit(1)
    only = {**agents.how.only, "freed": {"policy": "drop", "max_bytes": SMALL}}
    agents.plumb(only=only)
    agents.exporter.restart()
    assert publisher.admit(1) == {"admitted": True}


def test_a_publisher_keeps_its_lease_over_a_restart_of_its_agent(agents: Pair) -> None:
    first = Publishing(agents.exporter, port="lease")
    second = Publishing(agents.exporter, port="lease", query="query-2")
    first.publish(0, rows(0, 1))
    agents.exporter.restart()
    assert second.admit(0)["occupied"]["holder"] == "query-1"
    agents.exporter.client.call("publisher.renounce", export="lease", query="query-1")
    agents.exporter.restart()
    assert second.admit(0) == {"admitted": True}


def test_an_exporter_that_comes_back_is_found_again_without_help(agents: Pair) -> None:
    agents.exporter.kill()
    until(lambda: agents.importer.status()["imports"]["away"], 10, "the exporter noticed as away")
    agents.exporter.start()
    until(lambda: not agents.importer.status()["imports"]["away"], 10, "the exporter back")


def test_rows_that_are_sent_to_a_frozen_agent_come_to_an_end(
    agents: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = [("grpc.keepalive_time_ms", 1000), ("grpc.keepalive_timeout_ms", 1000)]
    known = [option for option in client.OPTIONS if "keepalive" not in option[0]]
    assert len(known) == len(client.OPTIONS) - 2
    monkeypatch.setattr(client, "OPTIONS", [*known, *short])
    monkeypatch.setattr(client, "_clients", {})
    publisher = Publishing(agents.exporter, port="frozen")
    publisher.admit(0)
    process = agents.exporter.process
    assert process is not None
    with frozen(process.pid):
        code = error_code(publisher.stage, 0, *[wide(n, 1000) for n in range(30)])

    assert code == "AgentUnreachable"
    assert [s["rows"] for s in streams(agents, "frozen")] in ([], [0])
