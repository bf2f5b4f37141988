"""Real agents with OpenTelemetry: a trace goes on from job to job, and a collector may be away."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from streambroker_core.model import PeKey
from streambroker_core.wire.broker.view import View
from support.agents.agents import (
    AgentProcess,
    Plumbing,
    Publishing,
    Reading,
    export_view,
    import_view,
    rows,
)
from support.agents.collector import Collector, Span, collecting
from support.processes.ports import free_port
from support.processes.waiting import until

SECONDS = 60.0
JOBS = ("feed", "clean", "alerts")
QUERY = "query-2"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as one:
        yield one


class Framed(Reading):
    """A query whose driver has reported what it reads."""

    def next(self, start: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
        return super().next(start, frame="trades", **more)


@dataclass
class Chain:
    """Three jobs: ``feed`` publishes, ``clean`` reads and publishes again, ``alerts`` reads."""

    feed: AgentProcess
    clean: AgentProcess
    alerts: AgentProcess

    def __post_init__(self) -> None:
        self.first = Publishing(self.feed)
        self.middle, self.last = Framed(self.clean), Reading(self.alerts, port="clean")
        self.second = Publishing(self.clean, query=QUERY, port="clean")

    def begin_query(self) -> None:
        """Report the query of ``clean``, as its driver does."""
        self.clean.client.call(
            "query.begin", query=QUERY, run="2", exports=["clean"], frames=["trades"], foreign=False
        )

    def pass_on(self, start: Any, batch: int) -> dict[str, Any]:
        """Have ``clean`` read what is there and publish it as a batch; return its offset."""
        self.begin_query()
        end = self.middle.end(start)
        read = self.middle.read(start, end)
        self.second.publish(batch, rows(read[0], len(read)))
        self.middle.next(end)
        return end


@contextmanager
def chain(directory: Path, *environments: Mapping[str, str]) -> Iterator[Chain]:
    """Run the agents of the three jobs, each in an environment of its own."""
    agents = [
        AgentProcess(directory / job, job, port=free_port(), environment=environment)
        for job, environment in zip(JOBS, environments, strict=True)
    ]
    feed, clean, alerts = agents
    one, other = Plumbing(), Plumbing(ports=("clean",))
    for agent in agents:
        agent.prepare()
    feed.write_routes(export_view(feed, clean.pe, one))
    clean.write_routes(
        View(
            pe=PeKey.parse(clean.pe),
            imports=import_view(clean, feed, one).imports,
            exports=export_view(clean, alerts.pe, other).exports,
        )
    )
    alerts.write_routes(import_view(alerts, clean, other))
    try:
        for agent in agents:
            agent.spawn()
        for agent in agents:
            agent.ready()
        yield Chain(*agents)
    finally:
        for agent in agents:
            agent.kill()


def spans(collector: Collector, name: str, count: int, service: str | None = None) -> list[Span]:
    def found() -> list[Span] | None:
        named = collector.named(name, service=service)
        return named if len(named) >= count else None

    return until(found, SECONDS, f"{count} spans {name} of {service}")


def contexts(agent: AgentProcess, port: str = "trades") -> list[str]:
    """Return the trace contexts in the log of an export, in order."""
    logs = b"".join(path.read_bytes() for path in agent.segments(port) if path.suffix == ".segment")
    return [found.decode() for found in re.findall(rb'"traceparent": "([^"]*)"', logs)]


def test_one_trace_has_the_spans_of_three_jobs(tmp_path: Path, collector: Collector) -> None:
    sent = collector.environment()
    with chain(tmp_path, sent, sent, sent) as jobs:
        start = jobs.last.open()
        jobs.middle.open()
        jobs.first.publish(0, rows(0, 10))
        jobs.pass_on(None, 0)
        end = jobs.last.end(start)
        assert jobs.last.read(start, end) == list(range(10))
        jobs.last.next(end)
        spans(collector, "deliver", 2)
    (source,) = collector.named("publish", service="feed")
    (middle,) = collector.named("deliver", service="clean")
    (second,) = collector.named("publish", service="clean")
    (last,) = collector.named("deliver", service="alerts")
    found = [source, middle, second, last]
    assert [s.parent for s in found] == ["", source.id, middle.id, second.id]
    assert {s.name: s.parent for s in collector.spans if s.service == "alerts"} == {
        "plan": last.id,
        "deliver": second.id,
    }
    reads = {(s.service, s.parent) for s in collector.named("read")}
    assert reads == {("feed", middle.id), ("clean", last.id)}
    assert {s.trace for s in collector.spans} == {source.trace}
    assert not any(s.failed for s in collector.spans)


def test_a_batch_of_several_epochs_is_a_child_of_the_first_and_links_to_the_others(
    tmp_path: Path, collector: Collector
) -> None:
    sent = collector.environment()
    with chain(tmp_path, sent, sent, {}) as jobs:
        jobs.middle.open()
        for batch in range(3):
            jobs.first.publish(batch, rows(10 * batch, 10))
        jobs.pass_on(None, 0)
        (deliver,) = spans(collector, "deliver", 1)
        assert len(spans(collector, "publish", 4)) == 4
        written = contexts(jobs.feed)
    found = collector.named("publish", service="feed")
    epochs = {span.attributes["streambroker.epoch"]: span for span in found}
    assert (deliver.parent, deliver.links) == (epochs[0].id, (epochs[1].id, epochs[2].id))
    assert [one[3:52] for one in written] == [f"{epochs[n].trace}-{epochs[n].id}" for n in range(3)]
    assert epochs[2].attributes["streambroker.rows"] == 10


def test_a_span_survives_a_kill_of_the_agent_that_wrote_it(
    tmp_path: Path, collector: Collector
) -> None:
    sent = collector.environment()
    with chain(tmp_path, sent, sent, {}) as jobs:
        jobs.middle.open()
        jobs.first.publish(0, rows(0, 10))
        (source,) = spans(collector, "publish", 1)
        jobs.feed.restart()
        jobs.pass_on(None, 0)
        assert spans(collector, "deliver", 1)[0].parent == source.id


@pytest.mark.parametrize("of", range(3), ids=JOBS)
def test_rows_pass_where_one_job_has_no_traces(
    tmp_path: Path, collector: Collector, of: int
) -> None:
    sent = [collector.environment()] * 3
    sent[of] = {**collector.environment(), "OTEL_SDK_DISABLED": "true"}
    with chain(tmp_path, *sent) as jobs:
        jobs.last.open()
        jobs.middle.open()
        jobs.first.publish(0, rows(0, 10))
        jobs.pass_on(None, 0)
        end = jobs.last.end(None)
        assert jobs.last.read(None, end) == list(range(10))
        jobs.last.next(end)
        others = [name for name in JOBS if name != JOBS[of]]
        for service in others:
            spans(collector, "publish" if service == "feed" else "deliver", 1, service)
        written = [len(contexts(jobs.feed)), len(contexts(jobs.clean, "clean"))]
    assert written == [of != 0, of != 1]
    assert {s.service for s in collector.spans} == set(others)


def test_what_is_not_sampled_is_not_sampled_in_the_next_job_either(
    tmp_path: Path, collector: Collector
) -> None:
    sent = collector.environment()
    never = {**sent, "OTEL_TRACES_SAMPLER": "parentbased_always_off"}
    with chain(tmp_path, never, sent, sent) as jobs:
        jobs.middle.open()
        jobs.first.publish(0, rows(0, 10))
        jobs.pass_on(None, 0)
        (first,), (second,) = contexts(jobs.feed), contexts(jobs.clean, "clean")
        assert first[3:35] == second[3:35]
        assert not any(int(context[-2:], 16) & 1 for context in (first, second))
    assert collector.spans == []


def test_a_batch_that_its_query_leaves_is_a_failed_delivery(
    tmp_path: Path, collector: Collector
) -> None:
    sent = collector.environment()
    with chain(tmp_path, sent, sent, {}) as jobs:
        jobs.middle.open()
        jobs.first.publish(0, rows(0, 10))
        end = jobs.middle.end(None)
        jobs.middle.slices(None, end)
        jobs.middle.slices(None, end)
        jobs.clean.client.call("reader.leave", reader=end["reader"], session="session-1")
        (left,) = spans(collector, "deliver", 1)
        assert left.failed
        assert [s.parent for s in spans(collector, "plan", 2)] == [left.id] * 2


@contextmanager
def away(how: str) -> Iterator[dict[str, str]]:
    """Yield the environment for a collector that was killed, or that takes calls for ever."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        if how == "silent":
            listening.listen()
        yield {
            "OTEL_EXPORTER_OTLP_ENDPOINT": url,
            "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
            "OTEL_BSP_SCHEDULE_DELAY": "20",
            "OTEL_BSP_MAX_QUEUE_SIZE": "8",
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "4",
            "OTEL_METRIC_EXPORT_INTERVAL": "20",
        }


