"""A Spark query that exports; its peers write the same rows to a local file, and nowhere."""

from __future__ import annotations

from typing import Any

import queries
import rows
from measure import Figures, Settings, turns
from processes import App, Broker

PURPOSE = "Spark -> agent: micro-batches into an export, against the same rows to a local file"
VARIANTS = ("agent", "file", "noop")


def run(settings: Settings) -> Figures:
    """Measure: one application, the queries take turns."""
    figures = Figures()
    broker = Broker(settings.place)
    app = App(settings.place, "feed", broker=broker.url, cores=2).ready()
    count = 2 if settings.quick else 6
    try:
        for round_ in range(settings.rounds + 1):
            figures.yardstick() if round_ else None
            for name in turns(VARIANTS, round_):
                checkpoint = str(settings.place / f"checkpoint-{name}")
                ran = queries.batches(
                    app,
                    {"kind": "rate", "rows": settings.rows},
                    sink(name, settings),
                    checkpoint,
                    count=count,
                )
                if round_:
                    queries.add(figures, name, ran, settings.rows)
            settings.say(f"round {round_} of {settings.rounds} done")
    finally:
        app.end()
        broker.end()
    figures.ratio("agent / file", "agent: rows", "file: rows")
    figures.ratio("agent / noop", "agent: rows", "noop: rows")
    figures.note(
        "JVM rate-micro-batch source, 2 partitions, local[2], the agent on the same cores;"
        f" {count} batches per round and variant after {queries.WARM} to warm up; rows/s"
        " from the end of a batch to the end of the next."
    )
    figures.note(
        "file: the same rows through an Arrow writer of the same kind into an Arrow IPC"
        " stream per task with fsync; noop: the source alone."
    )
    return figures


def sink(name: str, settings: Settings) -> dict[str, Any]:
    """Return the order for one of the sinks."""
    if name == "agent":
        return {
            "kind": "export",
            "port": "out",
            "properties": {"kind": "out"},
            "buffer": {"maxBytes": rows.BUFFER},
        }
    if name == "file":
        return {"kind": "bench_file", "path": str(settings.place / "staged")}
    return {"kind": "noop"}
