"""A change that is asked for twice under one Request-Id is made once."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from streambroker_operator.errors import RequestError
from streambroker_operator.rest import diagnose
from streambroker_operator.rest.diagnose import Proposed
from streambroker_operator.rest.ports import apply
from streambroker_operator.storage.responses import MAX_BODY, RETENTION_S, RequestKey
from streambroker_operator.storage.sqlite_store import Store
from support.brokers.brokers import EXPORT, IMPORT, Rest, running_broker
from support.core.resources import export_of, port

X = "/job/feed/pe/0/export/trades"
I = "/job/alerts/pe/0/import/trades"  # noqa: E741
AGENT = {"instance": "0123456789abcdef", "location": "grpc+tcp://127.0.0.1:4711", "hint": None}


async def test_a_repeated_request_gets_the_first_answer_and_changes_nothing(rest: Rest) -> None:
    first = await rest("PUT", X, EXPORT, Request_Id="a.1")
    await rest("PATCH", X, {"allowFilter": False})
    again = await rest("PUT", X, EXPORT, Request_Id="a.1")

    assert (again.status, again.body) == (201, first.body)
    assert again.headers["ETag"] == first.headers["ETag"]
    assert ("Replayed" in first.headers, again.headers["Replayed"]) == (False, "true")
    assert (await rest("GET", X)).body["spec"]["allowFilter"] is False


async def test_a_repeated_deletion_is_not_the_deletion_of_what_came_after(rest: Rest) -> None:
    await rest("PUT", X, EXPORT)
    first = await rest("DELETE", X, Request_Id="gone")
    await rest("PUT", X, EXPORT)
    again = await rest("DELETE", X, Request_Id="gone")

    assert (first.status, again.status, again.body) == (200, 200, first.body)
    assert (await rest("GET", X)).status == 200


async def test_a_refusal_is_the_answer_to_its_repetition_too(rest: Rest) -> None:
    first = await rest("PATCH", f"{X}/properties", {"kind": "x"}, Request_Id="r")
    await rest("PUT", X, EXPORT)
    again = await rest("PATCH", f"{X}/properties", {"kind": "x"}, Request_Id="r")

    assert (first.status, first.code) == (404, "UnknownPE")
    assert (again.status, again.body, again.headers["Replayed"]) == (404, first.body, "true")


async def test_a_long_refusal_is_no_success_when_it_is_asked_for_again(rest: Rest) -> None:
    wrong = {"z" * 9_000: 1}
    await rest("PUT", X, EXPORT)
    first = await rest("PUT", X, wrong, Request_Id="long")
    again = await rest("PUT", X, wrong, Request_Id="long")

    assert len(str(first.body)) > MAX_BODY
    assert (first.status, again.status, again.body) == (422, 422, first.body)


async def test_a_repetition_that_overtakes_the_answer_waits_for_it(
    rest: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rest("PUT", X, EXPORT)
    begun, go_on = asyncio.Event(), threading.Event()
    loop, read = asyncio.get_running_loop(), diagnose.read_proposal

    def held(document: object, namespace: str) -> Proposed:
        loop.call_soon_threadsafe(begun.set)
        go_on.wait(10.0)
        return read(document, namespace)

    monkeypatch.setattr(apply, "read_proposal", held)
    gone = {"delete": [{"kind": "Export", "job": "feed", "port": "trades"}]}
    sent = [asyncio.ensure_future(rest("POST", "/apply", gone, Request_Id="a"))]
    await begun.wait()
    sent.append(asyncio.ensure_future(rest("POST", "/apply", gone, Request_Id="a")))
    for _ in range(5):
        await rest("GET", X)
    go_on.set()
    first, again = await asyncio.gather(*sent)

    assert (first.status, again.status, again.body) == (200, 200, first.body)
    assert ("Replayed" in first.headers, again.headers.get("Replayed")) == (False, "true")


async def test_a_request_id_stands_for_one_request(rest: Rest) -> None:
    await rest("PUT", X, EXPORT, Request_Id="a")
    others = [
        await rest("PUT", X, {**EXPORT, "allowFilter": False}, Request_Id="a"),
        await rest("PUT", X + "2", EXPORT, Request_Id="a"),
        await rest("PUT", X + "?namespace=lab", EXPORT, Request_Id="a"),
        await rest("PATCH", X, EXPORT, Request_Id="a"),
        await rest("PUT", X, EXPORT, Request_Id="a", If_Match="*"),
    ]
    for number, other in enumerate(others):
        assert (other.status, other.code) == (422, "RequestIdReused"), number

    assert (await rest("GET", X)).body["metadata"]["generation"] == 1


@pytest.mark.parametrize("bad", ["", "a b", "a/b", "x" * 65, "é"])
async def test_a_request_id_of_another_form_is_refused(rest: Rest, bad: str) -> None:
    refused = await rest("PUT", X, EXPORT, Request_Id=bad)

    assert (refused.status, refused.code) == (400, "RequestIdInvalid")
    assert (await rest("GET", "/exports")).body["items"] == []


async def test_a_request_id_means_nothing_to_a_read(rest: Rest) -> None:
    before = await rest("GET", "/exports", Request_Id="a")
    await rest("PUT", X, EXPORT)
    after = await rest("GET", "/exports", Request_Id="a")

    assert (len(before.body["items"]), len(after.body["items"])) == (0, 1)


async def test_the_answer_is_the_same_after_a_restart(tmp_path: Path) -> None:
    async with running_broker(tmp_path / "broker.db") as (_, client):
        await client("PUT", I, IMPORT)
        first = await client("PUT", X, EXPORT, Request_Id="a")
    async with running_broker(tmp_path / "broker.db") as (_, client):
        again = await client("PUT", X, EXPORT, Request_Id="a")
        other = await client("PUT", X, IMPORT, Request_Id="a")

    assert (again.status, again.body, again.headers["Replayed"]) == (201, first.body, "true")
    assert len(first.body["routes"]["added"]) == 1
    assert other.code == "RequestIdReused"


def without_answer(db: Path) -> None:
    """Make the file as it is if the broker dies between a change and its answer."""
    with sqlite3.connect(db) as connection:
        connection.execute("UPDATE requests SET status = NULL, headers = NULL, body = NULL")
    connection.close()


async def test_a_change_whose_answer_was_lost_with_the_broker_is_not_made_again(
    tmp_path: Path,
) -> None:
    db = tmp_path / "broker.db"
    merge: dict[str, Any] = {"level": 7}
    async with running_broker(db) as (_, client):
        await client("PUT", I, IMPORT)
        etag = (await client("PUT", X, EXPORT)).headers["ETag"]
        await client("PATCH", f"{X}/properties", merge, Request_Id="a", If_Match=etag)
    without_answer(db)
    async with running_broker(db) as (_, client):
        again = await client("PATCH", f"{X}/properties", merge, Request_Id="a", If_Match=etag)

    assert (again.status, again.headers["Replayed"], again.body["generation"]) == (200, "true", 2)
    assert [route["import"] for route in again.body["routes"]["kept"]] == [
        "default/alerts/0/trades"
    ]


async def test_a_deletion_whose_answer_was_lost_with_the_broker_is_done(tmp_path: Path) -> None:
    db = tmp_path / "broker.db"
    async with running_broker(db) as (_, client):
        await client("PUT", X, EXPORT)
        await client("DELETE", X, Request_Id="port")
        await client("DELETE", "/job/feed/pe/0", Request_Id="pe")
    without_answer(db)
    async with running_broker(db) as (_, client):
        port_gone = await client("DELETE", X, Request_Id="port")
        pe_gone = await client("DELETE", "/job/feed/pe/0", Request_Id="pe")

    for answer in (port_gone, pe_gone):
        assert (answer.status, answer.headers["Replayed"]) == (204, "true")


async def test_a_lost_answer_to_a_deletion_is_not_of_what_came_after(tmp_path: Path) -> None:
    db = tmp_path / "broker.db"
    async with running_broker(db) as (_, client):
        await client("PUT", X, EXPORT)
        await client("DELETE", X, Request_Id="port")
        await client("PUT", X, EXPORT)
    without_answer(db)
    async with running_broker(db) as (_, client):
        again = await client("DELETE", X, Request_Id="port")
        left = await client("GET", X)

    assert (again.status, again.body, left.status) == (204, None, 200)


async def test_registering_under_a_request_id_gives_the_key_every_time_and_keeps_it_nowhere(
    tmp_path: Path,
) -> None:
    db = tmp_path / "broker.db"
    async with running_broker(db) as (_, client):
        first = await client("PUT", "/job/feed/pe/0", AGENT, Request_Id="a")
        again = await client("PUT", "/job/feed/pe/0", AGENT, Request_Id="a")

    assert first.body == again.body
    with sqlite3.connect(db) as connection:
        kept = connection.execute("SELECT status, body FROM requests").fetchall()
    connection.close()
    assert kept == [(None, None)]


def test_a_name_is_kept_for_ten_minutes_and_then_forgotten(tmp_path: Path) -> None:
    now = [1000.0]
    store = Store(tmp_path / "broker.db", clock=lambda: now[0])
    first, second = (RequestKey(principal="", id=id_, digest="d") for id_ in ("a", "b"))
    store.responses.begin(first)
    store.ports.put(export_of())
    store.responses.end()
    store.responses.store(first, 201, {}, b"{}")
    now[0] += RETENTION_S - 1
    assert store.responses.find(first) is not None
    now[0] += 2

    assert store.responses.find(first) is None
    store.responses.store(second, 200, {}, b"{}")
    rows = store.responses._db.execute("SELECT id FROM requests").fetchall()
    assert rows == [("b",)]
    store.close()


def test_the_names_of_principals_are_apart(tmp_path: Path) -> None:
    store = Store(tmp_path / "broker.db")
    name = RequestKey(principal="feed", id="a", digest="d")
    store.responses.store(name, 200, {}, b"{}")

    assert store.responses.find(RequestKey(principal="alerts", id="a", digest="d")) is None
    store.close()


def test_a_change_and_its_name_are_on_disk_together_or_not_at_all(tmp_path: Path) -> None:
    store = Store(tmp_path / "broker.db")
    name = RequestKey(principal="", id="a", digest="d")
    store.responses.begin(name)
    store.ports.put(export_of())
    store.responses.end()
    known = store.responses.find(name)
    assert known is not None
    assert (known.version, known.status) == (store.file.version, None)
    store.responses._db.execute("DROP TABLE requests")
    store.responses.begin(name)
    with pytest.raises((sqlite3.Error, RequestError)):
        store.ports.delete("Export", port("feed/trades"))
    store.responses.end()

    assert store.get("Export", port("feed/trades")) is not None
    store.close()
