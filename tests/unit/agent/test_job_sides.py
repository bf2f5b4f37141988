"""Figures of side inputs at the agent: from buckets, for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pe_agent.agent.broker.reporter import build_report
from pe_agent.agent.reports import prometheus as metrics
from pe_agent.agent.reports.side_inputs import NEW_QUERY_SECONDS, SideReports
from pe_agent.side.metrics_reporter import SideMetricsReporter, build_request
from pe_agent.transport import report_sender as reporting
from pe_agent.transport.agent_tls import PLAIN_VARIABLE
from pe_agent.transport.flight_errors import AgentUnreachableError
from pe_agent.transport.report_sender import ReportSender
from streambroker_core.errors import ManifestError
from streambroker_core.wire.reports.side_status import SideStall, SideStatus, write_side
from support.processes.waiting import until

RATES = SideStatus(
    operator="join",
    input="rates",
    waiting_rows=3,
    waiting_bytes=30,
    waiting_since=90_000_000,
    entries=10,
    version="v1",
    version_since=40_000_000,
    stalls=(SideStall(cause="for side input `rates`", rows=3, since=90_000_000),),
)


class Clock:
    """A monotonic clock that is put forward by hand; today is 100 s after 1970 at its 0."""

    def __init__(self) -> None:
        self.now = 0.0

    def sides(self) -> SideReports:
        return SideReports(lambda: self.now, lambda: 100.0 + self.now)


def reported(bucket: int, window: int, *sides: SideStatus, query: str = "q") -> dict[str, Any]:
    return {
        "query": query,
        "operator": "join",
        "bucket": bucket,
        "window": window,
        "sides": [write_side(side) for side in sides],
    }


def take(sides: SideReports, *buckets: dict[str, Any]) -> None:
    sides.record(buckets)


def waiting(sides: SideReports) -> list[tuple[str, str, int]]:
    return [(one["query"], one["input"], one["waitingRows"]) for one in sides.status()]


def test_buckets_are_one_and_the_last_window_of_each_holds() -> None:
    clock = Clock()
    sides = clock.sides()
    take(sides, reported(0, 5, RATES), reported(1, 5, RATES))
    assert waiting(sides) == [("q", "rates", 6)]
    take(sides, reported(1, 6, SideStatus(operator="join", input="rates")))
    take(sides, reported(0, 4, SideStatus(operator="join", input="rates")))
    assert waiting(sides) == [("q", "rates", 3)]
    clock.now = 2.0
    (one,) = sides.status()
    assert (one["age"], one["waitingSeconds"], one["versionSeconds"]) == (2.0, 12.0, 62.0)
    assert (one["version"], one["entries"]) == ("v1", 10)


def test_a_query_that_does_not_run_any_more_is_forgotten() -> None:
    clock = Clock()
    sides = clock.sides()
    take(sides, reported(0, 1, RATES), reported(0, 1, RATES, query="other"))
    sides.retain_running([])
    assert len(waiting(sides)) == 2, "they began only now"
    clock.now = NEW_QUERY_SECONDS + 1
    sides.retain_running(["q"])
    assert waiting(sides) == [("q", "rates", 3)]


def test_a_wrong_report_changes_nothing() -> None:
    sides = SideReports()
    with pytest.raises(ManifestError, match=r"buckets\[1\].window"):
        take(sides, reported(0, 1, RATES), {**reported(1, 1, RATES), "window": None})
    assert waiting(sides) == []


def test_prometheus_is_informed_and_the_broker() -> None:
    clock = Clock()
    sides = clock.sides()
    take(sides, reported(0, 1, RATES, SideStatus(operator="join", input="main")))
    control: dict[str, Any] = {"accepted": {}, "applied": {}, "waiting": 0}
    status = {"exports": {}, "controlLog": control, "sides": sides.status()}
    found = {
        (one.name.removeprefix("streambroker_side_"), one.labels["input"]): one
        for family in text_string_to_metric_families(metrics.render_text(status, {}))
        for one in family.samples
        if "side_" in one.name
    }
    assert found["waiting_rows", "rates"].value == 3
    assert found["waiting_rows", "rates"].labels["operator"] == "join"
    assert found["waiting_rows", "rates"].labels["query"] == "q"
    assert found["waiting_seconds", "rates"].value == 10
    assert found["version_seconds", "rates"].value == 60
    assert found["version", "rates"].labels["version"] == "v1"
    assert ("version", "main") not in found
    assert ("version_seconds", "main") not in found
    assert found["entries", "rates"].value == 10
    report = build_report({**status, "imports": {"readers": {}}})
    assert [one["input"] for one in report["sides"]] == ["rates", "main"]
    many = {**status, "imports": {"readers": {}}, "sides": sides.status() * 400}
    assert len(build_report(many)["sides"]) == 100


class Agent:
    """Takes calls; does not answer the first ones."""

    def __init__(self, deaf: int) -> None:
        self.deaf = deaf
        self.heard: list[Sequence[dict[str, Any]]] = []

    def call(self, action: str, *, timeout: float, buckets: Sequence[dict[str, Any]]) -> None:
        assert (action, timeout) == ("sides.told", 5.0)
        if self.deaf:
            self.deaf -= 1
            raise AgentUnreachableError("nobody")
        self.heard.append(buckets)


def test_the_last_figures_of_each_bucket_reach_an_agent_that_was_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reporting, "MIN_REPORT_SECONDS", 0.05)
    agent = Agent(deaf=2)
    sender = ReportSender(agent, build_request)  # type: ignore[arg-type]
    sender.enqueue(("q", "join", 0), (1, [RATES]))
    sender.enqueue(("q", "join", 1), (1, [RATES]))
    until(lambda: agent.deaf < 2, 10.0, "a call")
    sender.enqueue(("q", "join", 0), (2, [RATES]))
    until(lambda: bool(agent.heard), 10.0, "an answer")
    windows = {reported["bucket"]: reported["window"] for call in agent.heard for reported in call}
    assert windows == {0: 2, 1: 1}
    sender.enqueue(("q", "join", 1), (3, [RATES]))
    until(lambda: agent.heard[-1][-1]["window"] == 3, 10.0, "the next figures")
    assert sum(len(call) for call in agent.heard) == 3, "nothing is sent twice"


def test_figures_that_nobody_can_read_do_not_end_the_sending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Odd(Agent):
        def call(self, action: str, *, timeout: float, buckets: Sequence[dict[str, Any]]) -> None:
            if self.deaf:
                self.deaf -= 1
                raise TypeError("no JSON")
            super().call(action, timeout=timeout, buckets=buckets)

    monkeypatch.setattr(reporting, "MIN_REPORT_SECONDS", 0.05)
    agent = Odd(deaf=1)
    sender = ReportSender(agent, build_request)  # type: ignore[arg-type]
    sender.enqueue(("q", "join", 0), (1, [RATES]))
    until(lambda: not agent.deaf, 10.0, "a call")
    sender.enqueue(("q", "join", 0), (2, [RATES]))
    until(lambda: bool(agent.heard), 10.0, "the next figures")
    assert [reported["window"] for call in agent.heard for reported in call] == [2]


class Task:
    """The context of one of Spark's tasks."""

    def getLocalProperty(self, name: str) -> str:  # noqa: N802 - Spark's name
        assert name == "sql.streaming.queryId"
        return "q"


def test_a_worker_that_may_not_call_the_agent_goes_on_without_figures(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Settings of its environment are wrong: that is said once, and no window fails for it."""
    monkeypatch.setattr("pyspark.TaskContext.get", Task)
    monkeypatch.setenv(PLAIN_VARIABLE, "perhaps")
    to_agent = SideMetricsReporter(operator="join", options=(("agent", "grpc+tcp://127.0.0.1:1"),))
    for window in range(3):
        to_agent(0, window, [RATES])
    assert caplog.text.count(f"{PLAIN_VARIABLE} is 'perhaps'") == 1
