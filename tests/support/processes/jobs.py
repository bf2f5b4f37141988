"""Spark jobs in processes of their own, to be killed; and a broker likewise."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.cuts.points import VARIABLE, search_path
from support.processes.forks import CLI, program
from support.processes.waiting import until

if TYPE_CHECKING:
    from support.spark.connect import ConnectServer

START_SECONDS = 240.0


class Child:
    """A process group of its own, with its output in a file.

    Args:
        ready: how the line begins that it prints when it is ready.
        sources: where it looks for modules first; empty for nowhere else than this process.
        variables: more of its environment.
    """

    def __init__(
        self,
        command: list[str],
        output: Path,
        ready: str,
        *,
        sources: str = "",
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.output = output
        self._start = output.stat().st_size if output.exists() else 0
        path = search_path(held=VARIABLE in os.environ)
        if sources:
            path = os.pathsep.join([sources, path])
        environment = {**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable}
        environment |= variables or {}
        with output.open("ab") as file:
            self.process = program(
                command, stdout=file, stderr=file, environment=environment, own_group=True
            )
        self._ready = ready

    def said(self) -> str:
        with self.output.open(errors="replace") as file:
            file.seek(self._start)
            return file.read()

    def await_ready(self) -> str:
        def line() -> str | None:
            if self.process.poll() is not None:
                raise AssertionError(f"ended with {self.process.returncode}: {self.said()[-3000:]}")
            return next((x for x in self.said().splitlines() if x.startswith(self._ready)), None)

        return str(until(line, START_SECONDS, f"{self._ready!r} in {self.output}"))

    def kill(self) -> None:
        """End the whole group as a crash does: no handler runs."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        """End it if it runs; for clean-up."""
        if self.process.poll() is None:
            self.kill()


class Broker(Child):
    """``streambroker up``; started again it has its old port, file and options."""

    def __init__(
        self, folder: Path, port: int = 0, *, sources: str = "", options: Sequence[str] = ()
    ) -> None:
        self.folder, self.database = folder, folder / "broker.sqlite"
        self._options = options
        command = [*CLI, "up", "--db", str(self.database), "--port", str(port), *options]
        super().__init__(
            command, folder / "broker.out", "streambroker listening on", sources=sources
        )
        self.url = self.await_ready().split()[-1]

    def restart(self, sources: str = "") -> Broker:
        port = int(self.url.rpartition(":")[2])
        return Broker(self.folder, port, sources=sources, options=self._options)


class Job(Child):
    """``tests/support/processes/job.py`` with a plan.

    Args:
        server: the Spark Connect server that has its queries, and is killed with it.
    """

    def __init__(
        self, folder: Path, name: str, plan: dict[str, Any], server: ConnectServer | None = None
    ) -> None:
        self.folder, self.name, self.plan, self._server = folder, name, plan, server
        path = folder / f"{name}.json"
        path.write_text(json.dumps(plan))
        super().__init__(
            ["-m", "support.processes.job", str(path)],
            folder / f"{name}.out",
            "job ready",
            variables={"SPARK_REMOTE": server.url} if server else plan.get("variables", {}),
        )

    def kill(self) -> None:
        """End the process of its queries first: a client would know of the end of its own."""
        if self._server is not None:
            self._server.kill()
        if self.process.poll() is None:
            super().kill()

    def end(self) -> None:
        if self._server is not None:
            self._server.end()
        super().end()

    def restart(self) -> Job:
        if self._server is not None:
            self._server.kill()
            self._server.start()
        return Job(self.folder, self.name, self.plan, self._server)

    def agent_pid(self) -> int:
        found = json.loads((Path(self.plan["home"]) / "agent.json").read_text())
        return int(found["pid"])


def end_agent(home: Path) -> None:
    """End the agent of a data directory, if one runs."""
    try:
        pid = int(json.loads((home / "agent.json").read_text())["pid"])
        os.kill(pid, signal.SIGKILL)
    except (OSError, ValueError, KeyError):
        return
