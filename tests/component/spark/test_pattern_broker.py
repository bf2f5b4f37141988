"""Rules that people put at the broker, in a query of the job that they are for."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest

from streambroker.patterns import BrokerDiscoverer
from support.patterns.imports import Letters, Rules, rule
from support.processes.jobs import Broker
from support.processes.waiting import until
from support.spark.session import SECONDS, Session

AWAY_SECONDS = 90.0
"""An agent polls every 30 s."""


def call(broker: Broker, method: str, name: str, body: Any = None) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{broker.url}/api/jobs/alerts/patterns/{name}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        found: dict[str, Any] = json.loads(answer.read() or "{}")
    return found


@pytest.mark.long
def test_rules_put_by_rest_hold_in_all_buckets_from_one_window_and_outlast_the_broker(
    jobs: Session, broker: Broker
) -> None:
    exporter = jobs.pe("feed")
    letters = Letters(jobs, exporter)
    call(broker, "PUT", "r", rule("r", "AB"))
    alerts = Rules(jobs, "alerts", lambda pe, first: BrokerDiscoverer(pe))
    alerts.start()

    def found() -> list[tuple[int, str]]:
        return [(version, word) for tag, _, version, word, _ in alerts.found if tag == "matches"]

    def status() -> dict[str, Any]:
        reported: dict[str, Any] = call(broker, "GET", "r")["status"]
        return reported

    def versions() -> list[int]:
        return [one.version for one in alerts.made.rules.current_pattern_processors()]

    letters.give(0, "ABA")
    until(lambda: alerts.time() >= letters.last, SECONDS, "the first rows")
    call(broker, "PUT", "r", rule("r", "AC", 2))
    until(lambda: status().get("version") == 2, SECONDS, f"version 2 everywhere, not {status()}")
    letters.give(100, "BCAC")
    until(lambda: found() == [(1, "AB"), (2, "AC")], SECONDS, f"a match of version 2: {found()}")
    until(lambda: status()["matches"] == 1, SECONDS, f"figures at the broker: {status()}")
    reported = status()
    assert (reported["state"], reported["buckets"], reported["of"]) == ("active", 2, 2)
    assert reported["since"] > 0

    broker.end()
    problems = alerts.made.rules
    until(lambda: problems.problem is not None, AWAY_SECONDS, "word of the broker that is away")
    assert "broker" in (problems.problem or "")
    letters.give(200, "AC")
    until(lambda: found()[2:] == [(2, "AC")], SECONDS, f"a match without broker: {found()}")

    back = broker.restart()
    try:
        call(back, "PUT", "r", rule("r", "AD", 3))
        letters.give(300, "A")
        until(lambda: problems.problem is None, AWAY_SECONDS, "the broker is back")
        until(lambda: versions() == [3], SECONDS, f"version 3, not {versions()}")
    finally:
        back.end()
