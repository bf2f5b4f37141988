"""The original's table, cell by cell: what each of its requests gets here.

docs/decisions/0009-the-original-table-cell-by-cell.md says why where it differs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support.brokers.brokers import EXPORT, IMPORT, Answer, Rest, running_broker

FEED = "/job/feed/pe/0"
ALERTS = "/job/alerts/pe/0"
X = f"{FEED}/export/trades"
NAMED = f"{FEED}/export/named"
I = f"{ALERTS}/import/trades"  # noqa: E741
NOBODY = "/job/nobody/pe/0"
ROUTE = ("default/feed/0/trades", "default/alerts/0/trades")


@pytest.fixture
async def rest(tmp_path: Path) -> AsyncIterator[Rest]:
    """A broker with an export that an import matches, and one that is exported by name."""
    async with running_broker(tmp_path / "broker.db") as (_, client):
        await client("PUT", X, EXPORT)
        await client("PUT", NAMED, {"streamId": "s"})
        await client("PUT", I, IMPORT)
        yield client


def refused(answer: Answer, status: int, code: str) -> bool:
    return (answer.status, answer.code) == (status, code)


def routes(answer: Answer, kind: str) -> list[tuple[str, str]]:
    return [(route["export"], route["import"]) for route in answer.body["routes"][kind]]


async def properties(rest: Rest) -> Any:
    return (await rest("GET", f"{X}/properties")).body


async def test_get_of_a_pe_is_its_view_with_or_without_matches(rest: Rest) -> None:
    matched = await rest("GET", ALERTS)
    await rest("DELETE", X)
    alone = await rest("GET", ALERTS)

    assert len(matched.body["imports"]["trades"]["routes"]) == 1
    assert (alone.status, alone.body["imports"]["trades"]["routes"]) == (200, [])
    assert refused(await rest("GET", NOBODY), 404, "UnknownPE")


async def test_get_of_an_export_is_its_manifest(rest: Rest) -> None:
    found = await rest("GET", X)

    assert (found.status, found.body["spec"]["properties"]) == (200, {"kind": "trade", "level": 5})
    assert refused(await rest("GET", f"{FEED}/export/other"), 404, "UnknownPort")


async def test_get_of_an_import_is_its_manifest(rest: Rest) -> None:
    found = await rest("GET", I)

    assert (found.status, found.body["spec"]["filter"]) == (200, "price > 10.0")
    assert refused(await rest("GET", f"{ALERTS}/import/other"), 404, "UnknownPort")


async def test_get_of_properties_is_all_of_them(rest: Rest) -> None:
    assert await properties(rest) == {"kind": "trade", "level": 5}
    assert refused(await rest("GET", f"{NAMED}/properties"), 409, "WrongKind")


async def test_put_of_properties_replaces_all_whether_they_exist_or_not(rest: Rest) -> None:
    put = await rest("PUT", f"{X}/properties", {"kind": "trade", "venue": "N"})

    assert (put.status, routes(put, "kept")) == (200, [ROUTE])
    assert await properties(rest) == {"kind": "trade", "venue": "N"}
    assert refused(await rest("PUT", f"{NAMED}/properties", {"a": 1}), 409, "WrongKind")


async def test_patch_of_properties_merges_whether_they_exist_or_not(rest: Rest) -> None:
    merge = "application/merge-patch+json"
    patch = {"level": None, "venue": "N"}
    patched = await rest("PATCH", f"{X}/properties", patch, Content_Type=merge)

    assert patched.status == 200
    assert await properties(rest) == {"kind": "trade", "venue": "N"}
    assert refused(await rest("PATCH", f"{NAMED}/properties", {"a": 1}), 409, "WrongKind")


async def test_post_of_properties_is_no_way_to_read_them(rest: Rest) -> None:
    answer = await rest("POST", f"{X}/properties", ["kind"])

    assert refused(answer, 405, "MethodNotAllowed")
    assert answer.headers["Allow"] == "DELETE, GET, HEAD, OPTIONS, PATCH, PUT"


async def test_delete_of_properties_removes_the_named_or_all(rest: Rest) -> None:
    named = await rest("DELETE", f"{X}/properties?name=kind&name=level")
    assert (named.status, routes(named, "cut")) == (200, [ROUTE])
    assert await properties(rest) == {}
    await rest("PUT", f"{X}/properties", {"a": 1, "b": 2})
    await rest("DELETE", f"{X}/properties")

    assert await properties(rest) == {}
    assert refused(await rest("DELETE", f"{NAMED}/properties"), 409, "WrongKind")


async def test_delete_of_properties_of_which_one_is_missing_removes_none(rest: Rest) -> None:
    answer = await rest("DELETE", f"{X}/properties?name=kind&name=nope")

    assert refused(answer, 404, "UnknownProperty")
    assert await properties(rest) == {"kind": "trade", "level": 5}


async def test_get_of_a_property_is_its_value(rest: Rest) -> None:
    assert (await rest("GET", f"{X}/property/level")).body == 5
    assert refused(await rest("GET", f"{X}/property/nope"), 404, "UnknownProperty")


async def test_put_of_a_property_adds_or_sets(rest: Rest) -> None:
    added = await rest("PUT", f"{X}/property/venue", ["N", "Q"])
    replaced = await rest("PUT", f"{X}/property/level", 6.5)

    assert (added.status, replaced.status) == (201, 200)
    assert await properties(rest) == {"kind": "trade", "level": 6.5, "venue": ["N", "Q"]}


async def test_patch_of_a_property_is_not_needed_beside_put(rest: Rest) -> None:
    answer = await rest("PATCH", f"{X}/property/level", 6)

    assert refused(answer, 405, "MethodNotAllowed")
    assert answer.headers["Allow"] == "DELETE, GET, HEAD, OPTIONS, PUT"


async def test_delete_of_a_property_removes_it(rest: Rest) -> None:
    removed = await rest("DELETE", f"{X}/property/kind")

    assert (removed.status, routes(removed, "cut")) == (200, [ROUTE])
    assert await properties(rest) == {"level": 5}
    assert refused(await rest("DELETE", f"{X}/property/kind"), 404, "UnknownProperty")


async def test_removing_the_last_property_leaves_an_export_by_properties(rest: Rest) -> None:
    await rest("DELETE", f"{X}/properties")
    back = await rest("PUT", f"{X}/property/kind", "trade")

    assert (back.status, routes(back, "added")) == (201, [ROUTE])


async def test_put_of_a_filter_sets_it_and_an_empty_one_removes_it(rest: Rest) -> None:
    await rest("PUT", f"{I}/filter", data=b"price > 20.0", Content_Type="text/plain")
    set_ = (await rest("GET", f"{I}/filter")).body
    cleared = await rest("PUT", f"{I}/filter", data=b"", Content_Type="text/plain")

    assert set_ == {"filter": "price > 20.0"}
    assert (cleared.status, routes(cleared, "kept")) == (200, [ROUTE])
    assert refused(await rest("PUT", f"{I}/filter", "price >"), 422, "FilterInvalid")


async def test_get_of_a_filter_is_null_where_there_is_none(rest: Rest) -> None:
    assert (await rest("GET", f"{I}/filter")).body == {"filter": "price > 10.0"}
    await rest("PUT", f"{I}/filter", None)

    shown = await rest("GET", f"{I}/filter")
    assert (shown.status, shown.body) == (200, {"filter": None})


async def test_put_of_streams_replaces_what_is_wanted_and_leaves_the_filter(rest: Rest) -> None:
    named = await rest("PUT", f"{I}/streams", {"streams": [{"streamId": "s"}]})
    back = await rest("PUT", f"{I}/streams", {"subscription": "level == 5"})

    # The Export by name has no columns yet, so nothing speaks against the filter.
    assert routes(named, "added") == [("default/feed/0/named", ROUTE[1])]
    assert (routes(named, "cut"), routes(back, "added")) == ([ROUTE], [ROUTE])
    assert (await rest("GET", f"{I}/filter")).body == {"filter": "price > 10.0"}
    wrong = await rest("PUT", f"{I}/streams", {"subscription": "level =="})
    assert refused(wrong, 422, "SubscriptionInvalid")


async def test_get_of_streams_is_what_is_wanted(rest: Rest) -> None:
    by_subscription = (await rest("GET", f"{I}/streams")).body
    await rest("PUT", f"{I}/streams", {"streams": [{"streamId": "s"}], "applicationScope": "Lab"})
    by_name = (await rest("GET", f"{I}/streams")).body

    assert by_subscription == {"applicationScope": "Default", "subscription": 'kind == "trade"'}
    assert by_name == {"applicationScope": "Lab", "streams": [{"streamId": "s"}]}
