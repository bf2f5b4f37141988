"""A broker, an exporting and an importing Spark job as processes, and the check of every row."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pe_agent.agent.process import read_address
from pe_agent.agent.reports.prometheus import VARIABLE
from pe_agent.transport.agent_client import AgentClient
from pe_agent.transport.agent_tls import AgentTrust
from pe_agent.transport.broker_client import BrokerClient
from pe_agent.transport.flight_errors import AgentUnreachableError
from streambroker_core.control.operators.dead_letters import DEAD_LETTERS
from support.processes.certificates import Authority
from support.processes.jobs import Broker, Job, end_agent
from support.processes.ports import free_port
from support.processes.waiting import until
from support.spark.checkpoints import batches, committed, expected, files_by_batch, offset, received
from support.spark.connect import ConnectServer
from support.spark.feeds import Feed, Row
from support.spark.operators import REFUSED

SECONDS = 240.0
LETTERS = "letters"
LETTER_DDL = (
    "source string, kind string, code string, message string, rule string, version bigint,"
    " key string, row string, cut boolean, event_time timestamp, window bigint, at timestamp"
)

PASSES: Mapping[str, Callable[[Row], bool]] = {
    "price > 10.0": lambda r: r[1] > 10.0,
    'price < 30.0 && name != "name 3"': lambda r: r[1] < 30.0 and r[2] != "name 3",
}


class World:
    """A broker, an exporter of two streams, an importer, and the files they work on.

    Args:
        connect: each job has a Spark Connect server for its session.
        refusing: the exporter has an operator, too, and the importer reads its dead letters.
    """

    def __init__(
        self,
        folder: Path,
        secured: Authority | None = None,
        attempts: int = 1,
        exporting: Mapping[str, Any] | None = None,
        connect: bool = False,
        refusing: bool = False,
    ) -> None:
        self.folder = folder
        self.reviving = False
        self.trust = secured.trust() if secured else AgentTrust()
        self.broker = Broker(folder)
        common = {"attempts": attempts, "tls": _tls(secured), "broker": self.broker.url}
        self.trades = Feed(folder / "trades")
        self.quotes = Feed(folder / "quotes", first_line=1_000_000)
        exports = [
            {
                "port": name,
                "feed": str(feed.folder),
                "checkpoint": str(folder / f"ck-{name}"),
                "properties": {"kind": name},
            }
            for name, feed in (("trades", self.trades), ("quotes", self.quotes))
        ]
        self.out, self.checkpoint = folder / "out", folder / "ck-in"
        import_ = {
            "port": "in",
            "subscription": 'kind == "trades"',
            "start": "earliest",
            "filter": "price > 10.0",
            "out": str(self.out),
            "schema": "line bigint, price double, name string",
            "checkpoint": str(self.checkpoint),
        }
        operator = {
            "feed": str(self.trades.folder),
            "ports": {"matches": "marked", DEAD_LETTERS: LETTERS},
            "properties": {"matches": {"kind": "match"}},
            "checkpoint": str(folder / "ck-operator"),
        }
        import_letters = {
            "port": LETTERS,
            "subscription": 'kind == "dead-letter"',
            "start": "earliest",
            "out": str(folder / "letters"),
            "schema": LETTER_DDL,
            "checkpoint": str(folder / "ck-letters"),
        }
        operators = [operator] if refusing else []
        imports = [import_, import_letters] if refusing else [import_]
        self.exporter, self.importer = (
            Job(
                folder,
                job,
                {"job": job, "home": str(folder / f"home-{job}"), **common, **own, **_serve()},
                ConnectServer(folder / f"server-{job}", cores=1) if connect else None,
            )
            for job, own in (
                ("feed", {"exports": exports, "operators": operators, **(exporting or {})}),
                ("alerts", {"imports": imports}),
            )
        )

    def metrics_port(self, job: Job) -> int:
        """Return the port that a job's agent has also after a restart."""
        return int(job.plan["variables"][VARIABLE])

    def rest(self, path: str, body: object) -> None:
        BrokerClient(self.broker.url, "default").request(
            "PUT", f"/job/alerts/pe/0/import/in{path}", body
        )

    def agent(self, job: str) -> AgentClient:
        found = read_address(self.folder / f"home-{job}")
        if found is None:
            raise AgentUnreachableError(f"no agent of {job} runs")
        return AgentClient(found["location"], found["token"], self.trust)

    def heads(self) -> dict[str, tuple[str, int]]:
        """Return port and next epoch by stream, as the exporter's agent says."""
        exports = self.agent("feed").call("status")["exports"]
        return {
            stream: (key.rpartition("/")[2], state["next"])
            for key, export in exports.items()
            for stream, state in export["streams"].items()
        }

    def await_files(self, feed: Feed, seconds: float = SECONDS) -> None:
        """Wait until the importer has committed every released file of a feed."""
        port = feed.folder.name

        def batches() -> tuple[int, int]:
            return committed(self.folder / f"ck-{port}"), committed(self.checkpoint)

        def through() -> bool:
            if self.reviving:
                self.revive()
            elif math.isinf(seconds):
                for job in (self.exporter, self.importer):
                    assert job.process.poll() is None, f"it has ended: {job.said()[-3000:]}"
            last = committed(self.checkpoint)
            taken = files_by_batch(self.folder / f"ck-{port}")
            if last < 0 or sum(map(len, taken)) < feed.files:
                return False
            streams = offset(self.checkpoint, last).streams
            try:
                heads = {s: n for s, (p, n) in self.heads().items() if p == port}
            except AgentUnreachableError:
                return False
            return bool(heads) and all(
                n == len(taken) and s in streams and streams[s].next == n for s, n in heads.items()
            )

        what = f"{feed.files} files of {port} read by the importer"
        until(through, seconds, what, progress=batches)

    def await_letters(self, seconds: float = SECONDS) -> None:
        """Wait until the importer has committed the dead letters of all released files."""
        checkpoint = self.folder / "ck-letters"

        def through() -> bool:
            self.revive()
            last = committed(checkpoint)
            if last < 0 or letters(self).keys() != _refused(self).keys():
                return False
            try:
                heads = {s: n for s, (p, n) in self.heads().items() if p == LETTERS}
            except AgentUnreachableError:
                return False
            streams = offset(checkpoint, last).streams
            return all(s in streams and streams[s].next == n for s, n in heads.items())

        what = f"the dead letters of {self.trades.files} files read by the importer"
        until(through, seconds, what, progress=lambda: committed(checkpoint))

    def revive(self) -> None:
        """Start a driver again that has ended because its agent was killed under a task."""
        for name in ("exporter", "importer"):
            job: Job = getattr(self, name)
            if job.process.poll() is not None:
                setattr(self, name, job.restart())

    def end(self) -> None:
        for child in (self.exporter, self.importer, self.broker):
            child.end()
        for job in ("feed", "alerts"):
            end_agent(self.folder / f"home-{job}")


