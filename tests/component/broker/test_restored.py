"""A broker that has lost its file, or got an older one back: agents make it whole again."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pe_agent.agent.actions import job_actions
from pe_agent.agent.agent import Agent
from pe_agent.agent.broker.link import BrokerLink
from pe_agent.transport.broker_client import BrokerAnswer, BrokerClient
from streambroker_core.model import PeKey
from support.processes.jobs import Broker


class World:
    """One broker process, and the link and ports of one importing agent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        pe = PeKey.parse("default/alerts/0")
        (folder / "home").mkdir()
        self.hosts = Agent(pe, folder / "home", progress=lambda *_: None)
        self.broker = Broker(folder)
        self.link = BrokerLink(
            self.hosts,
            self.broker.url,
            location="grpc+tcp://127.0.0.1:1",
            instance="ab" * 8,
            host="127.0.0.1",
        )
        self.client = BrokerClient(self.broker.url, "default")

    def declare(self) -> None:
        spec = {"subscription": 'kind == "trade"'}
        job_actions(self.hosts).handle("declare", {"kind": "import", "port": "in", "spec": spec})

    def imports(self) -> list[str]:
        items = self.client.request("GET", "/imports").body["items"]
        return [item["spec"]["port"] for item in items]

    def save(self) -> None:
        with sqlite3.connect(self.folder / "broker.sqlite") as db:
            db.execute("VACUUM INTO ?", (str(self.folder / "backup"),))

    def lose(self, *, restore: bool) -> None:
        self.broker.kill()
        for file in self.folder.glob("broker.sqlite*"):
            file.unlink()
        if restore:
            shutil.copy(self.folder / "backup", self.folder / "broker.sqlite")
        self.broker = self.broker.restart()

    def end(self) -> None:
        self.link.close()
        self.hosts.close()
        self.broker.end()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.end()


@pytest.mark.parametrize("registers_first", [True, False])
def test_ports_are_declared_again_to_a_broker_with_an_empty_file(
    world: World, registers_first: bool
) -> None:
    world.declare()
    world.link._sync()
    assert world.imports() == ["in"]
    world.lose(restore=False)
    if registers_first:
        world.link._registrar._next = 0.0
    world.link._sync()

    assert world.imports() == ["in"]
    view = world.hosts.routes.view
    assert view is not None
    assert set(view.imports) == {"in"}


@pytest.mark.parametrize("registers_first", [True, False])
def test_ports_are_declared_again_to_a_broker_with_an_older_file(
    world: World, registers_first: bool
) -> None:
    world.link._sync()
    world.save()
    world.declare()
    world.link._sync()
    world.lose(restore=True)
    if registers_first:
        world.link._registrar._next = 0.0
    world.link._sync()
    assert world.link._wake.is_set()
    world.link._sync()

    assert world.imports() == ["in"]
    view = world.hosts.routes.view
    assert view is not None
    assert set(view.imports) == {"in"}


def registrations(world: World, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the methods of what the link asks for from now on, but for its ports."""
    asked: list[str] = []
    request = world.link._client.request

    def counted(method: str, path: str, *rest: Any, **more: Any) -> BrokerAnswer:
        if path == world.link._registrar.path:
            asked.append(method)
        return request(method, path, *rest, **more)

    monkeypatch.setattr(world.link._client, "request", counted)
    return asked


def test_an_agent_that_the_broker_knows_asks_and_does_not_register(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.declare()
    world.link._sync()
    asked = registrations(world, monkeypatch)
    for _ in range(3):
        world.link._sync()
    world.broker.kill()
    world.broker = world.broker.restart()
    world.link._sync()

    assert asked == ["GET"] * 4


def test_an_agent_registers_again_where_the_broker_knows_an_older_address(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.link._sync()
    world.save()
    moved = replace(world.link._registrar.wanted, location="grpc+tcp://127.0.0.1:2")
    world.link._registrar.wanted = moved
    world.link._sync()
    world.lose(restore=True)
    asked = registrations(world, monkeypatch)
    world.link._sync()
    (found,) = world.client.request("GET", "/pes").body["items"]

    assert asked == ["GET", "PUT", "GET"]
    assert found["location"] == "grpc+tcp://127.0.0.1:2"


def test_an_agent_registers_again_where_the_broker_knows_its_ports_and_not_itself(
    world: World,
) -> None:
    world.link._sync()
    world.client.request("DELETE", "/job/alerts/pe/0")
    spec = {"subscription": 'kind == "trade"'}
    world.client.request("PUT", "/job/alerts/pe/0/import/other", spec)
    world.link._sync()
    (found,) = world.client.request("GET", "/pes").body["items"]

    assert found["location"] == "grpc+tcp://127.0.0.1:1"


def test_an_agent_registers_again_with_another_token(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.link._sync()
    asked = registrations(world, monkeypatch)
    world.link._registrar._token.value = "another"
    world.link._sync()
    world.link._sync()

    assert asked == ["PUT", "GET", "GET"]


def test_a_port_that_somebody_deleted_is_not_declared_again(world: World) -> None:
    world.declare()
    world.link._sync()
    world.client.request("DELETE", "/job/alerts/pe/0/import/in")
    world.link._registrar._next = 0.0
    world.link._sync()
    world.link._sync()

    assert world.imports() == []
