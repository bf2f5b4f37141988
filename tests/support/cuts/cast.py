"""A broker, two agents and two queries without a JVM, each a process that may be killed at a step.

One cast plays many rows of the kill table, each over a port of its own with fresh queries.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import ssl
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pe_agent.agent.reports.prometheus import VARIABLE
from streambroker_core.errors import StreambrokerError
from support.agents.agents import AgentProcess
from support.cuts import points as cut_points
from support.cuts import queries
from support.cuts.points import (
    AGENT,
    BROKER,
    DRIVER,
    FEED_AGENT,
    FEED_DRIVER,
    FEED_WORKER,
    WORKER,
    Cut,
)
from support.processes.certificates import AGENT as CERTIFIED
from support.processes.certificates import Authority
from support.processes.forks import FORKS, QUERIES, Fork, ForkFailedError, Forks
from support.processes.jobs import Broker
from support.processes.ports import free_port
from support.processes.waiting import until
from support.spark.feeds import row

SECONDS = 100.0
FILTER = "price > 10.0"
SCHEMA = [
    {"name": "line", "type": "bigint"},
    {"name": "price", "type": "double"},
    {"name": "name", "type": "string"},
]
CERTIFICATES = "certificates of both agents"
"""Not killed: replaced."""
Found = tuple[int, float, str, int]
"""A row as it arrived, with its epoch."""


@dataclass
class Role:
    """A query's process, which is started again when it has ended too early."""

    function: str
    plan: dict[str, Any]
    process: Fork | None = None
    lives: int = 0
    failures: list[str] = field(default_factory=list)
    done: bool = False

    def tend(self) -> None:
        """Start it if it does not run; notice that it has ended."""
        if self.done:
            return
        if self.process is None:
            self.process = Fork("support.cuts.queries", self.function, self.plan)
            self.lives += 1
        elif self.process.ended():
            ended, self.process = self.process, None
            try:
                ended.result()
                self.done = True
            except ForkFailedError as error:
                self.failures.append(str(error))

    def kill(self) -> None:
        if self.process is not None:
            kill(self.process.pid)


class Cast:
    """The processes that stay over many rows; its agents serve metrics."""

    def __init__(
        self, folder: Path, secured: Authority | None = None, broker_options: Sequence[str] = ()
    ) -> None:
        self.folder, self.secured = folder, secured
        self.rows, self.failed = 0, False
        self.cuts = folder / "cuts"
        environment = {
            cut_points.VARIABLE: str(self.cuts),
            "PYTHONPATH": cut_points.search_path(held=True),
        }
        self.forks = Forks(folder / "forks", {**os.environ, **environment}, QUERIES)
        os.environ[FORKS] = str(self.forks.path)
        self.broker = Broker(folder, options=broker_options)
        url = self.broker.url
        self.exporter, self.importer = (
            AgentProcess(
                folder / job,
                job,
                port=free_port(),
                broker=url,
                secured=secured,
                linger=600,
                environment={**environment, VARIABLE: str(free_port())},
            )
            for job in ("feed", "alerts")
        )
        for agent in (self.exporter, self.importer):
            agent.spawn()
        for agent in (self.exporter, self.importer):
            agent.ready()

    def metrics_port(self, agent: AgentProcess) -> int:
        """Return the port that an agent has also after a restart."""
        return int((agent.environment or {})[VARIABLE])

    def end(self) -> None:
        self.forks.end()
        self.exporter.kill()
        self.importer.kill()
        self.broker.end()

    def roles(self, port: str, **plan: Any) -> tuple[Role, Role]:
        """Return the exporting and the importing query of a port, in a folder of its own."""
        folder = self.folder / port
        folder.mkdir()
        plan |= {"port": port, "folder": str(folder)}
        plan["ca"] = str(self.secured.ca) if self.secured else None
        for name, agent in (("exporter", self.exporter), ("importer", self.importer)):
            plan[name] = [agent.location, agent.address["token"]]
        return Role("exporting", plan), Role("importing", plan)

    def declare(
        self, port: str, *, policy: str, buffer: Mapping[str, str], filter_: str, **more: Any
    ) -> None:
        """Declare an export with ``more`` fields, and an import of it; both named as the port."""
        export = {
            **more,
            "properties": {"kind": port},
            "schema": SCHEMA,
            "congestionPolicy": policy,
            "buffer": dict(buffer),
        }
        import_ = {
            "subscription": f'kind == "{port}"',
            "start": "earliest",
            "filter": filter_,
            "schema": SCHEMA,
        }
        for agent, kind, spec in (
            (self.exporter, "export", export),
            (self.importer, "import", import_),
        ):
            agent.client.call(
                "declare",
                kind=kind,
                port=port,
                spec={"application": {"name": agent.job}, **spec},
                schema=SCHEMA if kind == "export" else None,
                redeclare=False,
            )

    def renew(self) -> None:
        """Give both agents another certificate, and wait until they show it."""
        assert self.secured is not None
        self.secured.issue(CERTIFIED)
        wanted = ssl.PEM_cert_to_DER_cert(self.secured.certificate.read_text())
        for agent in (self.exporter, self.importer):

            def shown(port: int = agent.port) -> bool:
                try:
                    pem = ssl.get_server_certificate(("127.0.0.1", port), timeout=5.0)
                except OSError:
                    return False
                return ssl.PEM_cert_to_DER_cert(pem) == wanted

            until(shown, 20.0, f"the agent of {agent.job} shows the new certificate", pause_s=0.1)

    def tend(self, *away: AgentProcess) -> None:
        """Start again who has ended, as the keeper in the driver does, but those who are away."""
        for agent in {self.exporter, self.importer}.difference(away):
            if agent.process is None or agent.process.poll() is not None:
                agent.kill()
                agent.start()
        if self.broker.process.poll() is not None:
            self.broker = self.broker.restart()


