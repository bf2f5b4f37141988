"""The processes that are measured: a broker, agents, Spark applications, Flight's peer."""

from __future__ import annotations

import json
import os
import queue
import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import rows

from pe_agent.agent.process import read_address
from pe_agent.job.agent.agent_process import AgentProcess
from pe_agent.transport.agent_client import AgentClient
from pe_agent.transport.agent_tls import AgentCertificate, AgentTrust
from streambroker_core.model import PeKey
from streambroker_core.model.schema import parse_ddl, to_items

SECONDS = 180.0
ANSWER = "@@ "
STARTED = "@started"
WITH_PARENT = ("setpriv", "--pdeathsig", "TERM", "--") if shutil.which("setpriv") else ()
_T = TypeVar("_T")


def until(found: Callable[[], _T | None], what: str, seconds: float = SECONDS) -> _T:
    """Return what ``found`` finds, looking every 20 ms.

    Raises:
        TimeoutError: nothing in ``seconds``.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = found()
        if value:
            return value
        time.sleep(0.02)
    raise TimeoutError(f"no {what} after {seconds:.0f} s")


def environment() -> dict[str, str]:
    """Return the environment of a child: it and its Spark workers find these modules.

    What it imports is kept compiled, as it is where the packages are installed.
    """
    kept = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {
        **kept,
        "PYTHONPATH": str(Path(__file__).parent),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONUNBUFFERED": "1",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


class Child:
    """A process that writes lines to its standard output and errors to a file.

    It ends when the thread that started it is gone, however that came.
    """

    def __init__(self, command: list[str], log: Path) -> None:
        self._log = log
        self.lines: queue.Queue[str] = queue.Queue()
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [*WITH_PARENT, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment(),
            )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.lines.put(line.rstrip("\n"))
        self.lines.put("")

    def line(self, start: str, seconds: float = SECONDS) -> str:
        """Return the rest of the next line that begins with ``start``.

        Raises:
            RuntimeError: the process ended.
        """
        while True:
            line = self.lines.get(timeout=seconds)
            if line.startswith(start):
                return line[len(start) :]
            if not line and self.process.poll() is not None:
                raise RuntimeError(f"a child ended: {self._log.read_text()[-3000:]}")

    def end(self) -> None:
        """End it in order, by force after 20 s."""
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()


class Family:
    """Processes of one benchmark, which end together: the last one first."""

    def __init__(self) -> None:
        self._members: list[Any] = []

    def with_(self, child: _T) -> _T:
        """Take in a process that was just started, and return it."""
        self._members.append(child)
        return child

    def end(self) -> None:
        """End all processes."""
        for child in reversed(self._members):
            child.end()


class Broker(Child):
    """``streambroker up`` on a free port."""

    def __init__(self, place: Path, *options: str) -> None:
        command = [sys.executable, "-m", "streambroker_operator.cli", "up", *options]
        super().__init__(
            [*command, "--db", str(place / "broker.sqlite"), "--port", "0"], place / "broker.log"
        )
        self.url = self.line("streambroker listening on ")


class Reader:
    """What the Spark source asks of an agent and reads, by hand."""

    def __init__(self, client: AgentClient, trust: AgentTrust | None = None) -> None:
        self._client, self._trust = client, trust
        self._session = secrets.token_hex(8)

    def plan(self, port: str, start: dict[str, Any] | None, max_bytes: int) -> dict[str, Any]:
        """Return the offset behind ``start``; waits until there is one."""
        return until(lambda: self.next(port, start, max_bytes), f"news for {port}")

    def next(
        self, port: str, start: dict[str, Any] | None, max_bytes: int
    ) -> dict[str, Any] | None:
        """Return the offset behind ``start``, None if there is none within half a second."""
        named: dict[str, Any] = {"import": port}
        found: dict[str, Any] | None = self._client.call(
            "reader.next",
            session=self._session,
            start=start,
            max_bytes=max_bytes,
            wait=0.5,
            columns=rows.SCHEMA.names,
            limit=None,
            **named,
        )["offset"]
        return found

    def leave(self, offset: dict[str, Any]) -> None:
        """End in order: what the reader claims is kept for the grace of the export."""
        self._client.call("reader.leave", reader=offset["reader"], session=self._session)

    def read(
        self, port: str, start: dict[str, Any] | None, end: dict[str, Any]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a batch, slice by slice."""
        for ticket in self.tickets(port, start, end):
            client = AgentClient(ticket["location"], trust=self._trust)
            for batch, _ in client.get({**ticket, "skip": 0}):
                yield batch

    def tickets(
        self, port: str, start: dict[str, Any] | None, end: dict[str, Any]
    ) -> list[dict[str, Any]]:
        """Return what a batch reads, slice by slice."""
        named: dict[str, Any] = {"import": port}
        reported = self._client.call(
            "reader.slices", session=self._session, start=start, end=end, **named
        )
        tickets: list[dict[str, Any]] = reported["slices"]
        return tickets


