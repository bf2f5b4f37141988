"""``GET /api/asyncapi.json``, and what catalogs need of an Export in the broker's database."""

from __future__ import annotations

from pathlib import Path

import pytest

from streambroker_operator.rest.lists import asyncapi
from support.brokers.brokers import EXPORT, Rest, bearer, running_broker

FEED = "/job/feed/pe/0/export/trades"
ASYNCAPI = "/api/asyncapi.json"
CATALOG = {
    "description": "Trades",
    "owner": "team-a",
    "tags": ["gold"],
    "columnComments": {"price": "in USD"},
}


async def test_the_document_has_the_exports_of_the_namespace(pair: Rest) -> None:
    await pair("PUT", FEED, {**EXPORT, **CATALOG})
    await pair("PUT", FEED + "?namespace=lab", EXPORT)
    own, every = (await pair("GET", ASYNCAPI)).body, await pair("GET", ASYNCAPI + "?namespace=*")

    assert list(own["channels"]) == ["default.feed.0.trades"]
    assert own["channels"]["default.feed.0.trades"]["description"] == "Trades"
    assert list(every.body["channels"]) == ["default.feed.0.trades", "lab.feed.0.trades"]
    same = await pair("GET", ASYNCAPI + "?namespace=*", If_None_Match=every.headers["ETag"])
    assert same.status == 304


async def test_a_document_has_a_limit_and_the_refusal_names_a_smaller_one(
    pair: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asyncapi, "MAX_EXPORTS", 1)
    await pair("PUT", FEED + "?namespace=lab", EXPORT)
    answer = await pair("GET", ASYNCAPI + "?namespace=*")
    assert (answer.status, answer.code) == (422, "CatalogTooLarge")
    assert "one namespace at a time" in answer.body["detail"]
    assert (await pair("GET", ASYNCAPI)).status == 200


async def test_a_caller_gets_a_document_only_of_namespaces_that_it_may_read(guarded: Rest) -> None:
    for namespace, expected in (("default", 200), ("lab", 403), ("*", 403)):
        path = f"{ASYNCAPI}?namespace={namespace}"
        assert (await guarded("GET", path, **bearer("job"))).status == expected, namespace
        assert (await guarded("GET", path)).status == 401
    assert (await guarded("GET", ASYNCAPI + "?namespace=*", **bearer("ops"))).status == 200


async def test_a_catalog_entry_outlasts_the_broker_and_its_change_cuts_nothing(
    tmp_path: Path,
) -> None:
    db = tmp_path / "broker.db"
    async with running_broker(db) as (_, rest):
        await rest("PUT", FEED, EXPORT)
        await rest("PUT", "/job/alerts/pe/0/import/in", {"subscription": 'kind == "trade"'})
        body = (await rest("PATCH", FEED, {"spec": CATALOG})).body
        routes = {name: len(found) for name, found in body["routes"].items()}
        assert (body["changed"], routes) == (True, {"kept": 1, "added": 0, "cut": 0})
    async with running_broker(db) as (_, rest):
        spec = (await rest("GET", FEED)).body["spec"]
        assert {name: spec[name] for name in CATALOG} == CATALOG
        await rest("PATCH", FEED, {"spec": {"description": None, "columnComments": None}})
        spec = (await rest("GET", FEED)).body["spec"]
        assert not {"description", "columnComments"} & spec.keys()


async def test_wrong_texts_are_refused_and_nothing_changes(pair: Rest) -> None:
    before = (await pair("GET", FEED)).body
    for field, value in (
        ("description", "x" * 4097),
        ("tags", ["a", "a"]),
        ("tags", [""]),
        ("columnComments", {"price": 5}),
        ("owner", ""),
    ):
        answer = await pair("PATCH", FEED, {"spec": {field: value}})
        assert answer.status == 422, field
        assert field in answer.body["detail"]
    assert (await pair("GET", FEED)).body == before


async def test_the_graph_finds_jobs_by_what_people_read(pair: Rest) -> None:
    await pair("PUT", FEED, {**EXPORT, **CATALOG})
    for words, matched in (("team-a", True), ("usd gold", True), ("team-b", False)):
        nodes = (await pair("GET", "/graph?match=" + words.replace(" ", "%20"))).body["nodes"]
        assert any(node["matched"] for node in nodes) is matched, words
