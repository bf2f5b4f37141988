"""Real agents in processes of their own, with routes written by hand instead of a broker."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import signal
import subprocess
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from pe_agent.agent.state.store import Store
from pe_agent.transport import agent_client
from pe_agent.transport.agent_client import AgentClient
from pe_agent.transport.agent_tls import AgentTrust
from pe_agent.transport.flight_errors import AgentRefusedError
from streambroker_core.model import (
    Archive,
    Buffer,
    Durability,
    OnCongestion,
    PeKey,
    Policy,
    PortKey,
)
from streambroker_core.model.policies import NO_POLICIES, Policies
from streambroker_core.wire.broker import capability
from streambroker_core.wire.broker.view import (
    ExportPort,
    ExportRoute,
    ImportPort,
    ImportRoute,
    View,
    encode,
    with_version,
)
from support.processes.certificates import Authority
from support.processes.forks import AGENT, Process, program
from support.processes.ports import free_port
from support.processes.waiting import first_line, until

SCHEMA = pa.schema([("n", pa.int64()), ("name", pa.string())])
DDL = "`n` bigint, `name` string"
START_SECONDS = 60.0


def rows(first: int, count: int, schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    """Return rows ``n`` = first, first + 1, … with a name each."""
    numbers = range(first, first + count)
    return pa.RecordBatch.from_pydict(
        {"n": list(numbers), "name": [f"row {n}" for n in numbers]}, schema=schema
    )


@dataclass(eq=False)
class AgentProcess:
    """One agent over a data directory; it can be killed and started again on its port."""

    home: Path
    job: str
    _: KW_ONLY
    port: int = 0
    broker: str | None = None
    secured: Authority | None = None
    linger: float = 900.0
    environment: Mapping[str, str] | None = None
    number: InitVar[int] = 0
    fresh: bool = False
    main: Sequence[str] = AGENT
    process: Process | None = None
    line: str = ""

    def __post_init__(self, number: int) -> None:
        self.trust = self.secured.trust() if self.secured else AgentTrust()
        self.pe = f"default/{self.job}/{number}"
        self.key = zlib.crc32(self.job.encode()).to_bytes(4, "big") * 8
        self.log = self.home.parent / f"{self.home.name}.err"

    def prepare(self) -> None:
        """Make the data directory and put the key into it."""
        self.home.mkdir(parents=True, exist_ok=True)
        store = Store(self.home / "state.sqlite")
        store.set("key", self.key.hex())
        store.close()

    def spawn(self) -> Process:
        command = [*self.main, "--home", str(self.home), "--job", self.job]
        command += ["--pe", self.pe.rpartition("/")[2], "--host", "127.0.0.1"]
        command += ["--linger", str(self.linger)]
        if self.port:
            command += ["--port", str(self.port)]
        if self.broker:
            command += ["--broker", self.broker]
        if self.secured:
            command += ["--tls-cert", str(self.secured.certificate)]
            command += ["--tls-key", str(self.secured.key), "--agent-ca", str(self.secured.ca)]
        with self.log.open("a") as errors:
            self.process = program(
                command,
                stdout=subprocess.PIPE,
                stderr=errors,
                environment={**os.environ, **(self.environment or {})},
                fresh=self.fresh,
            )
        return self.process

    def start(self) -> AgentProcess:
        self.spawn()
        return self.ready()

    def ready(self) -> AgentProcess:
        process = self.process
        assert process is not None
        assert process.stdout is not None
        self.line = first_line(process.stdout, START_SECONDS, f"agent of {self.job} listening")
        assert "listening on" in self.line, f"agent of {self.job}: {self.log.read_text()}"
        self.port = int(self.address["port"])
        # A connection to an agent that was killed waits up to half a second until it tries again.
        agent_client._clients.pop((os.getpid(), self.location), None)
        return self

    def refusal(self) -> str:
        """Start it, expect it to refuse, and return what it says."""
        process = self.spawn()
        out, _ = process.communicate(timeout=START_SECONDS)
        assert process.returncode == 1, f"exit {process.returncode}: {out} {self.log.read_text()}"
        return self.log.read_text().splitlines()[-1]

    @property
    def address(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.home / "agent.json").read_text())
        return found

    @property
    def location(self) -> str:
        return f"grpc+{'tls' if self.secured else 'tcp'}://127.0.0.1:{self.port}"

    @property
    def client(self) -> AgentClient:
        """A client that knows the agent's token."""
        return AgentClient(self.location, str(self.address["token"]), self.trust)

    def limit_files(self, size: int) -> None:
        """Let no file of the running agent grow beyond ``size`` bytes; -1 for no limit."""
        assert self.process is not None
        _, hard = resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (size, hard))

    def segments(self, port: str = "trades") -> list[Path]:
        """Return the files of the logs of one export, oldest first."""
        return sorted((self.home / "log" / port).glob("*/*.*"))

    def kill(self) -> None:
        """End it at once, as a loss of the machine would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        if self.process is None:
            return
        if self.process.poll() is None:
            os.kill(self.process.pid, how)
        self.process.wait(START_SECONDS)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.process = None

    def restart(self) -> None:
        self.kill()
        self.start()

    def status(self) -> dict[str, Any]:
        return self.client.call("status")

    def export_status(self, port: str = "trades") -> dict[str, Any]:
        found: dict[str, Any] = self.status()["exports"][f"{self.pe}/{port}"]
        return found

    def reader_status(self, reader: str, port: str = "trades") -> dict[str, Any]:
        found: dict[str, Any] = self.export_status(port)["readers"][reader]
        return found

    # -- routes ------------------------------------------------------------------------------

    def write_routes(self, view: View) -> None:
        """Leave a view in the data directory; it is read at the next start."""
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "routes.json").write_text(json.dumps(encode(with_version(view))))


@dataclass(frozen=True, kw_only=True)
class Plumbing:
    """How the exports of one job reach the imports of the same name of another."""

    policy: Policy = "wait"
    start: str = "earliest"
    filter: str | None = None
    max_bytes: int = 1 << 30
    durability: Durability = "local"
    archive: Archive | None = None
    grace: float = 600.0
    allow_filter: bool = True
    ports: Sequence[str] = ("trades",)
    on_congestion: OnCongestion = "inherit"
    connected: bool = True
    revoked: tuple[str, ...] = ()
    policies: Policies = NO_POLICIES
    only: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def at(self, port: str) -> Plumbing:
        """Return what holds for one port: ``only`` has what differs."""
        return dataclasses.replace(self, **self.only.get(port, {}))


def export_view(exporter: AgentProcess, importer_pe: str, plumbing: Plumbing) -> View:
    """Return the exporter's view: its exports, each with the route to its import."""
    ports = {}
    for port in plumbing.ports:
        how = plumbing.at(port)
        route = ExportRoute(
            import_=PortKey.parse(f"{importer_pe}/{port}"),
            uid=f"import {port}",
            filter=how.filter,
            policy=how.policy,
        )
        ports[port] = ExportPort(
            uid=f"export {port}",
            properties={"kind": port},
            allow_filter=how.allow_filter,
            congestion_policy=how.policy,
            buffer=Buffer(max_bytes=how.max_bytes, grace_s=how.grace),
            durability=how.durability,
            archive=how.archive,
            routes=(route,) if how.connected else (),
            revoked=how.revoked,
            policies=how.policies,
        )
    return View(pe=PeKey.parse(exporter.pe), exports=ports)


