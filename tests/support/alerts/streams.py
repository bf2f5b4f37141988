"""Faults of agents: one for each alert of streams, at agents of its own."""

from __future__ import annotations

import shutil
import time
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from pe_agent.cep.accumulators import Tally
from pe_agent.cep.metrics_reporter import RuleMetricsReporter
from pe_agent.side.metrics_reporter import build_request
from pe_agent.side.operator import SparkSideOperator
from pe_agent.side.tables.cache import CachedTables
from pe_agent.transport.agent_client import send
from streambroker_core.cep.operator import PatternOperator
from streambroker_core.cep.pattern.pattern import Pattern
from streambroker_core.cep.pattern.rule import PatternProcessor
from streambroker_core.cep.rules.rule_set import RuleContext, RuleSet
from streambroker_core.control.operators.operator import Window
from streambroker_core.side import SideInput, SideJoin
from streambroker_core.side.state.layout import build_layout
from streambroker_core.wire.reports.side_status import SideStatus
from support.agents.agents import AgentProcess, Pair, Publishing, Reading, pair, rows
from support.agents.sources import Run
from support.alerts.drill import Alert, Drill
from support.patterns.cases import compiled
from support.patterns.windows import Bucket
from support.processes.certificates import AGENT as CERTIFIED
from support.processes.certificates import Authority
from support.processes.ports import free_port
from support.processes.waiting import until
from support.sides.cases import Sink

SECONDS = 300.0
SMALL = 20_000
MINUTE = 60.0
EXPORT = {"export": "default/feed/0/trades"}
ROUTE = {**EXPORT, "import": "default/alerts/0/trades"}
HOURS = 7200.0
_pair = contextmanager(pair)


def agents(drill: Drill, name: str, environment: dict[str, str] | None = None, **how: Any) -> Pair:
    """Run two agents, scraped as pods of a namespace of their own."""
    port = free_port()
    given = {**(environment or {}), "STREAMBROKER_METRICS_PORT": str(port)}
    made = drill.stack.enter_context(_pair(drill.own(name), environment=given, **how))
    drill.prometheus.follow(name, "feed-1", port)
    port = free_port()
    made.importer.environment = {"STREAMBROKER_METRICS_PORT": str(port)}
    for agent in (made.exporter, made.importer):
        agent.linger = HOURS  # without a query, too
        agent.restart()
    drill.prometheus.follow(name, "alerts-1", port)
    return made


def alone(drill: Drill, name: str, secured: Authority | None = None) -> AgentProcess:
    """Run one agent without a broker, scraped."""
    port = free_port()
    given = {"STREAMBROKER_METRICS_PORT": str(port)}
    agent = AgentProcess(
        drill.own(name) / "feed", "feed", environment=given, secured=secured, linger=HOURS
    )
    agent.prepare()
    drill.stack.callback(agent.kill)
    agent.start()
    drill.prometheus.follow(name, "feed-1", port)
    return agent


def admitted(publisher: Publishing, batch: int) -> bool:
    return "admitted" in publisher.admit(batch)


def publish(made: Pair, first: int, count: int) -> Publishing:
    publisher = Publishing(made.exporter)
    for batch in range(first, first + count):
        until(lambda b=batch: admitted(publisher, b), SECONDS, "room")  # type: ignore[misc]
        publisher.publish(batch, rows(10 * batch, 10))
    return publisher


def lose_rows(drill: Drill) -> None:
    """Lose the disk of an exporter whose reader goes on over what is lost."""
    name = "rows-lost"
    made = agents(drill, name)
    publish(made, 0, 1)
    run = Run(made.importer)
    until(lambda: run.plan() != run.at and run.read(run.plan()), SECONDS, "the first rows")
    publish(made, 1, 2)
    run.stop()
    until(lambda: _scraped(drill, name, "alerts-1"), SECONDS, "the importer is scraped")
    made.exporter.kill()
    shutil.rmtree(made.exporter.home)
    made.exporter.prepare()
    made.plumb()
    made.exporter.start()
    again = Publishing(made.exporter, run="run-2")
    until(lambda: admitted(again, 3), SECONDS, "room")
    again.publish(3, rows(30, 10))
    drill.began(
        "an exporter's disk is lost, and a reader goes on",
        Alert("RowsLost", {"namespace": name, "import": ROUTE["import"]}, 0.0),
    )
    later = Run(made.importer, at=run.at, skip_lost=True)

    def go_on() -> None:
        if (end := later.plan()) != later.at:
            later.read(end)

    drill.often(1.0, go_on)


def _scraped(drill: Drill, namespace: str, pod: str) -> bool:
    found = drill.prometheus.ask("query", query=f'up{{namespace="{namespace}",pod="{pod}"}} == 1')
    return bool(found["result"])


def damage_log(drill: Drill) -> None:
    """Flip a bit in a segment while its agent is down."""
    made = agents(drill, "log-damaged")
    wide = rows(0, 10).set_column(1, "name", pa.array(["x" * 500_000] * 10))
    for batch in range(3):
        Publishing(made.exporter).publish(batch, wide)
    made.exporter.kill()
    segment = next(one for one in made.exporter.segments() if one.suffix != ".index")
    data = bytearray(segment.read_bytes())
    data[data.index(b"x" * 1000) + 500] ^= 1
    segment.write_bytes(data)
    made.exporter.start()
    drill.began(
        "a bit of a segment is another one after a restart",
        Alert("LogDamaged", {"namespace": "log-damaged", **EXPORT}, 0.0),
    )