def _serve() -> dict[str, Any]:
    """Return the part of a plan by which the agent of a job serves metrics at a port."""
    return {"variables": {VARIABLE: str(free_port())}}


def _tls(secured: Authority | None) -> dict[str, str]:
    if secured is None:
        return {}
    files = {"certificate": secured.certificate, "key": secured.key, "ca": secured.ca}
    return {**{name: str(path) for name, path in files.items()}, "clients": "required"}


def check_rows(world: World) -> None:
    """The sink has exactly the rows of the epochs its checkpoint names, and no epoch is missing."""
    heads = world.heads()
    epochs = {}
    for stream, (port, next_) in heads.items():
        if port not in ("trades", "quotes"):
            continue
        feed = world.trades if port == "trades" else world.quotes
        files = files_by_batch(world.folder / f"ck-{port}")
        assert len(files) == next_
        assert sorted(f for of_epoch in files for f in of_epoch) == list(range(feed.files))
        epochs[stream] = [[row for f in of_epoch for row in feed.rows(f)] for of_epoch in files]

    assert received(world.out) == expected(world.checkpoint, epochs, PASSES)

    reached: dict[str, int] = {}
    for batch in batches(world.checkpoint):
        for stream, (first, next_) in batch.ranges.items():
            assert first == reached.get(stream, first)
            reached[stream] = next_
    assert reached == {s: n for s, (_, n) in heads.items() if s in epochs}


def letters(world: World) -> Counter[int]:
    """Return how often the row of each line came to the importer as a dead letter."""
    rows = received(world.folder / "letters", ["row"]).elements()
    return Counter(json.loads(row)["line"] for (row,) in rows)


def check_letters(world: World) -> None:
    """Each row that the operator refuses came once, and no other row."""
    assert letters(world) == _refused(world)


def _refused(world: World) -> Counter[int]:
    lines = (line for file in range(world.trades.files) for line in world.trades.lines(file))
    return Counter(line for line in lines if line % REFUSED == 0)
