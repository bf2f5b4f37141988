"""What keeps an agent from starting, said by name; and what it survives."""

from __future__ import annotations

import json
import socket
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from pe_agent.agent.exports.stream.manifests import VERSION
from pe_agent.agent.state.store import Store
from pe_agent.log.commit import Committer
from pe_agent.log.frames import Kind
from pe_agent.log.log import StreamLog
from pe_agent.transport.flight_errors import AgentRefusedError
from support.agents.agents import (
    AgentProcess,
    Plumbing,
    Publishing,
    error_code,
    export_view,
    rows,
)
from support.processes.ports import free_port


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    made = AgentProcess(tmp_path / "feed", "feed")
    made.prepare()
    made.write_routes(export_view(made, "default/alerts/0", Plumbing()))
    yield made
    made.kill()


def streams(agent: AgentProcess) -> list[tuple[int, int]]:
    found = agent.export_status()["streams"].values()
    return [(s["next"], s["rows"]) for s in found]


def published(agent: AgentProcess) -> None:
    """Publish two epochs and end the agent at once."""
    agent.start()
    publisher = Publishing(agent)
    publisher.publish(0, rows(0, 50))
    publisher.publish(1, rows(50, 50))
    agent.kill()


def test_a_data_directory_in_use_is_refused_and_the_first_agent_serves_on(
    agent: AgentProcess,
) -> None:
    agent.start()
    second = AgentProcess(agent.home, "feed", port=free_port())
    said = second.refusal()
    assert said.startswith("HomeInUse: ")
    assert str(agent.process.pid if agent.process else "") in said
    assert agent.status()["pe"] == "default/feed/0"


def test_a_port_in_use_is_refused_by_number(agent: AgentProcess) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        agent.port = int(taken.getsockname()[1])
        said = agent.refusal()
    assert said.startswith("AddressInUse: ")
    assert f"127.0.0.1:{agent.port}" in said


def test_a_port_of_another_agent_is_in_use(agent: AgentProcess, tmp_path: Path) -> None:
    agent.start()
    other = AgentProcess(tmp_path / "other", "other", port=agent.port)
    assert other.refusal().startswith("AddressInUse: ")


def test_state_of_a_newer_release_is_refused_and_left_alone(agent: AgentProcess) -> None:
    path = agent.home / "state.sqlite"
    store = Store(path)
    store.set("format", "3")
    store.close()
    before = path.read_bytes()
    said = agent.refusal()
    assert said.startswith("StoreUnusable: ")
    assert "format 3" in said
    assert path.read_bytes() == before


def test_state_that_is_no_database_is_refused_by_name(agent: AgentProcess) -> None:
    path = agent.home / "state.sqlite"
    path.write_bytes(b"something else entirely" * 100)
    said = agent.refusal()
    assert said.startswith("StoreUnusable: ")
    assert str(path) in said


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"v": 99}', json.dumps({"v": 1}), '{"v": 1, "namespace": 3}'],
    ids=["empty", "torn", "list", "newer", "bare", "wrong type"],
)
def test_a_route_file_that_is_no_view_is_refused_and_left_alone(
    agent: AgentProcess, text: str
) -> None:
    path = agent.home / "routes.json"
    path.write_text(text)
    said = agent.refusal()
    assert said.startswith("RouteFileInvalid: ")
    assert str(path) in said
    assert path.read_text() == text


def test_a_manifest_of_a_newer_release_is_refused_by_name(agent: AgentProcess) -> None:
    published(agent)
    (segment,) = agent.segments()
    committer = Committer(threads=1)
    log = StreamLog.open(segment.parent, committer=committer)
    newest = [meta for _, _, meta in log.recovered_frames({Kind.MANIFEST})][-1]
    body = {**json.loads(newest), "v": VERSION + 1, "epoch": 2}
    log.sync(log.append(Kind.MANIFEST, json.dumps(body).encode()))
    log.close()
    committer.close()
    said = agent.refusal()
    assert said.startswith("FormatUnknown: ")
    assert f"epoch 2 has manifest version {VERSION + 1}" in said


