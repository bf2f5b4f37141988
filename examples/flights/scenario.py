"""The demonstration's course: start, change four things while data flow, drain, end.

Every committed batch of both importers is checked as soon as it is seen, against the CSV.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from flights.checkpoints import Batch
from flights.checks import Audit, Source, delivered_as_counted
from flights.children import Broker, Failure, Family, Job
from flights.chunks import Chunk, Feeder
from flights.telling import Teller

EXPORTER = "airports"
DELAYS_COLUMNS = {
    "line": "bigint",
    **dict.fromkeys(("month", "day"), "bigint"),
    **dict.fromkeys(("carrier", "tailnum", "origin", "dest"), "string"),
    **dict.fromkeys(("flight", "dep_delay", "arr_delay"), "bigint"),
    "time_hour": "timestamp",
}
TOWER_COLUMNS = {
    **dict.fromkeys(("line", "month", "day", "hour"), "bigint"),
    "origin": "string",
    "time_hour": "timestamp",
}
IMPORTERS: dict[str, dict[str, Any]] = {
    "delays": {
        "subscription": 'kind == "departures" && airport == "JFK"',
        "filter": "dep_delay > 60",
        "start": "latest",
        "columns": DELAYS_COLUMNS,
        "ports": ("jfk", "lga"),
        "chained": "--pass-on",
    },
    "tower": {
        "subscription": 'airport == "EWR" || quality == "checked"',
        "filter": "hour >= 6",
        "start": "earliest",
        "columns": TOWER_COLUMNS,
        "ports": ("ewr", "weather"),
        "chained": "--take-over",
    },
}
WIDER = 'kind == "departures" && airport in ["JFK", "LGA"]'
CHECKED = {"kind": "weather", "airports": ["EWR", "JFK", "LGA"], "quality": "checked"}
NARROWER = 'dep_delay > 20 && carrier in ["B6", "DL"]'
STATUS_SECONDS = 0.5
STEPS = 10
"""Portions that the data are released in: one first, two for each change, the rest at the end."""


class Demonstration:
    """One run.

    Args:
        work: an empty directory for everything that is written.
        teller: what prints.
        chunks: the data.
        seconds: how long it may take.
        pause: seconds between two rounds of data.
        broken: leave a row out of the exported data, unknown to the checks.
        traced: the first importer passes a stream on to the second one.
    """

    def __init__(
        self,
        work: Path,
        teller: Teller,
        chunks: list[Chunk],
        *,
        seconds: float,
        pause: float,
        broken: bool,
        traced: bool = False,
    ) -> None:
        self._work, self._teller, self._seconds = work, teller, seconds
        self._traced = traced
        self._rows = sum(chunk.rows.num_rows for chunk in chunks)
        self._feeder = Feeder(work, chunks, pause=pause, broken=broken)
        self._step = self._feeder.rounds // STEPS
        self._family = Family(work)
        self._source = Source(work, EXPORTER, chunks)
        self._chunks = {(chunk.port, chunk.round): chunk.rows.num_rows for chunk in chunks}
        self._audits = {
            name: Audit(name, list(how["columns"]), self._source, work)
            for name, how in IMPORTERS.items()
        }
        self._jobs: dict[str, Job] = {}
        self._starting: list[Job] = []
        self._awaited = ""
        self._exports: dict[str, Any] = {}
        self._asked = 0.0
        self.changes: list[tuple[str, str]] = []

    # -- the course --------------------------------------------------------------------------

    def run(self) -> None:
        """Run all of it.

        Raises:
            Failure: something differs, or does not come in time.
        """
        try:
            self._start()
            self._change_subscription()
            self._change_properties()
            self._change_filter()
            self._stop_and_return()
            self._drain()
            self._end()
        finally:
            self._feeder.stop()
            self._family.kill()

    def _start(self) -> None:
        self._broker = Broker(self._family, self._work)
        self._teller.say(f"broker at {self._broker.url}; starting an exporter, two importers")
        common = ["--broker", self._broker.url, "--work", str(self._work)]
        exporter = Job(self._family, EXPORTER, "flights.exporter", common)
        jobs = [exporter, *map(self._importer, IMPORTERS)]
        self._starting += jobs
        for job in jobs:
            self._ready(job)
        self._wait("route from jfk to delays open", lambda: self._opened("delays", "jfk"))
        self._wait("route from ewr to tower open", lambda: self._opened("tower", "ewr"))
        for name, how in IMPORTERS.items():
            self._teller.detail(f"{name:6} imports {how['subscription']}, filter {how['filter']}")
        self._feeder.allow(self._step)
        for name in IMPORTERS:
            self._wait(f"first rows of {name}", partial(self._audits[name].rows_from, 0))

    def _importer(self, name: str) -> Job:
        how = IMPORTERS[name]
        arguments = ["--broker", self._broker.url, "--work", str(self._work), "--job", name]
        for option in ("subscription", "filter", "start"):
            arguments += [f"--{option}", how[option]]
        schema = ", ".join(f"{column} {type_}" for column, type_ in how["columns"].items())
        arguments += ["--schema", schema, *([how["chained"]] if self._traced else [])]
        return Job(self._family, name, "flights.importer", arguments)

    def _ready(self, job: Job) -> None:
        self._wait(f"job {job.name} ready", job.answered)
        self._jobs[job.name] = job
        self._show_phases()
        self._starting.remove(job)

    def _change_subscription(self) -> None:
        self._feeder.allow(self._step)
        self._teller.head("1: an importer changes its subscription, by program")
        self._teller.detail(f"pe.imports['in'].set_subscription({WIDER!r})   in job delays")
        answer = self._jobs["delays"].ask("set_subscription", subscription=WIDER)
        self._teller.detail(
            f"accepted after {answer['accepted'] * 1000:.0f} ms: {_routes(answer['routes'])};"
            f" pinned after {answer['applied'] * 1000:.0f} ms"
        )
        self._holds("subscription by program", "delays", lambda b: _has(b, "lga"), "lga")

    def _change_properties(self) -> None:
        self._feeder.allow(self._step)
        self._teller.head("2: properties of an export are changed, by REST")
        path = f"/api/subscriptions/job/{EXPORTER}/pe/0/export/weather/properties"
        self._teller.detail(f"PUT {path}")
        self._teller.detail(json.dumps(CHECKED))
        begun = time.monotonic()
        request = urllib.request.Request(
            self._broker.url + path,
            data=json.dumps(CHECKED).encode(),
            method="PUT",
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=10.0) as response:
            answer = json.load(response)
        took = (time.monotonic() - begun) * 1000
        self._teller.detail(f"accepted after {took:.0f} ms: {_routes(answer['routes'])}")
        self._holds("properties by REST", "tower", lambda b: _has(b, "weather"), "weather")

    def _change_filter(self) -> None:
        self._feeder.allow(self._step)
        self._teller.head("3: a filter is changed, by the command line")
        self._teller.detail(f"$ streambroker set-filter delays 0 in '{NARROWER}'")
        command = ["-m", "streambroker_operator.cli", "set-filter", "--url", self._broker.url]
        begun = time.monotonic()
        done = subprocess.run(
            [sys.executable, *command, "delays", "0", "in", NARROWER],
            capture_output=True,
            text=True,
            timeout=40.0,
            check=False,
        )
        took = (time.monotonic() - begun) * 1000
        for line in (done.stdout + done.stderr).splitlines():
            self._teller.detail(line)
        if done.returncode != 0:
            raise Failure(f"streambroker set-filter ended with {done.returncode}")
        self._teller.detail(f"accepted after {took:.0f} ms, the start of the command included")
        self._holds("filter by CLI", "delays", lambda b: b.end.filter == NARROWER, None)

    def _stop_and_return(self) -> None:
        self._feeder.allow(self._step)
        self._teller.head("4: an importer is stopped, and comes back from its checkpoint")
        self._jobs.pop("tower").stop()
        audit = self._audits["tower"]
        audit.follow()
        left, head = len(audit.batches), audit.end.streams[self._stream("ewr")].next
        self._teller.detail(f"tower has ended after batch {left - 1}; data flow on")
        self._feeder.allow(self._step)
        self._wait("data published while tower is away", lambda: self._published("ewr") > head)
        self._starting.append(self._importer("tower"))
        self._ready(self._starting[0])
        missed = self._published("ewr") - head
        self._teller.detail(f"tower is back; ewr is {missed} epochs ahead of its checkpoint")
        self._holds("return from the checkpoint", "tower", lambda b: b.number >= left, None)

    def _drain(self) -> None:
        self._teller.head("the rest of the data")
        self._feeder.allow_all()
        self._wait(
            "all rounds published",
            lambda: all(self._published(port) == self._feeder.rounds for port, _ in self._chunks),
        )
        self._wait("all cursors at the final head", self._all_read)
        for audit in self._audits.values():
            delivered_as_counted(audit, self._exports)

    def _end(self) -> None:
        self._teller.say("all cursors stand at the final head; ending all processes")
        for job in self._jobs.values():
            job.tell_stop()
        for job in self._jobs.values():
            job.stop()
        self._broker.stop()
        left = self._family.gone(15.0)
        if left:
            raise Failure(f"processes are left: {left}")
        self._report()

    # -- facts -------------------------------------------------------------------------------

    def _holds(
        self, what: str, name: str, holds: Callable[[Batch], bool], port: str | None
    ) -> None:
        """Wait until a change is pinned in a committed batch and rows came under it; say where."""
        audit = self._audits[name]
        try:
            self._wait(f"{what} pinned", lambda: audit.first_batch(holds) is not None)
        except Failure as failure:
            raise Failure(f"the change of the {what} was pinned in no batch: {failure}") from None
        batch = audit.first_batch(holds)
        assert batch is not None
        self._feeder.allow(self._step)
        self._wait(f"rows under the {what}", lambda: audit.rows_from(batch.number, port))
        where = f"batch {batch.number} of reader {str(batch.end.reader)[:8]} ({name})"
        self._teller.detail(f"holds from {where}")
        self._teller.say(
            f"{audit.rows_from(batch.number, port):,} rows{f' of {port}' if port else ''} received"
            f" since, all {len(audit.batches)} batches of {name} are as the CSV says"
        )
        self.changes.append((what, where))

    def _wait(self, what: str, fact: Callable[[], Any]) -> Any:
        """Check, print and wait until ``fact`` is true; return it.

        Raises:
            Failure: a check failed, a query has failed, or the time is over.
        """
        while True:
            self._look(what)
            value = fact()
            if value:
                return value
            if self._teller.seconds > self._seconds:
                raise Failure(f"not within {self._seconds:g} s: {what}; {self._progress()}")
            time.sleep(0.1)

    def _look(self, awaited: str) -> None:
        """Ask all jobs how they are, and check the batches that were committed since."""
        if time.monotonic() - self._asked > STATUS_SECONDS:
            for name, job in self._jobs.items():
                self._take(name, job.ask("status"))
            for audit in self._audits.values():
                audit.follow()
            self._asked = time.monotonic()
        self._show_phases()
        if any(audit.received for audit in self._audits.values()):
            self._teller.progress(self._progress())
        elif awaited != self._awaited and not self._starting:
            self._awaited = awaited
            self._teller.say(f"next: {awaited}")

    def _show_phases(self) -> None:
        """Print how far the jobs are that start at the moment."""
        for job in self._starting:
            while not job.phases.empty():
                self._teller.say(f"{job.name}: {job.phases.get()}")

    def _take(self, name: str, status: dict[str, Any]) -> None:
        for port, error in status["failed"].items():
            raise Failure(f"the query of {name}/{port} has failed: {error}")
        if name == EXPORTER:
            self._exports = {e.rpartition("/")[2]: known for e, known in status["exports"].items()}
            self._source.learn(self._exports)

    def _progress(self) -> str:
        rows = sum(
            count
            for (port, round_), count in self._chunks.items()
            if round_ < self._published(port)
        )
        told = [f"published {rows:,} of {self._rows:,} rows"]
        told += [
            f"{name} {audit.received.total():,} rows in {len(audit.batches)} batches"
            for name, audit in self._audits.items()
        ]
        return " · ".join(told)

    def _published(self, port: str) -> int:
        """Return how many epochs a port has published."""
        streams = self._exports.get(port, {}).get("streams", {})
        return sum(int(known["next"]) for known in streams.values())

    def _stream(self, port: str) -> str:
        return next(stream for stream, name in self._source.ports.items() if name == port)

    def _opened(self, name: str, port: str) -> bool:
        return self._audits[name].first_batch(lambda batch: _has(batch, port)) is not None

    def _all_read(self) -> bool:
        """Whether each importer's cursor stands at the head of all it imports, for both sides."""
        for name, audit in self._audits.items():
            for port in IMPORTERS[name]["ports"]:
                stream = self._stream(port)
                reader = self._exports[port]["readers"].get(audit.end.reader, {})
                position = audit.end.streams.get(stream)
                acknowledged = reader.get("positions", {}).get(stream)
                if position is None or not position.next == acknowledged == self._feeder.rounds:
                    return False
        return True

    def _report(self) -> None:
        self._teller.head("what was checked")
        rows = [["change", "holds from"], *([what, where] for what, where in self.changes)]
        self._teller.table(rows)
        self._teller.detail("")
        table = [["importer", "port", "epochs", "published", "filtered out", "received"]]
        for name, audit in self._audits.items():
            for port in IMPORTERS[name]["ports"]:
                position = audit.end.streams[self._stream(port)]
                epochs = f"{position.from_}-{position.next - 1}"
                offered, received = audit.offered[port], audit.received[port]
                figures = [f"{n:,}" for n in (offered, offered - received, received)]
                table.append([name, port, epochs, *figures])
        self._teller.table(table)
        batches = sum(len(audit.batches) for audit in self._audits.values())
        total = sum(audit.received.total() for audit in self._audits.values())
        self._teller.detail("")
        self._teller.say(
            f"{total:,} rows received in {batches} batches: each batch equals the rows of the CSV"
            " for the epochs and the filter in its checkpoint; published = delivered + filtered"
            f" out; {len(self.changes)} changes pinned; no process left"
        )


def _has(batch: Batch, port: str) -> bool:
    """Whether the importer had opened a port when the batch was pinned."""
    return f"default/{EXPORTER}/0/{port}" in batch.end.last


def _routes(routes: dict[str, Any]) -> str:
    told = [
        f"{word} {route['export']} -> {route['import']}"
        for word in ("added", "cut")
        for route in routes.get(word, [])
    ]
    return ", ".join(told) or "no route changed"
