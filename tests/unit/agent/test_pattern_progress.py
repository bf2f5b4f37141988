"""What a manager reports of rules: versions, refusals, how far a query is with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pe_agent.cep.discovery.discoverer import Wanted
from streambroker.patterns import Discovery, PatternProcessorManager, Progress, RuleReport

PATTERN = {"stages": [{"name": "a", "where": 'n == "A"'}]}


def document(name: str, version: int = 1, **fields: Any) -> dict[str, Any]:
    return {"id": name, "version": version, "pattern": PATTERN, **fields}


def manager_of(*documents: dict[str, Any]) -> PatternProcessorManager:
    manager = PatternProcessorManager(lambda rules: None)
    manager.on_pattern_processors_updated(documents)
    return manager


def test_a_rule_is_reported_with_its_window_its_buckets_and_its_counts() -> None:
    manager = manager_of(document("a"), document("b"))

    manager.on_applied([Progress(rule="a", version=1, since=7, buckets=3, of=4, matches=12)])

    first, second = manager.reports()
    assert first.document() == {
        "id": "a",
        "version": 1,
        "state": "active",
        "scheduled": None,
        "refused": None,
        "reason": "",
        "message": "",
        "since": 7,
        "buckets": 3,
        "of": 4,
        "matches": 12,
        "errors": 0,
    }
    assert (second.rule, second.progress) == ("b", None)


def test_counts_never_go_back_and_a_new_version_begins_again() -> None:
    manager = manager_of(document("a"))
    manager.on_applied([Progress(rule="a", version=1, since=7, matches=12, errors=2)])
    manager.on_applied([Progress(rule="a", version=1, since=9, matches=3)])

    (kept,) = manager.reports()
    manager.on_pattern_processors_updated([document("a", 2)])
    (fresh,) = manager.reports()
    manager.on_applied([Progress(rule="a", version=1, matches=99)])
    (late,) = manager.reports()

    assert kept.progress == Progress(rule="a", version=1, since=9, matches=12, errors=2)
    assert (fresh.version, fresh.progress) == (2, None)
    assert late.progress is None


def test_what_is_refused_is_reported_beside_what_stays_until_it_is_mended() -> None:
    manager = manager_of(document("a", 2))

    manager.on_pattern_processors_updated([document("a", 1), {"id": "b", "version": 1}])
    lower, unreadable = manager.reports()
    manager.on_pattern_processors_updated([document("a", 3)])
    (mended,) = manager.reports()

    assert (lower.version, lower.state) == (2, "active")
    assert (lower.refused, lower.reason) == (1, "VersionTooLow")
    assert (unreadable.version, unreadable.state, unreadable.reason) == (None, "absent", "Invalid")
    assert "pattern" in unreadable.message
    assert (mended.version, mended.refused, mended.reason, mended.message) == (3, None, "", "")


def test_a_rule_that_stopped_and_one_that_waits_for_its_time_are_reported() -> None:
    manager = manager_of(document("a"), document("b"))
    manager.disable("a", 1)
    manager.on_pattern_processors_updated(
        [document("a"), document("b", 2, scheduled="2030-01-01T00:00:00Z")]
    )

    stopped, waiting = manager.reports()
    manager.enable("a")

    assert stopped.state == "disabled"
    assert (waiting.version, waiting.scheduled) == (1, 2)
    assert manager.reports()[0].state == "active"


class RecordingAgent:
    """A discoverer that keeps what is reported to it."""

    def __init__(self) -> None:
        self.reports: list[Sequence[RuleReport]] = []

    def initial_pattern_processors(self) -> Wanted:
        return [document("a")]

    def discover_pattern_processor_updates(self, manager: PatternProcessorManager) -> None:
        manager.disable("a", 1)

    def close(self) -> None:
        pass

    def on_reports(self, reports: Sequence[RuleReport]) -> None:
        self.reports.append(reports)


def test_a_discoverer_that_wants_them_gets_the_reports_of_its_rules() -> None:
    reported = RecordingAgent()
    discovery = Discovery(reported, PatternProcessorManager(lambda rules: None))
    discovery.close()

    assert [[each.state for each in reports] for reports in reported.reports] == [
        ["active"],
        ["disabled"],
    ]