class Play:
    """One row of the table: two queries over one port, and one process that is killed.

    Args:
        fails: ``[what, batch]``: what goes wrong by itself at the exporter, once.
        stragglers: a second attempt of a task comes after each batch is published.
    """

    policy = "wait"
    buffer: Mapping[str, str] = MappingProxyType({"maxBytes": "1Gi"})

    def __init__(
        self,
        cast: Cast,
        step: str,
        victim: str,
        *,
        batches: int = 4,
        reading: Mapping[str, str] | None = None,
        fails: list[Any] | None = None,
        stragglers: bool = False,
    ) -> None:
        self.cast, self.victim, self.batches = cast, victim, batches
        self.port = f"row-{cast.rows}"
        cast.rows, cast.failed = cast.rows + 1, True
        self.folder = cast.folder / self.port
        self.exporting, self.importing = cast.roles(
            self.port, batches=batches, reading=dict(reading or {}), fails=fails,
            stragglers=stragglers, pauses=self.policy == "drop",
        )  # fmt: skip
        self.step, self.cut = step, Cut(cast.cuts, step)
        self.killed = False

    # -- the play ----------------------------------------------------------------------------

    def run(self) -> None:
        """Play to the end: the step was cut, all is published, read and acknowledged."""
        self.cast.declare(self.port, policy=self.policy, buffer=self.buffer, filter_=FILTER)
        try:
            until(self._through, SECONDS, f"all rows of {self.port} through")
            (self.folder / "stop").touch()
            until(self._ended, SECONDS, f"the query of {self.port} ended")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._story()}") from None
        finally:
            self.cut.disarm()
            for role in (self.exporting, self.importing):
                role.kill()

    def _turn(self) -> None:
        at = None if self.killed else self.cut.reached()
        if at is not None:
            self._kill(at)
            self.killed = True
            self.cut.go()
        self._tend()

    def _tend(self) -> None:
        self.cast.tend()
        if self.exporting.lives or self._may_publish():
            self.exporting.tend()
        self.importing.tend()

    def _may_publish(self) -> bool:
        """Whether the exporter may start."""
        return True

    def opened(self) -> bool:
        """Whether a batch of the importer that opened the export has ended: it keeps all epochs."""
        log = queries.Checkpoint(self.folder / "importing")
        return bool((log.read("offsets", log.last("commits")) or {}).get("last"))

    def _through(self) -> bool:
        self._turn()
        if not (self.killed and self.exporting.done):
            return False
        return self.epochs()[-1:] == [self.batches - 1] and self.figures() is not None

    def _ended(self) -> bool:
        self._turn()
        return self.importing.done

    def _kill(self, at: int) -> None:
        """Kill the victim and wait until it is gone; ``at`` is the process at the step."""
        cast = self.cast
        deeds: dict[str, Callable[[], None]] = {
            FEED_AGENT: cast.exporter.kill,
            AGENT: cast.importer.kill,
            BROKER: cast.broker.kill,
            FEED_DRIVER: self.exporting.kill,
            DRIVER: self.importing.kill,
            FEED_WORKER: lambda: self._kill_workers("exporting", at),
            WORKER: lambda: self._kill_workers("importing", at),
            CERTIFICATES: cast.renew,
        }
        deeds[self.victim]()

    def _kill_workers(self, role: str, at: int) -> None:
        """Kill the task at the step; where none stands there, all that run."""
        pids = [int(f.name) for f in (self.folder / f"{role}-workers").iterdir()]
        for pid in [at] if at in pids else pids:
            kill(pid)

    # -- what came of it -----------------------------------------------------------------------

    def rows(self) -> list[Found]:
        """Return all rows that the importing sink has committed."""
        found = []
        for path in (self.folder / "sink").glob("batch-*"):
            found += [(r[0], r[1], r[2], r[4]) for r in json.loads(path.read_text())]
        return found

    def epochs(self) -> list[int]:
        """Return the epochs that the committed batches of the importer have read, in order."""
        return [e for _, first, next_ in self.planned("commits") for e in range(first, next_)]

    def planned(self, log: str = "offsets") -> list[tuple[str, int, int]]:
        """Return stream, first and next epoch of all batches in one of the importer's logs."""
        entries = queries.Checkpoint(self.folder / "importing").batches(log)
        return [(s, *epochs) for _, read in entries for s, epochs in read.items()]

    def expected(self) -> Counter[Found]:
        """Return the rows that the fed batches say, each in the epoch of its batch."""
        rows = ((*row(line), b) for b in self.epochs() for line in queries.lines(b))
        return Counter(r for r in rows if r[1] > 10.0)

    def figures(self) -> dict[str, Any] | None:
        """Return the reader's figures at the exporter once it has acknowledged everything."""
        log = queries.Checkpoint(self.folder / "importing")
        name = log.read("offsets", log.last("offsets"))["reader"]
        try:
            reader = self.cast.exporter.reader_status(name, self.port)
        except StreambrokerError:
            return None
        through = list(reader["positions"].values()) == [self.batches] and not reader["planned"]
        return reader if through else None

    def check(self) -> None:
        """Every row once, in its epoch; every repeated batch the same; every row counted once."""
        epochs = self.epochs()
        assert self.complete(epochs), epochs
        assert Counter(self.rows()) == self.expected()
        assert not list((self.folder / "sink").glob("differs-*"))
        for role in ("exporting", "importing"):
            done = queries.Checkpoint(self.folder / role)
            assert done.last("commits") == done.last("offsets")
        figures = self.figures()
        assert figures is not None
        delivered, read = self.expected().total(), len(epochs) * queries.ROWS_PER_BATCH
        lost = self.batches - len(epochs)
        assert figures["delivered"] == delivered
        assert figures["filtered"] == read - delivered
        assert figures["dropped"] == [lost, lost * queries.ROWS_PER_BATCH]
        assert figures["duplicates"] == [0, 0]

    def complete(self, epochs: list[int]) -> bool:
        """Whether these are the epochs that had to be read."""
        return epochs == list(range(self.batches))

    def check_lives(self, failing: int = 0) -> None:
        """No query failed but the one that was killed, and as often as failures were asked for."""
        lives = (self.exporting.lives, self.importing.lives)
        assert lives == (1 + (self.victim == FEED_DRIVER) + failing, 1 + (self.victim == DRIVER)), (
            self._story()
        )

    def passed(self) -> None:
        """All is as it should be: the cast can play on."""
        self.cast.failed = False

    def _story(self) -> str:
        return "\n".join(
            [
                f"killed: {self.killed}, rows: {len(self.rows())} of {self.expected().total()}",
                f"exporting: {self.exporting.lives} lives, {self.exporting.failures}",
                f"importing: {self.importing.lives} lives, {self.importing.failures}",
            ]
        )


def kill(pid: int) -> None:
    """Kill a process at once and wait until it is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{pid}").exists(), 60.0, f"process {pid} gone")
