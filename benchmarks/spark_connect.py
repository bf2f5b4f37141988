"""The same importing and exporting queries in a classic session and over Spark Connect."""

from __future__ import annotations

from typing import Any

import agent_to_spark
import queries
import spark_to_agent
from measure import Figures, Settings, turns
from processes import Agent, App, Broker

PURPOSE = "Spark Connect: micro-batches from and into an export, against a classic session"
SESSIONS = ("connect", "classic")


def run(settings: Settings) -> Figures:
    """Measure: two applications with a session of each kind; the queries take turns."""
    figures = Figures()
    broker = Broker(settings.place)
    feed = Agent(settings.place, "feed", broker.url)
    apps = {
        kind: App(
            settings.place, kind, broker=broker.url, cores=2, connect=kind == "connect"
        ).ready()
        for kind in SESSIONS
    }
    count = agent_to_spark.epochs(settings)
    try:
        agent_to_spark.publish(feed, settings)
        for round_ in range(settings.rounds + 1):
            figures.yardstick() if round_ else None
            for kind in turns(SESSIONS, round_):
                for way in ("import", "export"):
                    source, sink = _orders(way, kind, settings)
                    checkpoint = str(settings.place / f"checkpoint-{kind}-{way}-{round_}")
                    ran = queries.batches(apps[kind], source, sink, checkpoint, count=count)
                    if round_:
                        queries.add(figures, f"{way}, {kind}", ran, settings.rows)
            settings.say(f"round {round_} of {settings.rounds} done")
    finally:
        for app in apps.values():
            app.end()
        feed.end()
        broker.end()
    for way in ("import", "export"):
        figures.ratio(f"{way}: connect / classic", f"{way}, connect: rows", f"{way}, classic: rows")
    figures.note(
        "import: an export into noop; export: Spark's rate source into an export; local[2], the"
        f" Connect server in the application; {count} batches per round and variant after"
        f" {queries.WARM}."
    )
    return figures


def _orders(way: str, kind: str, settings: Settings) -> tuple[dict[str, Any], dict[str, Any]]:
    if way == "import":
        return agent_to_spark.source("agent", settings), {"kind": "noop"}
    sink = {**spark_to_agent.sink("agent", settings), "properties": {"kind": f"out of {kind}"}}
    return {"kind": "rate", "rows": settings.rows}, sink
