"""Figures of rules, from the driver to the agent and on to Prometheus."""

from __future__ import annotations

from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pe_agent.agent.reports import prometheus as metrics
from pe_agent.agent.reports.rule_metrics import MAX_AGE_SECONDS, RuleMetricsStore
from pe_agent.cep.accumulators import Tally
from pe_agent.cep.metrics_reporter import MIN_REPORT_SECONDS, REPEAT_SECONDS, RuleMetricsReporter
from pe_agent.transport.flight_errors import AgentUnreachableError
from streambroker_core.cep.engine.metrics import RuleFailure, RuleMetrics, WindowMetrics
from streambroker_core.errors import ManifestError
from streambroker_core.wire.reports.rule_metrics import MAX_REPORTED_RULES, WatermarkWait
from support.agents.rpc import ask

NO_CONTROL: dict[str, Any] = {"accepted": {}, "applied": {}, "waiting": 0}
EMPTY: dict[str, Any] = {"exports": {}, "controlLog": NO_CONTROL}


def figures(name: str = "r", version: int = 1, **counts: int) -> RuleMetrics:
    return RuleMetrics(rule=name, version=version, since=7, **counts)


class Query:
    """A query with rules, the agent that it tells, and a clock that is put forward by hand."""

    def __init__(self, log: str = "file-1") -> None:
        self.now, self.running, self.away, self.calls = 0.0, True, False, 0
        self.figures: list[RuleMetrics] = []
        self.errors: dict[tuple[str, int], int] = {}
        self.failed: list[str] = []
        self.waits: tuple[int, int | None, int | None] = 0, None, None
        self.agent = RuleMetricsStore(lambda: self.now)
        self.figuring = RuleMetricsReporter(
            lambda: cast(Any, self), "patterns", log, lambda: self.figures, self.waiting,
            lambda: self.errors, lambda: self.failed, lambda: self.running, lambda: self.now,
        )  # fmt: skip

    def waiting(self, operator: str, log: str) -> WatermarkWait:
        rows, first, watermark = self.waits
        return WatermarkWait(
            operator=operator, log=log, rows=rows, first=first, watermark=watermark
        )

    def call(self, action: str, *, timeout: float, **body: Any) -> dict[str, Any]:
        assert (action, timeout > 0) == ("rules.figures", True)
        self.calls += 1
        if self.away:
            raise AgentUnreachableError("it is away")
        return ask(self.agent.record, body)

    def beat(self, *reported: RuleMetrics) -> list[dict[str, Any]]:
        self.figures = list(reported)
        self.figuring.beat()
        return self.agent.status()


def test_what_rules_have_done_is_reported_when_it_is_another_thing_and_now_and_then() -> None:
    query = Query()

    assert query.beat() == []
    assert query.calls == 0
    (one,) = query.beat(figures(tested=5, matches=2, alive=3, nanoseconds=7))
    assert (one["operator"], one["log"], one["rule"], one["version"]) == (
        "patterns", "file-1", "r", 1,
    )  # fmt: skip
    assert (one["tested"], one["matches"], one["alive"], one["age"]) == (5, 2, 3, 0)
    query.now = 3.0
    assert query.beat(*query.figures)[0]["age"] == 3
    assert query.calls == 1
    query.now = REPEAT_SECONDS
    assert query.beat(*query.figures)[0]["age"] == 0
    query.now += MIN_REPORT_SECONDS - 0.1
    assert query.beat(figures(tested=6))[0]["tested"] == 5
    query.now += 0.1
    assert query.beat(figures(tested=6))[0]["tested"] == 6
    assert query.calls == 3


def test_failed_rules_are_known_to_the_agent_until_they_run_again() -> None:
    query, found = Query(), []
    for failed in ([], ["r"], []):
        query.failed = failed
        query.beat(figures(tested=5))
        found.append(query.agent.failed())
        query.now += MIN_REPORT_SECONDS
    assert found == [{}, {"patterns": {"r"}}, {}]
    query.failed = ["r"]
    query.beat(figures(tested=6))
    query.running = False
    query.beat()
    assert query.agent.failed() == {}


def test_an_agent_that_is_away_is_informed_later() -> None:
    query = Query()
    query.away = True
    query.beat(figures(tested=5))
    query.away = False

    assert [one["tested"] for one in query.beat(*query.figures)] == [5]


def test_of_a_query_that_has_ended_nothing_is_reported() -> None:
    query, silent = Query(), Query()
    query.beat(figures(tested=5))
    query.running = False

    assert query.beat(*query.figures) == []
    query.beat(*query.figures)
    assert query.calls == 2
    silent.beat(figures(tested=5))
    silent.now = MAX_AGE_SECONDS
    assert silent.agent.status() != []
    silent.now = MAX_AGE_SECONDS + 1
    assert silent.agent.status() == []


