"""Resources made and withdrawn by REST, and agents in their status, on a real API server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streambroker_core.board import ExportApplied
from streambroker_core.model import Export, PeKey
from streambroker_operator.errors import RequestError
from streambroker_operator.kubernetes.client.managed_fields import AGENT, API, own_fields
from streambroker_operator.storage.write_options import OwnerReference, WriteOptions
from support.clusters.api_server import APPLY, ApiServer
from support.clusters.writes import FEED, Others, Replica
from support.core.resources import export_of, registration

Made = Callable[..., Replica]


@pytest.fixture
async def replica(api: ApiServer, namespace: str) -> AsyncIterator[Made]:
    made: list[Replica] = []

    def make(user: str = "admin") -> Replica:
        made.append(Replica(api, namespace, user))
        made[-1].look()
        return made[-1]

    yield make
    for one in made:
        await one.close()


@pytest.fixture
def others(api: ApiServer, namespace: str, tmp_path: Path) -> Others:
    return Others(api, namespace, tmp_path)


async def test_a_declared_resource_is_made_under_the_name_of_its_port(
    replica: Made, others: Others, namespace: str
) -> None:
    broker = replica()
    export = export_of(f"{namespace}/feed/0/Late_trades", properties={"a": 5.0})
    stored = await broker.store.put(export)
    assert (stored.created, stored.changed) == (True, True)
    assert stored.resource.name == "feed-0-late-trades"
    assert isinstance(stored.resource, Export)
    assert stored.resource.properties == {"a": 5}
    broker.board.handle(
        ExportApplied(export=stored.resource, version=stored.version, ahead_of_feed=True)
    )
    again = await broker.store.put(export)
    assert not again.changed
    assert again.version == stored.version
    assert own_fields(others.live("Export", "feed-0-late-trades"), API)


async def test_a_declared_resource_keeps_its_owner_over_later_changes(
    replica: Made, others: Others, namespace: str
) -> None:
    broker = replica()
    owner: OwnerReference = {"apiVersion": "batch/v1", "kind": "Job", "name": "feed", "uid": "0-1"}
    await broker.store.put(
        export_of(f"{namespace}/feed/0/trades"), options=WriteOptions(owners=(owner,))
    )
    export = broker.export()
    await broker.change(replace(export, properties={"kind": "quote"}), "properties")
    live = others.live("Export", "feed-0-trades")
    assert live["spec"]["properties"] == {"kind": "quote"}
    assert live["metadata"]["ownerReferences"] == [owner]


async def test_a_resource_that_was_made_in_between_is_changed_not_overwritten(
    replica: Made, others: Others, namespace: str
) -> None:
    broker = replica()
    other = {**FEED, "properties": {"kind": "quote"}}
    broker.api_calls.before = [
        lambda: others.declare("Export", other),
    ]
    export = replace(export_of(f"{namespace}/feed/0/trades"), name="feed")
    with pytest.raises(RequestError) as caught:
        await broker.store.put(export)
    assert caught.value.code == "OwnedByOther"
    assert others.live("Export", "feed")["spec"]["properties"] == {"kind": "quote"}


async def test_a_name_that_another_port_has_is_refused(
    replica: Made, others: Others, namespace: str
) -> None:
    others.declare("Export", {**FEED, "properties": {}})
    export = replace(export_of(f"{namespace}/other/0/trades"), name="feed")
    with pytest.raises(RequestError) as caught:
        await replica().store.put(export)
    assert (caught.value.status, caught.value.code) == (409, "NameTaken")


async def test_a_deletion_goes_to_the_very_resource(replica: Made, others: Others) -> None:
    others.declare("Export", {**FEED, "properties": {}})
    broker = replica()
    key = broker.key(FEED)
    was = await broker.store.delete("Export", key)
    assert others.live("Export", "feed") is None
    stored = broker.store.get("Export", key)
    assert stored is not None
    assert (was.resource, was.version) == (stored.resource, stored.version)
    others.declare("Export", {**FEED, "properties": {}})
    await broker.store.delete("Export", key)
    assert others.live("Export", "feed") is not None, "the successor is another resource"
    with pytest.raises(RequestError) as caught:
        await replica().store.delete("Import", key)
    assert caught.value.code == "UnknownPort"


def allow(api: ApiServer, namespace: str, user: str, rules: list[dict[str, Any]]) -> None:
    group = "/apis/rbac.authorization.k8s.io/v1"
    meta = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "broker"}}
    where = f"{group}/namespaces/{namespace}"
    role = {**meta, "kind": "Role", "rules": rules}
    assert api.request("POST", f"{where}/roles", role).status == 201
    binding = {
        **meta,
        "kind": "RoleBinding",
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "broker"},
        "subjects": [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}],
    }
    assert api.request("POST", f"{where}/rolebindings", binding).status == 201


async def test_get_and_patch_are_all_that_a_change_needs_and_create_a_declaration(
    replica: Made, others: Others, api: ApiServer, namespace: str
) -> None:
    others.declare("Export", {**FEED, "properties": {}})
    rule = {"apiGroups": ["streambroker.io"], "resources": ["exports"], "verbs": ["get", "patch"]}
    status = {"apiGroups": ["streambroker.io"], "resources": ["exports/status"], "verbs": ["patch"]}
    allow(api, namespace, "viewer", [rule, status])
    broker = replica("viewer")
    await broker.change(replace(broker.export(), properties={"a": 1}), "properties")
    await broker.store.register(PeKey(namespace=namespace, job="feed", pe=0), registration())
    with pytest.raises(RequestError) as caught:
        await broker.store.put(export_of(f"{namespace}/other/0/trades"))
    assert (caught.value.status, caught.value.code) == (403, "NotPermitted")
    assert "cannot create resource" in str(caught.value) or "cannot patch" in str(caught.value)
    with pytest.raises(RequestError) as caught:
        await broker.store.delete("Export", broker.key(FEED))
    assert caught.value.code == "NotPermitted"


async def test_an_agent_is_reported_in_the_status_of_its_resources_and_known_to_all_replicas(
    replica: Made, others: Others, namespace: str
) -> None:
    others.declare("Export", {**FEED, "properties": {}})
    pe = PeKey(namespace=namespace, job="feed", pe=0)
    first, second = replica(), replica()
    found = registration()
    version = await first.store.register(pe, found, "spark")
    status = others.live("Export", "feed")["status"]
    assert status == {
        "endpoint": {
            "location": found.location,
            "hint": found.hint,
            "instance": found.instance,
        },
        "serviceAccount": "spark",
    }
    assert int(others.live("Export", "feed")["metadata"]["resourceVersion"]) == version
    second.look()
    assert second.board.reader.registration(pe) == found
    assert second.store.owner(pe) == "spark"
    assert await second.store.register(pe, found, "spark") == version
    assert second.api_calls.sent == []


async def test_an_agent_that_moves_is_written_again_and_leaves_the_conditions_alone(
    replica: Made, others: Others, api: ApiServer, namespace: str
) -> None:
    others.declare("Export", {**FEED, "properties": {}})
    pe = PeKey(namespace=namespace, job="feed", pe=0)
    broker = replica()
    await broker.store.register(pe, registration(), "spark")
    body = {**others.manifest("Export", FEED), "status": {"summary": "kind=trade"}}
    del body["spec"]
    answer = api.request(
        "PATCH",
        f"{others.path('Export', 'feed')}/status?fieldManager=streambroker-status&force=true",
        body,
        content_type=APPLY,
    )
    assert answer.status == 200, answer.message
    broker.look()
    moved = registration("grpc+tcp://10.0.0.9:4711", hint=None)
    await broker.store.register(pe, moved, "spark")
    status = others.live("Export", "feed")["status"]
    assert status["endpoint"]["location"] == moved.location
    assert "hint" not in status["endpoint"]
    assert status["summary"] == "kind=trade"
    held = own_fields(others.live("Export", "feed"), AGENT, subresource="status")
    assert set(held["f:status"]) == {"f:endpoint", "f:serviceAccount"}


async def test_another_account_never_takes_a_job_over_whichever_replica_it_asks(
    replica: Made, others: Others, namespace: str
) -> None:
    others.declare("Export", {**FEED, "properties": {}})
    first, late = replica(), replica()
    await first.store.register(
        PeKey(namespace=namespace, job="feed", pe=0), registration(), "spark"
    )
    with pytest.raises(RequestError) as caught:
        await late.store.register(
            PeKey(namespace=namespace, job="feed", pe=0), registration(), "intruder"
        )
    assert (caught.value.status, caught.value.code) == (403, "NotYours")
    assert json.dumps(others.live("Export", "feed")["status"]).count("spark") == 1