def test_a_torn_tail_is_cut_and_said_and_what_was_published_is_there(agent: AgentProcess) -> None:
    published(agent)
    (segment,) = agent.segments()
    data = segment.read_bytes()
    end = len(data.rstrip(b"\0"))
    segment.write_bytes(data[:end] + b"half a frame" * 9 + data[end + 108 :])
    agent.start()
    assert streams(agent) == [(2, 100)]
    assert "torn" in agent.log.read_text() or "cut" in agent.log.read_text()
    assert Publishing(agent, run="run-2").publish(2, rows(100, 1))["epoch"] == 2


def test_damage_in_the_middle_is_refused_by_file_and_offset(agent: AgentProcess) -> None:
    published(agent)
    (segment,) = agent.segments()
    data = bytearray(segment.read_bytes())
    data[data.index(b'"n": 50}')] ^= 1
    segment.write_bytes(data)
    before = segment.read_bytes()
    said = agent.refusal()
    assert said.startswith("LogCorrupt: ")
    assert str(segment) in said
    assert segment.read_bytes() == before


def test_damaged_rows_are_never_sent(agent: AgentProcess) -> None:
    published(agent)
    (segment,) = agent.segments()
    data = bytearray(segment.read_bytes())
    data[data.index(b"row 7row 8")] ^= 1
    segment.write_bytes(data)
    assert agent.refusal().startswith("LogCorrupt: ")


def test_a_full_disk_refuses_rows_with_a_remedy_and_later_takes_them(agent: AgentProcess) -> None:
    agent.start()
    publisher = Publishing(agent)
    publisher.publish(0, rows(0, 10))
    publisher.admit(1)
    agent.limit_files(200_000)
    big = rows(10, 20_000)
    assert error_code(lambda: publisher.stage(1, big)) == "LogFull"
    with pytest.raises(AgentRefusedError, match=r"(?i)free|raise|limit"):
        publisher.stage(1, big)
    agent.limit_files(-1)
    assert streams(agent) == [(1, 10)]
    stage = publisher.stage(1, big)
    assert publisher.commit(1, [stage])["epoch"] == 1
    agent.restart()
    assert streams(agent) == [(2, 20_010)]


def test_an_epoch_published_on_a_full_disk_is_published_once(agent: AgentProcess) -> None:
    """The log takes the manifest; the state file, which is larger, may not be written."""
    agent.start()
    publisher = Publishing(agent)
    publisher.publish(0, rows(0, 10))
    publisher.admit(1)
    stage = publisher.stage(1, rows(10, 10))
    agent.limit_files(40_000)
    first = error_code_or(publisher, stage)
    agent.limit_files(-1)
    again = publisher.commit(1, [stage])
    assert again["published"] is (first == "LogFull")
    assert streams(agent) == [(2, 20)]
    agent.restart()
    assert streams(agent) == [(2, 20)]
    assert publisher.commit(1, [stage])["published"] is False


def error_code_or(publisher: Publishing, stage: dict[str, object]) -> str:
    try:
        publisher.commit(1, [stage])
    except Exception as error:
        return str(getattr(error, "code", ""))
    return "published"


def test_the_state_file_holds_the_format_it_was_made_with(agent: AgentProcess) -> None:
    with sqlite3.connect(agent.home / "state.sqlite") as db:
        assert db.execute("SELECT value FROM meta WHERE name = 'format'").fetchone() == ("1",)
    db.close()


def test_an_agent_comes_back_on_its_port_with_its_token(agent: AgentProcess) -> None:
    agent.start()
    before = agent.address
    agent.stop()
    agent.port = 0
    agent.start()
    after = agent.address
    assert (after["port"], after["token"]) == (before["port"], before["token"])
    assert after["pid"] != before["pid"]
