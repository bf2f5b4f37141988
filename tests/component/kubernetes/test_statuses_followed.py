"""Statuses of resources that are followed: what is written comes back, and asks for nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.clusters.api_server import GROUP, ApiServer
from support.clusters.calls import create, manifest, true
from support.clusters.statuses import Broker, fed_broker_at

FEED = manifest("Export", "feed-trades", job="feed", port="trades", properties={"kind": "trade"})
ALERTS = manifest(
    "Import", "alerts-trades", job="alerts", port="trades", subscription='kind == "trade"'
)
AT_REST_S = 3.0


def writes(server: ApiServer, namespace: str) -> int:
    return sum(entry["objectRef"].get("namespace") == namespace for entry in server.writes())


def condition(resource: dict[str, Any], name: str) -> tuple[str, str]:
    found = resource.get("status", {}).get("conditions", [])
    return next(((c["status"], c["reason"]) for c in found if c["type"] == name), ("", ""))


async def reported(broker: Broker, kind: Any, name: str, which: str, reason: str) -> Any:
    """Wait until a condition has a reason; return the resource."""
    for _ in range(400):
        found = await broker.read(kind, name)
        if condition(found, which)[1] == reason:
            return found
        await asyncio.sleep(0.05)
    raise AssertionError(found.get("status"))


@pytest.mark.parametrize("feeder", ["reflector", "kopf"])
async def test_a_change_by_kubectl_is_reported_and_then_there_is_rest(
    api: ApiServer, namespace: str, feeder: str
) -> None:
    async with fed_broker_at(api, namespace, feeder) as broker:
        await create(broker.api, namespace, [FEED, ALERTS])
        assert await true(lambda: broker.board.reader.route_count == 1)
        broker.register("feed", "alerts")
        broker.poll("feed", "alerts")
        await reported(broker, "Import", "alerts-trades", "Ready", "Ready")
        await reported(broker, "Export", "feed-trades", "Ready", "Ready")

        patch = '{"spec": {"subscription": "kind == \\"quote\\""}}'
        api.kubectl("patch", "simp", "alerts-trades", "-n", namespace, "--type=merge", "-p", patch)
        found = await reported(broker, "Import", "alerts-trades", "Ready", "NoMatch")
        assert found["status"]["observedGeneration"] == 2
        await reported(broker, "Export", "feed-trades", "Ready", "NoMatch")

        await broker.settled()
        before = writes(api, namespace)
        await asyncio.sleep(AT_REST_S)
        assert writes(api, namespace) == before


async def test_another_leader_writes_nothing_that_is_right(api: ApiServer, namespace: str) -> None:
    async with fed_broker_at(api, namespace) as broker:
        await create(broker.api, namespace, [FEED, ALERTS])
        assert await true(lambda: broker.board.reader.route_count == 1)
        broker.register("feed", "alerts")
        broker.poll("feed", "alerts")
        broker.say("feed", "trades")
        await reported(broker, "Import", "alerts-trades", "Ready", "Ready")
        await reported(broker, "Export", "feed-trades", "Ready", "Ready")
        await reported(broker, "Export", "feed-trades", "Ended", "Finished")
        await broker.settled()
    before = writes(api, namespace)

    # It leads only once the agents have registered, so no status without an agent is due before.
    async with fed_broker_at(api, namespace, leads=False) as another:
        another.register("feed", "alerts")
        another.leads = True
        another.statuses.offer_all()
        await another.settled()
        await asyncio.sleep(AT_REST_S)

        assert writes(api, namespace) == before
        another.say("feed")
        await reported(another, "Export", "feed-trades", "Ended", "")


async def test_what_cannot_be_read_says_so_and_is_well_once_it_can(
    api: ApiServer, namespace: str
) -> None:
    async with fed_broker_at(api, namespace) as broker:
        odd = {**FEED, "spec": {**FEED["spec"], "properties": {"a": ["x", 1]}}}
        await create(broker.api, namespace, [odd])
        found = await reported(broker, "Export", "feed-trades", "Accepted", "PropertyInvalid")
        assert "`a`" in found["status"]["conditions"][0]["message"]

        api.request(
            "PATCH",
            f"{GROUP}/namespaces/{namespace}/exports/feed-trades",
            {"spec": {"properties": {"a": ["x"]}}},
            content_type="application/merge-patch+json",
        )
        found = await reported(broker, "Export", "feed-trades", "Accepted", "Accepted")
        assert found["status"]["summary"] == "a=[x]"


async def test_a_status_that_somebody_spoils_is_put_right(api: ApiServer, namespace: str) -> None:
    async with fed_broker_at(api, namespace) as broker:
        await create(broker.api, namespace, [ALERTS])
        await reported(broker, "Import", "alerts-trades", "Ready", "NoMatch")
        api.request(
            "PATCH",
            f"{GROUP}/namespaces/{namespace}/imports/alerts-trades/status",
            {"status": {"conditions": []}},
            content_type="application/merge-patch+json",
        )
        await reported(broker, "Import", "alerts-trades", "Ready", "NoMatch")
