"""Beside a driver with rules: what was sent, keys that are copied for, what tasks tell."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from pe_agent.aligned.timeout_ticks import TickFile, TickPlan
from pe_agent.cep.accumulators import AccumulatorValue, DriverTally, MetricsAccumulator
from pe_agent.cep.discovery.discoverer import Wanted
from pe_agent.cep.key_selectors import select_copied_keys
from pe_agent.cep.rules_log import RulesFile, to_pattern_rules
from streambroker.operators import AlignedError, ControlFile
from streambroker.patterns import PatternProcessorManager, PeriodicPatternProcessorDiscoverer
from streambroker_core.cep.engine.metrics import RuleFailure, RuleMetrics, WindowMetrics
from streambroker_core.cep.operator import PatternRules
from streambroker_core.cep.rules.rule_set import RuleSet

NAMES = ["user", "item", "n"]


def document(name: str, version: int = 1, **fields: Any) -> dict[str, Any]:
    pattern = {"stages": [{"name": "a", "where": 'n == "A"'}]}
    return {"id": name, "version": version, "pattern": pattern, **fields}


def rules(*documents: dict[str, Any]) -> RuleSet:
    return RuleSet().apply_update(documents)[0]


def test_what_was_sent_last_is_read_back_also_behind_half_a_line(tmp_path: Path) -> None:
    sending = RulesFile(tmp_path / "rules")
    assert sending.last() is None
    sending.send(to_pattern_rules(rules(document("a")), []))
    sending.send(to_pattern_rules(rules(document("b")), [("user",), ("item",)]))
    with (tmp_path / "rules").open("ab") as file:
        file.write(b'{"v":1,"ty')

    last = RulesFile(tmp_path / "rules").last()

    assert last is not None
    assert list(RuleSet.read(last.rules).rules) == ["b"]
    assert last.selectors == [["item"], ["user"]]
    sending.send(to_pattern_rules(rules(document("c")), []))
    assert [one.seq for one in ControlFile(tmp_path / "rules").tuples()] == [0, 1, 2]


@pytest.mark.parametrize(
    ("stream", "declared", "first", "copied"),
    [
        (("user",), [], [document("a")], [("user",)]),
        (("user",), [], [document("a", key="item")], [("item",), ("user",)]),
        (("user",), [("item",)], [], [("item",), ("user",)]),
        (("user",), [], [document("a", key=["nobody"]), document("b", key=3)], [("user",)]),
        ((), [], [document("a")], []),
        ((), [], [document("a", key=["user"])], [(), ("user",)]),
        (("item % 2",), [], [], [("item % 2",)]),
    ],
)
def test_rows_are_copied_for_the_keys_that_are_known_at_the_start(
    stream: Any, declared: Any, first: Any, copied: Any
) -> None:
    assert select_copied_keys(stream, NAMES, declared, first, None) == copied


def test_rows_of_a_query_that_was_given_its_key_are_copied_for_declared_keys_alone() -> None:
    first = [document("a", key="item")]
    assert select_copied_keys(("user",), NAMES, [], first, None, fixed=True) == []
    found = select_copied_keys(("user",), NAMES, [("item",)], first, None, fixed=True)
    assert found == [("item",), ("user",)]


def test_what_a_checkpoint_was_copied_for_stays_and_one_without_copies_too() -> None:
    before = PatternRules(rules={}, selectors=[["user"], ["item"]])
    found = select_copied_keys(("user",), NAMES, [], [document("a", key="n")], before)
    assert found == [("item",), ("n",), ("user",)]
    plain = PatternRules(rules={})
    assert select_copied_keys(("user",), NAMES, [], [document("a", key="n")], plain) == []
    with pytest.raises(AlignedError, match="without copies"):
        select_copied_keys(("user",), NAMES, [("n",)], [], plain)


def window(bucket: int, number: int, alive: int, **more: Any) -> WindowMetrics:
    one = RuleMetrics(rule="r", version=1, since=2, tested=5, matches=1, alive=alive, nanoseconds=7)
    return WindowMetrics(bucket=bucket, window=number, rules=(one,), **more)


def test_figures_of_tasks_add_up_and_runs_are_those_of_each_buckets_last_window() -> None:
    stopped: list[RuleFailure] = []
    driver, adds = DriverTally(stopped.append), MetricsAccumulator()
    reported: AccumulatorValue = driver
    for given in [[window(0, 0, 3), window(1, 0, 4)], [window(0, 1, 0)]]:
        task = adds.zero(reported)
        for one in given:
            task = adds.addInPlace(task, [one])
        reported = adds.addInPlace(reported, task)
    assert reported is driver
    (figures,) = driver.metrics()
    assert (figures.tested, figures.matches, figures.alive) == (15, 3, 4)
    assert figures.nanoseconds == 21
    assert stopped == []


def test_a_rule_that_stopped_is_reported_and_nothing_of_it_reaches_spark() -> None:
    one = RuleFailure(rule="r", version=1, where="stage", problem="it raised")
    reported: list[RuleFailure] = []

    def call(stopped: RuleFailure) -> None:
        reported.append(stopped)
        raise OSError("the disk is full")

    driver = DriverTally(call)
    driver.add_all([window(0, 0, 0, stopped=(one,))])
    assert reported == [one]
    (progress,) = driver.progress(4)
    assert (progress.buckets, progress.of, progress.matches, progress.errors) == (1, 4, 1, 1)


def test_how_far_a_query_is_is_reported_of_rules_that_some_bucket_has() -> None:
    driver = DriverTally(lambda _: None)
    driver.add_all([window(0, 3, 0), window(1, 3, 0)])
    other = RuleMetrics(rule="s", version=1, since=5)
    driver.add_all([WindowMetrics(bucket=0, window=5, rules=(other,))])
    driver.add_all([WindowMetrics(bucket=1, window=6, rules=(), complete=False)])
    found = {one.rule: (one.since, one.buckets, one.of) for one in driver.progress(2)}
    assert found == {"r": (2, 1, 2), "s": (5, 1, 2)}
    assert {one.rule: one.alive for one in driver.metrics()} == {"r": 0, "s": 0}


def test_the_metrics_of_a_version_that_was_replaced_stay_with_its_window() -> None:
    driver = DriverTally(lambda _: None)
    driver.add_all([window(0, 3, 4)])
    replaced = RuleMetrics(rule="r", version=2, since=5)
    driver.add_all([WindowMetrics(bucket=0, window=5, rules=(replaced,))])

    first, second = driver.metrics()

    assert (first.version, first.since, first.matches, first.alive) == (1, 2, 1, 0)
    assert (second.version, second.since) == (2, 5)


def plan(file: TickFile) -> TickPlan:
    return TickPlan(**json.loads(file.path.read_text()))


def test_the_next_tick_is_for_what_is_due_first_in_any_bucket(tmp_path: Path) -> None:
    file = TickFile(tmp_path)
    driver = DriverTally(lambda _: None, file)
    driver.add_all([window(0, 0, 1, due=30), window(1, 0, 1, due=20)])
    assert plan(file).due == 20
    driver.add_all([window(1, 1, 0)])
    assert plan(file).due == 30
    driver.add_all([window(0, 1, 0, query="another"), window(1, 2, 1, due=40)])
    assert plan(file).due == 30, "another query of the operator has other runs"
    driver.add_all([window(0, 1, 0), window(1, 3, 0)])
    assert plan(file).due is None


def test_a_plan_of_ticks_that_cannot_be_written_stops_no_task(tmp_path: Path) -> None:
    (tmp_path / "ticks").mkdir()
    file = TickFile(tmp_path / "ticks")
    file.path.unlink()
    (tmp_path / "ticks").rmdir()
    driver = DriverTally(lambda _: None, file)
    driver.add_all([window(0, 0, 1, due=30)])
    (tmp_path / "ticks").mkdir()
    driver.add_all([window(1, 0, 1, due=40)])
    assert plan(file).due == 30


@pytest.mark.compatibility(
    "rules as control tuples",
    "an older tuple without a source of ticks is read",
)
def test_what_an_earlier_release_sent_has_no_source_of_ticks(tmp_path: Path) -> None:
    @dataclass
    class Earlier:
        control_type: ClassVar[str] = "PatternRules"
        rules: dict[str, Any]
        selectors: list[list[str]]

    sending = RulesFile(tmp_path / "rules")
    ControlFile(tmp_path / "rules").append(
        Earlier(rules(document("a")).document(), []), delivery="BEGIN"
    )
    last = sending.last()
    assert last is not None
    assert not last.ticks
    sending.send(to_pattern_rules(rules(document("a")), [], ticks=True))
    last = sending.last()
    assert last is not None
    assert last.ticks


class Often(PeriodicPatternProcessorDiscoverer):
    """Has rules that change once."""

    def __init__(self) -> None:
        super().__init__(interval=0.01)
        self.changed = True

    def check_pattern_processor_update(self) -> bool:
        was, self.changed = self.changed, False
        return was

    def latest_pattern_processors(self) -> Wanted:
        return [document("a")]


def test_rules_that_cannot_be_sent_are_sent_later() -> None:
    broken, sent = threading.Event(), list[RuleSet]()
    broken.set()

    def send(one: RuleSet) -> None:
        if broken.is_set():
            raise OSError("the disk is full")
        sent.append(one)

    often, manager = Often(), PatternProcessorManager(send)
    often.poll(manager)
    assert often.problem == "OSError: the disk is full"
    broken.clear()
    often.poll(manager)
    assert [list(one.rules) for one in sent] == [["a"]]
    assert often.problem is None
