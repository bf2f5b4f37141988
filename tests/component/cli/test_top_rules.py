"""Rules of patterns in ``streambroker top``: what they have done, and rows that wait for time."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from streambroker_core.wire.reports.rule_metrics import (
    RuleMetricsReport,
    WatermarkWait,
    write_metrics,
)
from streambroker_operator.cli.commands import top
from support.brokers.brokers import EXPORT, IMPORT, running_broker
from support.brokers.commands import Cli

FEED = "/job/feed/pe/0"
PE = "default/feed/0"
NAMES: dict[str, Any] = {"operator": "patterns", "log": "file-1"}
NOON = datetime(2026, 11, 23, 12, 0, 0, tzinfo=UTC)
RULES = [
    write_metrics(one)
    for one in (
        RuleMetricsReport(rule="low", version=1, tested=9, nanoseconds=10**9, **NAMES),
        RuleMetricsReport(
            rule="high", version=3, tested=1_200, matches=7, alive=4, timeouts=2, dropped=1,
            nanoseconds=2_340_000_000, **NAMES,
        ),
        RuleMetricsReport(rule="bad", version=2, errors=1, **NAMES),
    )
]  # fmt: skip
WAITING = [write_metrics(WatermarkWait(rows=12, first=7_500_000, watermark=7_000_000, **NAMES))]


@pytest.fixture
async def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> AsyncIterator[Cli]:
    """A broker with one route, from feed to alerts; the agent of feed has told of rules."""
    async with running_broker(tmp_path / "broker.db") as (_, rest):
        await rest("PUT", FEED + "/export/trades", EXPORT)
        await rest("PUT", "/job/alerts/pe/0/import/trades", IMPORT)
        body = {"exports": {}, "ruleFigures": RULES, "ruleWaiting": WAITING}
        answer = await rest("PUT", FEED + "/report", body)
        assert answer.status == 200, answer.body
        yield Cli(rest, capsys, tmp_path)


async def test_top_says_what_rules_have_done_and_what_they_wait_for(cli: Cli) -> None:
    _, out, _ = await cli("top")
    head, bad, high, low, waits = (" ".join(line.split()) for line in out.splitlines()[-5:])
    assert head == (
        "MATCHES TESTED RUNS TIMEOUTS DROPPED ERRORS SECONDS PE OPERATOR RULE VERSION AGE"
    )
    assert bad.startswith("0 0 0 0 0 1 0.0 default/feed/0 patterns bad 2 ")
    assert high.startswith("7 1,200 4 2 1 0 2.3 default/feed/0 patterns high 3 ")
    assert low.startswith("0 9 0 0 0 0 1.0 default/feed/0 patterns low 1 ")
    assert waits == (
        "default/feed/0 patterns: 12 rows wait for the watermark to pass"
        " 1970-01-01 00:00:07.500000; it is at 1970-01-01 00:00:07."
    )


async def test_programs_get_all_that_was_set_and_other_namespaces_nothing(cli: Cli) -> None:
    _, out, _ = await cli("top", "-o", "json")
    reported = json.loads(out)
    assert [one["rule"] for one in reported["rules"]] == ["low", "high", "bad"]
    assert (reported["rules"][1]["pe"], reported["rules"][1]["matches"]) == (PE, 7)
    assert reported["ruleWaiting"][0]["rows"] == 12
    other = (await cli.rest("GET", "/top?namespace=lab")).body
    assert (other["rules"], other["ruleWaiting"]) == ([], [])


async def test_only_the_agents_of_the_routes_that_are_named_are_shown(cli: Cli) -> None:
    await cli.rest("PUT", "/job/other/pe/0/export/trades", {**EXPORT, "properties": {"kind": "x"}})
    _, out, _ = await cli("top", "alerts/0/trades")
    assert "high" in out
    _, out, _ = await cli("top", "other/0/trades")
    assert "high" not in out
    assert "watermark" not in out


@pytest.mark.parametrize(
    ("what", "item", "where"),
    [
        ("ruleFigures", {"operator": "p", "log": "l"}, "ruleFigures[0].rule"),
        ("ruleFigures", {"rule": "r", "version": 1, "log": "l"}, "ruleFigures[0].operator"),
        ("ruleWaiting", {"operator": "p", "log": "l", "rows": -1}, "ruleWaiting[0].rows"),
    ],
)
async def test_a_broken_report_is_refused_whole(cli: Cli, what: str, item: Any, where: str) -> None:
    answer = await cli.rest("PUT", FEED + "/report", {"exports": {}, what: [item]})
    assert (answer.status, where in str(answer.body)) == (422, True)


def test_a_terminal_keeps_most_for_routes() -> None:
    many = [{"pe": PE, "age": 1.0, **one} for one in RULES * 20]
    waits = [{"pe": PE, "age": 1.0, **one} for one in WAITING]
    picture = top.TopSnapshot([], (), many, waits)
    lines = top.render_screen(picture, "http://b", "", 90, 40, NOON).splitlines()
    assert sum("feed/0" in line for line in lines) == 9
    assert max(map(len, lines)) <= 90
