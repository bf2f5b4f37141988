"""Two Spark applications, one exporting to the other, and the bound of the same run."""

from __future__ import annotations

from typing import Any

import agent_to_spark
import cpu
import queries
import rows
import spark_to_agent
from measure import Figures, Settings, turns
from processes import Agent, App, Broker

PURPOSE = "Spark -> Spark: two applications on the same cores, against writer and reader alone"
VARIANTS = (
    "end to end",
    "writer to file",
    "reader from memory",
    "writer to agent",
    "reader from agent",
)
CORES = 2


class Bench:
    """An exporting and an importing application; ports and checkpoints are new each round."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.count = 2 if settings.quick else 12
        self.alone = 2 if settings.quick else 5
        self.broker = Broker(settings.place)
        self.store = Agent(settings.place, "store", self.broker.url)
        agent_to_spark.publish(self.store, settings)
        self.feed = App(settings.place, "feed", broker=self.broker.url, cores=CORES)
        self.taker = App(settings.place, "taker", broker=self.broker.url, cores=CORES)
        self.feed.ready()
        self.taker.ready()
        self.figures = Figures()

    def end(self) -> None:
        """End all processes."""
        for process in (self.taker, self.feed, self.store, self.broker):
            process.end()

    def writing(self, to: str, round_: int) -> dict[str, Any]:
        """Return the order for a query that writes to the ``agent`` or to a ``file``."""
        sink = spark_to_agent.sink(to.partition(" ")[0], self.settings)
        if sink["kind"] == "export":
            port = "alone" if "alone" in to else f"out-{round_}"
            sink.update(port=port, properties={"kind": port}, buffer={"maxBytes": rows.BUFFER})
        return {
            "source": {"kind": "rate", "rows": self.settings.rows},
            "sink": sink,
            "checkpoint": self._checkpoint(f"writing-{to}", round_),
        }

    def reading(self, from_: str, round_: int) -> dict[str, Any]:
        """Return the order for a query that reads from the ``agent`` or from ``memory``."""
        source = agent_to_spark.source(from_.partition(" ")[0], self.settings)
        if source["kind"] == "import":
            kind = "out" if "alone" in from_ else f"out-{round_}"
            source.update(port=f"from-{kind}", subscription=f'kind == "{kind}"')
        return {
            "source": source,
            "sink": {"kind": "noop"},
            "checkpoint": self._checkpoint(f"reading-{from_}", round_),
        }

    def _checkpoint(self, name: str, round_: int) -> str:
        if name == "writing-agent alone":
            round_ = 0  # one query, whose log stays as large as it is
        return str(self.settings.place / "checkpoints" / f"{name}-{round_}".replace(" ", "-"))

    def measure(self, name: str, round_: int) -> float:
        """Measure one variant; return its seconds per 1 M rows."""
        if name == "end to end":
            return self.end_to_end(round_)
        what, _, where = name.split(" ")
        alone = where if where in ("file", "memory") else f"{where} alone"
        order = self.writing(alone, round_) if what == "writer" else self.reading(alone, round_)
        app = self.feed if what == "writer" else self.taker
        ran = queries.batches(app, **order, count=self.alone)
        figures = self.figures if round_ else Figures()
        return queries.add(figures, name, ran, self.settings.rows)

    def end_to_end(self, round_: int) -> float:
        """Run both queries; return seconds per 1 M rows.

        From the begin of the exporter's first batch to the end of the importer's last, so that
        all work on the rows counted, and all time in which one waits for the other, is in it.
        """
        total = self.count + queries.FILL
        before = [cpu.used(app.process.pid) for app in (self.feed, self.taker)]
        self.taker.send(**self.reading("agent", round_), rows=total * self.settings.rows)
        wrote = self.feed.run(**self.writing("agent", round_), batches=total)
        read = self.taker.answer()
        after = [cpu.used(app.process.pid) for app in (self.feed, self.taker)]
        seconds = seconds_per_million(wrote, read, self.count, self.settings.rows)
        if round_:
            rate = 1e6 / seconds
            self.figures.add("end to end: rows", rate / 1e6, "M rows/s")
            self.figures.add("end to end: MB", rows.megabytes(rate), "MB/s")
            self._processor(before, after, wrote, read)
        return seconds

    def _processor(
        self,
        before: list[cpu.Used],
        after: list[cpu.Used],
        wrote: list[dict[str, Any]],
        read: list[dict[str, Any]],
    ) -> None:
        for who, old, new, ran in zip(
            ("exporter", "importer"), before, after, (wrote, read), strict=True
        ):
            millions = sum(b["rows"] for b in ran) / 1e6
            for kind, seconds in cpu.between(old, new).items():
                self.figures.add(f"processor: {who}'s {kind}", seconds / millions, "s/M rows")


def seconds_per_million(
    wrote: list[dict[str, Any]], read: list[dict[str, Any]], batches: int, size: int
) -> float:
    """Return seconds per 1 M rows of so many batches of ``size`` rows, after those that fill.

    They begin with the exporter's first batch and end with the importer's last.
    """
    count = batches * size
    first = [b for b in wrote if b["rows"]][queries.FILL]
    total = -queries.FILL * size
    for batch in read:
        total += batch["rows"]
        if total >= count:
            ended = batch["began"] + batch["ms"]["triggerExecution"] / 1e3
            return float(ended - first["began"]) * 1e6 / count
    raise RuntimeError(f"only {total} rows came after the warm-up")


def run(settings: Settings) -> Figures:
    """Measure; round 0 warms up and is left out."""
    bench = Bench(settings)
    figures = bench.figures
    try:
        for round_ in range(settings.rounds + 1):
            figures.yardstick() if round_ else None
            took = {name: bench.measure(name, round_) for name in turns(VARIANTS, round_)}
            settings.say(f"round {round_} of {settings.rounds} done: {took}")
            if round_:
                bound = 1 / (took["writer to file"] + took["reader from memory"])
                parts = 1 / (took["writer to agent"] + took["reader from agent"])
                figures.add("bound: rows", bound, "M rows/s")
                figures.add("sum of its halves: rows", parts, "M rows/s")
    finally:
        bench.end()
    figures.ratio("end to end / bound", "end to end: rows", "bound: rows")
    figures.ratio("end to end / sum of its halves", "end to end: rows", "sum of its halves: rows")
    figures.note(
        f"two processes, local[{CORES}] each, with an agent each and a broker, all on the"
        f" same {CORES} cores; {bench.count} batches per round after {queries.FILL};"
        " end to end: from the begin of the exporter's first batch to the end of the"
        " importer's last."
    )
    figures.note(
        "bound: 1 / (seconds per row of the same query into a local file + seconds per row"
        " of the same query from memory), each alone on the cores; sum of its halves: the"
        " same of writer to agent and reader from agent."
    )
    return figures