def fill_log(drill: Drill) -> None:
    """Stop reading from a log that waits and is small, and go on publishing."""
    name = "export-waits"
    made = agents(drill, name, grace=HOURS, max_bytes=SMALL)
    Reading(made.importer).open()
    publisher = Publishing(made.exporter)
    batch = 0
    while admitted(publisher, batch):
        publisher.publish(batch, rows(10 * batch, 10))
        batch += 1
    drill.often(2.0, lambda: publisher.admit(batch))
    lag = "who makes an export wait is behind"
    drill.began(
        "an importer has stopped, and the log is full",
        Alert("ExportWaits", {"namespace": name, **EXPORT}, 10 * MINUTE),
        Alert("StreamLags", {"namespace": name, **ROUTE}, 20 * MINUTE, lag),
    )


def stop_reading(drill: Drill) -> None:
    """Publish to an importer that has opened its route, and reads nothing."""
    made = agents(drill, "stream-lags", grace=HOURS)
    Reading(made.importer).open()
    publish(made, 0, 3)
    drill.began(
        "an importer reads nothing, and the log has room",
        Alert("StreamLags", {"namespace": "stream-lags", **ROUTE}, 20 * MINUTE),
    )


def refuse_uploads(drill: Drill) -> None:
    """Take the shared directory away that is the bucket of an agent."""
    bucket = drill.own("bucket") / "shared"
    bucket.mkdir()
    made = agents(drill, "uploads-lag", environment={"STREAMBROKER_STORAGE": f"file://{bucket}"})
    publish(made, 0, 1)
    bucket.rename(bucket.with_name("away"))
    bucket.write_text("not mounted")
    publish(made, 1, 1)
    drill.began(
        "a shared directory is not mounted any more",
        Alert("UploadsLag", {"namespace": "uploads-lag", **EXPORT}, 5 * MINUTE),
    )


def break_rule(drill: Drill) -> None:
    """Run the engine with a rule whose condition raises, which is off then."""
    agent = alone(drill, "rule-failed")
    until(lambda: _scraped(drill, "rule-failed", "feed-1"), SECONDS, "the agent is scraped")
    tally = Tally()
    raising = lambda row, run: bool(1 // (row["n"] != 2))  # noqa: E731
    fine = Pattern.begin("a").where("n == 1")
    broken = Pattern.begin("a").where(raising)
    ruled = [
        PatternProcessor(id="fine", version=1, pattern=fine),
        PatternProcessor(id="broken", version=2, pattern=broken, on_error="disable"),
    ]
    rules, _ = RuleSet().apply_update(ruled, RuleContext())
    bucket = Bucket(
        lambda: PatternOperator(
            time="processing", key=("name",), maker=compiled, rules=rules, watch=tally.add
        )
    )

    def errors() -> dict[tuple[str, int], int]:
        return {(one.rule, one.version): one.errors for one in tally.progress(0)}

    def failed() -> list[str]:
        return [one.rule for one in tally.stopped]

    reporter = RuleMetricsReporter(
        lambda: agent.client, "fraud", "rules", tally.metrics, tally.waiting_rows, errors, failed,
        lambda: True,
    )  # fmt: skip
    drill.began(
        "a rule raises with its first row",
        Alert(
            "RuleFailed",
            {"namespace": "rule-failed", "operator": "fraud", "rule": "broken", "version": "2"},
            0.0,
        ),
    )
    bucket.window([rows(1, 3)])
    assert failed() == ["broken"], failed()
    drill.often(0.5, reporter.beat)


def withhold_side(drill: Drill) -> None:
    """Run an operator whose side input gets no data."""
    agent = alone(drill, "side-waits")
    main = rows(0, 3)
    rates = pa.schema([("name", pa.string()), ("rate", pa.int64())])
    side = SideInput(name="rates", schema=rates, kind="map", key=("name",))
    shape = build_layout(SideJoin(inputs=(side,), schema=main.schema, key=("name",)))
    statuses: list[SideStatus] = []

    class Reporter:
        operator = "join"

        def __call__(self, bucket: int, window: int, sides: Any) -> None:
            statuses[:] = sides

    made = SparkSideOperator(
        shape,
        lambda batch, views: batch,
        CachedTables(),
        emits_metrics=False,
        reporter=Reporter(),  # type: ignore[arg-type]
    )
    micros = round(time.time() * 1e6)
    made.bind(Window(number=1, time=micros, watermark=None, bucket=0, buckets=1), Sink())
    made.begin_window()
    made.process("main", main)
    made.end_window()
    assert [one.input for one in statuses if one.waiting_rows] == ["rates"], statuses
    send(agent.client, build_request({("query", "join", 0): (1, tuple(statuses))}), timeout=60.0)
    drill.began(
        "a side input gets no data",
        Alert(
            "SideInputWaits",
            {"namespace": "side-waits", "operator": "join", "input": "rates"},
            10 * MINUTE,
        ),
    )


def shorten_certificate(drill: Drill) -> None:
    """Run an agent with a certificate of two days."""
    alone(drill, "certificate-ends", Authority(drill.own("authority"), "agent", CERTIFIED))
    drill.began(
        "a certificate of two days",
        Alert("CertificateEnds", {"namespace": "certificate-ends", "pod": "feed-1"}, 15 * MINUTE),
    )


FAULTS = [
    lose_rows,
    damage_log,
    fill_log,
    stop_reading,
    refuse_uploads,
    break_rule,
    withhold_side,
    shorten_certificate,
]
