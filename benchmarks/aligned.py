"""A stateful operator that takes control tuples, against a bare hop and Spark's own state.

Rows come from an import, packed in ``read()``, or from a JVM source, packed before the shuffle. The
bare hop brings the same rows to partitions and hands them to Python and back, and does nothing.
"""

from __future__ import annotations

from typing import Any

import agent_to_spark
import queries
from measure import Figures, Settings, turns
from processes import Agent, App, Broker, Family

PURPOSE = "rows/s through an operator with state, from an import and from the JVM, against a hop"
WAYS = ("operator", "hop", "transformWithState", "applyInPandasWithState")
SOURCES = ("import", "JVM")
SLOW = WAYS[2:]


def run(settings: Settings) -> Figures:
    """Measure: one application, the queries take turns."""
    figures, family = Figures(), Family()
    broker = family.with_(Broker(settings.place))
    feed = family.with_(Agent(settings.place, "feed", broker.url))
    app = family.with_(App(settings.place, "taker", broker=broker.url, cores=2)).ready()
    variants = [f"{source}: {way}" for way in WAYS for source in SOURCES]
    try:
        agent_to_spark.publish(feed, settings)
        for round_ in range(settings.rounds + 1):
            figures.yardstick() if round_ else None
            for name in turns(variants, round_):
                _measure(figures, app, name, round_, settings)
            settings.say(f"round {round_} of {settings.rounds} done")
    finally:
        family.end()
    for source in SOURCES:
        for way in WAYS[1:]:
            over, under = f"{source}: operator: rows", f"{source}: {way}: rows"
            figures.ratio(f"{source}: operator / {way}", over, under)
    figures.ratio(
        "operator from an import / hop from the JVM", "import: operator: rows", "JVM: hop: rows"
    )
    figures.note(
        f"batches of {settings.rows:,} rows of seven columns, 1,000 keys, into noop; local[2], two"
        f" partitions behind the shuffle, 64 buckets; {agent_to_spark.epochs(settings)} batches per"
        f" round and variant after {queries.WARM}, two of those of transformWithState and"
        " applyInPandasWithState; an event costs each of the three the same few lines of Python."
    )
    return figures


def _measure(figures: Figures, app: App, name: str, round_: int, settings: Settings) -> None:
    source, _, way = name.partition(": ")
    ran = queries.batches(
        app,
        given(source, way, settings),
        {"kind": "noop"},
        str(settings.place / f"checkpoint-{source}-{way}-{round_}"),
        count=2 if way in SLOW or not round_ else agent_to_spark.epochs(settings),
        way={"kind": way},
    )
    if round_:
        queries.add(figures, name, ran, settings.rows)


def given(source: str, way: str, settings: Settings) -> dict[str, Any]:
    """Return the order for a source; an operator's import is read with control."""
    if source == "JVM":
        return {"kind": "rate", "rows": settings.rows}
    more = {"control": True} if way == "operator" else {}
    return {**agent_to_spark.source("agent", settings), **more}