def test_of_very_many_rules_those_are_reported_that_take_most_time() -> None:
    query = Query()
    many = [figures(f"r{n}", nanoseconds=n) for n in range(MAX_REPORTED_RULES + 2)]

    reported = {one["rule"] for one in query.beat(*many)}

    assert len(reported) == MAX_REPORTED_RULES
    assert not reported & {"r0", "r1"}


def test_rows_that_wait_for_the_watermark_are_reported_with_what_they_wait_for() -> None:
    query = Query()
    query.beat(figures(tested=5))
    query.now, query.waits = MIN_REPORT_SECONDS, (12, 7_000_000, None)

    query.beat(*query.figures)

    assert query.agent.waiting() == [
        {"operator": "patterns", "log": "file-1", "age": 0, "rows": 12, "first": 7_000_000,
         "watermark": None},
    ]  # fmt: skip
    text = metrics.render_text({**EMPTY, "ruleWaiting": query.agent.waiting()}, {})
    assert 'streambroker_rule_waiting_rows{operator="patterns",log="file-1"} 12' in text
    assert "rule_watermark_seconds{" not in text
    query.now, query.waits = 2 * MIN_REPORT_SECONDS, (0, None, 7_500_000)
    query.beat(*query.figures)
    text = metrics.render_text({**EMPTY, "ruleWaiting": query.agent.waiting()}, {})
    assert 'streambroker_rule_waiting_rows{operator="patterns",log="file-1"} 0' in text
    assert 'streambroker_rule_watermark_seconds{operator="patterns",log="file-1"} 7.5' in text
    query.running = False
    query.beat()
    assert query.agent.waiting() == []


def test_what_waits_is_that_of_the_last_window_of_each_bucket() -> None:
    def window(bucket: int, rows: int, first: int | None, watermark: int | None) -> WindowMetrics:
        return WindowMetrics(
            bucket=bucket, window=1, rules=(), waiting=rows, first=first, watermark=watermark
        )

    tally = Tally()
    seen = []
    for reported in (
        window(0, 2, 5, None), window(1, 3, 4, None), window(1, 1, 9, 8), window(0, 0, None, 7),
    ):  # fmt: skip
        tally.add(reported)
        waits = tally.waiting_rows("patterns", "file-1")
        seen.append((waits.rows, waits.first, waits.watermark))

    assert seen == [(2, 5, None), (5, 4, None), (3, 5, 8), (1, 9, 8)]


def test_a_rule_that_fails_in_its_first_window_has_figures() -> None:
    tally = Tally()
    failure = RuleFailure(rule="r", version=2, where="condition", problem="it raised")
    tally.add(WindowMetrics(bucket=0, window=1, rules=(), stopped=(failure,)))
    assert [(one.rule, one.version) for one in tally.metrics()] == [("r", 2)]


def test_prometheus_reads_the_figures_of_each_version() -> None:
    query = Query()
    query.errors = {("r", 2): 1}
    reported = query.beat(
        figures(tested=5, matches=2, timeouts=1, dropped=4, alive=3, nanoseconds=1_500_000_000),
        figures('s"', 2),
        figures(version=2),
    )

    found = {
        (one.name.removeprefix("streambroker_rule_"), one.labels["rule"], one.labels["version"]):
        one.value
        for family in text_string_to_metric_families(
            metrics.render_text({**EMPTY, "ruleFigures": reported}, {})
        )
        for one in family.samples if "rule" in one.labels
    }  # fmt: skip

    assert {name: value for (name, *rule), value in found.items() if rule == ["r", "1"]} == {
        "tested_events_total": 5, "matches_total": 2, "timeouts_total": 1, "dropped_runs_total": 4,
        "errors_total": 0, "runs": 3, "seconds_total": 1.5, "reported_seconds": 0,
    }  # fmt: skip
    assert found["errors_total", "r", "2"] == 1
    assert found["matches_total", 's"', "2"] == 0


@pytest.mark.parametrize(
    "rule",
    [{"version": 1}, {"rule": "r"}, {"rule": "r", "version": 1, "tested": "5"},
     {"rule": "r", "version": 1, "alive": -1}],
)  # fmt: skip
def test_figures_that_cannot_be_are_refused_and_change_nothing(rule: dict[str, Any]) -> None:
    query = Query()
    before = query.beat(figures(tested=5))

    with pytest.raises(ManifestError, match="rules"):
        ask(query.agent.record, {"operator": "patterns", "log": "file-1", "rules": [rule]})

    assert query.agent.status() == before
