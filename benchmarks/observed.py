"""What it costs to count the rows of a query in Spark's `observedMetrics`, on plain rows."""

from __future__ import annotations

from typing import Any

import agent_to_spark
import cpu
import queries
import rows
import spark_to_agent
from measure import Figures, Settings, turns
from processes import Agent, App, Broker

from pe_agent.spark.local_session import session
from pe_agent.spark.observed_rows import observe_rows

PURPOSE = "rows counted by DataFrame.observe: an importing and an exporting query, with and without"
DIRECTIONS = ("import", "export")
BARE_ROWS = 20_000_000
VARIANTS = tuple(f"{one}{without}" for one in DIRECTIONS for without in ("", ", not counted"))


def run(settings: Settings) -> Figures:
    """Measure; both queries take turns, with and without the metric."""
    figures, count = Figures(), agent_to_spark.epochs(settings)
    broker = Broker(settings.place)
    store = Agent(settings.place, "store", broker.url)
    app = App(settings.place, "job", broker=broker.url, cores=2).ready()
    try:
        agent_to_spark.publish(store, settings)
        for round_ in range(settings.rounds + 1):
            figures.yardstick() if round_ else None
            for name in turns(VARIANTS, round_):
                before = cpu.used(app.process.pid)
                ran = app.run(**_order(name, settings, round_), batches=count + queries.WARM)
                ran = [one for one in ran if one["rows"]]
                used = cpu.between(before, cpu.used(app.process.pid))
                if round_:
                    queries.add(figures, name, ran[queries.WARM :], settings.rows)
                    millions = sum(one["rows"] for one in ran) / 1e6
                    figures.add(f"{name}: JVM", used["JVM"] / millions, "s/M rows")
                    figures.add(f"{name}: processor", sum(used.values()) / millions, "s/M rows")
            settings.say(f"round {round_} of {settings.rounds} done")
    finally:
        app.end()
        store.end()
        broker.end()
    _bare(figures, settings)
    for one in DIRECTIONS:
        for what in ("rows", "JVM", "processor"):
            over, under = f"{one}: {what}", f"{one}, not counted: {what}"
            figures.ratio(f"{one}: counted / not, {what}", over, under)
    figures.note(
        f"local[2], the agent on the same cores; {count} batches of {settings.rows:,} rows per"
        f" round and variant after {queries.WARM}; import into noop, export of rows that the JVM"
        " makes. JVM, processor: seconds of the JVM, and of the whole application with its agent,"
        " for one million rows, the first batches included. a row: processor time of a JVM that"
        f" makes {BARE_ROWS:,} rows and drops them, without Python."
    )
    return figures


def _bare(figures: Figures, settings: Settings) -> None:
    """Measure what Spark's metric takes for each row, which is less than those queries vary."""
    spark = session("observed")
    made = spark.range(0, BARE_ROWS, 1, 2).selectExpr("id AS value").selectExpr(*rows.FROM_VALUE)
    jvm = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    try:
        for round_ in range(settings.rounds + 1):
            for name in turns(("a row", "a row, not counted"), round_):
                frame = made if "not" in name else observe_rows(made, f"round-{round_}")
                before = cpu.seconds(jvm)
                frame.write.format("noop").mode("overwrite").save()
                if round_:
                    figures.add(name, (cpu.seconds(jvm) - before) / BARE_ROWS * 1e9, "ns")
    finally:
        spark.stop()
    for counted, not_ in zip(
        figures.samples["a row"], figures.samples["a row, not counted"], strict=True
    ):
        figures.add("a row: the metric", counted - not_, "ns")


def _order(name: str, settings: Settings, round_: int) -> dict[str, Any]:
    """Return the order of a query."""
    direction, _, without = name.partition(", ")
    if direction == "import":
        source, sink = agent_to_spark.source("agent", settings), {"kind": "noop"}
        place = f"checkpoint-{name}-{round_}"
    else:
        source, place = {"kind": "rate", "rows": settings.rows}, f"checkpoint-{name}"
        port: dict[str, Any] = {"port": f"mine{len(without)}", "properties": {}}
        sink = {**spark_to_agent.sink("agent", settings), **port}
    checkpoint = str(settings.place / place)
    return {"source": source, "sink": sink, "checkpoint": checkpoint, "observed": not without}
