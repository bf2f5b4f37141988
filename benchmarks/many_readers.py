"""A hundred readers of one export, without Spark: what a filter saves."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import bare_readers
import cpu
import rows
from measure import Figures, Settings, turns
from processes import ANSWER, Agent, Broker, Child

PURPOSE = "100 bare Flight readers of one export: all rows, and a tenth of them"
READERS = 100
PROCESSES = 4
EPOCHS = 2
FILTERS = {"all rows": None, "a tenth": "d < 100"}


class Bench:
    """An export that has its epochs, and an agent that imports it many times."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.readers = 10 if settings.quick else READERS
        self.broker = Broker(settings.place)
        self.feed = Agent(settings.place, "feed", self.broker.url)
        self.taker = Agent(settings.place, "taker", self.broker.url)
        self.feed.export("out")
        batches = rows.batches(settings.rows)
        half = len(batches) // 2
        self.ports = {
            name: [f"in-{name.replace(' ', '-')}-{n}" for n in range(self.readers)]
            for name in FILTERS
        }
        for name, ports in self.ports.items():
            for port in ports:
                self.taker.import_(port, subscription='kind == "out"', filter=FILTERS[name])
                self.taker.await_route(port)
        for epoch in range(EPOCHS):
            self.feed.publish("out", epoch, [batches[:half], batches[half:]])

    def end(self) -> None:
        """End all processes."""
        for process in (self.taker, self.feed, self.broker):
            process.end()

    @contextmanager
    def children(self, ports: list[str]) -> Iterator[list[Child]]:
        """Start the reading processes, and end them."""
        client, place = self.taker.client, self.settings.place
        started: list[Child] = []
        try:
            for n in range(PROCESSES):
                plan = {
                    "location": client.location,
                    "token": client.token,
                    "ports": ports[n::PROCESSES],
                    "epochs": EPOCHS,
                }
                command = [sys.executable, "-m", "bare_readers", json.dumps(plan)]
                started.append(Child(command, place / "readers.log"))
            for child in started:
                child.line(bare_readers.READY)
            yield started
        finally:
            for child in started:
                child.end()

    def read(self, name: str) -> tuple[float, int, int, float]:
        """Let all read; return seconds, rows and bytes that came, the agents' processor seconds."""
        with self.children(self.ports[name]) as children:
            before, began = cpu.used(os.getpid()), time.monotonic()
            for child in children:
                assert child.process.stdin is not None
                child.process.stdin.write("\n")
                child.process.stdin.flush()
            answers = [json.loads(child.line(ANSWER, 900.0)) for child in children]
            took = time.monotonic() - began
            agents = cpu.between(before, cpu.used(os.getpid())).get("agent", 0.0)
        return took, sum(a["rows"] for a in answers), sum(a["bytes"] for a in answers), agents


def run(settings: Settings) -> Figures:
    """Measure; round 0 warms up and is left out."""
    figures = Figures()
    bench = Bench(settings)
    published = EPOCHS * settings.rows
    try:
        for round_ in settings.turns:
            figures.yardstick() if round_ else None
            for name in turns(tuple(FILTERS), round_):
                took, count, size, agents = bench.read(name)
                wanted = published * bench.readers * (0.1 if FILTERS[name] else 1.0)
                if count != round(wanted):
                    raise RuntimeError(f"{count} rows came, not {wanted:.0f}")
                if round_:
                    millions = published * bench.readers / 1e6
                    figures.add(f"{name}: rows looked at for readers", millions / took, "M rows/s")
                    figures.add(f"{name}: sent", size / 1e6 / millions, "MB/M rows")
                    figures.add(f"{name}: processor of the agents", agents / millions, "s/M rows")
                    memory = cpu.resident(bench.feed.pid)
                    figures.add(f"{name}: memory of the exporter's agent", memory, "MiB")
            settings.say(f"round {round_} of {settings.rounds} done")
    finally:
        bench.end()
    for what in ("rows looked at for readers", "sent", "processor of the agents"):
        figures.ratio(f"a tenth / all rows: {what}", f"a tenth: {what}", f"all rows: {what}")
    figures.note(
        f"{bench.readers} imports of one agent, each read by a thread of {PROCESSES} processes on"
        f" the same cores; {EPOCHS} epochs of {settings.rows:,} rows, published before; M rows are"
        " those published times readers; sent: Arrow's bytes as they came."
    )
    return figures
