"""A rule on an import whose exporter sends only rows that the rule has to see."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
from flink_peer import Flink, write
from measure import Figures, Settings, turns
from pattern_app import BUCKETS, FEW, TIME, WARM
from pattern_runs import END, Workload
from processes import Agent, Broker, Family
from pushed_app import DDL, PushedApp

from streambroker_core.cep.pattern.rule import PatternProcessor
from streambroker_core.cep.rules.document import write_rule
from streambroker_core.model.schema import parse_ddl, to_items

PURPOSE = "a rule on an import, with relevance push-down, with all rows sent, and in Flink CEP"
WORKLOADS = (Workload(shape="relaxed", share=0.001), Workload(shape="relaxed"))
EPOCHS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """How the rule is run: with push-down or on all rows, and in how many buckets."""

    push_down: bool
    buckets: int = BUCKETS


SIDES = {
    "pushed down": Side(push_down=True),
    "pushed down, 64 buckets": Side(push_down=True, buckets=64),
    "all rows": Side(push_down=False),
}
BATCH = 100_000
SCHEMA = pa.schema(
    [("t", TIME), ("key", pa.int64()), ("kind", pa.string()), ("price", pa.float64())]
)


def run(settings: Settings) -> Figures:
    """Measure each workload in turns, with push-down and without."""
    figures, family = Figures(), Family()
    try:
        broker = family.with_(Broker(settings.place))
        feed = family.with_(Agent(settings.place, "feed", broker.url))
        app = family.with_(
            PushedApp(
                settings.place,
                "taker",
                broker=broker.url,
                cores=1,
                conf={"spark.sql.shuffle.partitions": "1"},
            )
        )
        app.ready()
        flink = family.with_(Flink(settings.place, cores=1))
        if not settings.quick:
            _warm(settings, feed, app)
        for number, each in enumerate(WORKLOADS):
            events = each.events(EPOCHS * settings.rows)
            publish(feed, f"kind-{number}", events, EPOCHS)
            write(events.slice(0, settings.rows), settings.place / f"events-{number}")
        for round_ in settings.turns:
            if round_:
                figures.yardstick()
            for number, each in enumerate(WORKLOADS):
                settings.say(f"round {round_}: {each}")
                found = _round(settings, app, number, each, round_)
                answer = flink.run(each, settings.place / f"events-{number}")
                found[f"{each}: Flink"] = settings.rows / answer.seconds / 1e6
                for what, value in found.items() if round_ else ():
                    figures.add(what, value, "M/s")
    finally:
        family.end()
    for each in WORKLOADS:
        pushed = f"{each}: pushed down"
        for peer in ("all rows", "Flink"):
            figures.ratio(f"{pushed} / {peer}", pushed, f"{each}: {peer}")
        many = f"{pushed}, 64 buckets"
        figures.ratio(f"{many} / Flink", many, f"{each}: Flink")
    figures.note(
        f"{EPOCHS} epochs of {settings.rows:,} events, one in each micro-batch, the first of which"
        f" is left out, after {WARM} small ones each way that warm up; events that the exporter"
        " has, a second, those that it does not send among them. Spark, its workers and its agent"
        " on one core; the exporter's agent is"
        " free to use the other. Into noop, with Spark's checkpoint and state store, without"
        f" time-outs, in {BUCKETS} buckets or in 64. Flink 1.20 on one core, from memory, without"
        " checkpoints, one epoch."
    )
    figures.note("The number of matches was the same with push-down and without, in each round.")
    return figures


def _warm(settings: Settings, feed: Agent, app: PushedApp) -> None:
    """Let the JVM compile what is called as often in a small micro-batch as in a large one."""
    publish(feed, "kind-warm", WORKLOADS[0].events(WARM * FEW), WARM)
    for side in SIDES:
        app.run(**_order(settings, WORKLOADS[0], "warm", side, 0))
        settings.say(f"{side}: warm")


def _round(
    settings: Settings, app: PushedApp, number: int, each: Workload, round_: int
) -> dict[str, float]:
    """Run a workload with push-down and without; return M events/s of each.

    Raises:
        RuntimeError: the numbers of matches differ.
    """
    found, matches = dict[str, float](), set()
    for side in turns(list(SIDES), round_):
        ran = app.run(**_order(settings, each, str(number), side, round_))
        found[f"{each}: {side}"] = rate(ran["batches"], settings.rows)
        matches.add(ran["matches"])
    if len(matches) != 1:
        raise RuntimeError(f"{each}: with and without push-down {matches} matches")
    return found


def publish(feed: Agent, port: str, events: pa.RecordBatch, count: int) -> None:
    """Put events into the log as epochs, and behind them one whose time ends all windows."""
    feed.export(port, schema=to_items(parse_ddl(DDL)))
    times = events.column("t").cast(pa.timestamp("us")).cast(TIME)
    table = pa.Table.from_batches([events.set_column(0, "t", times)]).cast(SCHEMA)
    last = table.slice(0, 1).set_column(0, "t", pa.array([END], TIME)).cast(SCHEMA)
    cuts = [events.num_rows * n // count for n in range(count + 1)]
    epochs = [table.slice(low, high - low) for low, high in pairwise(cuts)]
    ddl = ", ".join(f"`{column.name}` {column.type}" for column in parse_ddl(DDL))
    for number, epoch in enumerate([*epochs, last]):
        who: dict[str, Any] = {"export": port, "query": f"q-{port}", "run": "r", "ddl": ddl}
        feed.client.call("publisher.admit", batch=number, renewed=None, **who)
        stage = feed.client.put(
            {**who, "batch": number}, SCHEMA, epoch.to_batches(max_chunksize=BATCH)
        )
        feed.client.call("publisher.publish", batch=number, stages=[stage], timeout=60.0, **who)


def rate(batches: list[dict[str, Any]], rows: int) -> float:
    """Return M events/s of the exporter's: from the end of the first epoch to that of the fourth.

    The fifth has one event, at the end of time.
    """
    ends = {
        each["next"]: each["began"] + each["ms"]["triggerExecution"] / 1e3
        for each in reversed(batches)
    }
    first = min(ends)
    return float((EPOCHS - first) * rows / (ends[EPOCHS] - ends[first]) / 1e6)


def _order(settings: Settings, each: Workload, port: str, side: str, round_: int) -> dict[str, Any]:
    way = SIDES[side]
    name = f"{port}-{round_}-{way.push_down}-{way.buckets}".lower()
    rule = PatternProcessor(id="r", version=1, pattern=each.pattern())
    return {
        "port": f"in-{name}",
        "subscription": f'kind == "kind-{port}"',
        "rule": write_rule(rule),
        "push_down": way.push_down,
        "buckets": way.buckets,
        "checkpoint": str(settings.place / f"checkpoint-{name}"),
        "control": str(settings.place / f"rules-{name}"),
    }