@pytest.mark.parametrize("how", ["killed", "silent"])
def test_a_job_goes_on_without_its_collector_and_warns_once(tmp_path: Path, how: str) -> None:
    with away(how) as environment:
        feed = AgentProcess(tmp_path / "feed", "feed", environment=environment)
        feed.prepare()
        feed.start()
        try:
            feed.client.call("declare", kind="export", port="trades", spec=None)
            publishing = Publishing(feed)
            for batch in range(30):
                publishing.publish(batch, rows(batch, 1))
            warned = "of this process cannot be sent to the OTLP endpoint"
            until(lambda: feed.log.read_text().count(warned) == 2, SECONDS, "both warnings")
            for batch in range(30, 60):
                publishing.publish(batch, rows(batch, 1))
            assert feed.export_status()["publishedRows"] == 60
            feed.stop()
        finally:
            feed.kill()
    written = feed.log.read_text()
    assert [written.count(f"{what} {warned}") for what in ("spans", "metrics")] == [1, 1]
    assert len(re.findall(" WARNING | ERROR | CRITICAL ", written)) == 2


def published_rows(collector: Collector, count: int) -> Any:
    """Return the point with a number of published rows, None before it has come."""
    metric = collector.metrics.get(("feed", "streambroker_export_published_rows_total"))
    found = [] if metric is None else [p for p in metric.sum.data_points if p.as_double == count]
    return found[0] if metric is not None and metric.sum.is_monotonic and found else None


