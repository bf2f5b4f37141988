"""Let rows flow for long while everything is killed and changed; then count every row.

``python tests/soak.py --minutes 30``: four pairs of queries without a JVM over one pair of agents
(under ``wait``, with a filter that changes, with a slow importer and a policy that changes, with
rows and columns that are withheld), and two Spark jobs, one with an operator whose dead letters the
other reads. Lineage, traces, metrics by OTLP and quotas are on. At random moments a process is
killed (a driver, a Python worker, an agent, the broker), or a snapshot is taken and checked. At the
end each batch is compared with the rows that were fed, the counts have to be exact, and neither the
memory and descriptors of agents and broker nor the disk of agents may grow in the second half.
A Prometheus with the alerts of the chart reads all agents: none may fire, whatever is killed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pe_agent.transport.broker_client import BrokerClient
from streambroker_core.errors import StreambrokerError
from streambroker_operator.storage import snapshot
from support.agents import agents
from support.agents.collector import collecting
from support.alerts.prometheus import Prometheus
from support.brokers.lineage import receiver_in_thread
from support.core.drift import drift
from support.cuts.cast import Cast, kill
from support.cuts.lanes import FILTERS, Lane, Nature
from support.processes import jobs
from support.processes.waiting import until
from support.processes.world import World, check_letters, check_rows, letters
from support.spark.checkpoints import batches, received

NATURES = [
    Nature("steady", "wait", "256Ki", pace=0.2, slow=0.0),
    Nature("changed", "wait", "64Ki", pace=0.3, slow=0.1),
    Nature("slow", "drop", "16Ki", pace=0.2, slow=4.0),
    Nature("restricted", "wait", "256Ki", pace=0.3, slow=0.0, restricted=True),
]
QUOTAS = {"default": {"ports": 20, "bytes": "50Gi", "readerBytesPerSecond": "20Mi"}}
SPANS = {"publish", "plan", "read", "deliver"}
BETWEEN = (3.0, 12.0)
"""Seconds between two deeds."""
LOOK_SECONDS = 5.0
BOUNDS = {"rss": (0.08, 12 << 20), "disk": (0.05, 8 << 20), "descriptors": (0.2, 16)}
"""By how much each may grow over the second half: a part of what it has, and bytes or a number."""
EPOCH_BYTES = 3000
"""What an exporter needs for each epoch in its logs when it recovers; it drops most of them then.

