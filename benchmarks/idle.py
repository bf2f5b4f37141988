"""What importers cost that have everything: calls, processor time and memory of the agents."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import cpu
import idle_readers
import rows
from measure import Figures, Settings
from peer_calls import routes
from processes import ANSWER, Agent, Broker, Child, Family, until

PURPOSE = "idle: processor time and calls of a latestOffset without news, memory with 1,000 readers"
QUERIES = (10, 100)
AGENTS = 1_000
PROCESSES = 4
CALLING = "latestOffset"
GRACE = 1.0
"""Seconds; an export has places for 1,000 readers, so those before have to be gone."""


class Waiting:
    """Processes with importers that wait."""

    def __init__(self, place: Path, plans: list[dict[str, Any]]) -> None:
        self._children: list[Child] = []
        try:
            for plan in plans:
                command = [sys.executable, "-m", "idle_readers", json.dumps(plan)]
                self._children.append(Child(command, place / "idle.log"))
            for child in self._children:
                child.line(idle_readers.READY)
        except BaseException:
            self.end()
            raise

    def calls(self) -> Counter[str]:
        """Return how often they have called so far."""
        total: Counter[str] = Counter()
        for child in self._children:
            assert child.process.stdin is not None
            child.process.stdin.write("\n")
            child.process.stdin.flush()
            total.update(json.loads(child.line(ANSWER)))
        return total

    def end(self) -> None:
        """End them."""
        for child in self._children:
            child.end()


def watching(feed: Agent, imports: dict[str, tuple[str, str]]) -> list[dict[str, Any]]:
    """Return what the processes are told that watch exports of an agent for some imports."""
    shares = [list(imports)[n::PROCESSES] for n in range(PROCESSES)]
    return [
        {
            "what": "agents",
            "location": feed.client.location,
            "imports": {i: imports[i] for i in share},
        }
        for share in shares
        if share
    ]


class Bench(Family):
    """An export with an epoch, and an agent whose imports are waited on."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.figures = settings, Figures()
        self.seconds = 3.0 if settings.quick else 20.0
        self.agents = 50 if settings.quick else AGENTS
        super().__init__()
        try:
            self.broker = self.with_(Broker(settings.place))
            self.feed = self.with_(Agent(settings.place, "feed", self.broker.url))
            self.taker = self.with_(Agent(settings.place, "taker", self.broker.url))
            self.feed.export("out", buffer={"grace": f"{GRACE:.0f}s"})
            self.feed.publish("out", 0, [rows.batches(rows.BATCH_ROWS)])
            self.ports = [f"in-{n}" for n in range(max(self.agents, *QUERIES))]
            for port in self.ports:
                self.taker.import_(port, subscription='kind == "out"')
            for port in self.ports:
                self.taker.await_route(port)
        except BaseException:
            self.end()
            raise

    def _spent(self) -> dict[str, float]:
        return {name: cpu.seconds(a.pid) for name, a in self._agents().items()}

    def _agents(self) -> dict[str, Agent]:
        return {"the importer's agent": self.taker, "the exporter's agent": self.feed}

    def queries(self, count: int) -> None:
        """Add what so many idle queries of one agent cost."""
        plan = {
            "what": "queries",
            "location": self.taker.client.location,
            "token": self.taker.client.token,
            "imports": self.ports[:count],
        }
        waiting = Waiting(self.settings.place, [plan])
        try:
            before, spent = waiting.calls(), self._spent()
            time.sleep(self.seconds)
            after, used = waiting.calls(), self._spent()
        finally:
            waiting.end()
        calls = after - before
        asked = calls.pop(CALLING)
        name = f"{count} idle queries"
        for who in used:
            spent_each = (used[who] - spent[who]) / asked
            self.figures.add(f"{name}: {who}, each latestOffset", spent_each * 1e3, "ms")
        each = sum(calls.values()) / count / self.seconds
        self.figures.add(f"{name}: calls of each", each, "1/s")
        self.figures.add(f"{name}: latestOffset of each", asked / count / self.seconds, "1/s")

    def _alone(self) -> None:
        """Wait until no reader holds anything."""

        def left() -> bool:
            export = self.feed.client.call("status")["exports"][f"{self.feed.pe}/out"]
            return not any(reader["alive"] for reader in export["readers"].values())

        until(left, "export without readers")
        time.sleep(GRACE)

    def importers(self) -> None:
        """Add what so many importing agents take of the exporter's."""
        self._alone()
        ports = self.ports[: self.agents]
        imports = routes(self.taker.view(), self.taker.pe, ports)
        plans = watching(self.feed, imports)
        name = f"{self.agents:,} idle importing agents"
        self.figures.add("without importers: memory", cpu.resident(self.feed.pid), "MiB")
        waiting = Waiting(self.settings.place, plans)
        try:
            before, spent = waiting.calls(), cpu.seconds(self.feed.pid)
            time.sleep(self.seconds)
            calls = sum((waiting.calls() - before).values())
            used = cpu.seconds(self.feed.pid) - spent
            self.figures.add(f"{name}: memory", cpu.resident(self.feed.pid), "MiB")
        finally:
            waiting.end()
        self.figures.add(f"{name}: processor", used / self.seconds, "cores")
        self.figures.add(f"{name}: each peer.watch", used / calls * 1e3, "ms")


def run(settings: Settings) -> Figures:
    """Measure; memory is that of the agent that has been through all rounds before."""
    bench = Bench(settings)
    figures = bench.figures
    try:
        for round_ in range(1, settings.rounds + 1):
            figures.yardstick()
            for count in QUERIES:
                bench.queries(count)
            bench.importers()
            settings.say(f"round {round_} of {settings.rounds} done")
    finally:
        bench.end()
    figures.note(
        "idle queries: Spark's source class in threads of one process, imports of one agent, asked"
        f" again after {idle_readers.SPARKS_PAUSE * 1e3:.0f} ms as Spark does, pollWait"
        f" {idle_readers.SUBSCRIBES_WAIT} s as subscribe() sets it; calls: all that reach the"
        " agent. Processor time is all that the agents used, the driver's beat in it."
    )
    figures.note(
        "idle importing agents: a connection, an import and a reader each, from"
        f" {PROCESSES} processes; memory: resident, of the exporter's agent."
    )
    return figures