def import_view(importer: AgentProcess, exporter: AgentProcess, plumbing: Plumbing) -> View:
    """Return the importer's view: its imports, each with the route to its export."""
    ports = {}
    for port in plumbing.ports:
        how = plumbing.at(port)
        token = capability.sign(
            exporter.key,
            reader_import=f"{importer.pe}/{port}",
            export=f"{exporter.pe}/{port}",
            filter_allowed=how.allow_filter,
            policy=how.policy,
            policed=bool(how.policies),
        )
        route = ImportRoute(
            export=PortKey.parse(f"{exporter.pe}/{port}"),
            uid=f"export {port}",
            location=exporter.location,
            filter=how.filter,
            policy=how.policy,
            capability=token,
        )
        ports[port] = ImportPort(
            uid=f"import {port}",
            subscription=f'kind == "{port}"',
            filter=how.filter,
            start=how.start,
            on_congestion=how.on_congestion,
            routes=(route,) if how.connected else (),
        )
    return View(pe=PeKey.parse(importer.pe), imports=ports)


@dataclass
class Pair:
    exporter: AgentProcess
    importer: AgentProcess
    how: Plumbing

    def plumb(self, **changes: Any) -> None:
        """Write the routes of both sides, as given or changed; read at the next start."""
        self.how = dataclasses.replace(self.how, **changes)
        self.exporter.write_routes(export_view(self.exporter, self.importer.pe, self.how))
        self.importer.write_routes(import_view(self.importer, self.exporter, self.how))

    def stop(self) -> None:
        self.exporter.kill()
        self.importer.kill()


def pair(
    directory: Path,
    *,
    exporting: Authority | None = None,
    importing: Authority | None = None,
    environment: Mapping[str, str] | None = None,
    **how: Any,
) -> Iterator[Pair]:
    """Yield two running agents, connected as asked for; they are killed afterwards."""
    exporter = AgentProcess(
        directory / "feed", "feed", port=free_port(), secured=exporting, environment=environment
    )
    importer = AgentProcess(directory / "alerts", "alerts", secured=importing)
    both = Pair(exporter, importer, Plumbing(**how))
    exporter.prepare()
    importer.prepare()
    try:
        both.plumb()
        exporter.spawn()
        importer.spawn()
        exporter.ready()
        importer.ready()
        yield both
    finally:
        both.stop()


