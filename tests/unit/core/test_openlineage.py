"""Events of OpenLineage: what they say of a board, and that they are valid."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from streambroker_core.catalog.openlineage import Lineage
from streambroker_core.model import Export, Import
from support.brokers.lineage import problems
from support.core.resources import board_of, export_of, import_of, pe, port

LINEAGE = Lineage(namespace="prod", producer="urn:streambroker:broker:1")
SPACE = "streambroker://prod"
TRADES = export_of(
    schema=[{"name": "price", "type": "double"}, {"name": "tags", "type": "array<string>"}],
    congestionPolicy="drop",
    description="Trades of the NYSE",
    owner="team:market-data",
    tags=["gold"],
    columnComments={"price": "in USD"},
)


def plain(facet: dict[str, Any]) -> dict[str, Any]:
    """Return what a facet says, without where it comes from."""
    return {name: value for name, value in facet.items() if not name.startswith("_")}


def job_event(*resources: Export | Import, of: str = "alerts") -> dict[str, Any]:
    board = board_of(*resources).reader
    own = board.resources_of(pe(of))
    exports = [one for one in own if isinstance(one, Export)]
    imports = [one for one in own if isinstance(one, Import)]
    reads = [(one, board.routes_of("Import", one.uid)) for one in imports]
    return LINEAGE.job_event(pe(of), exports, reads)


def test_a_dataset_has_the_columns_the_texts_and_the_properties_of_its_export() -> None:
    dataset = LINEAGE.dataset_event(TRADES.key, TRADES)["dataset"]

    assert (dataset["namespace"], dataset["name"]) == (SPACE, "default.feed.0.trades")
    assert {name: plain(facet) for name, facet in dataset["facets"].items()} == {
        "schema": {
            "fields": [
                {"name": "price", "type": "double", "description": "in USD"},
                {"name": "tags", "type": "array<string>"},
            ]
        },
        "documentation": {"description": "Trades of the NYSE"},
        "ownership": {"owners": [{"name": "team:market-data"}]},
        "tags": {"tags": [{"key": "gold", "value": "true", "source": "USER"}]},
        "lifecycleStateChange": {"lifecycleStateChange": "CREATE"},
        "streambroker_export": {"congestionPolicy": "drop", "properties": {"kind": "trade"}},
    }


def test_an_export_without_texts_and_columns_has_no_facets_for_them() -> None:
    named = export_of("feed/named", streamId="s")
    facets = LINEAGE.dataset_event(named.key, named)["dataset"]["facets"]

    assert plain(facets.pop("streambroker_export")) == {"congestionPolicy": "wait", "streamId": "s"}
    assert list(facets) == ["lifecycleStateChange"]


def test_an_export_that_is_gone_is_dropped() -> None:
    dataset = LINEAGE.dataset_event(TRADES.key, None)["dataset"]

    facets = {name: plain(facet) for name, facet in dataset["facets"].items()}
    assert facets == {"lifecycleStateChange": {"lifecycleStateChange": "DROP"}}


def test_a_job_reads_an_input_for_each_export_with_the_imports_that_read_it() -> None:
    event = job_event(
        TRADES,
        export_of("feed/quotes", properties={"kind": "quote"}),
        import_of("alerts/all"),
        import_of("alerts/some", filter="price>10.0", schema=[{"name": "price", "type": "double"}]),
    )

    (dataset,) = event["inputs"]
    assert (dataset["namespace"], dataset["name"]) == (SPACE, "default.feed.0.trades")
    shared = {"subscription": 'kind == "trade"', "congestionPolicy": "drop"}
    assert plain(dataset["inputFacets"]["streambroker_subscription"]) == {
        "imports": [
            {"port": "all", **shared},
            {"port": "some", **shared, "filter": "price > 10.0", "columns": ["price"]},
        ]
    }
    assert event["outputs"] == []


def test_a_job_has_its_exports_as_outputs_as_whole_as_they_are_alone() -> None:
    other = export_of("feed/quotes", properties={"kind": "quote"})
    event = job_event(TRADES, other, export_of("lab/other/0/x"), of="feed")

    alone = [LINEAGE.dataset_event(one.key, one)["dataset"] for one in (other, TRADES)]
    assert event["outputs"] == alone
    assert (event["job"]["namespace"], event["job"]["name"]) == ("prod", "default.feed.0")
    assert plain(event["job"]["facets"]["jobType"])["processingType"] == "STREAMING"


def test_a_stream_that_is_imported_by_name_is_named_in_the_input() -> None:
    named = export_of("feed/named", streamId="s", application={"name": "market"})
    wanted = [{"applicationName": "market", "streamId": "s"}]
    event = job_event(named, import_of("alerts/in", streams=wanted))

    (import_,) = event["inputs"][0]["inputFacets"]["streambroker_subscription"]["imports"]
    assert import_["streams"] == wanted


def test_facets_that_only_a_former_event_had_are_deleted() -> None:
    before = LINEAGE.dataset_event(TRADES.key, TRADES)
    bare = export_of()
    event = LINEAGE.dataset_event(bare.key, bare)
    facets = LINEAGE.without_facets(event, before["dataset"]["facets"])["dataset"]["facets"]

    deleted = {name for name, facet in facets.items() if facet.get("_deleted")}
    assert deleted == {"schema", "documentation", "ownership", "tags"}
    assert facets.keys() - deleted == event["dataset"]["facets"].keys()


def valid_events() -> list[dict[str, Any]]:
    former = LINEAGE.dataset_event(TRADES.key, TRADES)
    gone = LINEAGE.dataset_event(TRADES.key, None)
    found = [
        former,
        LINEAGE.without_facets(gone, former["dataset"]["facets"]),
        job_event(TRADES, of="feed"),
        job_event(TRADES, import_of(filter="price > 1.0")),
        LINEAGE.job_event(pe("ended"), (), ()),
    ]
    return [{**event, "eventTime": "2026-11-30T14:00:00.5+00:00"} for event in found]


def test_events_are_valid_by_the_official_schemas_of_openlineage() -> None:
    for event in valid_events():
        assert problems(event) == []


@pytest.mark.parametrize("path", ["eventTime", "schema.fields", "lifecycle", "name", "_producer"])
def test_the_official_schemas_find_what_is_wrong(path: str) -> None:
    event = copy.deepcopy(valid_events()[0])
    facets = event["dataset"]["facets"]
    match path:
        case "eventTime":
            event["eventTime"] = "yesterday"
        case "schema.fields":
            del facets["schema"]["fields"][0]["name"]
        case "lifecycle":
            facets["lifecycleStateChange"]["lifecycleStateChange"] = "GONE"
        case "name":
            del event["dataset"]["name"]
        case _:
            del facets["streambroker_export"]["_producer"]
    assert problems(event)


def test_names_are_those_of_the_asyncapi_document() -> None:
    where = port("lab/feed/3/trades")
    export = export_of("lab/feed/3/trades")
    assert LINEAGE.dataset_event(where, export)["dataset"]["name"] == "lab.feed.3.trades"
