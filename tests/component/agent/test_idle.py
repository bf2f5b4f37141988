"""What an idle query costs its agent: calls, counted where they are made."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from pe_agent.datasource.prefetcher import FRESH_SECONDS
from pe_agent.transport.agent_client import AgentClient
from support.agents.agents import Pair, Publishing, pair, rows
from support.agents.sources import Run
from support.processes.waiting import until

SECONDS = 30.0
IDLE_SECONDS = 4.0
SPARK_PAUSE = 0.01


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    yield from pair(tmp_path_factory.mktemp("idle"), ports=("alone", "trades", "quotes"))


@pytest.fixture
def calls(agents: Pair, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return how often each action of the own agent was asked for."""
    counted: Counter[str] = Counter()
    call, own = AgentClient.call, agents.importer.client.location

    def counting(self: AgentClient, action: str, **more: Any) -> dict[str, Any]:
        if self.location == own:  # sources of other tests may still renew their leases
            counted[action] += 1
        return call(self, action, **more)

    monkeypatch.setattr(AgentClient, "call", counting)
    return counted


def idle(*runs: Run) -> float:
    """Ask as Spark does while there is nothing new; return how many calls each may make.

    That is two a second, and two for each time that the machine stood still meanwhile.
    """
    began, pause, late = time.monotonic(), threading.Event(), 0
    while time.monotonic() < began + IDLE_SECONDS:
        for run in runs:
            assert run.plan() == run.at
        paused = time.monotonic()
        pause.wait(SPARK_PAUSE)
        late += time.monotonic() > paused + FRESH_SECONDS / 2
    return 2 * (time.monotonic() - began + late + 1)


def opened(agents: Pair, port: str, **options: Any) -> Run:
    run = Run(agents.importer, port, **options)

    def at_rest() -> bool:
        end = run.plan()
        if end != run.at:
            run.read(end)
        return bool(run.at.get("last"))

    until(at_rest, SECONDS, "an open route")
    return run


def test_a_query_of_which_nothing_is_known_asks_twice_a_second_at_most(
    agents: Pair, calls: Counter[str]
) -> None:
    run = opened(agents, "alone")
    calls.clear()
    most = idle(run)
    assert sum(calls.values()) <= most, calls
    Publishing(agents.exporter, port="alone").publish(0, rows(0, 5))
    read: list[int] = []

    def rest() -> bool:
        if (end := run.plan()) != run.at:
            read.extend(run.read(end))
        return bool(read)

    until(rest, SECONDS, "rows")
    assert read == list(range(5))
    assert agents.importer.status()["imports"]["readers"][run.at["reader"]]["alive"]
    run.stop()


def test_two_imports_of_one_query_ask_twice_a_second_each_at_most(
    agents: Pair, calls: Counter[str]
) -> None:
    runs = [opened(agents, port, frame=port) for port in ("trades", "quotes")]
    reported: dict[str, Any] = {"query": "q", "run": "r", "exports": [], "foreign": False}
    agents.importer.client.call("query.begin", **reported, frames=["trades", "quotes"])
    calls.clear()
    most = idle(*runs)
    assert sum(calls.values()) <= 2 * most, calls
    for run in runs:
        run.stop()
