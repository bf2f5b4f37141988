"""Run-time changes of resources that somebody else declares, on a real API server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streambroker_core.errors import ManifestError
from streambroker_core.model import Application, Buffer, Export, StreamName
from streambroker_operator.errors import RequestError
from streambroker_operator.kubernetes.apply.overrides import (
    find_overwritten,
    steered_fields,
    steered_text,
)
from streambroker_operator.kubernetes.client.managed_fields import API
from streambroker_operator.storage.write_options import WriteOptions
from support.clusters.api_server import ApiServer
from support.clusters.writes import ALERTS, FEED, Others, Replica

FORCE = WriteOptions(force=True)
BY_PROPERTIES = {**FEED, "properties": {"kind": "trade"}}
BY_SUBSCRIPTION = {**ALERTS, "subscription": 'kind == "trade"'}


@pytest.fixture
async def broker(api: ApiServer, namespace: str) -> AsyncIterator[Replica]:
    replica = Replica(api, namespace)
    yield replica
    await replica.close()


@pytest.fixture
def others(api: ApiServer, namespace: str, tmp_path: Path) -> Others:
    return Others(api, namespace, tmp_path)


async def steer(broker: Replica, **properties: Any) -> Export:
    """Set properties one by one, as the jobs' programs do."""
    for name, value in properties.items():
        export = broker.export()
        wanted = replace(export, properties={**(export.properties or {}), name: value})
        await broker.change(wanted, f"properties.{name}")
    return broker.export()


async def refused(broker: Replica, resource: Any, *fields: str, force: bool = False) -> Any:
    with pytest.raises(RequestError) as caught:
        await broker.change(resource, *fields, terms=WriteOptions(force=force))
    return caught.value


async def test_one_property_is_set_and_the_rest_stays_somebody_elses(
    broker: Replica, others: Others
) -> None:
    others.declare("Export", {**BY_PROPERTIES, "congestionPolicy": "drop"})
    export = await steer(broker, limit=6)
    assert export.properties == {"kind": "trade", "limit": 6}
    assert export.congestion_policy == "drop"
    live = others.live("Export", "feed")
    assert steered_fields(live) == ("properties.limit",)
    assert steered_text(live) == "properties.limit by streambroker-api"


async def test_a_second_property_does_not_cost_the_first(broker: Replica, others: Others) -> None:
    others.declare("Export", BY_PROPERTIES)
    export = await steer(broker, limit=6, tickers=["IBM", "GOOG"], limit2=1.5)
    assert export.properties == {
        "kind": "trade",
        "limit": 6,
        "limit2": 1.5,
        "tickers": ["IBM", "GOOG"],
    }
    export = await steer(broker, limit=7)
    assert set(export.properties or {}) == {"kind", "limit", "limit2", "tickers"}


async def test_an_own_property_goes_again_and_leaves_the_others(
    broker: Replica, others: Others
) -> None:
    others.declare("Export", BY_PROPERTIES)
    export = await steer(broker, limit=6, more="x")
    await broker.change(replace(export, properties={"kind": "trade", "more": "x"}), "properties")
    assert broker.export().properties == {"kind": "trade", "more": "x"}


async def test_a_property_that_is_declared_elsewhere_is_refused_with_its_owner(
    broker: Replica, others: Others
) -> None:
    before = others.declare("Export", BY_PROPERTIES)
    export = broker.export()
    error = await refused(broker, replace(export, properties={"kind": "quote"}), "properties")
    assert (error.status, error.code) == (409, "OwnedByOther")
    assert (error.facts["owner"], error.facts["field"]) == ("gitops", "properties.kind")
    assert 'Property `kind` of Export feed is declared by "gitops" (last applied ' in str(error)
    assert others.live("Export", "feed") == before


async def test_a_field_of_a_client_side_apply_is_refused_with_kubectl_as_its_owner(
    broker: Replica, others: Others
) -> None:
    spec = {**BY_SUBSCRIPTION, "filter": "price > 1.0"}
    assert others.kubectl("apply", kind="Import", spec=spec).returncode == 0
    error = await refused(broker, replace(broker.import_(), filter="price > 2.0"), "filter")
    assert error.facts["owner"] == "kubectl-client-side-apply"
    assert "Remove `filter` from that manifest" in str(error)


