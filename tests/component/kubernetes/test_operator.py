"""The command ``streambroker operator`` on a real API server, as users and agents meet it."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from streambroker_core.wire import hints
from support.cluster import GROUP, ApiServer
from support.kube_calls import manifest
from support.operators import Agent, Operator, make_key, operator
from support.waiting import until


@pytest.fixture
def broker(api: ApiServer, tmp_path: Path, namespace: str) -> Iterator[Operator]:
    make_key(api, namespace)
    with operator(api, tmp_path, namespace, "--feeder", "reflector") as found:
        yield found


def declare(api: ApiServer, namespace: str) -> None:
    export = manifest("Export", "feed", job="feed", port="trades", properties={"kind": "trade"})
    wanted = 'kind == "trade"'
    import_ = manifest("Import", "alerts", job="alerts", port="in", subscription=wanted)
    for document in (export, import_):
        done = api.kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(document))
        assert done.returncode == 0, done.stderr


def status_of(api: ApiServer, namespace: str, plural: str, name: str) -> dict[str, Any]:
    answer = api.request("GET", f"{GROUP}/namespaces/{namespace}/{plural}/{name}")
    assert answer.status == 200, answer.message
    found: dict[str, Any] = answer.body.get("status") or {}
    return found


def condition(api: ApiServer, namespace: str, plural: str, name: str, type_: str) -> str | None:
    conditions = status_of(api, namespace, plural, name).get("conditions", [])
    return next((one["status"] for one in conditions if one["type"] == type_), None)


def test_what_kubectl_applies_becomes_a_route_and_a_status(
    api: ApiServer, broker: Operator, namespace: str
) -> None:
    _, alerts = connected(api, namespace, broker)
    alerts.version = ""
    view = alerts.poll(broker)

    assert view is not None
    (route,) = view["imports"]["in"]["routes"]
    assert route["location"] == "grpc+tcp://127.0.0.1:1"
    assert route["capability"]
    shown = api.kubectl("get", "streams", "-n", namespace).stdout
    assert shown.count("True") >= 2


@pytest.fixture
def replicas(api: ApiServer, tmp_path: Path, namespace: str) -> Iterator[list[Operator]]:
    make_key(api, namespace)
    with ExitStack() as both:
        found = [
            both.enter_context(operator(api, tmp_path, namespace, "--feeder", "reflector"))
            for _ in range(2)
        ]
        until(lambda: any(one.leads for one in found), 20.0, "one leads")
        yield sorted(found, key=lambda one: not one.leads)


def connected(api: ApiServer, namespace: str, broker: Operator) -> tuple[Agent, Agent]:
    """Connect two jobs whose agents ask one broker."""
    agents = Agent(api, namespace, "feed"), Agent(api, namespace, "alerts")
    for agent in agents:
        agent.register(broker)
    declare(api, namespace)
    until(lambda: ready_over(api, namespace, broker, agents), 20.0, "both are ready")
    return agents


def ready_over(
    api: ApiServer, namespace: str, broker: Operator, agents: tuple[Agent, Agent]
) -> bool:
    # As agents do: who has run a change says so with the next poll.
    for agent in agents:
        agent.poll(broker)
    names = (("exports", "feed"), ("imports", "alerts"))
    return all(condition(api, namespace, *name, "Ready") == "True" for name in names)


def test_the_one_who_leads_hears_what_agents_tell_the_other(
    api: ApiServer, replicas: list[Operator], namespace: str
) -> None:
    leader, other = replicas

    connected(api, namespace, other)

    assert leader.leads
    assert not other.leads


def test_after_a_kill_the_other_leads_and_the_first_hint_is_taken(
    api: ApiServer, replicas: list[Operator], namespace: str
) -> None:
    leader, other = replicas
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as heard:
        heard.bind(("127.0.0.1", 0))
        heard.settimeout(30.0)
        alerts = Agent(api, namespace, "alerts", hint=f"127.0.0.1:{heard.getsockname()[1]}")
        feed = Agent(api, namespace, "feed")
        for agent in (feed, alerts):
            agent.register(leader)
        declare(api, namespace)
        until(lambda: ready_over(api, namespace, leader, (feed, alerts)), 20.0, "ready")
        leader.kill()
        while select.select([heard], [], [], 0)[0]:
            heard.recv(4096)
        status, answer, _ = other.call(
            alerts.token, "PUT", alerts.at("/import/in/filter"), {"filter": "price > 1.0"}
        )
        assert status == 200, answer
        hint = hints.decode(alerts.key, heard.recv(4096), f"{namespace}/alerts/0")

    assert alerts.poll(other) is not None
    assert hint.version == alerts.version
    until(lambda: other.leads, 40.0, "the other leads")
    until(lambda: ready_over(api, namespace, other, (feed, alerts)), 20.0, "ready again")


def test_what_is_changed_by_rest_is_steered_and_kubectl_is_told(
    api: ApiServer, broker: Operator, namespace: str
) -> None:
    _, alerts = connected(api, namespace, broker)
    change = alerts.at("/import/in/filter"), {"filter": "price > 1.0"}
    status, answer, _ = broker.call(alerts.token, "PUT", *change)
    assert status == 200, answer

    until(
        lambda: condition(api, namespace, "imports", "alerts", "Steered") == "True",
        20.0,
        "the status says that it is steered",
    )
    document = manifest("Import", "alerts", job="alerts", port="in", filter="price > 2.0")
    document["spec"]["subscription"] = 'kind == "trade"'
    done = api.kubectl(
        *("apply", "--server-side", "-n", namespace, "-f", "-"), stdin=json.dumps(document)
    )
    assert done.returncode != 0
    assert "streambroker-api" in done.stderr


def test_an_api_server_that_is_away_takes_no_route_and_no_answer(
    own_api: ApiServer, tmp_path: Path
) -> None:
    api, namespace = own_api, "default"
    make_key(api, namespace)
    with operator(api, tmp_path, namespace, "--feeder", "reflector") as broker:
        feed, alerts = connected(api, namespace, broker)
        before = broker.call(feed.token, "GET", feed.path)[1]
        api.stop()
        until(lambda: "feed lost" in broker.probe("/readyz")[1], 30.0, "it is noticed")

        status, after, _ = broker.call(feed.token, "GET", feed.path)
        assert broker.probe("/livez")[0] == broker.probe("/readyz")[0] == 200
        assert (status, after["exports"]) == (200, before["exports"])
        assert alerts.poll(broker) is None


@pytest.mark.parametrize("feeder", ["kopf", "reflector"])
def test_a_broker_that_starts_anew_takes_no_route_down(
    api: ApiServer, tmp_path: Path, namespace: str, feeder: str
) -> None:
    make_key(api, namespace)
    with operator(api, tmp_path, namespace, "--feeder", feeder) as broker:
        feed, alerts = connected(api, namespace, broker)
        broker.kill()
    with operator(api, tmp_path, namespace, "--feeder", feeder) as broker:
        assert alerts.poll(broker) is None
        assert feed.poll(broker) is None
        figures = broker.probe("/metrics")[1]
        assert "streambroker_routes 1.0" in figures
