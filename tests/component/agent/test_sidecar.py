"""An agent that a kubelet keeps beside a driver that adopts it: both start it again."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import streambroker as sb
from pe_agent.agent.process import read_address
from support.agents.agents import AgentProcess, Pair, Plumbing, Publishing, Reading, rows
from support.processes.forks import AGENT, Process, program
from support.processes.ports import free_port
from support.processes.waiting import until

SECONDS = 40.0


class Kubelet:
    """Starts an agent again when it ends, after a pause.

    Attributes:
        pause_s: how long it waits before that, from the first end on.
        ending: set when it is to start none any more.
        refused: how often its agent ended because another one had the data directory.
    """

    def __init__(self, agent: AgentProcess, pause_s: float) -> None:
        self._agent, self.pause_s = agent, pause_s
        self.refused = 0
        self.process: Process | None = None
        self.ending = threading.Event()
        self._thread = threading.Thread(target=self._keep)

    @contextmanager
    def running(self) -> Iterator[Kubelet]:
        self._thread.start()
        try:
            yield self
        finally:
            self.ending.set()
            if self.process is not None:
                self.process.terminate()
            self._thread.join(SECONDS)

    def _keep(self) -> None:
        command = [*AGENT, "--home", str(self._agent.home)]
        command += ["--job", self._agent.job, "--host", "127.0.0.1", "--linger", "-1"]
        command += ["--port", str(self._agent.port)]
        with self._agent.log.open("ab") as out:
            while not self.ending.is_set():
                self.process = program(command, stdout=out, stderr=out)
                self.refused += self.process.wait() == 1
                self.ending.wait(self.pause_s)


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Pair]:
    """An importer that runs, and an exporter that somebody else is to run."""
    exporter = AgentProcess(tmp_path / "feed", "feed", port=free_port())
    importer = AgentProcess(tmp_path / "alerts", "alerts")
    both = Pair(exporter, importer, Plumbing())
    exporter.prepare()
    importer.prepare()
    both.plumb()
    importer.start()
    yield both
    importer.kill()


def listeners(port: int) -> int:
    """Return how many sockets listen on a port; several may share one."""
    tables = (Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6"))
    lines = [row.split() for table in tables for row in table.splitlines()[1:]]
    return sum(int(row[1].split(":")[1], 16) == port and row[3] == "0A" for row in lines)


@pytest.mark.parametrize("pause_s", [0.1, pytest.param(5.0, marks=pytest.mark.long)])
def test_after_a_kill_one_agent_serves_and_the_stream_goes_on(agents: Pair, pause_s: float) -> None:
    """The driver's turn comes some two seconds after the kill."""
    home, port = agents.exporter.home, agents.exporter.port
    spark: Any = SimpleNamespace(dataSource=SimpleNamespace(register=lambda _: None))
    with Kubelet(agents.exporter, pause_s).running() as kubelet:
        first = until(lambda: read_address(home), SECONDS, "an agent")
        pe = sb.start(spark, job="feed", data_dir=home, linger=20, agent=sb.AgentOptions(port=port))
        heard: list[str] = []
        pe.context.process.beat_callbacks.append(lambda: heard.append(pe.agent.location))
        try:
            publisher, reader = Publishing(agents.exporter), Reading(agents.importer)
            start = reader.open()
            publisher.publish(0, rows(0, 3))
            os.kill(first["pid"], signal.SIGKILL)

            def other() -> int | None:
                found = read_address(home)
                pid = None if found is None else int(found["pid"])
                return None if pid == first["pid"] else pid

            def settled() -> bool:
                # Whoever was second has found the directory taken, or has had nothing to do.
                own = kubelet.process
                return kubelet.refused > 0 or (own is not None and own.pid == other())

            pid = until(other, SECONDS, "another agent")
            until(settled, SECONDS, "who is second is done")
            heard.clear()
            until(lambda: len(heard) > 5, SECONDS, "the driver hears of its agent")
            publisher.publish(1, rows(3, 3))
            end = reader.end(start)

            assert other() == pid
            assert listeners(port) == 1
            assert pe.agent.location == agents.exporter.location
            assert reader.read(start, end) == list(range(6))
            # Else the first beat that is missed later on would pass for the agent's end.
            child = pe.context.process._process
            assert child is None or child.poll() is None
        finally:
            kubelet.ending.set()
            pe.stop(end_agent=True)