class Agent:
    """An agent without Spark: what a job would ask for, asked for by hand."""

    def __init__(
        self,
        place: Path,
        job: str,
        broker: str,
        *,
        certificate: AgentCertificate | None = None,
        trust: AgentTrust | None = None,
        storage: str | None = None,
    ) -> None:
        self.pe = f"default/{job}/0"
        self.home = place / f"home-{job}"
        self._process = AgentProcess(
            PeKey.parse(self.pe),
            self.home,
            broker=broker,
            linger=30.0,
            host="127.0.0.1",
            port=0,
            certificate=certificate,
            trust=trust,
            storage=storage,
        )
        self._reader = Reader(self.client, trust)

    @property
    def client(self) -> AgentClient:
        """A client with the agent's token."""
        return self._process.client

    @property
    def pid(self) -> int:
        """The agent's process."""
        found = read_address(self.home)
        assert found is not None
        return int(found["pid"])

    def end(self) -> None:
        """End the agent."""
        self._process.stop(end_agent=True)

    def export(
        self,
        port: str,
        *,
        max_bytes: str = "8Gi",
        buffer: dict[str, str] | None = None,
        **more: Any,
    ) -> None:
        """Declare an export of the measured rows with the property ``kind``."""
        spec = {
            "application": {"name": "bench"},
            "properties": {"kind": port},
            "schema": to_items(parse_ddl(rows.DDL)),
            "buffer": {"maxBytes": max_bytes, **(buffer or {})},
            **more,
        }
        self.client.call("declare", kind="export", port=port, spec=spec)

    def import_(self, port: str, **more: Any) -> None:
        """Declare an import of the exports of that kind."""
        spec = {
            "application": {"name": "bench"},
            "subscription": f'kind == "{port}"',
            "start": "earliest",
            **more,
        }
        self.client.call("declare", kind="import", port=port, spec=spec)

    def view(self) -> dict[str, Any]:
        """Return the agent's view, empty while there is none."""
        view: dict[str, Any] | None = self.client.call("view")["view"]
        return view or {"imports": {}, "exports": {}}

    def await_route(self, port: str) -> None:
        """Wait until the import has a route."""
        until(lambda: self.view()["imports"].get(port, {}).get("routes"), f"route to {port}")

    # -- what the Spark sink does ------------------------------------------------------------

    def publish(self, port: str, batch: int, stages: Iterable[list[pa.RecordBatch]]) -> None:
        """Admit, stage one after the other, publish."""
        who: dict[str, Any] = {
            "export": port,
            "query": f"query-{port}",
            "run": "run",
            "ddl": rows.DDL,
        }
        reported = self.client.call("publisher.admit", batch=batch, renewed=None, **who)
        if not reported.get("admitted"):
            raise RuntimeError(f"not admitted: {reported}")
        done = [self.client.put({**who, "batch": batch}, rows.SCHEMA, stage) for stage in stages]
        self.client.call("publisher.publish", batch=batch, stages=done, timeout=30.0, **who)

    # -- what the Spark source does ----------------------------------------------------------

    def plan(self, port: str, start: dict[str, Any] | None, max_bytes: int) -> dict[str, Any]:
        """Return the offset behind ``start``; waits until there is one."""
        return self._reader.plan(port, start, max_bytes)

    def read(
        self, port: str, start: dict[str, Any] | None, end: dict[str, Any]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a batch, slice by slice."""
        return self._reader.read(port, start, end)


class App(Child):
    """A Spark application in a process of its own; see :mod:`spark_app`.

    Attributes:
        program: the module that it runs.
    """

    program = "spark_app"

    def __init__(self, place: Path, job: str, **plan: Any) -> None:
        self.home = place / f"home-{job}"
        text = json.dumps({"job": job, "home": str(self.home), **plan})
        super().__init__([sys.executable, "-m", self.program, text], place / f"{job}.log")

    def ready(self) -> App:
        """Wait until the session is there."""
        self.answer()
        return self

    def send(self, **order: Any) -> None:
        """Give an order and do not wait."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def answer(self, seconds: float = SECONDS) -> Any:
        """Return the answer to the eldest order that has none."""
        return json.loads(self.line(ANSWER, seconds))

    def run(self, **order: Any) -> Any:
        """Give an order and wait for its answer."""
        self.send(**order)
        return self.answer()

    def end(self) -> None:
        """Let it end its queries, agent and session."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            super().end()
