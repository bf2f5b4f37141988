"""Rules between the broker's view and a job: waiting for news, reports, and who is away."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pe_agent.agent.broker.reporter import StatusReporter
from pe_agent.agent.notifier import Notifier
from pe_agent.agent.reports.rules import DISCOVERER_TIMEOUT_SECONDS, MAX_QUERIES, RuleState
from pe_agent.agent.state.route_table import RouteTable
from pe_agent.agent.state.store import Store
from pe_agent.cep.rule_progress import Progress
from pe_agent.transport.flight_errors import AgentUnreachableError
from streambroker.patterns import (
    BrokerDiscoverer,
    Discovery,
    DiscoveryError,
    PatternProcessorManager,
)
from streambroker_core.model import PeKey
from streambroker_core.wire.agent_rpc.codec import Actions
from streambroker_core.wire.agent_rpc.job import RulesLeave, RulesReport, RulesWanted
from streambroker_core.wire.broker.view import View, with_version
from streambroker_core.wire.broker.view_rules import ViewRule, make_view_rules

PE = PeKey("default", "alerts", 0)


def wanted(name: str = "a", version: int = 1, *, enable: int = 0, problem: str = "") -> ViewRule:
    pattern = {"stages": [{"name": "s", "where": "price > 10"}]}
    document = {"id": name, "version": version, "pattern": pattern}
    return ViewRule(id=name, document=document, enable=enable, problem=problem)


def view_of(*rules: ViewRule) -> View:
    return with_version(View(pe=PE, rules=make_view_rules(rules)))


class Agent:
    """The part of an agent that a discoverer asks; it may be away."""

    def __init__(self, path: Path) -> None:
        self.path, self.now, self.away, self.deaf = path, 0.0, False, False
        self.routes, self.news = RouteTable(path / "routes.json"), Notifier()
        self.routes.load()
        self.routes.add_listener(lambda view: self.news.notify())
        self.store = Store(path / "state.sqlite")
        self.rules = RuleState(
            lambda: self.routes.view, self.store, self.news, lambda: self.now, lambda: self.deaf
        )
        self.reported = threading.Event()
        self.rules.on_report = self.reported.set

    def call(self, action: str, *, timeout: float = 0.0, **body: Any) -> dict[str, Any]:
        if self.away:
            raise AgentUnreachableError("it is away")
        actions = Actions()
        actions.on(RulesWanted, self.rules.wait_for_rules)
        actions.on(RulesReport, self.rules.report)
        actions.on(RulesLeave, lambda r: self.rules.leave(r.discoverer))
        answer = actions.handle(action, json.loads(json.dumps(body)))
        return dict(json.loads(json.dumps(answer)))

    def close(self) -> None:
        self.news.close()
        self.store.close()


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    found = Agent(tmp_path)
    yield found
    found.close()


class Job:
    """A manager whose rules come from an agent."""

    def __init__(self) -> None:
        self.changed = threading.Event()
        self.manager = PatternProcessorManager(lambda rules: self.changed.set())

    def rules(self) -> list[tuple[str, int]]:
        return [(one.id, one.version) for one in self.manager.current_pattern_processors()]


@contextmanager
def running(agent: Agent, job: Job, query: str = "") -> Iterator[BrokerDiscoverer]:
    discoverer = BrokerDiscoverer(
        cast(Any, SimpleNamespace(context=SimpleNamespace(agent=agent))), timeout=0.2
    )
    discoverer.for_query(query)
    discovery = Discovery(discoverer, job.manager)
    try:
        yield discoverer
    finally:
        agent.away = False
        discovery.close()
        assert not discovery.running


def until(holds: Callable[[], bool]) -> None:
    for _ in range(1000):
        if holds():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it has not come to this in time")


def reported(agent: Agent) -> Mapping[str, Any]:
    return agent.rules.rule_status()


def test_a_broker_that_its_agent_does_not_hear_of_is_reported_and_the_rules_stay(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pe_agent.cep.discovery.broker.WAIT_SECONDS", 0.05)
    agent.routes.apply(view_of(wanted("a")))
    job = Job()

    with running(agent, job) as discoverer:
        assert discoverer.problem is None
        agent.deaf = True
        until(lambda: discoverer.problem is not None)
        assert "the broker does not answer" in (discoverer.problem or "")
        assert job.rules() == [("a", 1)]
        agent.deaf = False
        until(lambda: discoverer.problem is None)


def test_rules_of_the_view_are_those_of_the_job_and_follow_it(agent: Agent) -> None:
    agent.routes.apply(view_of(wanted("a"), wanted("b")))
    job = Job()

    with running(agent, job):
        first = job.rules()
        agent.routes.apply(view_of(wanted("a", 2)))
        until(lambda: job.rules() == [("a", 2)])

    assert first == [("a", 1), ("b", 1)]


def test_without_a_word_of_the_broker_there_are_no_first_rules(agent: Agent) -> None:
    with pytest.raises(DiscoveryError, match="has not sent the rules"):
        BrokerDiscoverer(
            cast(Any, SimpleNamespace(context=SimpleNamespace(agent=agent))), timeout=0.1
        ).initial_pattern_processors()


def test_a_view_that_says_nothing_of_rules_leaves_them_also_on_disk(
    agent: Agent, tmp_path: Path
) -> None:
    agent.routes.apply(view_of(wanted("a")))
    agent.routes.apply(with_version(View(pe=PE, point=(5, 5))))

    answer = agent.call("rules.wanted", discoverer="d", known=None, wait=0)
    again = RouteTable(tmp_path / "routes.json")
    again.load()

    assert [one["id"] for one in answer["rules"]] == ["a"]
    assert again.view is not None
    assert again.view.rules == make_view_rules([wanted("a")])
    agent.routes.apply(view_of())
    assert agent.call("rules.wanted", discoverer="d", known=None, wait=0)["rules"] == []


def test_what_is_known_is_waited_for_and_not_sent_again(agent: Agent) -> None:
    agent.routes.apply(view_of(wanted("a")))
    first = agent.call("rules.wanted", discoverer="d", known=None, wait=0)

    same = agent.call("rules.wanted", discoverer="d", known=first["digest"], wait=0.01)
    timer = threading.Timer(0.05, lambda: agent.routes.apply(view_of(wanted("a", 2))))
    timer.start()
    other = agent.call("rules.wanted", discoverer="d", known=first["digest"], wait=5)
    timer.join()

    assert (same["digest"], same["rules"]) == (first["digest"], None)
    assert [one["document"]["version"] for one in other["rules"]] == [2]


def test_a_rule_that_cannot_be_run_is_refused_and_the_one_before_stays(agent: Agent) -> None:
    agent.routes.apply(view_of(wanted("a"), wanted("b")))
    job = Job()

    with running(agent, job):
        agent.routes.apply(view_of(wanted("a", 2, problem="no such thing."), wanted("b", 2)))
        until(lambda: job.rules() == [("a", 1), ("b", 2)])
        until(lambda: "a" in reported(agent) and reported(agent)["a"].reason == "Invalid")

        found = reported(agent)["a"]
        assert (found.version, found.refused) == (1, 2)
        assert found.message == "no such thing; version 1 stays in force as it was"
        assert reported(agent)["b"].reason == ""


def test_an_agent_that_is_away_changes_nothing_and_is_asked_again(agent: Agent) -> None:
    agent.routes.apply(view_of(wanted("a")))
    job = Job()

    with running(agent, job) as discoverer:
        agent.away = True
        agent.routes.apply(view_of(wanted("a", 2)))
        until(lambda: discoverer.problem is not None)
        away = job.rules()
        agent.away = False
        until(lambda: job.rules() == [("a", 2)])
        until(lambda: discoverer.problem is None)

    assert away in ([("a", 1)], [("a", 2)])


def test_what_a_query_says_reaches_the_agent_and_goes_with_the_discoverer(agent: Agent) -> None:
    agent.routes.apply(view_of(wanted("a")))
    job = Job()

    with running(agent, job):
        job.manager.on_applied([Progress(rule="a", version=1, since=7, buckets=3, of=4, matches=9)])
        until(lambda: "a" in reported(agent) and reported(agent)["a"].since == 7)
        found = reported(agent)["a"]
        assert (found.buckets, found.of, found.matches) == (3, 4, 9)
        assert agent.reported.is_set()

    assert reported(agent) == {}


def test_an_enabling_is_done_once_also_over_restarts(agent: Agent, tmp_path: Path) -> None:
    agent.routes.apply(view_of(wanted("a")))
    job = Job()

    with running(agent, job):
        job.manager.disable("a", 1)
        off = job.rules()
        agent.routes.apply(view_of(wanted("a", enable=1)))
        until(lambda: job.rules() == [("a", 1)])
        until(lambda: kept(agent) == {"": {"a": 1}})

    job.manager.disable("a", 1)
    with running(agent, job):
        again = job.rules()
    assert (off, again) == ([], [])


def kept(agent: Agent) -> dict[str, Any]:
    """Return how often rules were enabled, by query, as it is on disk."""
    found: dict[str, Any] = json.loads(agent.store.get("rules enabled") or "{}")
    return found


def test_each_query_turns_its_own_rules_on_again_and_once(agent: Agent) -> None:
    agent.routes.apply(view_of(wanted("a")))
    here, away = Job(), Job()
    for name, job in (("here", here), ("away", away)):
        with running(agent, job, name):
            job.manager.disable("a", 1)
    agent.routes.apply(view_of(wanted("a", enable=1)))

    with running(agent, here, "here"):
        until(lambda: here.rules() == [("a", 1)])
        until(lambda: kept(agent).get("here") == {"a": 1})
        first = away.rules()
        with running(agent, away, "away"):
            until(lambda: away.rules() == [("a", 1)])
            until(lambda: kept(agent).get("away") == {"a": 1})
    here.manager.disable("a", 1)
    with running(agent, here, "here"):
        again = here.rules()

    assert (first, again) == ([], [])


def test_what_an_agent_of_before_has_kept_holds_for_every_query(agent: Agent) -> None:
    agent.store.set("rules enabled", '{"a": 1}')
    agent.routes.apply(view_of(wanted("a", enable=1)))
    job = Job()
    job.manager.on_pattern_processors_updated([wanted("a").document])
    job.manager.disable("a", 1)

    with running(agent, job, "one"):
        until(lambda: kept(agent) == {"": {"a": 1}, "one": {"a": 1}})
        assert job.rules() == []
        agent.routes.apply(view_of(wanted("a", enable=2)))
        until(lambda: job.rules() == [("a", 1)])
        until(lambda: kept(agent) == {"": {"a": 1}, "one": {"a": 2}})


def test_of_very_many_queries_those_are_forgotten_that_were_silent_longest(agent: Agent) -> None:
    for number in range(MAX_QUERIES + 3):
        agent.call("rules.report", discoverer="d", rules={}, query=f"q{number}", enabled={"a": 1})
    agent.call("rules.report", discoverer="d", rules={}, query="q3", enabled={"a": 2})
    agent.call("rules.report", discoverer="d", rules={}, query="new", enabled={"a": 1})

    assert len(kept(agent)) == MAX_QUERIES
    assert kept(agent)["q3"] == {"a": 2}
    assert "q4" not in kept(agent)


def test_an_enabling_while_the_job_is_away_is_done_when_it_is_back(agent: Agent) -> None:
    agent.routes.apply(view_of(wanted("a")))
    job = Job()
    with running(agent, job):
        job.manager.disable("a", 1)
    agent.routes.apply(view_of(wanted("a", enable=4)))

    with running(agent, job):
        until(lambda: job.rules() == [("a", 1)])


def test_a_discoverer_that_is_silent_for_long_is_reported_no_more(agent: Agent) -> None:
    agent.call("rules.report", discoverer="d", rules={"a": {"version": 1, "state": "active"}})
    agent.now = DISCOVERER_TIMEOUT_SECONDS
    here = reported(agent)
    agent.now = DISCOVERER_TIMEOUT_SECONDS + 1

    assert set(here) == {"a"}
    assert reported(agent) == {}


def test_two_queries_with_the_same_rules_are_reported_together(agent: Agent) -> None:
    one = {"version": 2, "state": "active", "since": 4, "buckets": 2, "of": 2, "matches": 5}
    agent.call("rules.report", discoverer="d", rules={"a": one})
    agent.call("rules.report", discoverer="e", rules={"a": {**one, "since": 6, "matches": 1}})
    both = reported(agent)["a"]
    agent.call("rules.report", discoverer="e", rules={"a": {**one, "state": "disabled"}})

    assert (both.since, both.buckets, both.matches) == (6, 4, 6)
    assert reported(agent)["a"].state == "disabled"


def test_very_many_rules_are_reported_over_several_reports(agent: Agent) -> None:
    rules = {f"r{n:04}": {"version": 1, "state": "active", "since": n} for n in range(400)}
    agent.call("rules.report", discoverer="d", rules=rules)

    pages = [agent.rules.page() for _ in range(8)]

    assert all(len(json.dumps(page)) < 30_000 for page in pages)
    assert all(page["more"] for page in pages)
    assert {name for page in pages for name in page["rules"]} == set(rules)


def test_of_very_many_rules_news_come_before_all_that_waits_for_its_turn(agent: Agent) -> None:
    rules = {f"r{n:04}": {"version": 1, "state": "active", "since": n} for n in range(2000)}
    agent.call("rules.report", discoverer="d", rules=rules)
    before = [agent.rules.page() for _ in range(20)]

    rules["r1700"] = {"version": 1, "state": "disabled", "errors": 1}
    rules["r0003"] = {**rules["r0003"], "matches": 7}
    agent.call("rules.report", discoverer="d", rules=rules)
    after = [agent.rules.page()["rules"] for _ in range(20)]

    assert {name for page in before for name in page["rules"]} == set(rules)
    assert after[0]["r1700"]["state"] == "disabled"
    assert {page["r0003"]["matches"] for page in after if "r0003" in page} == {7}
    assert {name for page in after for name in page} == set(rules)


def test_news_of_rules_are_reported_before_the_next_report_is_due() -> None:
    sent: list[int] = []
    status: dict[str, Any] = {"exports": {}, "imports": {"readers": {}}}

    def send(report: dict[str, Any]) -> dict[str, Any]:
        sent.append(1)
        return {"again": 30}

    reporter = StatusReporter(lambda: status, send)
    reporter.start()
    reporter.on_poll()
    until(lambda: len(sent) == 1)
    reporter.report_soon()
    until(lambda: len(sent) == 2)
    reporter.close()


def test_an_equal_view_with_the_same_rules_is_not_reported_again(agent: Agent) -> None:
    heard: list[View] = []
    agent.routes.add_listener(heard.append)
    agent.routes.apply(view_of(wanted("a")))
    agent.routes.apply(replace(view_of(wanted("a")), point=(9, 9)))

    assert len(heard) == 1
