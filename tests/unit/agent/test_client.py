"""Connections to other agents: kept while they are used."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from pe_agent.transport import agent_client as client
from pe_agent.transport.agent_tls import AgentTrust


class Made:
    """Stands for the connections, and for the time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.kept: dict[tuple[int, str], client._CachedClient] = {}
        monkeypatch.setattr(client, "_connect", lambda *_: object())
        monkeypatch.setattr(client, "_clients", self.kept)
        monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=lambda: self.now))

    def use(self, number: int) -> object:
        return client._client(f"grpc+tcp://10.0.0.{number}:1", AgentTrust())


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    return Made(monkeypatch)


def test_connections_that_nobody_uses_are_let_go_and_those_in_use_are_kept(made: Made) -> None:
    """An agent that lives for long meets many addresses: pods that move never have one twice."""
    first = made.use(0)
    for number in range(1, 100):
        made.now += client.IDLE_SECONDS / 4
        made.use(number)
        assert made.use(0) is first
        assert len(made.kept) <= 6


def test_connections_of_a_parent_process_are_left_alone(made: Made) -> None:
    parents = (os.getpid() + 1, "grpc+tcp://10.0.0.1:1")
    made.kept[parents] = client._CachedClient((None, None), object(), 0.0)
    made.now = 2 * client.IDLE_SECONDS
    made.use(1)
    assert parents in made.kept
    assert len(made.kept) == 2
