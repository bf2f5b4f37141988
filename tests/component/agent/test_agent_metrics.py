"""A real agent tells its figures to Prometheus, and goes on where it cannot."""

from __future__ import annotations

import socket
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.agents.agents import AgentProcess, Publishing, rows
from support.processes.waiting import until


@pytest.fixture
def agent(tmp_path: Path) -> AgentProcess:
    one = AgentProcess(tmp_path / "feed", "feed", environment={"STREAMBROKER_METRICS_PORT": "0"})
    one.prepare()
    return one


def scraped(agent: AgentProcess) -> dict[str, float]:
    url = f"http://127.0.0.1:{agent.address['metrics']}/metrics"
    with urllib.request.urlopen(url, timeout=30) as answer:
        reported = answer.read().decode()
    return {
        one.name: one.value
        for family in text_string_to_metric_families(reported)
        for one in family.samples
    }


def test_what_is_published_is_reported_also_after_a_restart(agent: AgentProcess) -> None:
    agent.start()
    try:
        agent.client.call("declare", kind="export", port="trades", spec=None)
        Publishing(agent).publish(0, rows(0, 7))
        assert scraped(agent)["streambroker_export_published_rows_total"] == 7
        agent.kill()
        agent.start()
        found = scraped(agent)
        assert found["streambroker_export_published_rows_total"] == 7
        assert found["streambroker_recovery_seconds"] > 0
    finally:
        agent.kill()


def test_an_agent_whose_port_for_figures_is_taken_says_so_and_serves(agent: AgentProcess) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        agent.environment = {"STREAMBROKER_METRICS_PORT": str(taken.getsockname()[1])}
        agent.start()
        try:
            assert agent.address["metrics"] is None
            assert agent.status()["pe"] == agent.pe
            until(
                lambda: "cannot serve metrics at 127.0.0.1" in agent.log.read_text(),
                10.0,
                "a word of it",
            )
        finally:
            agent.kill()
