"""What a publish costs the exporter's agent with 1,000 readers of one stream."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
import urllib.request

import cpu
import rows
from measure import Figures, Settings
from processes import ANSWER, Agent, Broker, Child, Family

PURPOSE = "a publish with 1,000 readers of one stream: processor and memory of the agent"
READERS = (1_000, 4_000)
AGENTS = 4
"""Agents that import; each has a quarter of the readers."""
AT_ONCE = 250
"""Imports that are applied by one request."""
ROWS = 100
PUBLISHES = 10
SETTLE = 3.0
"""Seconds over which the agent's processor time without news is measured."""


class Bench(Family):
    """An export, and agents with many imports that are waited on."""

    def __init__(self, settings: Settings, count: int, round_: int) -> None:
        self.place = settings.place / f"readers-{count}-{round_}"
        self.place.mkdir()
        self.publishes = 3 if settings.quick else PUBLISHES
        self._batch = 0
        os.environ["STREAMBROKER_MAX_READERS"] = str(count + 100)
        super().__init__()
        try:
            self.broker = self.with_(Broker(self.place, "--limit", f"write-burst={2 * count}"))
            self.feed = self.with_(Agent(self.place, "feed", self.broker.url))
            self.feed.export("out")
            self.before = cpu.resident(self.feed.pid)
            self.readers = [self._importers(n, count // AGENTS) for n in range(AGENTS)]
            self.publish()  # all routes are there once all readers have planned it
        except BaseException:
            self.end()
            raise

    def _importers(self, number: int, count: int) -> Child:
        agent = self.with_(Agent(self.place, f"taker-{number}", self.broker.url))
        ports = [f"in-{n}" for n in range(count)]
        for first in range(0, count, AT_ONCE):
            self._apply_imports(f"taker-{number}", ports[first : first + AT_ONCE])
        plan = {"location": agent.client.location, "token": agent.client.token, "ports": ports}
        command = [sys.executable, "-m", "fan_out_readers", json.dumps(plan)]
        return self.with_(Child(command, self.place / f"readers-{number}.log"))

    def _apply_imports(self, job: str, ports: list[str]) -> None:
        specs = [
            {"job": job, "port": port, "subscription": 'kind == "out"', "start": "earliest"}
            for port in ports
        ]
        resources = [
            {
                "apiVersion": "streambroker.io/v1alpha1",
                "kind": "Import",
                "metadata": {"name": f"{job}-{spec['port']}"},
                "spec": spec,
            }
            for spec in specs
        ]
        request = urllib.request.Request(
            f"{self.broker.url}/api/subscriptions/apply",
            json.dumps({"resources": resources}).encode(),
            {"Content-Type": "application/json"},
            method="POST",
        )
        with urllib.request.urlopen(request, timeout=300.0) as answer:
            answer.read()

    def publish(self) -> tuple[float, float]:
        """Publish an epoch; return processor seconds of the agent, and seconds for all plans."""
        before, began = cpu.seconds(self.feed.pid), time.monotonic()
        self.feed.publish("out", self._batch, [[rows.batch(0, ROWS)]])
        self._batch += 1
        for child in self.readers:
            child.line(f"{ANSWER}{self._batch}", 900.0)
        return cpu.seconds(self.feed.pid) - before, time.monotonic() - began

    def idle(self) -> float:
        """Return the share of a core that the agent uses without news."""
        before = cpu.seconds(self.feed.pid)
        time.sleep(SETTLE)
        return (cpu.seconds(self.feed.pid) - before) / SETTLE


def measure(figures: Figures, bench: Bench, count: int) -> None:
    """Add the figures of so many readers."""
    bench.publish()
    took = [bench.publish() for _ in range(bench.publishes)]
    name = f"{count:,} readers"
    figures.add(f"{name}: publish", statistics.mean(t[0] for t in took) * 1e3, "ms")
    figures.add(f"{name}: until all have planned", statistics.median(t[1] for t in took), "s")
    figures.add(f"{name}: without news", bench.idle(), "cores")
    figures.add(f"{name}: memory", cpu.resident(bench.feed.pid), "MiB")
    figures.add(f"{name}: memory before", bench.before, "MiB")


def run(settings: Settings) -> Figures:
    """Measure; each round begins with new agents."""
    figures = Figures()
    counts = (100,) if settings.quick else READERS
    for round_ in range(1, settings.rounds + 1):
        figures.yardstick()
        for count in counts:
            bench = Bench(settings, count, round_)
            try:
                measure(figures, bench, count)
            finally:
                bench.end()
        settings.say(f"round {round_} of {settings.rounds} done")
    figures.note(
        f"{AGENTS} agents import, each with a quarter of the readers; a reader is an import with a"
        " query that plans each epoch and reads no rows. Publish: processor time of the exporter's"
        f" agent from the publish of {ROWS} rows until all readers have planned them, mean of"
        f" {PUBLISHES}. Memory: resident, of the exporter's agent."
    )
    return figures
