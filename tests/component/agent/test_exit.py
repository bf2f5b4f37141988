"""A program that ends while one of its threads waits for an agent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.agents.agents import AgentProcess

PROGRAM = """
import ctypes, sys, threading
from pe_agent.transport.agent_client import AgentClient

client = AgentClient(*sys.argv[1:3])
seen = client.call("view", seen=None, wait=0)["version"]
libc = ctypes.CDLL(None)
libc.on_exit(libc.sleep, None)  # the process sleeps for as many seconds as its exit code says

def follow():
    while True:
        try:
            client.call("view", seen=seen, wait=0.5)
        except Exception:
            threading.Event().wait(0.5)

threads = [threading.Thread(target=follow, daemon=True) for _ in range(8)]
for each in threads:
    each.start()
sys.exit(1)
"""


@pytest.fixture
def agent(tmp_path: Path) -> AgentProcess:
    return AgentProcess(tmp_path / "agent", "feed")


def test_a_call_that_returns_while_the_program_ends_does_not_crash_it(agent: AgentProcess) -> None:
    agent.prepare()
    agent.start()
    try:
        arguments = [agent.location, agent.client.token]
        ended = subprocess.run(
            [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=False
        )
    finally:
        agent.kill()

    assert (ended.returncode, ended.stderr) == (1, "")
