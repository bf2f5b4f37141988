"""Lists page by page: all pages are of one version, however much changes meanwhile."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streambroker_operator.errors import RequestError
from streambroker_operator.rest.lists import lists, snapshots
from streambroker_operator.rest.lists.snapshots import (
    MAX_SNAPSHOTS,
    SNAPSHOT_TTL_S,
    Page,
    Selection,
    Snapshots,
)
from support.brokers.brokers import EXPORT, IMPORT, Rest, bearer, running_broker

EXPORTS = Selection(list_name="exports", namespace="default")


@pytest.fixture
async def rest(tmp_path: Path) -> AsyncIterator[Rest]:
    async with running_broker(tmp_path / "broker.db") as (_, client):
        for number in range(7):
            await client("PUT", f"/job/feed/pe/0/export/p{number}", EXPORT)
        yield client


def ports(answer: Any) -> list[str]:
    return [item["spec"]["port"] for item in answer.body["items"]]


async def rest_of(rest: Rest, path: str, page: Any) -> list[Any]:
    """Return a page and those that follow it."""
    pages = [page]
    while "continue" in pages[-1].body:
        token = pages[-1].body["continue"]
        pages.append(await rest("GET", f"{path}limit=3&continue={token}"))
    return pages


async def test_pages_together_are_the_list(rest: Rest) -> None:
    whole = await rest("GET", "/exports")
    pages = await rest_of(rest, "/exports?", await rest("GET", "/exports?limit=3"))

    assert [page.body.get("remaining") for page in pages] == [4, 1, None]
    assert [item for page in pages for item in page.body["items"]] == whole.body["items"]
    assert "continue" not in whole.body


async def test_pages_are_of_the_version_of_the_first(rest: Rest) -> None:
    first = await rest("GET", "/exports?limit=3")
    await rest("DELETE", "/job/feed/pe/0/export/p4")
    await rest("PUT", "/job/feed/pe/0/export/p5", {"streamId": "s"})
    await rest("PUT", "/job/feed/pe/0/export/new", EXPORT)
    await rest("PUT", "/job/alerts/pe/0/import/i", IMPORT)
    pages = await rest_of(rest, "/exports?", first)

    assert [port for page in pages for port in ports(page)] == [f"p{n}" for n in range(7)]
    last = [item for page in pages for item in page.body["items"]][5]
    assert (last["spec"].get("streamId"), last["status"]["matches"]) == (None, 0)
    assert {tuple(page.body["point"]) for page in pages} == {tuple(first.body["point"])}
    assert len(ports(await rest("GET", "/exports"))) == 7


async def test_others_get_their_turn_while_a_long_list_is_written() -> None:
    loop, turns = asyncio.get_running_loop(), 0

    def others() -> None:
        nonlocal turns
        turns += 1
        loop.call_soon(others)

    others()
    page = Page(items=[None] * (2 * lists.ITEMS_PER_TURN + 1), point=(1, 2))
    written = json.loads(await lists.encode_page(page, lambda _: turns))

    assert len(set(written["items"])) == 3
    assert written["point"] == [1, 2]


async def test_a_page_can_be_read_again(rest: Rest) -> None:
    token = (await rest("GET", "/exports?limit=3")).body["continue"]
    once = await rest("GET", f"/exports?limit=3&continue={token}")
    again = await rest("GET", f"/exports?limit=3&continue={token}")
    same = await rest(
        "GET", f"/exports?limit=3&continue={token}", If_None_Match=once.headers["ETag"]
    )

    assert (once.body, same.status) == (again.body, 304)


@pytest.mark.parametrize("path", ["/imports", "/pes", "/routes"])
async def test_every_list_has_pages(rest: Rest, path: str) -> None:
    for number in range(2):
        await rest("PUT", f"/job/alerts/pe/{number}/import/i", IMPORT)
    whole = (await rest("GET", path)).body["items"]
    first = await rest("GET", f"{path}?limit=1")
    second = await rest("GET", f"{path}?limit=1&continue={first.body['continue']}")

    assert first.body["items"] + second.body["items"] == whole[:2]


async def test_a_list_that_is_kept_no_longer_is_reported_as_such(rest: Rest) -> None:
    token = (await rest("GET", "/exports?limit=3")).body["continue"]
    for number in range(MAX_SNAPSHOTS):
        await rest("PUT", f"/job/feed/pe/0/export/q{number}", EXPORT)
        await rest("GET", "/exports?limit=3")
    gone = await rest("GET", f"/exports?limit=3&continue={token}")

    assert (gone.status, gone.code) == (410, "ListExpired")


async def test_one_caller_expires_no_list_of_another(guarded: Rest) -> None:
    first = await guarded("GET", "/exports?namespace=*&limit=1", **bearer("ops"))
    for number in range(MAX_SNAPSHOTS + 1):
        mine = f"/job/alerts/pe/0/import/q{number}"
        assert (await guarded("PUT", mine, IMPORT, **bearer("job"))).status == 201
        assert (await guarded("GET", "/exports?limit=1", **bearer("job"))).status == 200
    path = f"/exports?namespace=*&limit=1&continue={first.body['continue']}"
    second = await guarded("GET", path, **bearer("ops"))

    assert (second.status, len(second.body["items"])) == (200, 1)


async def test_a_list_does_not_outlive_its_broker(tmp_path: Path) -> None:
    async with running_broker(tmp_path / "broker.db") as (_, client):
        for number in range(2):
            await client("PUT", f"/job/feed/pe/0/export/p{number}", EXPORT)
        token = (await client("GET", "/exports?limit=1")).body["continue"]
    async with running_broker(tmp_path / "broker.db") as (_, client):
        for number in range(2):
            await client("PUT", f"/job/other/pe/0/export/p{number}", EXPORT)
        await client("GET", "/exports?limit=1")
        gone = await client("GET", f"/exports?limit=1&continue={token}")

    assert (gone.status, gone.code) == (410, "ListExpired")


async def test_what_no_page_answered_is_no_continuation(rest: Rest) -> None:
    token = (await rest("GET", "/exports?limit=3")).body["continue"]
    raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    forged = base64.urlsafe_b64encode(raw.replace(b",3]", b",1]")).decode().rstrip("=")
    for path in (
        f"/exports?continue={forged}",
        "/exports?continue=",
        "/exports?continue=%C3%A9",
        "/exports?continue=abc",
        f"/imports?continue={token}",
        f"/exports?namespace=lab&continue={token}",
        f"/exports?namespace=*&continue={token}",
        "/exports?limit=0",
        "/exports?limit=-1",
        "/exports?limit=10001",
        "/exports?limit=%D9%A3",
        f"/exports?limit={'9' * 5000}",
    ):
        assert (await rest("GET", path)).code == "QueryInvalid", path


def numbers(page: Page) -> list[Any]:
    return list(page.items)


def test_a_snapshot_is_forgotten_some_minutes_after_it_was_last_read() -> None:
    kept = Snapshots("session", b"secret")
    items = list(range(3))
    token = kept.first_page(EXPORTS, 1, (1, 1), items, 1, 0.0).token
    assert token is not None
    assert numbers(kept.next_page(EXPORTS, token, 1, SNAPSHOT_TTL_S)) == [1]
    assert numbers(kept.next_page(EXPORTS, token, 1, 2 * SNAPSHOT_TTL_S)) == [1]

    with pytest.raises(RequestError, match="start again"):
        kept.next_page(EXPORTS, token, 1, 3 * SNAPSHOT_TTL_S + 1)


def test_one_reader_expires_no_list_of_another() -> None:
    kept = Snapshots("session", b"secret")
    items = list(range(3))
    mine, other = replace(EXPORTS, reader="a"), replace(EXPORTS, reader="b")
    token = kept.first_page(mine, 1, (1, 1), items, 1, 0.0).token
    assert token is not None
    for change in range(2, 3 * MAX_SNAPSHOTS):
        kept.first_page(other, change, (1, change), items, 1, 0.0)

    assert numbers(kept.next_page(mine, token, 1, 0.0)) == [1]
    with pytest.raises(RequestError, match="start again"):
        kept.next_page(other, token, 1, 0.0)


def test_who_keeps_most_items_loses_the_oldest_list_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(snapshots, "MAX_ITEMS", 10)
    kept = Snapshots("session", b"secret")
    items = list(range(4))
    mine, other = replace(EXPORTS, reader="a"), replace(EXPORTS, reader="b")
    first = kept.first_page(mine, 1, (1, 1), items, 1, 0.0).token
    tokens = [kept.first_page(other, n, (1, n), items, 1, 0.0).token for n in (2, 3)]
    assert first is not None
    assert tokens[0] is not None
    assert tokens[1] is not None

    assert numbers(kept.next_page(mine, first, 1, 0.0)) == [1]
    assert numbers(kept.next_page(other, tokens[1], 1, 0.0)) == [1]
    with pytest.raises(RequestError, match="start again"):
        kept.next_page(other, tokens[0], 1, 0.0)


def test_readers_of_one_version_share_its_snapshot() -> None:
    kept = Snapshots("session", b"secret")
    items = list(range(3))
    tokens = {kept.first_page(EXPORTS, 1, (1, 1), list(items), 1, 0.0).token for _ in range(20)}
    other = kept.first_page(EXPORTS, 2, (1, 2), items, 1, 0.0).token

    assert (len(tokens), other in tokens) == (1, False)


@given(count=st.integers(0, 40), limits=st.lists(st.integers(1, 12), min_size=1))
def test_pages_of_any_sizes_make_up_the_list(count: int, limits: list[int]) -> None:
    kept = Snapshots("session", b"secret")
    items = list(range(count))
    page = kept.first_page(EXPORTS, 1, (1, 1), items, limits[0], 0.0)
    found, turn = numbers(page), 0
    while page.token is not None:
        assert page.remaining == count - len(found) > 0
        turn += 1
        page = kept.next_page(EXPORTS, page.token, limits[turn % len(limits)], 0.0)
        found += numbers(page)

    assert found == list(range(count))
