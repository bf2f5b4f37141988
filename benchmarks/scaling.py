"""What publishing, planning and reading cost with more epochs kept, importers and exports."""

from __future__ import annotations

import time
from collections.abc import Callable

import cpu
import rows
from idle import Waiting, watching
from measure import Figures, Settings
from peer_calls import Importing, routes
from processes import Agent, Broker, Family, until

PURPOSE = "cost of a publish, a plan and a read with x1, x10, x100 epochs kept, importers, exports"
EPOCHS = (100, 1_000, 10_000)
IMPORTERS = (1, 10, 100)
EXPORTS = (1, 10, 100)
ROWS = 100
CALLS = 200


class Bench(Family):
    """An exporter's agent, and an agent whose imports are used to ask it."""

    def __init__(self, settings: Settings, round_: int) -> None:
        self.settings = settings
        place = settings.place / f"round-{round_}"
        place.mkdir()
        self.place = place
        self.steps = 2 if settings.quick else 3
        self.calls = 50 if settings.quick else CALLS
        self.rows = [rows.batch(0, ROWS)]
        self.batches: dict[str, int] = {}
        super().__init__()
        try:
            self.broker = self.with_(Broker(place))
            self.feed = self.with_(Agent(place, "feed", self.broker.url))
            self.taker = self.with_(Agent(place, "taker", self.broker.url))
        except BaseException:
            self.end()
            raise

    def export(self, port: str, imports: int) -> dict[str, tuple[str, str]]:
        """Declare an export, and imports of it; return their routes."""
        self.feed.export(port)
        until(lambda: port in self.feed.view()["exports"], f"export {port}")
        ports = [f"{port}-{n}" for n in range(imports)]
        for one in ports:
            self.taker.import_(one, subscription=f'kind == "{port}"')
        for one in ports:
            self.taker.await_route(one)
        return routes(self.taker.view(), self.taker.pe, ports)

    def publish(self, port: str) -> None:
        """Publish an epoch of a few rows."""
        batch = self.batches.get(port, 0)
        self.feed.publish(port, batch, [self.rows])
        self.batches[port] = batch + 1

    def asking(self, imports: dict[str, tuple[str, str]]) -> Importing:
        """Return the first of the importers, with a new reader."""
        name, route = next(iter(imports.items()))
        return Importing(self.feed.client.location, name, route)

    def cost(self, what: Callable[[], object]) -> float:
        """Return the milliseconds of the agent's processor time that a call takes."""
        what()
        before = cpu.seconds(self.feed.pid)
        for _ in range(self.calls):
            what()
        return (cpu.seconds(self.feed.pid) - before) / self.calls * 1e3

    def reads(self, port: str, importing: Importing) -> dict[str, float]:
        """Return what a plan of an importer that has everything takes, and a read of the newest."""
        (planned,) = importing.plan({})["planned"]
        stream, epoch = planned["stream"], planned["next"]
        self.publish(port)
        importing.plan({stream: epoch})
        read = self.cost(lambda: importing.read(stream, epoch, 1))
        plan = self.cost(lambda: importing.plan({stream: epoch + 1}))
        return {"plan": plan, "read": read}


def epochs(bench: Bench, figures: Figures) -> None:
    """Add costs by epochs kept."""
    imports = bench.export("epochs", 1)
    for kept in EPOCHS[: bench.steps]:
        while bench.batches.get("epochs", 0) < kept:
            bench.publish("epochs")
        took = {"publish": bench.cost(lambda: bench.publish("epochs"))}
        took |= bench.reads("epochs", bench.asking(imports))
        for what, ms in took.items():
            figures.add(f"{kept:,} epochs kept: {what}", ms, "ms")
        figures.add(f"{kept:,} epochs kept: memory", cpu.resident(bench.feed.pid), "MiB")


def importers(bench: Bench, figures: Figures) -> None:
    """Add what a publish costs by importers that wait for it."""
    imports = bench.export("importers", IMPORTERS[bench.steps - 1])
    bench.publish("importers")
    for count in IMPORTERS[: bench.steps]:
        few = {name: imports[name] for name in list(imports)[:count]}
        waiting = Waiting(bench.place, watching(bench.feed, few))
        try:
            took = bench.cost(lambda: bench.publish("importers"))
        finally:
            waiting.end()
        figures.add(f"{count} importers wait: publish", took, "ms")


def exports(bench: Bench, figures: Figures) -> None:
    """Add what a publish and a plan cost by exports of the agent, each with an importer."""
    first = bench.export("export0", 1)
    bench.publish("export0")
    others: dict[str, tuple[str, str]] = {}
    for count in EXPORTS[: bench.steps]:
        for port in (f"export{n}" for n in range(1 + len(others), count)):
            others |= bench.export(port, 1)
            bench.publish(port)
        waiting = Waiting(bench.place, watching(bench.feed, others))
        try:
            time.sleep(1.0)
            idle = cpu.seconds(bench.feed.pid)
            time.sleep(2.0)
            idle = cpu.seconds(bench.feed.pid) - idle
            took = {"publish": bench.cost(lambda: bench.publish("export0"))}
            took |= bench.reads("export0", bench.asking(first))
        finally:
            waiting.end()
        for what, ms in took.items():
            figures.add(f"{count} exports: {what}", ms, "ms")
        figures.add(f"{count} exports: without news", idle / 2.0, "cores")


def run(settings: Settings) -> Figures:
    """Measure; each round begins with new agents."""
    figures = Figures()
    for round_ in range(1, settings.rounds + 1):
        figures.yardstick()
        for part in (epochs, importers, exports):
            bench = Bench(settings, round_ * 10 + (epochs, importers, exports).index(part))
            try:
                part(bench, figures)
            finally:
                bench.end()
        settings.say(f"round {round_} of {settings.rounds} done")
    calls = 50 if settings.quick else CALLS
    figures.note(
        f"epochs of {ROWS} rows; processor time of the exporter's agent for each of {calls} calls,"
        " one after the other, whatever else it does meanwhile in it; plan: of an importer that has"
        " everything; read: of the newest epoch. Of several exports one is published, and each of"
        " the others has an importer that waits."
    )
    return figures
