"""The client of the broker's control plane, against a real broker process."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

import streambroker as sb
from streambroker_client import connection
from support.brokers.brokers import BrokerProcess
from support.brokers.lossy_proxy import Cutter
from support.processes.ports import free_port

_NUMBERS = itertools.count()
API_VERSION = "streambroker.io/v1alpha1"
STAGES = {"stages": [{"name": "a", "where": "price > 10"}]}
RULE = {"id": "dear", "version": 1, "pattern": STAGES}
OPS = "token-of-operations"


def export(job: str, **spec: Any) -> dict[str, Any]:
    wanted = {"job": job, "port": "trades", "properties": {"kind": "trade"}, **spec}
    return {"apiVersion": API_VERSION, "kind": "Export", "metadata": {"name": job}, "spec": wanted}


def import_(job: str, subscription: str = 'kind == "trade"') -> dict[str, Any]:
    spec = {"job": job, "port": "trades", "subscription": subscription}
    return {"apiVersion": API_VERSION, "kind": "Import", "metadata": {"name": job}, "spec": spec}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("broker")
    process = BrokerProcess(folder / "broker.db", "--port", str(free_port()))
    yield process.url()
    process.kill()


@pytest.fixture
def broker(url: str) -> sb.Broker:
    """A client of a namespace that no other test uses, with an Export, an Import and a route."""
    namespace = f"test-{next(_NUMBERS)}"
    client = sb.connect(url, namespace=namespace)
    client.apply([export("feed"), import_("alerts")])
    return client


# ---- resources ---------------------------------------------------------------------------------


def test_lists_have_the_resources_of_the_namespace(broker: sb.Broker) -> None:
    (exported,), (imported,), (route,) = broker.exports(), broker.imports(), broker.routes()

    assert (exported.kind, exported.port) == ("Export", f"{broker.namespace}/feed/0/trades")
    assert exported.accepted
    assert (exported.generation, exported.matches) == (1, 1)
    assert exported.spec["properties"] == {"kind": "trade"}
    assert exported["metadata"]["uid"]
    assert (route.export, route.import_, route.policy) == (exported.port, imported.port, "wait")
    assert [(pe.key, pe.location, pe.exports) for pe in broker.pes()] == [
        (f"{broker.namespace}/alerts/0", None, ()),
        (f"{broker.namespace}/feed/0", None, ("trades",)),
    ]
    every = broker.in_namespace("*").exports()
    assert exported in every


def test_a_list_of_several_pages_is_one_list(
    broker: sb.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.apply([export(f"many-{number}") for number in range(7)])
    monkeypatch.setattr(connection, "PAGE_SIZE", 3)

    assert len({one.port for one in broker.exports()}) == len(broker.exports()) == 8


def test_a_port_is_named_with_or_without_its_namespace(broker: sb.Broker) -> None:
    found = broker.get("Import", "alerts/0/trades")

    assert found == broker.get("Import", f"{broker.namespace}/alerts/0/trades")
    assert found.spec["subscription"] == 'kind == "trade"'
    with pytest.raises(sb.UnknownPortError) as caught:
        broker.get("Export", "alerts/0/trades")
    assert (caught.value.code, caught.value.status) == ("UnknownPort", 404)
    with pytest.raises(sb.errors.ManifestError):
        broker.get("Export", "alerts")


def test_what_is_listed_can_be_applied_again(broker: sb.Broker) -> None:
    made = broker.apply([*broker.exports(), *broker.imports()])

    assert [change.became for change in made.results] == ["unchanged", "unchanged"]
    assert (made.added, made.cut, made.problems) == ((), (), ())


def test_a_forecast_changes_nothing_and_applying_does(broker: sb.Broker) -> None:
    deletion: tuple[Literal["Export"], str] = ("Export", "feed/0/trades")
    forecast = broker.what_if([export("other")], delete=[deletion])

    assert [(route.export, route.reason) for route in forecast.cut] == [
        (f"{broker.namespace}/feed/0/trades", "ExportRemoved")
    ]
    assert len(forecast.added) == 1
    assert forecast.results == ()
    assert "1 cut" in str(forecast)
    assert len(broker.exports()) == 1

    with pytest.raises(sb.BrokerRefusedError) as caught:
        broker.apply([export("other")], delete=[deletion], max_removed=0)
    assert (caught.value.code, caught.value.problem["cut"]) == ("WouldCut", 1)

    made = broker.apply([export("other")], delete=[deletion], max_removed=1)
    assert [change.became for change in made.results] == ["created", "deleted"]
    assert [one.spec["job"] for one in broker.exports()] == ["other"]


def test_a_deletion_with_a_name_spares_a_resource_of_another_name(broker: sb.Broker) -> None:
    forecast = broker.what_if(delete=[("Export", "feed/0/trades", "another")])

    assert [(one.index, one.code, one.refused) for one in forecast.problems] == [
        (0, "PortTaken", True)
    ]


def test_a_deleted_port_and_its_pe_are_gone(broker: sb.Broker) -> None:
    change = broker.delete("Export", "feed/0/trades")
    with pytest.raises(sb.BrokerRefusedError, match="port"):
        broker.delete_pe("alerts/0")
    broker.delete_pe("feed/0")

    assert [route.reason for route in change.cut] == ["ExportRemoved"]
    assert [pe.job for pe in broker.pes()] == ["alerts"]


# ---- changes of a running port -----------------------------------------------------------------


def test_a_setter_returns_the_effect_on_routes(broker: sb.Broker) -> None:
    filtered = broker.set_filter("alerts/0/trades", "price > 10.0")
    again = broker.set_filter("alerts/0/trades", "price > 10.0")
    cut = broker.set_subscription("alerts/0/trades", 'kind == "quote"')
    added = broker.set_properties("feed/0/trades", {"kind": "quote", "level": 2})

    assert (filtered.changed, filtered.generation, filtered.kept[0].filter) == (
        True,
        2,
        "price > 10.0",
    )
    assert (again.changed, again.generation) == (False, 2)
    assert [route.reason for route in cut.cut] == ["SubscriptionFalse"]
    assert len(added.added) == 1
    assert broker.set_filter("alerts/0/trades", None).kept[0].filter is None


def test_a_wrong_filter_is_refused_with_its_position(broker: sb.Broker) -> None:
    with pytest.raises(sb.ChangeRefusedError) as caught:
        broker.set_filter("alerts/0/trades", "price >")

    assert caught.value.code == "FilterInvalid"
    assert caught.value.problem["position"]["column"] == 8


def test_only_the_broker_declares_so_there_is_nothing_to_release(broker: sb.Broker) -> None:
    with pytest.raises(sb.BrokerRefusedError) as caught:
        broker.release("Export", "feed/0/trades")

    assert caught.value.code == "NotDeclared"


def test_rules_of_patterns_are_put_listed_and_deleted(broker: sb.Broker) -> None:
    patterns = broker.patterns("alerts")
    created = patterns.put("dear", RULE)
    same = patterns.put("dear", RULE)
    enabled = patterns.enable("dear")
    (rule,) = patterns.list()

    assert (created.created, same.changed, enabled.changed) == (True, False, True)
    assert (rule.id, rule.state, rule.accepted) == ("dear", "unknown", True)
    assert patterns.get("dear").spec["pattern"] == STAGES
    patterns.delete("dear")
    assert patterns.list() == []
    with pytest.raises(sb.BrokerRefusedError) as caught:
        patterns.get("dear")
    assert caught.value.code == "UnknownRule"


# ---- diagnosis ---------------------------------------------------------------------------------


def test_an_explanation_has_the_reason_of_each_pair(broker: sb.Broker) -> None:
    broker.apply([import_("quotes", 'kind == "quote"')])
    explained = broker.explain(import_="quotes/0/trades", export="feed/0/trades")
    of_one = broker.explain(import_="alerts/0/trades")

    assert explained.matched == 0
    assert [(pair.reason, pair.distance) for pair in explained.pairs] == [("SubscriptionFalse", 1)]
    assert "SubscriptionFalse" in str(explained)
    assert (of_one.matched, of_one.lint) == (1, ())


def test_lint_finds_what_can_never_match(broker: sb.Broker) -> None:
    broker.apply([import_("never", "a == 1 && a == 2")])
    found = broker.lint()

    assert found.total == len(found.findings)
    assert found.findings[0].code == "SubscriptionContradicts"
    assert found.findings[0].resource == f"import {broker.namespace}/never/0/trades"
    assert found.findings[0].message in str(found)


def test_the_graph_has_jobs_and_the_routes_between_them(broker: sb.Broker) -> None:
    graph = broker.graph(focus=f"{broker.namespace}/feed")
    only = broker.graph(match="alerts", limit=1)

    assert [(node.id, node.kind, node.exports) for node in graph.nodes] == [
        (f"{broker.namespace}/alerts", "job", 0),
        (f"{broker.namespace}/feed", "job", 1),
    ]
    ((edge),) = graph.edges
    assert (edge.source, edge.target, edge.routes) == (graph.nodes[1].id, graph.nodes[0].id, 1)
    assert not graph.folded
    assert sum(only.hidden.values()) + len(only.nodes) > 1


def test_top_has_the_figures_of_routes_and_none_that_nobody_reported(broker: sb.Broker) -> None:
    top = broker.top()

    (route,) = top.routes
    assert (route.import_, route.state) == (f"{broker.namespace}/alerts/0/trades", "unknown")
    assert (route.rows_per_second, route.age) == (None, None)
    assert top.sides == top.rules == top.rule_waiting == ()


def test_events_follow_the_list_without_a_gap(broker: sb.Broker) -> None:
    events = broker.watch()

    assert next(events).name == "reset"
    broker.delete("Import", "alerts/0/trades")
    seen: dict[str, sb.broker.Event] = {}
    while "route-cut" not in seen or "import" not in seen:
        event = next(events)
        seen[event.name] = event
    resource, route = seen["import"].item, seen["route-cut"].item
    assert isinstance(resource, sb.broker.PortResource)
    assert (seen["import"].change, resource.port) == (
        "DELETED",
        f"{broker.namespace}/alerts/0/trades",
    )
    assert isinstance(route, sb.broker.BrokerRoute)
    assert route.export == f"{broker.namespace}/feed/0/trades"


# ---- failures ----------------------------------------------------------------------------------


def test_a_change_whose_answer_is_lost_is_made_once(broker: sb.Broker) -> None:
    cutter = Cutter(broker.connection.url)
    client = sb.connect(cutter.url, namespace=broker.namespace)
    cutter.cuts = 1
    change = client.set_filter("alerts/0/trades", "price > 7.0")
    cutter.close()

    assert (cutter.lost, len(cutter.requests)) == (1, 2)
    assert (change.changed, change.generation) == (True, 2)
    assert broker.get("Import", "alerts/0/trades").generation == 2


def test_without_any_answer_the_error_states_that_a_change_may_have_been_made(
    broker: sb.Broker,
) -> None:
    cutter = Cutter(broker.connection.url)
    client = sb.connect(cutter.url, namespace=broker.namespace)
    cutter.cuts = 9
    with pytest.raises(sb.BrokerUnavailableError, match="not known whether") as caught:
        client.set_filter("alerts/0/trades", "price > 7.0")
    cutter.close()

    assert caught.value.sent


def test_a_refusal_of_the_rate_limit_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = ("--limit", "writes-per-s=0.5", "--limit", "write-burst=1")
    process = BrokerProcess(tmp_path / "slow.db", "--port", str(free_port()), *limits)
    try:
        client = sb.connect(process.url())
        first = client.apply([export("one")])
        second = client.apply([export("two"), export("three")])
        monkeypatch.setattr(connection, "MAX_RETRY_S", 0.0)
        with pytest.raises(sb.BrokerUnavailableError) as caught:
            client.apply([export("four")])
    finally:
        process.kill()

    assert [change.became for change in (*first.results, *second.results)] == ["created"] * 3
    assert (caught.value.code, caught.value.busy) == ("TooManyRequests", True)


def test_an_address_without_a_broker_or_of_none_is_unavailable() -> None:
    with pytest.raises(sb.BrokerUnavailableError, match="No broker answers") as caught:
        sb.connect("http://127.0.0.1:1").exports()
    assert (caught.value.sent, caught.value.status) == (False, 0)
    with pytest.raises(sb.BrokerError, match="write `broker` http://host:port"):
        sb.connect("ftp://broker")
    with pytest.raises(sb.ArgumentError, match="timeout is 0"):
        sb.connect("http://127.0.0.1:1", timeout=0)


def test_a_token_file_is_read_again_and_another_token_is_refused(tmp_path: Path) -> None:
    tokens, mine = tmp_path / "tokens.yaml", tmp_path / "token"
    tokens.write_text(json.dumps({"tokens": [{"name": "o", "token": OPS, "role": "admin"}]}))
    tokens.chmod(0o600)
    mine.write_text("not-the-token-of-operations")
    process = BrokerProcess(tmp_path / "broker.db", "--port", "0", "--tokens", str(tokens))
    try:
        client = sb.connect(process.url(), auth=sb.BrokerAuth(token_file=mine))
        with pytest.raises(sb.BrokerRefusedError) as caught:
            client.exports()
        mine.write_text(OPS)
        listed = client.exports()
    finally:
        process.kill()

    assert (caught.value.code, caught.value.status) == ("TokenWrong", 401)
    assert listed == []


def test_an_answer_of_another_form_is_not_taken_for_one_of_a_broker(
    broker: sb.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker.connection, "call", lambda *_, **__: {"routes": [{}]})
    with pytest.raises(sb.BrokerRefusedError, match="is not a broker, or of another release"):
        broker.top()