async def test_what_is_declared_so_already_is_neither_written_nor_held(
    broker: Replica, others: Others
) -> None:
    before = others.declare("Export", {**BY_PROPERTIES, "buffer": {"maxBytes": 1073741824}})
    export = broker.export()
    assert not (await broker.change(export)).changed
    assert not (await broker.change(export, "properties.kind")).changed
    assert others.live("Export", "feed") == before
    others.declare("Export", {**FEED, "properties": {"kind": "quote"}})


async def test_force_takes_a_field_and_warns_and_the_owners_next_apply_is_refused(
    broker: Replica, others: Others
) -> None:
    others.declare("Export", BY_PROPERTIES)
    quote = replace(broker.export(), properties={"kind": "quote"})
    stored = await broker.change(quote, "properties.kind", terms=FORCE)
    assert stored.changed
    assert 'Property `kind` of Export feed was declared by "gitops"' in stored.warnings[0]
    assert broker.export().properties == {"kind": "quote"}
    said = others.declare("Export", BY_PROPERTIES, status=409)
    assert "streambroker-api" in said["message"]
    before = others.live("Export", "feed")
    after = others.declare("Export", BY_PROPERTIES, force=True)
    lost = find_overwritten(before, after)
    assert lost is not None
    assert (lost.fields, lost.manager) == (("properties.kind",), "gitops")
    assert steered_fields(after) == ()


async def test_a_client_side_apply_undoes_a_forced_change_silently_and_we_see_it(
    broker: Replica, others: Others
) -> None:
    spec = {**BY_SUBSCRIPTION, "filter": "price > 1.0"}
    others.kubectl("apply", kind="Import", spec=spec)
    changed = replace(broker.import_(), filter="price > 2.0")
    await broker.change(changed, "filter", terms=FORCE)
    before = others.live("Import", "alerts")
    assert before["spec"]["filter"] == "price > 2.0"
    assert others.kubectl("apply", kind="Import", spec=spec).returncode == 0
    after = others.live("Import", "alerts")
    assert after["spec"]["filter"] == "price > 1.0"
    lost = find_overwritten(before, after)
    assert lost is not None
    assert (lost.fields, lost.manager) == (("filter",), "kubectl-client-side-apply")


@pytest.mark.parametrize(
    "way", [("apply",), ("apply", "--server-side"), ("apply", "--server-side", "--force-conflicts")]
)
async def test_what_the_manifest_leaves_out_stays_steered_over_any_apply(
    broker: Replica, others: Others, way: tuple[str, ...]
) -> None:
    assert others.kubectl(*way, kind="Import", spec=BY_SUBSCRIPTION).returncode == 0
    await broker.change(replace(broker.import_(), filter="price > 2.0"), "filter")
    before = others.live("Import", "alerts")
    again = others.kubectl(*way, kind="Import", spec=BY_SUBSCRIPTION)
    assert again.returncode == 0, again.stderr
    after = others.live("Import", "alerts")
    assert after["spec"]["filter"] == "price > 2.0"
    assert find_overwritten(before, after) is None
    flags = way[1:]
    assert others.kubectl("diff", *flags, kind="Import", spec=BY_SUBSCRIPTION).returncode == 0


@pytest.mark.parametrize("more", [{}, {"start": "earliest"}])
async def test_a_replace_drops_what_is_steered_and_is_seen_if_it_sets_anything(
    broker: Replica, others: Others, more: dict[str, str]
) -> None:
    """One that sets nothing leaves no trace of who it was: a release looks the same."""
    others.kubectl("create", kind="Import", spec=BY_SUBSCRIPTION)
    await broker.change(replace(broker.import_(), filter="price > 2.0"), "filter")
    before = others.live("Import", "alerts")
    spec = {**BY_SUBSCRIPTION, **more}
    assert others.kubectl("replace", kind="Import", spec=spec).returncode == 0
    after = others.live("Import", "alerts")
    assert "filter" not in after["spec"]
    lost = find_overwritten(before, after)
    if not more:
        assert lost is None
        return
    assert lost is not None
    assert (lost.fields, lost.manager) == (("filter",), "kubectl-replace")


