"""What agents say of rules, which the broker keeps for as long as it is of use."""

from __future__ import annotations

from dataclasses import replace

import pytest

from streambroker_core.board import Board, RuleApplied, Synced
from streambroker_core.model import RULE, PeKey, Rule, RuleKey
from streambroker_core.wire.manifests.rules import read_rule_spec
from streambroker_core.wire.reports.rule_status import RuleStatus
from streambroker_operator.runtime.rules import SILENT_S, RuleReports

PE = PeKey("default", "alerts", 0)
ONE = RuleStatus(version=1, state="active", since=3, buckets=4, of=4)


def rule(name: str) -> Rule:
    return replace(read_rule_spec({"job": "alerts", "id": name, "version": 1}), uid=name)


def key(name: str) -> RuleKey:
    return RuleKey("default", "alerts", name)


@pytest.fixture
def reported() -> RuleReports:
    board = Board()
    board.handle(Synced(kind=RULE, listed=(), version=1))
    for version, name in enumerate("abc", 2):
        board.handle(RuleApplied(rule=rule(name), version=version))
    return RuleReports(board.reader.rules)


def test_a_report_that_tells_all_takes_the_place_of_the_one_before(reported: RuleReports) -> None:
    assert reported.apply(PE, {"a": ONE, "b": ONE}) == {"a", "b"}
    assert reported.apply(PE, {"a": ONE}) == {"b"}

    assert (reported.merged_status(key("a")), reported.merged_status(key("b"))) == (ONE, None)
    reported.apply(PE, {})
    assert reported.reported_by(PE) == {}


def test_of_a_job_with_many_rules_what_the_reports_before_said_holds(reported: RuleReports) -> None:
    reported.apply(PE, {"a": ONE}, more=True)
    other = replace(ONE, version=2)

    assert reported.apply(PE, {"b": other}, more=True) == {"b"}
    assert (reported.merged_status(key("a")), reported.merged_status(key("b"))) == (ONE, other)


def test_what_an_agent_said_that_is_silent_for_long_counts_no_more() -> None:
    now = [0.0]
    found = RuleReports(Board().reader.rules, lambda: now[0])
    other, two, three = PE._replace(pe=1), replace(ONE, matches=2), replace(ONE, matches=3)
    found.apply(PE, {"a": two})
    found.apply(other, {"a": three})

    now[0] = SILENT_S
    both = found.merged_status(key("a"))
    found.apply(other, {"a": three})
    now[0] += 1
    left = found.merged_status(key("a"))
    now[0] += SILENT_S
    silent = found.merged_status(key("a"))
    found.apply(PE, {"a": two}, more=True)

    assert both is not None
    assert both.matches == 2 + 3
    assert (left, silent, found.merged_status(key("a"))) == (three, None, two)


def test_of_rules_that_there_are_no_more_nothing_is_kept(reported: RuleReports) -> None:
    """A job may have ever new ones, and never few enough for one report."""
    for n in range(100):
        reported.apply(PE, {"a": ONE, f"gone-{n}": ONE}, more=True)
        reported.apply(PE, {"b": ONE}, more=True)

    assert reported.reported_by(PE) == {"a": ONE, "b": ONE}
