"""A resource is programmed when the agents of all its routes run its last change."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from streambroker_core.board import AgentRegistered, ExportApplied, ImportApplied
from streambroker_core.model import PeKey
from streambroker_operator.kubernetes.programming import Programming
from support.resources import board_of, export_of, import_of, pe, registration

FEED, ALERTS = pe("feed"), pe("alerts")


class Bench:
    """A board with two agents, and what they run."""

    def __init__(self) -> None:
        self.export, self.import_ = export_of(), import_of()
        self.board = board_of(self.export, self.import_)
        self.took: list[float] = []
        self.now = 0.0
        self.programming = Programming(
            self.version,
            lambda pe: self.board.registration(pe) is not None,
            applied=self.took.append,
            clock=lambda: self.now,
        )
        for one in (FEED, ALERTS):
            self.tell(AgentRegistered(pe=one, registration=registration(), version=1))

    def version(self, one: PeKey) -> str | None:
        view = self.board.view(one)
        return None if view is None else view.version

    def tell(self, event: Any, *changed: str) -> None:
        self.programming.follow(self.board.handle(event), changed=changed)

    def poll(self, one: PeKey) -> bool:
        version = self.version(one)
        assert version is not None
        return self.programming.heard(one, version)

    def refilter(self, filter_: str, version: int) -> None:
        changed = import_of(filter=filter_)
        self.tell(ImportApplied(import_=changed, version=version), changed.uid)

    def said(self, uid: str) -> str | None:
        found = self.programming.condition(uid, (FEED, ALERTS))
        return None if found is None else found.reason


def test_nothing_is_known_before_all_agents_have_been_heard_of() -> None:
    bench = Bench()
    bench.poll(FEED)

    assert bench.said(bench.import_.uid) is None

    bench.poll(ALERTS)
    assert bench.said(bench.import_.uid) == "Programmed"


def test_a_change_is_programmed_when_both_ends_run_it() -> None:
    bench = Bench()
    bench.poll(FEED)
    bench.poll(ALERTS)

    bench.refilter("price > 1.0", 20)
    said = [bench.said(bench.import_.uid)]
    bench.poll(FEED)
    said.append(bench.said(bench.import_.uid))
    bench.poll(ALERTS)
    said.append(bench.said(bench.import_.uid))

    assert said == ["Pending", "Pending", "Programmed"]


def test_a_change_elsewhere_takes_nothing_back() -> None:
    bench = Bench()
    bench.poll(FEED)
    bench.poll(ALERTS)

    bench.tell(ExportApplied(export=export_of("feed/quotes", properties={"a": 1}), version=30))

    assert bench.said(bench.import_.uid) == "Programmed"


def test_an_agent_that_runs_a_view_from_before_the_start_is_behind() -> None:
    bench = Bench()
    bench.poll(FEED)

    bench.programming.heard(ALERTS, "0" * 32)

    assert bench.said(bench.import_.uid) == "Pending"


def test_a_missing_agent_is_named_as_such() -> None:
    bench = Bench()
    bench.poll(FEED)
    bench.poll(ALERTS)

    found = bench.programming.condition(bench.import_.uid, (FEED, pe("nobody")))

    assert found is not None
    assert (found.status, found.reason) == ("False", "NoAgent")


def test_who_polls_again_with_the_same_view_changes_nothing() -> None:
    bench = Bench()
    assert bench.poll(FEED)
    assert not bench.poll(FEED)


def test_the_time_until_a_change_is_applied_is_told_once() -> None:
    bench = Bench()
    bench.poll(FEED)
    bench.poll(ALERTS)
    bench.now = 10.0
    bench.refilter("price > 1.0", 20)
    bench.now = 10.5
    bench.poll(FEED)
    bench.poll(FEED)

    assert bench.took == [0.5]


class Programmed(RuleBasedStateMachine):
    """Whatever changes and whoever polls when: programmed means both have run the last change."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench()
        self.number = 20
        self.runs: dict[PeKey, int] = {}
        self.need = 0

    @rule(filter_=st.sampled_from(["price > 1.0", "price > 2.0", "price > 3.0"]))
    def change(self, filter_: str) -> None:
        self.number += 1
        before = self.bench.board.get("Import", self.bench.import_.uid)
        self.bench.refilter(filter_, self.number)
        if self.bench.board.get("Import", self.bench.import_.uid) != before:
            self.need = self.number

    @rule(name=st.sampled_from(["quotes", "news"]), value=st.integers(0, 2))
    def elsewhere(self, name: str, value: int) -> None:
        self.number += 1
        other = export_of(f"feed/{name}", properties={"other": value})
        self.bench.tell(ExportApplied(export=other, version=self.number), other.uid)

    @rule(one=st.sampled_from([FEED, ALERTS]))
    def poll(self, one: PeKey) -> None:
        self.bench.poll(one)
        self.runs[one] = self.number

    @invariant()
    def the_condition_is_right(self) -> None:
        said = self.bench.said(self.bench.import_.uid)
        if len(self.runs) < 2 and said is not None:
            assert said == "Pending"
        if len(self.runs) == 2 and said == "Programmed":
            assert min(self.runs.values()) >= self.need
        if len(self.runs) == 2 and min(self.runs.values()) >= self.number:
            assert said == "Programmed"


TestProgrammed = Programmed.TestCase