async def test_an_edit_takes_a_field_over_and_has_to_be_taken_back_by_force(
    broker: Replica, others: Others
) -> None:
    others.declare("Import", BY_SUBSCRIPTION)
    await broker.change(replace(broker.import_(), filter="price > 2.0"), "filter")
    before = others.live("Import", "alerts")
    editor = "sed -i s/price.>.2[.]0/price>3.0/"
    edit = others.kubectl("edit", "imports.streambroker.io", "alerts", kind="Import", editor=editor)
    assert edit.returncode == 0, edit.stderr
    after = others.live("Import", "alerts")
    assert after["spec"]["filter"] == "price>3.0"
    lost = find_overwritten(before, after)
    assert lost is not None
    assert (lost.fields, lost.manager) == (("filter",), "kubectl-edit")
    changed = replace(broker.import_(), filter="price > 4.0")
    error = await refused(broker, changed, "filter")
    assert 'was last set by "kubectl-edit"' in str(error)
    stored = await broker.change(changed, "filter", terms=FORCE)
    assert "kubectl-edit" in stored.warnings[0]
    assert broker.import_().filter == "price > 4.0"


@pytest.mark.parametrize("force", [False, True])
async def test_a_property_of_others_is_not_taken_away_not_even_by_force(
    broker: Replica, others: Others, force: bool
) -> None:
    others.declare("Export", {**FEED, "properties": {"kind": "trade", "price": 5}})
    await steer(broker, limit=6)
    before = others.live("Export", "feed")
    less = replace(broker.export(), properties={"kind": "trade", "limit": 6})
    error = await refused(broker, less, "properties.price", force=force)
    assert (error.status, error.code) == (409, "OwnedByOther")
    assert (error.facts["owner"], error.facts["field"]) == ("gitops", "properties.price")
    assert "not even with force=true" in str(error)
    assert others.live("Export", "feed") == before


@pytest.mark.parametrize("force", [False, True])
async def test_a_stream_id_does_not_replace_properties_of_others(
    broker: Replica, others: Others, force: bool
) -> None:
    others.declare("Export", BY_PROPERTIES)
    named = replace(broker.export(), properties=None, stream_id="trades")
    error = await refused(broker, named, force=force)
    assert (error.status, error.facts["field"]) == (409, "properties.kind")


async def test_our_property_is_in_the_way_of_a_stream_id_until_it_is_released(
    broker: Replica, others: Others
) -> None:
    others.declare("Export", BY_PROPERTIES)
    await steer(broker, limit=6)
    by_name = {**FEED, "streamId": "trades"}
    refusal = others.declare("Export", by_name, status=422)
    assert "exactly one of streamId and properties has to be given" in refusal["message"]
    stored = await broker.store.release("Export", broker.key(FEED))
    assert stored.changed
    assert steered_fields(others.live("Export", "feed")) == ()
    assert "properties" not in others.declare("Export", by_name)["spec"]


async def test_release_gives_back_what_was_taken_and_drops_what_is_ours_alone(
    broker: Replica, others: Others
) -> None:
    others.declare("Import", {**BY_SUBSCRIPTION, "start": "earliest"})
    changed = replace(broker.import_(), filter="price > 2.0", on_congestion="drop")
    await broker.change(changed, "filter", "onCongestion")
    before = others.live("Import", "alerts")
    stored = await broker.store.release("Import", broker.key(ALERTS))
    assert stored.changed
    after = others.live("Import", "alerts")
    assert "filter" not in after["spec"]
    assert (after["spec"]["onCongestion"], after["spec"]["start"]) == ("inherit", "earliest")
    assert find_overwritten(before, after) is None
    assert steered_text(after) is None
    broker.look()
    assert not (await broker.store.release("Import", broker.key(ALERTS))).changed