@dataclass
class Publishing:
    """A query that publishes to a port, without Spark."""

    agent: AgentProcess
    query: str = "query-1"
    run: str = "run-1"
    port: str = "trades"
    ddl: str = DDL

    def _named(self, batch: int) -> dict[str, Any]:
        found = {"export": self.port, "query": self.query, "run": self.run}
        return {**found, "batch": batch, "ddl": self.ddl}

    def admit(self, batch: int, *, renewed: int | None = None) -> dict[str, Any]:
        named = self._named(batch)
        return self.agent.client.call("publisher.admit", **named, renewed=renewed)

    def stage(self, batch: int, *batches: pa.RecordBatch) -> dict[str, Any]:
        return self.agent.client.put(self._named(batch), batches[0].schema, batches)

    def commit(self, batch: int, stages: Sequence[dict[str, Any]]) -> dict[str, Any]:
        named = {**self._named(batch), **({} if stages else {"ddl": None})}
        return self.agent.client.call("publisher.publish", **named, stages=list(stages))

    def publish(self, batch: int, *batches: pa.RecordBatch) -> dict[str, Any]:
        assert self.admit(batch)["admitted"]
        return self.commit(batch, [self.stage(batch, *batches)])


@dataclass
class Reading:
    """A query that reads an import, without Spark."""

    agent: AgentProcess
    port: str = "trades"
    session: str = "session-1"
    columns: Sequence[str] = ("n", "name")
    max_bytes: int = 256 << 20
    start: dict[str, Any] | None = None

    def next(
        self, start: dict[str, Any] | None, *, wait: float = 0.0, **more: Any
    ) -> dict[str, Any]:
        named = {"import": self.port, "session": self.session, "columns": list(self.columns)}
        request = {**named, "max_bytes": self.max_bytes, "limit": None, "wait": wait, **more}
        return self.agent.client.call("reader.next", start=start, **request)

    def end(self, start: dict[str, Any] | None, seconds: float = 10.0) -> dict[str, Any]:
        """Return an offset behind ``start`` that has something to read."""

        def found() -> dict[str, Any] | None:
            nonlocal start
            moved: dict[str, Any] | None = self.next(start, wait=0.2).get("offset")
            if moved is None:
                return None
            if _next(moved) != _next(start):
                return moved
            start = moved
            return None

        return until(found, seconds, f"news for import {self.port}")

    def open(self) -> dict[str, Any]:
        """Return the first offset with the route open: nothing before it is asked for."""
        offset: dict[str, Any] = {}

        def opened() -> dict[str, Any] | None:
            nonlocal offset
            offset = self.next(offset or None)["offset"] or offset
            return offset if offset.get("last") else None

        return until(opened, 10.0, f"route of import {self.port} open")

    def slices(self, start: dict[str, Any] | None, end: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the tickets of a batch; an exporter that is away is waited for."""
        named = {"import": self.port, "session": self.session}
        request: dict[str, Any] = {**named, "start": start, "end": end}

        def cut() -> dict[str, Any] | None:
            try:
                return self.agent.client.call("reader.slices", **request)
            except AgentRefusedError as error:
                if error.code != "AgentUnreachable":
                    raise
                return None

        found: list[dict[str, Any]] = until(cut, 15.0, "exporter back")["slices"]
        return found

    def batches(self, ticket: dict[str, Any], skip: int = 0) -> list[pa.RecordBatch]:
        client = AgentClient(ticket["location"], trust=self.agent.trust)
        return [b for b, _ in client.get({**ticket, "skip": skip})]

    def read(self, start: dict[str, Any] | None, end: dict[str, Any]) -> list[int]:
        """Return column ``n`` of a batch's rows, in order."""
        return [
            n
            for ticket in self.slices(start, end)
            for batch in self.batches(ticket)
            for n in batch.column("n").to_pylist()
        ]


def leave_two_unread(feed: AgentProcess, alerts: AgentProcess) -> Publishing:
    """Publish three epochs of ten rows, and read the first; return the publisher."""
    reading = Reading(alerts)
    start = reading.open()
    publishing = Publishing(feed)
    publishing.publish(0, rows(0, 10))
    end = reading.end(start)
    assert reading.read(start, end) == list(range(10))
    reading.next(end)
    for batch in (1, 2):
        publishing.publish(batch, rows(batch * 10, 10))
    return publishing


def _next(offset: Mapping[str, Any] | None) -> dict[str, int]:
    streams: Mapping[str, Any] = (offset or {}).get("streams", {})
    return {s: p["next"] for s, p in streams.items() if p["next"] > p["from"]}


def error_code(call: Callable[..., object], *args: Any, **more: Any) -> str:
    try:
        answer = call(*args, **more)
    except Exception as error:
        return str(getattr(error, "code", type(error).__name__))
    raise AssertionError(f"no error, but {answer!r}")
