"""Blocks that an agent delays to keep a rate: by counted bytes, on a clock in hand."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, cast

import pytest

from pe_agent.agent.agent import Agent
from pe_agent.agent.broker.reporter import StatusReporter, build_report
from pe_agent.agent.exports.stream.throttle import SendThrottle
from streambroker_core.ledger.plan import PlanRequest
from streambroker_core.model import PeKey
from support.agents.exports import IMPORT, READER, plan_one, rows

NOTHING: dict[str, Any] = {"exports": {}, "imports": {"readers": {}}}


class Clock:
    """Time that passes only while something waits."""

    def __init__(self) -> None:
        self.now = 100.0

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return False

    def throttle(self) -> SendThrottle:
        return SendThrottle(cast(threading.Event, self), lambda: self.now)


def test_a_reader_gets_all_blocks_and_no_more_bytes_a_second_than_its_rate() -> None:
    clock = Clock()
    throttle = clock.throttle()
    blocks = [(rows(number, 10), {"epoch": number}) for number in range(20)]
    throttle.set_rates(float(blocks[0][0].nbytes), None)
    assert list(throttle.delay(blocks, "r", IMPORT)) == blocks
    assert clock.now == pytest.approx(100.0 + 20 - 2), "a burst of a second, and the last one"
    assert throttle.seconds("r") == 18


def test_without_rates_blocks_pass_and_no_clock_is_read() -> None:
    throttle = SendThrottle(threading.Event(), cast(Any, None))
    blocks = [(rows(0, 1000), {"epoch": 0})] * 3
    assert list(throttle.delay(blocks, "r", IMPORT)) == blocks
    assert throttle.seconds("r") == 0


def test_a_report_and_the_metrics_have_the_seconds_of_a_reader(tmp_path: Path) -> None:
    agent = Agent(PeKey.parse("default/feed/0"), tmp_path, progress=lambda *_: None)
    try:
        export = agent.exports.get_or_create("default/feed/0/trades")
        export.set_routes({IMPORT: "wait"})
        plan_one(export, PlanRequest(**READER, positions={}), filter_=None, columns=None)
        assert agent.import_of({"export": "default/feed/0/trades"}, READER["reader"]) == IMPORT
        agent.throttle._seconds[READER["reader"]] = 7.5
        report = build_report(agent.status())
        assert "route_throttled_seconds_total" in agent.metrics()
    finally:
        agent.close()
    assert [one["throttledSeconds"] for one in report["exports"]["trades"]["readers"]] == [7]


def test_rates_come_with_the_answer_to_a_report_and_go_with_it() -> None:
    given: list[tuple[float | None, float | None]] = []
    answers: list[dict[str, Any]] = [
        {"again": 30, "rates": {"reader": 5, "job": None}},
        {"again": 30, "rates": {"reader": None, "job": None}},
        {"again": 30},
    ]
    reporter = StatusReporter(
        lambda: NOTHING, lambda _: answers.pop(0), lambda reader, job: given.append((reader, job))
    )
    for _ in range(3):
        reporter.report()
    assert given == [(5, None), (None, None), (None, None)]
