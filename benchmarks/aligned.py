"""A stateful operator that takes control tuples against a bare hop, from an import and the JVM.

An import is packed in ``read()``, rows of the JVM before the shuffle. The bare hop brings the same
rows to partitions and hands them to Python and back, and does nothing.
"""

from __future__ import annotations

from typing import Any

import agent_to_spark
import queries
from measure import Figures, Settings, turns
from processes import Agent, App, Broker, Family

PURPOSE = "rows/s through an operator with state, from an import and from the JVM, against a hop"
SOURCES = ("import", "JVM")
SMALL, MANY = 20_000, 60
"""Rows of a small batch, and how many of them a query has before anything counts."""


def run(settings: Settings) -> Figures:
    """Measure; one application, the queries take turns."""
    figures = measured(settings, ("operator", "hop"), agent_to_spark.epochs(settings))
    name = "operator from an import / hop from the JVM"
    figures.ratio(name, "import: operator: rows", "JVM: hop: rows")
    return figures


def measured(settings: Settings, ways: tuple[str, ...], count: int) -> Figures:
    """Measure ways from both sources; ratios are those of the first way to each other."""
    figures, family = Figures(), Family()
    broker = family.with_(Broker(settings.place))
    feed = family.with_(Agent(settings.place, "feed", broker.url))
    app = family.with_(App(settings.place, "taker", broker=broker.url, cores=2)).ready()
    variants = [f"{source}: {way}" for way in ways for source in SOURCES]
    try:
        agent_to_spark.publish(feed, settings)
        for way in () if settings.quick else ways:
            _warm(app, way, settings)
        for round_ in settings.turns:
            figures.yardstick() if round_ else None
            for name in turns(variants, round_):
                ran = _batches(app, name, round_, count, settings)
                if round_:
                    queries.add(figures, name, ran, settings.rows)
            settings.say(f"round {round_} of {settings.rounds} done")
    finally:
        family.end()
    first, *others = ways
    for source in SOURCES:
        for way in others:
            over, under = f"{source}: {first}: rows", f"{source}: {way}: rows"
            figures.ratio(f"{source}: {first} / {way}", over, under)
    figures.note(
        f"batches of {settings.rows:,} rows of seven columns, 1,000 keys, into noop; local[2], two"
        f" partitions behind the shuffle, 64 buckets; {count} batches per round and variant after"
        f" {queries.WARM}, and before the rounds {MANY} of {SMALL:,} rows each way. An event costs"
        " those with state the same few lines of Python."
    )
    return figures


def _warm(app: App, way: str, settings: Settings) -> None:
    """Let the JVM compile what is called as often in a small batch as in a large one."""
    checkpoint = str(settings.place / f"checkpoint-warm-{way}")
    source, sink = {"kind": "rate", "rows": SMALL}, {"kind": "noop"}
    queries.batches(app, source, sink, checkpoint, count=MANY, way={"kind": way})
    settings.say(f"{way}: warm")


def _batches(
    app: App, name: str, round_: int, count: int, settings: Settings
) -> list[dict[str, Any]]:
    source, _, way = name.partition(": ")
    checkpoint = str(settings.place / f"checkpoint-{source}-{way}-{round_}")
    ran = queries.batches(
        app,
        _source(source, way, settings),
        {"kind": "noop"},
        checkpoint,
        count=count,
        way={"kind": way},
    )
    took = ", ".join(str(batch["ms"]["triggerExecution"]) for batch in ran)
    settings.say(f"{name}: batches of {took} ms")
    return ran


def _source(source: str, way: str, settings: Settings) -> dict[str, Any]:
    """Return the order for a source; an operator's import is read with control."""
    if source == "JVM":
        return {"kind": "rate", "rows": settings.rows}
    more = {"control": True} if way == "operator" else {}
    return {**agent_to_spark.source("agent", settings), **more}
