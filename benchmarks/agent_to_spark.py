"""A Spark query that imports; its peer has the same rows in memory."""

from __future__ import annotations

from typing import Any

import queries
import rows
from measure import Figures, Settings, turns
from processes import Agent, App, Broker

from streambroker_core.ledger.offset import SLICE_BYTES

PURPOSE = "agent -> Spark: micro-batches from an export, against the same rows from memory"
VARIANTS = ("agent", "memory", "memory in 2 slices")


def run(settings: Settings) -> Figures:
    """Measure: epochs that are in the log, read by a new reader each round."""
    figures = Figures()
    count = epochs(settings)
    broker = Broker(settings.place)
    feed = Agent(settings.place, "feed", broker.url)
    app = App(settings.place, "taker", broker=broker.url, cores=2).ready()
    try:
        publish(feed, settings)
        for round_ in range(settings.rounds + 1):
            figures.yardstick() if round_ else None
            for name in turns(VARIANTS, round_):
                checkpoint = str(settings.place / f"checkpoint-{name}-{round_}")
                ran = queries.batches(
                    app, source(name, settings), {"kind": "noop"}, checkpoint, count=count
                )
                if round_:
                    queries.add(figures, name, ran, settings.rows)
            settings.say(f"round {round_} of {settings.rounds} done")
    finally:
        app.end()
        feed.end()
        broker.end()
    figures.ratio("agent / memory", "agent: rows", "memory: rows")
    figures.ratio("agent / memory in 2 slices", "agent: rows", "memory in 2 slices: rows")
    figures.note(
        f"into noop, local[2], both agents on the same cores; {count} batches per round"
        f" and variant after {queries.WARM}; epochs of {settings.rows:,} rows in batches"
        f" of {rows.BATCH_ROWS:,}, read in {slices(settings.rows)} slices; memory: a"
        " Python data source of the benchmark with as many slices."
    )
    return figures


def epochs(settings: Settings) -> int:
    """Return how many batches are measured per round."""
    return 2 if settings.quick else 6


def publish(feed: Agent, settings: Settings) -> None:
    """Put the epochs of a round into the log, in two stages each as two tasks would."""
    feed.export("out")
    batches = rows.batches(settings.rows)
    half = len(batches) // 2
    for epoch in range(epochs(settings) + queries.WARM):
        feed.publish("out", epoch, [batches[:half], batches[half:]])


def slices(count: int) -> int:
    """Return into how many tasks the agent cuts an epoch."""
    return max(1, -(-count * rows.ROW_BYTES // SLICE_BYTES))


def source(name: str, settings: Settings) -> dict[str, Any]:
    """Return the order for one of the sources."""
    if name == "agent":
        return {
            "kind": "import",
            "port": "in",
            "subscription": 'kind == "out"',
            "schema": rows.DDL,
            "max_bytes_per_batch": 1,
        }
    return {
        "kind": "bench_memory",
        "rows": settings.rows,
        "slices": 2 if name.endswith("2 slices") else slices(settings.rows),
    }
