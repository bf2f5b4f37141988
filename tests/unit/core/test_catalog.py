"""The catalog: what people read of Exports, found by words, as AsyncAPI and for Backstage."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

from streambroker_core.board import AgentRegistered, ExportApplied, RoutesChanged
from streambroker_core.catalog.asyncapi import asyncapi_document
from streambroker_core.catalog.backstage import backstage_entities
from streambroker_core.catalog.search import matches_words, searched_text
from streambroker_core.diagnose import forecast
from streambroker_core.diagnose.forecast import Proposal
from streambroker_core.model import Export
from support.core.resources import board_of, export_of, import_of, pe, registration

SCHEMA = Path(__file__).parents[3] / ".asyncapi/package/schemas/3.0.0.json"
CATALOG: dict[str, Any] = {
    "description": "Trades of the NYSE",
    "owner": "Market Data",
    "tags": ["gold", "PII free"],
    "columnComments": {"price": "in USD"},
}
COLUMNS = [{"name": "price", "type": "double"}, {"name": "span", "type": "map<int,string>"}]


def catalogued(where: str = "feed/trades", **spec: Any) -> Export:
    return export_of(where, schema=COLUMNS, **{**CATALOG, **spec})


def document(*exports: Export) -> dict[str, Any]:
    return asyncapi_document(exports, title="streambroker", version="1")


@pytest.mark.parametrize(
    "words",
    ["nyse", "market data", "GOLD pii", "price", "in usd", "kind", "trade", "feed", "nyse gold"],
)
def test_words_are_found_in_all_that_people_read(words: str) -> None:
    assert matches_words(searched_text(catalogued()), words)


@pytest.mark.parametrize("words", ["nasdaq", "nyse silver", "doubles"])
def test_each_of_the_words_has_to_be_there(words: str) -> None:
    assert not matches_words(searched_text(catalogued()), words)


def test_a_catalog_entry_that_changes_moves_no_route_and_no_view_of_an_importer() -> None:
    export, importer = catalogued(uid="u"), import_of(filter="price > 1.0")
    board = board_of(export, importer)
    for one in ("feed", "alerts"):
        board.handle(AgentRegistered(pe=pe(one), registration=registration()))
    before = board.reader.view(pe("alerts")), board.reader.view(pe("feed"))

    edited = catalogued(uid="u", description="Another", tags=[], owner="Others", columnComments={})
    actions = board.handle(ExportApplied(export=edited, version=11))

    after = board.reader.view(pe("alerts")), board.reader.view(pe("feed"))
    for old, new in zip(before, after, strict=True):
        assert old is not None
        assert new is not None
        assert (new.version, new.imports, new.exports) == (old.version, old.imports, old.exports)
    assert not any(isinstance(action, RoutesChanged) for action in actions)
    assert board.reader.holder("Export", export.key) == edited


def test_a_forecast_shows_the_edited_fields_and_no_route() -> None:
    board = board_of(catalogued(uid="u"), import_of())
    new = catalogued(tags=["gold"], columnComments={"price": "in EUR"})
    found = forecast(board.reader, Proposal(puts=(replace(new, uid=""),)))

    assert (found.added, found.cut, found.changed, found.unchanged) == ((), (), (), 1)
    assert found.edited[0].edits() == {
        "tags": (["PII free", "gold"], ["gold"]),
        "columnComments.price": ("in USD", "in EUR"),
    }


def test_a_channel_has_the_address_the_columns_and_the_texts_of_its_export() -> None:
    made = document(catalogued())

    channel = made["channels"]["default.feed.0.trades"]
    assert channel["address"] == "default/feed/0/trades"
    assert channel["description"] == "Trades of the NYSE"
    assert channel["x-streambroker-owner"] == "Market Data"
    assert channel["tags"] == [{"name": "PII free"}, {"name": "gold"}]
    assert channel["messages"]["row"]["payload"]["properties"] == {
        "price": {"type": ["number", "null"], "description": "in USD"},
        "span": {"description": "(type map<int,string>)"},
    }
    assert {one["action"] for one in made["operations"].values()} == {"send", "receive"}


def test_every_reference_of_a_document_leads_to_something() -> None:
    made = document(catalogued(), export_of("feed/named", streamId="s"))
    for operation in made["operations"].values():
        for reference in (operation["channel"], *operation["messages"]):
            found = made
            for part in reference["$ref"].removeprefix("#/").split("/"):
                found = found[part]
            assert found


def test_documents_are_valid_by_the_official_schema_of_asyncapi() -> None:
    if not SCHEMA.exists():
        pytest.skip("no schema of AsyncAPI: `make asyncapi-schema` fetches it")
    validator = Draft7Validator(json.loads(SCHEMA.read_text()))
    made = document(catalogued(), export_of("feed/named", streamId="s"), export_of("lab/a/1/b"))

    assert [error.message for error in validator.iter_errors(made)] == []
    for entity in backstage_entities(made):
        if entity["kind"] == "API":
            definition = json.loads(entity["spec"]["definition"])
            assert [error.message for error in validator.iter_errors(definition)] == []
    assert list(validator.iter_errors({**made, "operations": {"x": {"action": "push"}}}))


def test_backstage_gets_an_api_for_each_export_and_a_component_for_each_job() -> None:
    apis = catalogued(), export_of("feed/quotes"), export_of("lab/other/0/x")
    entities = backstage_entities(document(*apis))

    names = [(one["kind"], one["metadata"]["name"], one["spec"]["owner"]) for one in entities]
    assert names == [
        ("API", "default.feed.0.trades", "Market Data"),
        ("API", "default.feed.0.quotes", "unknown"),
        ("API", "lab.other.0.x", "unknown"),
        ("Component", "default.feed", "Market Data"),
        ("Component", "lab.other", "unknown"),
    ]
    assert entities[0]["metadata"]["tags"] == ["pii-free", "gold"]
    assert entities[3]["spec"]["providesApis"] == [name for _, name, _ in names[:2]]
    definition = json.loads(entities[0]["spec"]["definition"])
    assert list(definition["channels"]) == ["default.feed.0.trades"]


def test_names_too_long_for_backstage_stay_different() -> None:
    job = "j" * 60
    entities = backstage_entities(document(export_of(f"{job}/a"), export_of(f"{job}/b")))
    names = [one["metadata"]["name"] for one in entities]
    assert len(set(names)) == 3
    assert max(map(len, names)) <= 63
