"""A resource is programmed when the agents of all its routes run its last change."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from streambroker_core.board import AgentRegistered, ExportApplied, ImportApplied, StatusChanged
from streambroker_core.model import RULE, PeKey
from streambroker_operator.kubernetes.replicas.agent_liveness import AWAY_S
from streambroker_operator.kubernetes.status.programmed import ProgrammedTracker
from support.core.resources import board_of, export_of, import_of, pe, registration

FEED, ALERTS = pe("feed"), pe("alerts")


class Bench:
    """A board with two agents, and what they run."""

    def __init__(self) -> None:
        self.export, self.import_ = export_of(), import_of()
        self.board = board_of(self.export, self.import_)
        self.took: list[float] = []
        self.now = 0.0
        self.programming = ProgrammedTracker(
            self.version,
            lambda pe: self.board.reader.registration(pe) is not None,
            on_applied=self.took.append,
            clock=lambda: self.now,
        )
        for one in (FEED, ALERTS):
            self.apply(AgentRegistered(pe=one, registration=registration(), version=1))

    def version(self, one: PeKey) -> str | None:
        view = self.board.reader.view(one)
        return None if view is None else view.version

    def apply(self, event: Any, *changed: str) -> None:
        self.programming.on_actions(self.board.handle(event), changed=changed)

    def poll(self, one: PeKey) -> bool:
        version = self.version(one)
        assert version is not None
        return self.programming.on_acknowledged(one, version)

    def refilter(self, filter_: str, version: int) -> None:
        changed = import_of(filter=filter_)
        self.apply(ImportApplied(import_=changed, version=version), changed.uid)

    def said(self, uid: str) -> str | None:
        found = self.programming.condition(uid, (FEED, ALERTS))
        return None if found is None else found.reason


def test_nothing_is_known_before_all_agents_have_been_heard_of() -> None:
    bench = Bench()
    bench.poll(FEED)

    assert bench.said(bench.import_.uid) is None

    bench.poll(ALERTS)
    assert bench.said(bench.import_.uid) == "Programmed"


def test_of_rules_no_changes_are_kept() -> None:
    bench = Bench()
    bench.programming.on_actions([StatusChanged(kind=RULE, uid="rule")])

    assert "rule" not in bench.programming._needed_changes


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

    bench.apply(ExportApplied(export=export_of("feed/quotes", properties={"a": 1}), version=30))

    assert bench.said(bench.import_.uid) == "Programmed"


def test_an_agent_that_runs_a_view_from_before_the_start_is_behind() -> None:
    bench = Bench()
    bench.poll(FEED)

    bench.programming.on_acknowledged(ALERTS, "0" * 32)

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


def test_the_time_until_a_change_is_applied_is_reported_once() -> None:
    bench = Bench()
    bench.poll(FEED)
    bench.poll(ALERTS)
    bench.now = 10.0
    bench.refilter("price > 1.0", 20)
    bench.now = 10.5
    bench.poll(FEED)
    bench.poll(FEED)

    assert bench.took == [0.5]


def test_an_agent_that_tells_only_with_its_next_change_has_applied_each_in_its_own_time() -> None:
    bench = Bench()
    bench.poll(FEED)
    views = []
    for version, at in ((20, 10.0), (21, 20.0), (22, 30.0)):
        bench.now = at
        bench.refilter(f"price > {version}.0", version)
        views.append(bench.version(FEED))
    reported = [view for view in views if view is not None]
    # The first was run after half a second, the second never, the third after a quarter.
    bench.now = 30.1
    bench.programming.on_acknowledged(FEED, reported[0], ago_s=19.6)
    bench.now = 31.0
    bench.programming.on_acknowledged(FEED, reported[2], ago_s=0.75)

    assert [round(seconds, 3) for seconds in bench.took] == [0.5, 10.25]


def test_an_agent_that_is_silent_for_long_is_away_until_it_asks_again() -> None:
    bench = Bench()
    bench.programming.liveness.on_leader_change(True)
    for one in (FEED, ALERTS):
        bench.programming.on_registered(one, "first")
        bench.poll(one)
    bench.now = 60.0
    bench.poll(FEED)
    bench.now = AWAY_S
    away = bench.programming.liveness.collect_away()
    said = [bench.said(bench.import_.uid), bench.programming.agent_state(ALERTS)]

    assert (away, bench.programming.liveness.collect_away()) == ([ALERTS], [])
    assert bench.poll(ALERTS)
    assert not bench.poll(ALERTS)
    assert [*said, bench.said(bench.import_.uid)] == ["AgentAway", "away", "Programmed"]


def test_a_silent_agent_of_its_own_is_distinguished_from_one_of_its_routes() -> None:
    bench = Bench()
    bench.programming.liveness.on_leader_change(True)
    bench.poll(FEED)
    bench.now = AWAY_S
    bench.programming.liveness.collect_away()
    bench.poll(ALERTS)

    reported = [
        bench.programming.condition(bench.import_.uid, pes)
        for pes in ((FEED, ALERTS), (ALERTS, FEED))
    ]

    assert [found.reason for found in reported if found is not None] == ["AgentAway"] * 2
    assert reported[0] != reported[1]


def test_who_begins_to_lead_waits_before_it_calls_anybody_away() -> None:
    bench = Bench()
    for one in (FEED, ALERTS):
        bench.poll(one)
    bench.now = 1000.0
    bench.poll(FEED)
    said = [bench.programming.liveness.collect_away(), bench.said(bench.import_.uid)]
    bench.programming.liveness.on_leader_change(True)
    bench.now += AWAY_S - 1
    bench.poll(FEED)
    said += [bench.programming.liveness.collect_away(), bench.said(bench.import_.uid)]
    states = [bench.programming.agent_state(one) for one in (FEED, ALERTS)]
    bench.now += 1
    said += [bench.programming.liveness.collect_away(), bench.said(bench.import_.uid)]

    assert said == [[], None, [], None, [ALERTS], "AgentAway"]
    assert states == ["current", "unheard"]


def test_who_leads_again_has_to_find_out_again_who_is_away() -> None:
    bench = Bench()
    bench.programming.liveness.on_leader_change(True)
    bench.poll(FEED)
    bench.poll(ALERTS)
    bench.now = 200.0
    assert set(bench.programming.liveness.collect_away()) == {FEED, ALERTS}

    bench.programming.liveness.on_leader_change(False)
    bench.programming.liveness.on_leader_change(True)
    assert bench.said(bench.import_.uid) is None

    bench.now = 300.0
    assert set(bench.programming.liveness.collect_away()) == {FEED, ALERTS}


def test_another_instance_runs_nothing_until_it_says_so() -> None:
    bench = Bench()
    bench.programming.on_registered(ALERTS, "first")
    bench.poll(FEED)
    bench.poll(ALERTS)
    bench.programming.on_registered(ALERTS, "first")
    said = [bench.said(bench.import_.uid)]

    bench.programming.on_registered(ALERTS, "second")
    said.append(bench.said(bench.import_.uid))
    states = [bench.programming.agent_state(ALERTS), bench.programming.runs_current(ALERTS)]
    bench.poll(ALERTS)

    assert [*said, bench.said(bench.import_.uid)] == ["Programmed", None, "Programmed"]
    assert states == ["unheard", False]


def test_a_change_that_an_instance_has_not_lived_to_run_is_not_timed() -> None:
    bench = Bench()
    bench.programming.on_registered(ALERTS, "first")
    bench.poll(ALERTS)
    bench.refilter("price > 1.0", 20)
    bench.now = 3600.0
    bench.programming.on_registered(ALERTS, "second")
    bench.poll(ALERTS)

    assert bench.took == []


def test_what_another_replica_tells_of_an_instance_waits_until_that_is_known_here() -> None:
    bench = Bench()
    bench.programming.on_registered(ALERTS, "first")
    bench.poll(FEED)
    version = bench.version(ALERTS)
    assert version is not None

    assert not bench.programming.on_acknowledged(ALERTS, version, instance="second")
    assert bench.said(bench.import_.uid) is None
    assert bench.programming.on_registered(ALERTS, "second")
    assert bench.said(bench.import_.uid) == "Programmed"


def test_an_agent_whose_pe_is_withdrawn_is_not_away() -> None:
    bench = Bench()
    bench.programming.liveness.on_leader_change(True)
    bench.programming.on_registered(ALERTS, "first")
    bench.programming.on_withdrawn(ALERTS)
    bench.now = AWAY_S

    assert bench.programming.liveness.collect_away() == []


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
        before = self.bench.board.reader.get("Import", self.bench.import_.uid)
        self.bench.refilter(filter_, self.number)
        if self.bench.board.reader.get("Import", self.bench.import_.uid) != before:
            self.need = self.number

    @rule(name=st.sampled_from(["quotes", "news"]), value=st.integers(0, 2))
    def elsewhere(self, name: str, value: int) -> None:
        self.number += 1
        other = export_of(f"feed/{name}", properties={"other": value})
        self.bench.apply(ExportApplied(export=other, version=self.number), other.uid)

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