Measured: 41 MB for 15,000. This ends when the first segment of 64 MiB is full and deleted, which
takes longer than a run.
"""
END_SECONDS = 240.0
FIRES = {"StreambrokerAbsent"}
"""``streambroker up`` has no metrics, so that Prometheus finds no broker."""


class Soak:
    """One run.

    Args:
        folder: for all files.
        minutes: how long rows flow.
        seed: of what is drawn.
        spark: whether two Spark jobs run beside.
    """

    def __init__(self, folder: Path, minutes: float, seed: int, *, spark: bool) -> None:
        self.folder, self.seconds = folder, minutes * 60.0
        self.drawn = random.Random(seed)
        self._services = ExitStack()
        self.lineage = self._services.enter_context(receiver_in_thread())
        self.collector = self._services.enter_context(collecting())
        os.environ |= {
            **self.collector.environment(),
            "OTEL_METRIC_EXPORT_INTERVAL": "5000",
            "STREAMBROKER_LINEAGE_URL": self.lineage.url,
        }
        self.prometheus = Prometheus(folder / "prometheus")
        self.pair = SparkPair(folder / "spark", random.Random(seed + 1)) if spark else None
        (folder / "plain").mkdir()
        self.cast = Cast(folder / "plain", broker_options=["--quotas", json.dumps(QUOTAS)])
        self.lanes = [Lane(self.cast, nature) for nature in NATURES]
        self.deeds: Counter[str] = Counter()
        self.looks: list[dict[str, Any]] = []
        self.began = time.monotonic()

    def run(self) -> dict[str, Any]:
        """Run to the end; return what came of it.

        Raises:
            AssertionError: a row is missing, twice or wrong, or something grows.
        """
        try:
            return self._run_watched()
        finally:
            if self.pair:
                self.pair.kill()
            self.cast.end()
            self._services.close()

    def _run_watched(self) -> dict[str, Any]:
        with self.prometheus.running():
            for agent in (self.cast.exporter, self.cast.importer):
                self.prometheus.follow("plain", agent.job, self.cast.metrics_port(agent))
            if self.pair:
                for job, port in self.pair.metrics_ports().items():
                    self.prometheus.follow("spark", f"spark-{job}", port)
                self.pair.begin()
            started, self.began = self.began, time.monotonic()
            sys.stdout.write(f"rows flow, after {self.began - started:.0f} s\n")
            sys.stdout.flush()
            self._flow()
            result = self._end()
            if self.pair:
                result["spark"] = self.pair.end(END_SECONDS)
            result["alerts"] = self._check_alerts()
            return result

    def _check_alerts(self) -> dict[str, Any]:
        """Check that all agents were read, and that no alert fired; return what was pending."""
        pods = {"feed", "alerts"} | ({"spark-feed", "spark-alerts"} if self.pair else set())
        assert self.prometheus.scraped() == pods, self.prometheus.scraped()
        fired = [one for one in self.prometheus.fired() if one.alert not in FIRES]
        assert not fired, fired
        return dict(Counter(one.alert for one in self.prometheus.fired("pending")))

    def _flow(self) -> None:
        end = self.began + self.seconds
        next_deed = next_look = self.began
        pause = threading.Event()
        while (now := time.monotonic()) < end:
            self._tend()
            if now >= next_look:
                self.looks.append(self._look())
                next_look = now + LOOK_SECONDS
            if now >= next_deed:
                self._do(*self.drawn.choice(self._choices()))
                next_deed = now + self.drawn.uniform(*BETWEEN)
            pause.wait(0.05)

    def _tend(self) -> None:
        self.cast.tend()
        for lane in self.lanes:
            lane.tend()
        for lane in self.lanes:
            for role in (lane.exporting, lane.importing):
                wrong = [f for f in role.failures if "was killed" not in f and not _passing(f)]
                assert not wrong, f"{lane.port}: {role.function}: {wrong}"

    def _choices(self) -> list[tuple[str, Callable[[], None]]]:
        cast, lane = self.cast, self.drawn.choice(self.lanes)
        _, changed, slow, _ = self.lanes
        return [
            ("exporter's agent", cast.exporter.kill),
            ("importer's agent", cast.importer.kill),
            ("broker", cast.broker.kill),
            ("exporting driver", lane.exporting.kill),
            ("importing driver", lane.importing.kill),
            ("exporting worker", lambda: self._kill_worker(lane, "exporting")),
            ("importing worker", lambda: self._kill_worker(lane, "importing")),
            ("filter changed", lambda: changed.let_filter(self.drawn.choice(list(FILTERS)))),
            ("filter changed", lambda: changed.let_filter(self.drawn.choice(list(FILTERS)))),
            ("policy changed", slow.change_policy),
            ("snapshot of agent", self._save_agent),
            ("snapshot of broker", self._save_broker),
        ]

    def _do(self, name: str, deed: Callable[[], None]) -> None:
        try:
            deed()
        except StreambrokerError as error:  # the broker was killed just before
            name = f"{name}: {error.code}"
        self.deeds[name] += 1

    def _kill_worker(self, lane: Lane, role: str) -> None:
        """Kill a task if one runs at that moment, within a second."""
        folder = lane.folder / f"{role}-workers"
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:
            for reported in folder.glob("*") if folder.exists() else ():
                kill(int(reported.name))
                return

    def _save_agent(self) -> None:
        """Take a snapshot of the exporter's agent, check and delete it."""
        broker = BrokerClient(self.cast.broker.url, "default")
        path = f"/job/feed/pe/0/snapshots/at-{self.deeds.total()}"
        taken: dict[str, Any] = {}

        def complete() -> bool:
            taken.update(broker.request("PUT", path).body)
            return bool(taken["state"] != "running")

        until(complete, END_SECONDS, "a snapshot of the agent", pause_s=0.1)
        self._check_snapshot(Path(taken["path"]))

    def _save_broker(self) -> None:
        folder = self.folder / "saved-broker"
        snapshot.save_broker(self.cast.broker.database, folder)
        self._check_snapshot(folder)

    def _check_snapshot(self, folder: Path) -> None:
        snapshot.check(folder)
        shutil.rmtree(folder)

    def _look(self) -> dict[str, Any]:
        agents = {"exporter": self.cast.exporter, "importer": self.cast.importer}
        pids = {n: a.process.pid for n, a in agents.items() if a.process}
        pids["broker"] = self.cast.broker.process.pid
        return {
            "seconds": round(time.monotonic() - self.began, 1),
            "rss": {n: resident(pid) for n, pid in pids.items()},
            "descriptors": {n: descriptors(pid) for n, pid in pids.items()},
            "disk": {n: on_disk(a.home) for n, a in agents.items()},
            "epochs": sum(lane.published() for lane in self.lanes),
        }

    def _end(self) -> dict[str, Any]:
        for lane in self.lanes:
            (lane.folder / "enough").touch()

        def through() -> bool:
            self._tend()
            return all(lane.through() for lane in self.lanes)

        until(through, END_SECONDS, "all is read and acknowledged", pause_s=0.1)
        for lane in self.lanes:
            (lane.folder / "stop").touch()

        def stopped() -> bool:
            self._tend()
            return all(lane.importing.done for lane in self.lanes)

        until(stopped, END_SECONDS, "all queries have ended", pause_s=0.1)
        lanes = {lane.port: lane.check() for lane in self.lanes}
        assert lanes["slow"]["dropped"], "nothing was dropped"
        return {
            "lanes": lanes,
            "deeds": dict(self.deeds),
            "growth": self._growth(),
            "reports": self._check_reports(),
        }

    def _check_reports(self) -> dict[str, int]:
        """Compare lineage, traces and metrics with what ran; return how many there are."""
        spans: defaultdict[str, set[str]] = defaultdict(set)
        for span in self.collector.spans:
            spans[span.trace].add(span.name)
        whole = sum(names >= SPANS for names in spans.values())
        assert whole, f"no trace has all of {SPANS}: {list(spans.values())[-10:]}"
        reporting = {service for service, _ in self.collector.metrics}
        assert reporting >= {"feed", "alerts"}, f"metrics came from {reporting} alone"
        for lane in self.lanes:
            assert any(lane.port in name for name in self.lineage.by_name), lane.port
        return {
            "traces": len(spans),
            "whole traces": whole,
            "services with metrics": len(reporting),
            "lineage events": len(self.lineage.events),
        }

    def _growth(self) -> dict[str, list[int]]:
        """Return of what must not grow its median over the second half, and by how much it grew."""
        half = self.looks[len(self.looks) // 2 :]
        recovered = {"rss of exporter": EPOCH_BYTES * (half[-1]["epochs"] - half[0]["epochs"])}
        found = {}
        for what, (part, slack) in BOUNDS.items():
            for of in half[0][what]:
                # A process that was killed at that moment has none.
                series = [(k["seconds"], k[what][of]) for k in half if k[what].get(of)]
                middle, grown = drift(series)
                name = f"{what} of {of}"
                found[name] = [round(middle), round(grown)]
                bound = middle * part + slack + recovered.get(name, 0)
                assert grown <= bound, f"{name} grows: {found}, {recovered}"
        return found


class SparkPair(threading.Thread):
    """Two Spark jobs over one stream, one of their processes killed now and then.

    Args:
        folder: for all files.
        drawn: what is killed, and when.
    """

    def __init__(self, folder: Path, drawn: random.Random) -> None:
        super().__init__(daemon=True, name="spark")
        folder.mkdir()
        self._drawn, self._over = drawn, threading.Event()
        self._world = World(folder, attempts=4, refusing=True)
        self._failure: BaseException | None = None
        self.deeds: Counter[str] = Counter()

    def begin(self) -> None:
        """Wait for the first rows, for as long as both jobs live; then let a thread go on."""
        world = self._world
        world.exporter.await_ready()
        world.importer.await_ready()
        world.trades.release(1)
        world.await_files(world.trades, math.inf)
        world.reviving = True
        self.start()

    def metrics_ports(self) -> dict[str, int]:
        """Return the port of each job's agent for metrics."""
        jobs = (self._world.exporter, self._world.importer)
        return {job.name: self._world.metrics_port(job) for job in jobs}

    def run(self) -> None:
        """Release files, kill, start again."""
        try:
            next_deed = time.monotonic() + 30.0
            while not self._over.wait(1.0):
                self._world.revive()
                self._world.trades.release(1)
                if time.monotonic() > next_deed:
                    self._kill_one()
                    next_deed = time.monotonic() + self._drawn.uniform(30.0, 90.0)
        except BaseException as error:
            self._failure = error

    def _kill_one(self) -> None:
        world = self._world
        what = self._drawn.choice(["broker", "feed", "alerts", "feed agent", "alerts agent"])
        self.deeds[what] += 1
        if what == "broker":
            world.broker.kill()
            world.broker = world.broker.restart()
            return
        job = world.exporter if what.startswith("feed") else world.importer
        try:
            if what.endswith("agent"):
                os.kill(job.agent_pid(), signal.SIGKILL)
            else:
                job.kill()
        except (OSError, ValueError):
            self.deeds[f"{what} was not there"] += 1

    def end(self, seconds: float) -> dict[str, Any]:
        """Wait until all is read and compare it; return the counts."""
        self._over.set()
        self.join()
        if self._failure is not None:
            raise self._failure
        world = self._world
        world.await_files(world.trades, seconds)
        check_rows(world)
        world.await_letters(seconds)
        check_letters(world)
        return {
            "published": world.trades.files * world.trades.rows_per_file,
            "delivered": received(world.out).total(),
            "dead letters": letters(world).total(),
            "batches": sum(1 for _ in batches(world.checkpoint)),
            "deeds": dict(self.deeds),
        }

    def kill(self) -> None:
        """End all processes."""
        self._over.set()
        self._world.end()


def _passing(failure: str) -> bool:
    """Whether a query may fail like this because a process was killed; it is started again."""
    return any(f"Error {code}:" in failure for code in ("AgentUnreachable", "StageMissing"))


def resident(pid: int) -> int:
    """Return the memory of a process in bytes; 0 if it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return int(found[0].split()[1]) * 1024 if found else 0


def descriptors(pid: int) -> int:
    """Return how many files and connections a process has open; 0 if it is gone."""
    try:
        return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return 0


def on_disk(folder: Path) -> int:
    """Return what a directory takes on the disk."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_blocks * 512
        except OSError:
            continue
    return total


def main() -> int:
    """Run; print what came of it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--no-spark", action="store_true", help="only the queries without a JVM")
    parser.add_argument("--keep", action="store_true", help="keep all files")
    options = parser.parse_args()
    # A slow machine may take its time for each start; a process that ends is told at once.
    agents.START_SECONDS = jobs.START_SECONDS = math.inf
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
    folder = Path(tempfile.mkdtemp(prefix="streambroker-soak-"))
    sys.stdout.write(f"seed {options.seed}, {options.minutes:g} minutes, files in {folder}\n")
    sys.stdout.flush()
    soak = Soak(folder, options.minutes, options.seed, spark=not options.no_spark)
    result = soak.run()
    sys.stdout.write(json.dumps({"seed": options.seed, **result}, indent=2) + "\n")
    if not options.keep:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
