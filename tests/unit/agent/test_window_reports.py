"""Windows of pattern operators: from tasks over the agent to the program's tally."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pe_agent.agent.reports import windows
from pe_agent.agent.reports.windows import WindowReports
from pe_agent.cep.accumulators import Tally
from pe_agent.cep.window_reports import WindowPoller, build_request
from streambroker_core.cep.engine.metrics import RuleFailure, RuleMetrics, WindowMetrics
from streambroker_core.wire.agent_rpc.codec import decode, to_json
from streambroker_core.wire.agent_rpc.job import (
    ReportedWindows,
    WindowsReport,
    WindowsReported,
)

FAILURE = RuleFailure(rule="a", version=1, where="condition", problem="division by zero")


def window(number: int, **changes: Any) -> WindowMetrics:
    rules = (RuleMetrics(rule="a", version=1, tested=10, matches=number),)
    return WindowMetrics(bucket=3, window=number, rules=rules, query="q", **changes)


def request_of(*reported: WindowMetrics, operator: str = "one") -> WindowsReport:
    keys = {(operator, one.query, one.bucket, one.window): one for one in reported}
    return decode(WindowsReport, to_json(build_request(keys)))


def asked(reports: WindowReports, first: int, operator: str = "one") -> ReportedWindows:
    return reports.windows(WindowsReported(operator=operator, first=first))


def test_a_window_arrives_as_it_was_reported() -> None:
    reports, sent = WindowReports(), window(1, stopped=(FAILURE,), watermark=7, due=9)
    reports.record(request_of(sent))

    assert [decode(WindowMetrics, one) for one in asked(reports, 0).windows] == [sent]


def test_each_window_is_returned_until_the_next_one_is_asked_for() -> None:
    reports = WindowReports()
    reports.record(request_of(window(1), window(2)))
    reports.record(request_of(window(5), operator="other"))
    first, again = asked(reports, 0), asked(reports, 0)
    reports.record(request_of(window(3)))
    later = asked(reports, first.next_)

    assert first == again
    assert [one["window"] for one in (*first.windows, *later.windows)] == [1, 2, 3]
    assert asked(reports, later.next_).windows == []
    assert len(asked(reports, 0, "other").windows) == 1


def test_old_windows_and_operators_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "MAX_OPERATORS", 2)
    reports = WindowReports()
    many = [window(number) for number in range(windows.MAX_WINDOWS + 2)]
    reports.record(request_of(*many))
    kept = asked(reports, 0)

    assert len(kept.windows) == windows.MAX_WINDOWS
    assert kept.windows[0]["window"] == 2
    for operator in ("two", "three"):
        reports.record(request_of(window(1), operator=operator))
    assert asked(reports, 0).windows == []
    assert len(asked(reports, 0, "three").windows) == 1


class Rules:
    """Rules of a query that runs until its end is reported."""

    def __init__(self) -> None:
        self.tally, self.running, self.progress = Tally(), True, 0
        self.tally.add_all = self._add_all  # type: ignore[attr-defined]

    def _add_all(self, found: list[WindowMetrics]) -> None:
        for one in found:
            self.tally.add(one)

    def on_progress(self, buckets: int) -> None:
        assert buckets == 8
        self.progress += 1

    def on_ended(self) -> None:
        self.running = False


def test_the_program_adds_each_window_once_and_notices_the_end_of_the_query(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reports, rules = WindowReports(), Rules()
    active = [SimpleNamespace(id="q")]
    session = SimpleNamespace(streams=SimpleNamespace(active=active))
    job: Any = SimpleNamespace(agent=None, spark=session)

    def send(_: object, request: WindowsReported, timeout: float) -> ReportedWindows:
        assert timeout == 2.0
        return reports.windows(request)

    monkeypatch.setattr("pe_agent.cep.window_reports.send", send)
    poller = WindowPoller(job, "one", rules, 8)  # type: ignore[arg-type]
    poller.beat()
    reports.record(request_of(window(1), window(2, stopped=(FAILURE,))))
    for _ in range(3):
        poller.beat()

    (metrics,) = rules.tally.metrics()
    assert (metrics.tested, metrics.matches, rules.progress) == (20, 3, 1)
    assert rules.tally.stopped == [FAILURE]
    assert rules.running
    active.clear()
    poller.beat()
    assert not rules.running