async def test_a_resource_that_only_the_broker_declares_is_not_released(
    broker: Replica, others: Others
) -> None:
    others.declare("Import", BY_SUBSCRIPTION, manager=API)
    broker.look()
    with pytest.raises(RequestError) as caught:
        await broker.store.release("Import", broker.key(ALERTS))
    assert (caught.value.status, caught.value.code) == (409, "NotDeclared")
    assert others.live("Import", "alerts") is not None


async def test_a_change_of_what_is_gone_makes_nothing_new(
    broker: Replica, others: Others, api: ApiServer
) -> None:
    others.declare("Import", BY_SUBSCRIPTION)
    changed = replace(broker.import_(), filter="price > 2.0")
    broker.api_calls.before = [lambda: api.request("DELETE", others.path("Import", "alerts"))]
    error = await refused(broker, changed, "filter")
    assert (error.status, error.code) == (404, "UnknownPort")
    assert others.live("Import", "alerts") is None


async def test_a_change_that_meets_another_is_made_on_top_of_it(
    broker: Replica, others: Others
) -> None:
    others.declare("Import", BY_SUBSCRIPTION)
    changed = replace(broker.import_(), filter="price > 2.0")
    other = {**BY_SUBSCRIPTION, "start": "earliest"}
    broker.api_calls.before = [lambda: others.declare("Import", other)]
    await broker.change(changed, "filter")
    assert (broker.import_().filter, broker.import_().start) == ("price > 2.0", "earliest")
    assert broker.api_calls.sent == ["GET", "PATCH", "GET", "PATCH"]


async def test_a_successor_of_the_same_name_takes_the_change(
    broker: Replica, others: Others, api: ApiServer
) -> None:
    others.declare("Import", BY_SUBSCRIPTION)
    changed = replace(broker.import_(), filter="price > 2.0")

    def replaced() -> None:
        api.request("DELETE", others.path("Import", "alerts"))
        others.declare("Import", BY_SUBSCRIPTION)

    broker.api_calls.before = [replaced]
    stored = await broker.change(changed, "filter")
    assert stored.resource.uid != changed.uid
    assert broker.import_().filter == "price > 2.0"


async def test_an_outcome_that_could_not_be_read_is_not_sent(
    broker: Replica, others: Others
) -> None:
    others.declare("Import", {**ALERTS, "streams": [{"streamId": "nyse"}]})
    named = broker.import_()
    wanted = replace(named, streams=(), subscription='kind == "trade"')
    with pytest.raises(ManifestError):
        await broker.change(wanted, "subscription")
    assert broker.api_calls.sent == ["GET"]


async def test_streams_of_others_stay_and_so_their_list_is_refused(
    broker: Replica, others: Others
) -> None:
    others.declare("Import", {**ALERTS, "streams": [{"streamId": "nyse"}]})
    named = broker.import_()
    error = await refused(
        broker, replace(named, streams=(StreamName(stream_id="nasdaq"),)), "streams"
    )
    assert (error.status, error.facts["field"]) == (409, "streams")
    more = (StreamName(stream_id="nyse"), StreamName(application_name="app", stream_id="nasdaq"))
    await broker.change(replace(named, streams=more), "streams")
    assert set(broker.import_().streams) == set(more)
    fewer = (StreamName(stream_id="nyse"),)
    await broker.change(replace(named, streams=fewer), "streams")
    assert broker.import_().streams == fewer


async def test_what_an_import_wants_changes_between_names_and_a_subscription(
    broker: Replica, others: Others
) -> None:
    others.declare("Import", ALERTS)
    bare = broker.import_()
    wants = ("streams", "subscription")
    await broker.change(replace(bare, streams=(StreamName(stream_id="nyse"),)), *wants)
    await broker.change(replace(bare, subscription="a == 1"), *wants)
    assert (broker.import_().streams, broker.import_().subscription) == ((), "a == 1")
    await broker.change(replace(bare, subscription=None), *wants)
    assert broker.import_().subscription is None
    assert steered_text(others.live("Import", "alerts")) is None