def test_a_collector_that_comes_back_gets_spans_and_metrics_again(tmp_path: Path) -> None:
    port = free_port()
    sent = Collector(url=f"http://127.0.0.1:{port}").environment()
    environment = {**sent, "STREAMBROKER_METRICS_PORT": "0"}
    feed = AgentProcess(tmp_path / "feed", "feed", environment=environment)
    feed.prepare()
    feed.start()
    try:
        feed.client.call("declare", kind="export", port="trades", spec=None)
        publishing = Publishing(feed)
        publishing.publish(0, rows(0, 3))
        until(lambda: "spans of this process cannot" in feed.log.read_text(), SECONDS, "a warning")
        with collecting(port) as collector:
            publishing.publish(1, rows(3, 4))
            spans(collector, "publish", 1)
            point = until(lambda: published_rows(collector, 7), SECONDS, "metrics")
            assert point.attributes[0].value.string_value == "default/feed/0/trades"
            url = f"http://127.0.0.1:{feed.address['metrics']}/metrics"
            with urllib.request.urlopen(url, timeout=30) as answer:
                scraped = set(re.findall(r"# TYPE (\S+)", answer.read().decode()))
            assert {one for _, one in collector.metrics} == scraped
            back = "spans of this process are sent again"
            until(lambda: back in feed.log.read_text(), SECONDS, back)
    finally:
        feed.kill()


def test_a_log_of_json_has_an_object_on_each_line_with_the_ids_of_the_span(
    tmp_path: Path, collector: Collector
) -> None:
    environment = {**collector.environment(), "STREAMBROKER_LOG_FORMAT": "json"}
    feed = AgentProcess(tmp_path / "feed", "feed", environment=environment)
    feed.prepare()
    feed.start()
    try:
        feed.client.call("declare", kind="export", port="trades", spec=None)
        publishing = Publishing(feed)
        publishing.publish(0, rows(0, 3))
        publishing.publish(5, rows(3, 3))
        published = spans(collector, "publish", 2)
        assert json.loads(feed.line)["message"].startswith("agent default/feed/0 listening on")
        other = AgentProcess(feed.home, "feed", environment=environment)
        refused = json.loads(other.refusal())
    finally:
        feed.kill()
    lines = [json.loads(line) for line in feed.log.read_text().splitlines()]
    (gap,) = [line for line in lines if "was the checkpoint restored" in line["message"]]
    assert (gap["level"], gap["logger"]) == ("WARNING", "pe_agent")
    assert (gap["trace_id"], gap["span_id"]) == (published[1].trace, published[1].id)
    assert datetime.fromisoformat(gap["time"]).tzinfo is not None
    assert refused["level"] == "CRITICAL"
    assert refused["message"].startswith("HomeInUse: ")


OFF = """
import sys
from pe_agent.agent.process import AgentServer, parse_settings
from support.agents.agents import Publishing, rows

agent = AgentServer(parse_settings(["--home", sys.argv[1], "--job", "feed", "--metrics-port", "0"]))
agent.agent.metrics()
import streambroker_operator.kubernetes.broker
assert agent.agent.tracing is None
assert not [name for name in sys.modules if name.startswith("opentelemetry")], sys.modules.keys()
"""


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"OTEL_SERVICE_NAME": "feed"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"},
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1",
            "OTEL_TRACES_EXPORTER": "none",
            "OTEL_METRICS_EXPORTER": "none",
        },
    ],
    ids=["nothing", "name", "disabled", "none"],
)
def test_an_agent_that_is_not_asked_to_send_imports_nothing_of_opentelemetry(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    known = {k: v for k, v in os.environ.items() if not k.startswith("OTEL_")}
    path = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", OFF, str(tmp_path / "feed")],
        env={**known, **variables, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
