"""The broker as a process: start, kill, restart, refuse, stop."""

from __future__ import annotations

import asyncio
import signal
import socket
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from streambroker_operator.storage.sqlite_store import Store
from support.brokers.brokers import EXPORT, IMPORT, Answer, BrokerProcess, Rest
from support.core.resources import import_of, pe, registration

X = "/job/feed/pe/0/export/trades"
I = "/job/alerts/pe/0/import/trades"  # noqa: E741
POLL_SECONDS = 60
AGENT = {"instance": "0123456789abcdef", "location": "grpc+tcp://h:1", "hint": None}


@asynccontextmanager
async def client_of(broker: BrokerProcess) -> AsyncIterator[Rest]:
    url = await asyncio.to_thread(broker.url)
    async with aiohttp.ClientSession() as session:
        yield Rest(url, session)


async def views(rest: Rest) -> list[tuple[str, Answer]]:
    jobs = ("feed", "alerts", "gone")
    return [(job, await rest("GET", f"/job/{job}/pe/0")) for job in jobs]


async def test_after_a_kill_the_views_are_the_same(tmp_path: Path) -> None:
    first = BrokerProcess(tmp_path / "broker.db")
    async with client_of(first) as rest:
        await rest("PUT", X, EXPORT)
        await rest("PUT", I, IMPORT)
        await rest("PUT", "/job/gone/pe/0/export/p", EXPORT)
        await rest("DELETE", "/job/gone/pe/0/export/p")
        key = (await rest("PUT", "/job/feed/pe/0", AGENT)).body
        before = await views(rest)
        answered = await rest("PUT", f"{I}/filter", {"filter": "price > 99.0"})
        assert answered.status == 200
        before[1] = ("alerts", await rest("GET", "/job/alerts/pe/0"))
        before[0] = ("feed", await rest("GET", "/job/feed/pe/0"))
        first.kill()

    second = BrokerProcess(tmp_path / "broker.db")
    async with client_of(second) as rest:
        after = await views(rest)
        for (job, old), (_, new) in zip(before, after, strict=True):
            assert (new.status, new.headers["ETag"]) == (200, old.headers["ETag"]), job
            for kind in ("exports", "imports"):
                assert new.body[kind] == old.body[kind], job
            same = await rest("GET", f"/job/{job}/pe/0", If_None_Match=old.headers["ETag"])
            assert same.status == 304
        assert (await rest("PUT", "/job/feed/pe/0", AGENT)).body == key
        shown = await rest("GET", I)
        assert shown.body["spec"]["filter"] == "price > 99.0"
        second.kill()


async def test_a_kill_in_the_middle_of_writes_loses_nothing_that_was_answered(
    tmp_path: Path,
) -> None:
    broker = BrokerProcess(tmp_path / "broker.db")
    answered: dict[str, str] = {}

    async def declare(rest: Rest, number: int) -> None:
        answer = await rest("PUT", f"/job/feed/pe/{number}/export/p", EXPORT)
        answered[f"default/feed/{number}/p"] = answer.body["uid"]

    async with client_of(broker) as rest:
        await declare(rest, 0)
        writes = [asyncio.create_task(declare(rest, number)) for number in range(1, 200)]
        while len(answered) < 20:
            await asyncio.wait(writes, return_when=asyncio.FIRST_COMPLETED, timeout=0.01)
        broker.kill()
        await asyncio.gather(*writes, return_exceptions=True)

    assert 20 <= len(answered) < 200
    again = BrokerProcess(tmp_path / "broker.db")
    async with client_of(again) as rest:
        items = (await rest("GET", "/exports")).body["items"]
        again.kill()
    kept = {f"default/feed/{item['spec']['pe']}/p": item["metadata"]["uid"] for item in items}
    assert answered.items() <= kept.items()


async def long_poll(rest: Rest, etag: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a long poll; it is on its way before anything that is sent afterwards."""
    url = urlsplit(rest.url)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    path = f"/api/subscriptions/job/feed/pe/0?wait={POLL_SECONDS}s"
    head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nIf-None-Match: {etag}\r\n\r\n"
    writer.write(head.encode())
    await writer.drain()
    return reader, writer


async def test_sigterm_stops_it_long_before_the_end_of_a_long_poll(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "broker.db")
    async with client_of(broker) as rest:
        await rest("PUT", X, EXPORT)
        view = await rest("GET", "/job/feed/pe/0")
        answer, waiting = await long_poll(rest, view.headers["ETag"])
        await rest("GET", "/pes")
        began = time.monotonic()
        broker.process.send_signal(signal.SIGTERM)
        code, errors = await asyncio.to_thread(broker.end)
        took = time.monotonic() - began
        status = await answer.readline()
        waiting.close()

    assert (code, errors) == (0, "")
    assert status == b"HTTP/1.1 304 Not Modified\r\n"
    assert took < POLL_SECONDS / 3


async def test_a_second_broker_on_the_file_is_refused(tmp_path: Path) -> None:
    first = BrokerProcess(tmp_path / "broker.db")
    async with client_of(first) as rest:
        second = BrokerProcess(tmp_path / "broker.db")
        code, errors = await asyncio.to_thread(second.end)
        still = await rest("GET", "/pes")
        first.kill()

    assert code == 1
    assert "in use by another broker" in errors
    assert "--db" in errors
    assert still.status == 200


def test_a_port_in_use_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, errors = BrokerProcess(tmp_path / "broker.db", "--port", port).end()

    assert code == 1
    assert f"Cannot listen at 127.0.0.1:{port}" in errors
    assert "--port" in errors
    assert "Traceback" not in errors


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    db = tmp_path / "broker.db"
    db.write_bytes(b"this is not a database, it is a text " * 100)
    code, errors = BrokerProcess(db).end()

    assert code == 1
    assert "cannot be used as the broker's database" in errors
    assert db.read_bytes().startswith(b"this is not")


def test_a_file_of_a_newer_release_is_refused_by_name(tmp_path: Path) -> None:
    db = tmp_path / "broker.db"
    with sqlite3.connect(db) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    code, errors = BrokerProcess(db).end()

    assert code == 1
    assert "format 99" in errors


def test_a_directory_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    code, errors = BrokerProcess(tmp_path / "nowhere" / "broker.db").end()

    assert code == 1
    assert "directory that exists" in errors


async def test_versions_go_on_from_where_they_were(tmp_path: Path) -> None:
    store = Store(tmp_path / "broker.db")
    store.ports.put(import_of())
    await store.register(pe("alerts"), registration())
    store.close()
    broker = BrokerProcess(tmp_path / "broker.db")
    async with client_of(broker) as rest:
        point = (await rest("GET", "/pes")).body["point"]
        written = await rest("PUT", X, EXPORT)
        broker.kill()

    assert point == [2, 2]
    assert written.body["version"] == 3


async def test_an_address_that_others_reach_is_warned_about(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "broker.db", "--port", "0", "--host", "0.0.0.0", "--insecure")
    await asyncio.to_thread(broker.url)
    broker.process.send_signal(signal.SIGTERM)
    code, errors = await asyncio.to_thread(broker.end)

    assert code == 0
    assert "0.0.0.0 can be reached from other machines" in errors
