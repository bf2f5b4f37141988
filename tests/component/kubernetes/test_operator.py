"""The command ``streambroker operator`` on a real API server, as users and agents meet it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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
    feed, alerts = (Agent(api, namespace, job) for job in ("feed", "alerts"))
    for agent in (feed, alerts):
        agent.register(broker)
    declare(api, namespace)

    view = until(
        lambda: (found := alerts.poll(broker)) and found["imports"] and found, 20.0, "a route"
    )
    (route,) = view["imports"]["in"]["routes"]
    assert route["location"] == "grpc+tcp://127.0.0.1:1"
    for plural, name in (("exports", "feed"), ("imports", "alerts")):
        # As agents do: who has run a change says so with the next poll.
        until(
            lambda p=plural, n=name: [one.poll(broker) for one in (feed, alerts)]
            and condition(api, namespace, p, n, "Ready") == "True",
            20.0,
            f"{name} is ready",
        )
    shown = api.kubectl("get", "streams", "-n", namespace).stdout
    assert shown.count("True") >= 2
