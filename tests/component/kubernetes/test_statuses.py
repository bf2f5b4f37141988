"""Statuses on a real API server: one write per change, none at rest, none on the wrong object."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import yaml

from streambroker_core.board import ImportApplied, ImportRemoved, Unreadable
from streambroker_core.model import Import
from streambroker_core.wire.manifests.ports import read_manifest
from streambroker_core.wire.reports.schema_status import SchemaStatus
from streambroker_core.wire.reports.storage_status import StorageStatus
from streambroker_operator.kubernetes.replicas.agent_reports import SchemaReport, StorageReport
from streambroker_operator.kubernetes.status.events import EventNote
from support.clusters.api_server import CRDS, GROUP, ApiServer
from support.clusters.calls import create, listed, manifest
from support.clusters.statuses import broker_at

FEED = manifest("Export", "feed-trades", job="feed", port="trades", properties={"kind": "trade"})
ALERTS = manifest(
    "Import", "alerts-trades", job="alerts", port="trades", subscription='kind == "trade"'
)


def written(server: ApiServer, namespace: str) -> int:
    """Return how many statuses were written in a namespace."""
    return sum(
        entry["objectRef"].get("namespace") == namespace
        and entry["objectRef"].get("subresource") == "status"
        for entry in server.writes()
    )


def conditions(resource: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {c["type"]: (c["status"], c["reason"]) for c in resource["status"]["conditions"]}


async def test_a_stream_becomes_ready_and_kubectl_tells_it_at_a_glance(
    api: ApiServer, namespace: str
) -> None:
    async with broker_at(api, namespace) as broker:
        await create(broker.api, namespace, [FEED, ALERTS])
        await broker.fill()
        broker.register("feed", "alerts")
        broker.poll("feed", "alerts")
        await broker.settled()

        found = await broker.read("Import", "alerts-trades")
        assert conditions(found)["Ready"] == ("True", "Ready")
        assert found["status"]["topMatches"] == [f"{namespace}/feed/0/trades"]

    shown = api.kubectl("get", "streams", "-n", namespace).stdout
    feed, alerts = (
        next(line for line in shown.splitlines() if name in line)
        for name in ("feed-trades", "alerts-trades")
    )
    assert "kind=trade" in feed
    assert " True " in feed
    assert 'kind == "trade"' in alerts


async def test_a_change_and_its_being_programmed_are_one_write_each(
    api: ApiServer, namespace: str
) -> None:
    async with broker_at(api, namespace) as broker:
        await create(broker.api, namespace, [FEED, ALERTS])
        await broker.fill()
        broker.register("feed", "alerts")
        await broker.settled()
        assert conditions(await broker.read("Import", "alerts-trades"))["Programmed"] == (
            "Unknown",
            "NotHeard",
        )
        before = written(api, namespace)

        broker.poll("feed")
        broker.poll("alerts")
        broker.poll("alerts")
        await broker.settled()

        assert written(api, namespace) - before == 2


async def test_an_end_and_its_being_taken_back_are_one_write_each(
    api: ApiServer, namespace: str
) -> None:
    async with broker_at(api, namespace) as broker:
        await create(broker.api, namespace, [FEED, ALERTS])
        await broker.fill()
        broker.register("feed", "alerts")
        broker.poll("feed", "alerts")
        await broker.settled()
        before, reported = written(api, namespace), []
        for ports in (["trades"], ["trades"], [], []):
            broker.say("feed", *ports)
            await broker.settled()
            found = await broker.read("Export", "feed-trades")
            reported.append(conditions(found).get("Ended"))
            assert conditions(found)["Ready"] == ("True", "Ready")

        assert reported == [("True", "Finished"), ("True", "Finished"), None, None]
        assert written(api, namespace) - before == 2

        broker.say("feed", "trades")
        await broker.settled()
    shown = api.kubectl("get", "streams", "-n", namespace).stdout
    head, feed = shown.splitlines()[:2]
    assert feed.split()[head.split().index("ENDED")] == "True"


async def test_uploads_are_written_at_transitions_and_kubectl_shows_them(
    api: ApiServer, namespace: str
) -> None:
    stored = {**FEED, "spec": {**FEED["spec"], "durability": "stored"}}
    reports = [StorageStatus(seconds=seconds) for seconds in (50, 70, 90)]
    reports.append(StorageStatus(error="it fails."))
    async with broker_at(api, namespace) as broker:
        await create(broker.api, namespace, [stored, ALERTS])
        await broker.fill()
        broker.register("feed", "alerts")
        broker.poll("feed", "alerts")
        await broker.settled()
        before, reported = written(api, namespace), []
        for uploads in reports:
            broker.report("feed", StorageReport({"trades": uploads}))
            await broker.settled()
            reported.append(conditions(await broker.read("Export", "feed-trades"))["Stored"])

    assert reported == [
        ("True", "UpToDate"),
        *[("False", "Behind")] * 2,
        ("False", "StorageUnavailable"),
    ]
    assert written(api, namespace) - before == 3
    shown = api.kubectl("get", "exports", "-n", namespace, "-o", "wide").stdout
    head, feed = shown.splitlines()
    assert [
        feed[head.index(name) :].split()[0] for name in ("DURABILITY", "STORED", "STORAGE")
    ] == [*("stored", "False", "StorageUnavailable")]


def earlier_crd() -> Any:
    crd = yaml.safe_load((CRDS / "exports.yaml").read_text())
    for version in crd["spec"]["versions"]:
        properties = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
        properties.pop("schemaVersion", None)  # both versions have the same object
    return crd


async def test_a_crd_of_an_earlier_release_gets_the_status_without_the_version(
    own_api: ApiServer,
) -> None:
    own_api.create_namespace("earlier")
    applied = own_api.kubectl("replace", "-f", "-", stdin=json.dumps(earlier_crd()))
    assert applied.returncode == 0, applied.stderr
    async with broker_at(own_api, "earlier") as broker:
        await create(broker.api, "earlier", [FEED, ALERTS])
        await broker.fill()
        broker.register("feed", "alerts")
        broker.poll("feed", "alerts")
        broker.report("feed", SchemaReport({"trades": SchemaStatus(number=1)}))
        await broker.settled()
        found = await broker.read("Export", "feed-trades")

    assert conditions(found)["Ready"] == ("True", "Ready")
    assert "schemaVersion" not in found["status"]
    assert (broker.writer.writes["failed"], broker.writer.writes["refused"]) == (0, 0)


@pytest.mark.long
async def test_a_thousand_resources_have_their_status_by_a_write_each_and_then_there_is_rest(
    api: ApiServer, namespace: str
) -> None:
    async with broker_at(api, namespace) as broker:
        await create(
            broker.api,
            namespace,
            (
                manifest("Export", f"e{n}", job="feed", port=f"p{n}", properties={"n": n})
                for n in range(1000)
            ),
        )
        await broker.fill()
        await broker.settled()

        assert broker.writer.writes["done"] == 1000
        assert written(api, namespace) == 1000

        await broker.fill()
        broker.statuses.offer_all()
        await broker.settled()
        assert written(api, namespace) == 1000

    async with broker_at(api, namespace) as another:
        await another.fill()
        await another.settled()
        assert another.writer.writes["unchanged"] >= 1000
        assert written(api, namespace) == 1000


async def test_a_status_that_was_worked_out_for_a_deleted_resource_is_not_written_to_its_successor(
    api: ApiServer, namespace: str
) -> None:
    async with broker_at(api, namespace) as broker:
        await create(broker.api, namespace, [ALERTS])
        await broker.fill()
        old = await broker.read("Import", "alerts-trades")
        api.request("DELETE", f"{GROUP}/namespaces/{namespace}/imports/alerts-trades")
        broken = {**ALERTS, "spec": {**ALERTS["spec"], "subscription": "kind == =="}}
        await create(broker.api, namespace, [broken])
        event = ImportRemoved(uid=old["metadata"]["uid"], version=10**9)
        broker.deliver(event)
        await broker.settled()

        assert "status" not in await broker.read("Import", "alerts-trades")
        assert broker.writer.writes["done"] == 0


async def test_a_resource_that_was_just_deleted_is_not_created_by_its_status(
    api: ApiServer, namespace: str
) -> None:
    async with broker_at(api, namespace) as broker:
        await create(broker.api, namespace, [ALERTS])
        await broker.fill()
        api.request("DELETE", f"{GROUP}/namespaces/{namespace}/imports/alerts-trades")
        await broker.settled()

        assert await listed(broker.api, namespace, "Import") == []
        assert broker.writer.writes["missing"] == 1


async def test_a_status_that_somebody_else_has_changed_is_put_right(
    api: ApiServer, namespace: str
) -> None:
    async with broker_at(api, namespace) as broker:
        await create(broker.api, namespace, [ALERTS])
        await broker.fill()
        await broker.settled()
        path = f"{GROUP}/namespaces/{namespace}/imports/alerts-trades/status"
        api.request(
            "PATCH",
            path,
            {"status": {"matches": 77}},
            content_type="application/merge-patch+json",
        )

        spoiled = await broker.read("Import", "alerts-trades")
        broker.statuses.observe("Import", spoiled, False)
        await broker.settled()

        assert (await broker.read("Import", "alerts-trades"))["status"]["matches"] == 0


async def test_where_an_agent_is_stays_though_statuses_are_written(
    api: ApiServer, namespace: str
) -> None:
    async with broker_at(api, namespace) as broker:
        await create(broker.api, namespace, [ALERTS])
        path = f"{GROUP}/namespaces/{namespace}/imports/alerts-trades/status"
        answer = await broker.api.call(
            "PATCH",
            path,
            {
                "apiVersion": "streambroker.io/v1alpha1",
                "kind": "Import",
                "metadata": {"name": "alerts-trades"},
                "status": {"endpoint": {"location": "grpc+tcp://10.0.0.7:4711"}},
            },
            query={"fieldManager": "streambroker-agents", "force": "true"},
            content_type="application/apply-patch+yaml",
        )
        assert answer.status == 200, answer.body
        await broker.fill()
        await broker.settled()

        status = (await broker.read("Import", "alerts-trades"))["status"]
        assert status["endpoint"]["location"] == "grpc+tcp://10.0.0.7:4711"
        assert status["observedGeneration"] == 1


async def test_the_longest_status_that_there_can_be_is_taken(
    api: ApiServer, namespace: str
) -> None:
    async with broker_at(api, namespace) as broker:
        wide = manifest(
            "Export",
            "wide",
            job="f" * 63,
            port="p" * 63,
            pe=65535,
            properties={f"name{n}": "ä€" * 500 for n in range(100)},
        )
        await create(broker.api, namespace, [wide])
        await broker.fill()
        found = await broker.read("Export", "wide")
        event = Unreadable(
            kind="Export",
            uid=found["metadata"]["uid"],
            version=10**9,
            namespace=namespace,
            name="wide",
            code="ManifestInvalid",
            problem="ä€" * 5000,
        )
        broker.deliver(event)
        await broker.settled()

        assert broker.writer.writes["done"] == 1
        assert broker.writer.writes["refused"] == 0


async def test_transitions_are_events_that_kubectl_describe_shows(
    api: ApiServer, namespace: str
) -> None:
    async with broker_at(api, namespace) as broker:
        await create(broker.api, namespace, [FEED, ALERTS])
        await broker.fill()
        await broker.settled()
        changed = await broker.read("Import", "alerts-trades")
        changed["spec"]["subscription"] = "kind == =="
        changed["metadata"]["generation"] = 2
        import_ = read_manifest(changed)
        assert isinstance(import_, Import)
        event = ImportApplied(import_=import_, version=10**9)
        broker.deliver(event)
        await broker.settled()

        assert broker.events.writes["failed"] + broker.events.writes["refused"] == 0
        assert broker.events.writes["done"] == 3

    reported = api.kubectl("describe", "imports", "alerts-trades", "-n", namespace).stdout
    assert "Warning" in reported
    assert "SubscriptionInvalid" in reported
    assert "line 1" in reported
    assert "generation 1 runs" in reported


async def test_events_of_a_series_are_counted_in_place(api: ApiServer, namespace: str) -> None:
    note = EventNote(
        kind="Import",
        namespace=namespace,
        name="alerts-trades",
        uid="0b0b",
        reason="RouteCut",
        action="Match",
        text="The route is cut.",
    )
    async with broker_at(api, namespace) as broker:
        for _ in range(3):
            broker.events.record(note, time.time())
        await broker.events.flush()
        answer = await broker.api.call(
            "GET", f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
        )

    assert broker.events.writes["failed"] + broker.events.writes["refused"] == 0
    event: Any
    (event,) = answer.body["items"]
    assert event["series"]["count"] == 2
