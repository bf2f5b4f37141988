"""Rules of patterns as custom resources, on a real API server: followed, changed, and told of."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streambroker_core.model import RULE, RuleKey
from streambroker_operator.kubernetes.client.kubeconfig import from_kubeconfig
from support.clusters.api_server import APPLY, GROUP, MERGE, ApiServer
from support.clusters.calls import make_account, token_of
from support.clusters.informer import CALM, FeederName, Followed
from support.clusters.proxy import Fault
from support.clusters.replicas import Operator, SignedAgent, make_key, operator
from support.processes.waiting import until

PATTERN = {"stages": [{"name": "a", "where": "price > 10"}]}
BAD = {"stages": [{"name": "a", "where": "price >"}]}
both = pytest.mark.parametrize("feeder", ["reflector", "kopf"])


class Rules:
    """The rules of one namespace, as a person with kubectl has them."""

    def __init__(self, api: ApiServer, namespace: str) -> None:
        self.api, self.namespace = api, namespace

    def path(self, name: str = "") -> str:
        place = f"{GROUP}/namespaces/{self.namespace}/patternprocessors"
        return f"{place}/{name}" if name else place

    def apply(self, name: str, version: int = 1, **spec: Any) -> dict[str, Any]:
        body = {
            "apiVersion": "streambroker.io/v1alpha1",
            "kind": RULE,
            "metadata": {"name": name},
            "spec": {"job": "alerts", "version": version, "pattern": PATTERN, **spec},
        }
        where = f"{self.path(name)}?fieldManager=person&force=true"
        answer = self.api.request("PATCH", where, json.dumps(body), content_type=APPLY)
        assert answer.status in (200, 201), answer.message
        return dict(answer.body)

    def delete(self, name: str) -> None:
        assert self.api.request("DELETE", self.path(name)).status == 200

    def get(self, name: str) -> dict[str, Any]:
        return dict(self.api.request("GET", self.path(name)).body)

    def conditions(self, name: str) -> dict[str, tuple[str, str]]:
        found = self.get(name).get("status", {}).get("conditions", [])
        return {c["type"]: (c["status"], c["reason"]) for c in found}


@pytest.fixture
def rules(api: ApiServer, namespace: str) -> Rules:
    return Rules(api, namespace)


def follow(rules: Rules, feeder: FeederName) -> Followed:
    access = from_kubeconfig(rules.api.kubeconfig())
    return Followed(access, feeder, namespaces=[rules.namespace], timing=CALM)


def versions(followed: Followed, rules: Rules) -> dict[str, Any]:
    """Return the version of each rule on the board, None before there was a list."""
    found = followed.call(
        lambda: followed.board.reader.rules.rules_of_job((rules.namespace, "alerts"))
    )
    return {one.key.id: one.document.get("version") for one in found}


# ---- the feed --------------------------------------------------------------------------------


@both
def test_rules_are_followed_as_they_are_created_changed_and_deleted(
    rules: Rules, feeder: FeederName
) -> None:
    rules.apply("a")
    with follow(rules, feeder).running() as followed:
        followed.await_scan(rules.api, [rules.namespace])
        first = versions(followed, rules)
        rules.apply("b")
        rules.apply("a", 2)
        until(lambda: versions(followed, rules) == {"a": 2, "b": 1}, 30.0, "both are there")
        rules.delete("a")
        until(lambda: versions(followed, rules) == {"b": 1}, 30.0, "one is gone")
        followed.await_scan(rules.api, [rules.namespace])

    assert first == {"a": 1}


@both
@pytest.mark.parametrize(
    "fault",
    [
        Fault(on=("watch",), how="cut", after=30, plural="patternprocessors"),
        Fault(on=("watch",), how="gone", plural="patternprocessors"),
        Fault(on=("list",), how="refuse", times=3, status=503, plural="patternprocessors"),
        Fault(on=("crd",), how="refuse", times=3, status=404, plural="patternprocessors"),
    ],
    ids=lambda fault: f"{fault.on[0]} {fault.how}",
)
def test_a_feed_that_breaks_loses_no_rule_and_finds_what_was_missed(
    rules: Rules, feeder: FeederName, fault: Fault
) -> None:
    rules.apply("stays")
    rules.apply("goes")
    with follow(rules, feeder).running() as followed:
        followed.await_scan(rules.api, [rules.namespace])
        followed.proxy.faults.append(fault)
        followed.demand("relist")
        rules.delete("goes")
        rules.apply("comes")
        seen: set[bool] = set()

        def settled() -> bool:
            found = versions(followed, rules)
            seen.add("stays" in found)
            return set(found) == {"stays", "comes"}

        until(settled, 40.0, "the board shows what the server holds")
        assert followed.health().synced

    assert seen == {True}


@both
def test_without_the_definition_of_rules_ports_are_followed_and_views_say_nothing_of_rules(
    rules: Rules, feeder: FeederName
) -> None:
    missing = Fault(
        on=("crd", "list", "marks", "watch"), how="refuse", times=10_000, status=404,
        plural="patternprocessors",
    )  # fmt: skip
    followed = follow(rules, feeder)
    followed.proxy.faults.append(missing)
    with followed.running():
        followed.await_synced()
        assert (
            followed.call(
                lambda: followed.board.reader.rules.view_rules((rules.namespace, "alerts"))
            )
            is None
        )
        assert followed.call(lambda: followed.board.reader.synced)


# ---- a whole broker ------------------------------------------------------------------------------


@pytest.fixture
def broker(api: ApiServer, tmp_path: Path, namespace: str) -> Iterator[Operator]:
    make_key(api, namespace)
    with operator(api, tmp_path, namespace) as found:
        yield found


@pytest.fixture
def agent(api: ApiServer, namespace: str, broker: Operator) -> SignedAgent:
    found = SignedAgent(api, namespace, "alerts")
    found.register(broker)
    return found


def reported(agent: SignedAgent, broker: Operator) -> list[tuple[str, int, bool]]:
    """Return id and version of each rule that the agent is told, and whether it can be run."""
    agent.version = ""
    view = agent.poll(broker)
    assert view is not None
    return [(r["id"], r["document"].get("version"), not r["problem"]) for r in view["patterns"]]


def test_a_rule_reaches_the_agent_and_what_that_reports_the_status(
    rules: Rules, broker: Operator, agent: SignedAgent
) -> None:
    rules.apply("dear", id="dear.one")
    until(lambda: reported(agent, broker) == [("dear.one", 1, True)], 20.0, "the agent has it")
    until(
        lambda: rules.conditions("dear").get("Accepted") == ("True", "Accepted"),
        20.0,
        "the status says so",
    )
    waits = rules.conditions("dear")["Active"]

    found = {"version": 1, "state": "active", "since": 12, "buckets": 4, "of": 4, "matches": 7}
    report = {"patterns": {"rules": {"dear.one": found}}}
    broker.call(agent.token, "PUT", agent.at("/report"), report)
    until(lambda: rules.conditions("dear").get("Ready") == ("True", "Ready"), 20.0, "it is active")

    status = rules.get("dear")["status"]
    assert waits == ("Unknown", "NotHeard")
    assert {name: status[name] for name in found if name != "state"} == {
        name: value for name, value in found.items() if name != "state"
    }
    shown = rules.api.kubectl("get", "spat", "-n", rules.namespace).stdout.split()
    assert {"True", "4/4", "12"} <= set(shown)


def test_an_invalid_rule_says_where_and_nothing_else_changes(
    rules: Rules, broker: Operator, agent: SignedAgent
) -> None:
    rules.apply("dear")
    rules.apply("other")
    until(lambda: len(reported(agent, broker)) == 2, 20.0, "the agent has both")

    rules.apply("dear", 2, pattern=BAD)
    until(
        lambda: rules.conditions("dear").get("Accepted") == ("False", "RuleInvalid"),
        20.0,
        "it is refused",
    )

    message = rules.get("dear")["status"]["conditions"][0]["message"]
    assert "pattern.stages[0].where, line 1, column 8" in message
    assert message.startswith("generation 2 is refused: ")
    assert message.endswith("; generation 1 runs")
    assert reported(agent, broker) == [("dear", 1, True), ("other", 1, True)]
    until(
        lambda: rules.conditions("other").get("Accepted") == ("True", "Accepted"),
        20.0,
        "the other is accepted",
    )


def test_rest_changes_objects_and_what_others_declare_is_theirs(
    rules: Rules, broker: Operator, agent: SignedAgent
) -> None:
    def rest(method: str, name: str, body: Any = None, force: bool = False) -> tuple[int, Any]:
        more = "&force=true" if force else ""
        where = f"/api/jobs/alerts/patterns/{name}?namespace={rules.namespace}{more}"
        status, answer, _ = broker.call(agent.token, method, where, body)
        return status, answer

    made = rest("PUT", "mine", {"version": 1, "pattern": PATTERN})
    assert made[0] == 201, made
    assert rules.get("alerts.mine")["spec"]["version"] == 1
    until(lambda: reported(agent, broker) == [("mine", 1, True)], 20.0, "the agent has it")
    assert rest("PUT", "mine", {"version": 2, "pattern": PATTERN})[0] == 200
    assert rest("PUT", "mine", {"version": 2, "pattern": BAD})[0] == 422
    assert rules.get("alerts.mine")["spec"]["version"] == 2

    rules.apply("theirs")
    until(lambda: rest("GET", "theirs")[0] == 200, 20.0, "the broker knows it")
    status, refused = rest("PUT", "theirs", {"version": 9, "pattern": PATTERN})
    assert (status, refused["code"]) == (409, "OwnedByOther")
    assert refused["field"] == "version"
    assert rest("POST", "theirs/enable")[0] == 200
    assert rules.get("theirs")["spec"]["enable"] == 1
    assert rest("DELETE", "mine")[0] == 200
    until(lambda: [one[0] for one in reported(agent, broker)] == ["theirs"], 20.0, "it is gone")


def test_others_than_the_job_need_the_clusters_rights(
    api: ApiServer, rules: Rules, broker: Operator
) -> None:
    make_account(api, rules.namespace, "nobody")
    token = token_of(api, rules.namespace, "nobody")
    where = f"/api/jobs/alerts/patterns/mine?namespace={rules.namespace}"

    status, refused, _ = broker.call(token, "PUT", where, {"version": 1, "pattern": PATTERN})

    assert status == 403
    assert "patternprocessors" in refused["detail"]


def test_a_status_is_written_apart_and_kept_whole(rules: Rules) -> None:
    rules.apply("dear")
    status = {
        "observedGeneration": 1, "version": 1, "scheduled": 2, "since": 12, "buckets": 4, "of": 4,
        "applied": "4/4", "matches": 7, "errors": 1,
    }  # fmt: skip
    path = f"{rules.path('dear')}/status?fieldValidation=Strict"
    answer = rules.api.request("PATCH", path, {"status": status}, content_type=MERGE)

    assert answer.status == 200, answer.message
    assert answer.body["status"] == status


def test_the_key_of_a_rule_is_its_name_unless_it_says_another(rules: Rules) -> None:
    with follow(rules, "reflector").running() as followed:
        followed.await_synced()
        rules.apply("dear")
        rules.apply("cheap", id="Cheap_one")
        key = RuleKey(rules.namespace, "alerts", "Cheap_one")
        until(
            lambda: followed.call(lambda: followed.board.reader.rules.holder_at(key)),
            20.0,
            "it is there",
        )
        assert set(versions(followed, rules)) == {"dear", "Cheap_one"}