async def test_all_properties_go_and_an_empty_set_stays(broker: Replica, others: Others) -> None:
    others.declare("Export", {**FEED, "properties": {}})
    export = await steer(broker, limit=6, more=True)
    await broker.change(replace(export, properties={}), "properties")
    live = others.live("Export", "feed")
    assert live["spec"]["properties"] == {}
    assert {entry["manager"] for entry in live["metadata"]["managedFields"]} == {"gitops"}
    others.declare("Export", {**FEED, "properties": {"kind": "trade"}})
    assert broker.export().properties == {"kind": "trade"}


async def test_all_properties_go_beside_other_changes(broker: Replica, others: Others) -> None:
    others.declare("Export", {**FEED, "properties": {}})
    export = await steer(broker, limit=6)
    wanted = replace(export, properties={}, congestion_policy="drop")
    stored = await broker.change(wanted)
    assert stored.resource == broker.export()
    assert (broker.export().properties, broker.export().congestion_policy) == ({}, "drop")
    assert steered_fields(others.live("Export", "feed")) == ("congestionPolicy",)


async def test_release_leaves_an_empty_set_that_is_declared_so(
    broker: Replica, others: Others
) -> None:
    others.declare("Export", {**FEED, "properties": {}})
    export = await steer(broker, limit=6, more=True)
    await broker.change(replace(export, congestion_policy="drop"), "congestionPolicy")
    await broker.store.release("Export", broker.key(FEED))
    assert broker.export().properties == {}
    assert broker.export().congestion_policy == "wait"
    assert steered_fields(others.live("Export", "feed")) == ()


async def test_a_caller_who_knows_another_generation_is_refused(
    broker: Replica, others: Others
) -> None:
    others.declare("Import", BY_SUBSCRIPTION)
    known = broker.import_()
    etag = f"{known.uid}.{known.generation}"

    def check(current: str | None) -> None:
        if current != etag:
            raise RequestError(412, "ConditionFailed", f"it is {current}")

    terms = WriteOptions(check=check)
    stored = await broker.change(replace(known, filter="a > 1"), "filter", terms=terms)
    assert stored.resource.generation == known.generation + 1
    with pytest.raises(RequestError) as caught:
        await broker.change(replace(known, filter="a > 2"), "filter", terms=terms)
    assert caught.value.status == 412
    with pytest.raises(RequestError) as caught:
        await broker.store.delete("Import", known.key, options=terms)
    assert caught.value.status == 412
    assert broker.import_().filter == "a > 1"


async def test_what_the_api_server_refuses_is_reported_in_its_words(
    broker: Replica, others: Others
) -> None:
    others.declare("Import", BY_SUBSCRIPTION)
    long = replace(broker.import_(), filter='name == "' + "x" * 3000 + '"')
    error = await refused(broker, long, "filter")
    assert (error.status, error.code) == (422, "ResourceInvalid")
    assert "spec.filter" in str(error)


@pytest.mark.parametrize("way", ["change", "release"])
@pytest.mark.parametrize("more", [{}, {"buffer": {}, "application": {}}])
async def test_an_object_goes_with_our_last_field_unless_others_keep_it(
    broker: Replica, others: Others, way: str, more: dict[str, Any]
) -> None:
    others.declare("Export", {**BY_PROPERTIES, **more})
    export = broker.export()
    aged = replace(export, buffer=Buffer(max_age_s=60.0), application=Application(name="a"))
    await broker.change(aged, "buffer.maxAge", "application.name")
    assert others.live("Export", "feed")["spec"]["buffer"] == {"maxAge": "1m"}
    if way == "release":
        await broker.store.release("Export", broker.key(FEED))
    else:
        await broker.change(export, "buffer", "application")
    live = others.live("Export", "feed")
    assert replace(broker.export(), generation=1) == export
    assert steered_text(live) is None
    assert live["spec"].get("buffer") == more.get("buffer")
