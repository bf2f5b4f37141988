"""Callers that connect and then say nothing, or too little, or do not listen."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest

from streambroker_operator.broker import Broker
from streambroker_operator.rest.guard import connections as doors
from streambroker_operator.rest.guard.rate_limits import RateLimits
from support.brokers.brokers import EXPORT, BrokerProcess, Rest, running_broker
from support.processes.certificates import Authority

PORT = "/job/feed/pe/0/export/trades"
PUT = (
    f"PUT /api/subscriptions{PORT} HTTP/1.1\r\n"
    "Host: localhost\r\nContent-Type: application/json\r\n"
).encode()
DESCRIPTORS = 200


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "HEADER_S", 0.3)
    monkeypatch.setattr(doors, "BODY_S", 0.3)
    monkeypatch.setattr(doors, "SWEEP_S", 0.05)


def port_of(url: str) -> int:
    return urlsplit(url).port or 0


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(url))
    try:
        yield reader, writer
    finally:
        writer.close()


async def closed(reader: asyncio.StreamReader) -> bytes:
    """Wait until the broker has closed; return what it sent before."""
    try:
        return await asyncio.wait_for(reader.read(), 10.0)
    except ConnectionResetError:
        return b""


def test_silent_connections_leave_descriptors_and_log_lines_to_others(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "b.db", "--port", "0", descriptors=DESCRIPTORS)
    where = ("127.0.0.1", port_of(broker.url()))
    with ExitStack() as silent:
        for _ in range(DESCRIPTORS + 60):
            silent.enter_context(socket.create_connection(where, timeout=5.0))
        for path in ("/healthz", "/readyz", "/api/subscriptions/exports"):
            with socket.create_connection(where, timeout=5.0) as caller:
                caller.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
                assert caller.recv(4_096).startswith(b"HTTP/1.0 200 "), path
        broker.process.send_signal(signal.SIGTERM)
        code, errors = broker.end()

    assert code == 0
    assert len(errors.splitlines()) <= 1, errors[:1_000]


JUNK = [
    b"GET / HTTP/9.9\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 500 + b"\r\n",
    b"GET http://[::1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\nxxxx",
    PUT + b"Transfer-Encoding: chunked\r\n\r\nZZZ\r\n",
    PUT + b"Content-Length: 100\r\n\r\n{",
]


async def test_junk_adds_one_line_to_the_log_and_no_trace(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_broker(tmp_path / "b.db") as (broker, rest):
        for junk in JUNK * 3:
            async with connected(broker.url) as (_, writer):
                writer.write(junk)
                writer.write_eof()
                await writer.drain()
        assert (await rest("GET", "/exports")).status == 200

    assert [record.exc_info for record in caplog.records if record.exc_info] == []
    assert len(caplog.records) <= 1


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: x\r\n"])
async def test_a_connection_without_a_whole_header_is_closed(tmp_path: Path, sent: bytes) -> None:
    async with running_broker(tmp_path / "b.db") as (broker, rest):
        async with connected(broker.url) as (reader, writer):
            writer.write(sent)
            assert await closed(reader) == b""
        assert (await rest("GET", "/exports")).status == 200


async def test_a_header_that_comes_bit_by_bit_gets_no_more_time(tmp_path: Path) -> None:
    async def drip(writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"X: y\r\n")
            await asyncio.sleep(0.05)

    async with running_broker(tmp_path / "b.db") as (broker, _), connected(broker.url) as ends:
        reader, writer = ends
        writer.write(b"GET / HTTP/1.1\r\n")
        dripping = asyncio.create_task(drip(writer))
        assert await closed(reader) == b""
        dripping.cancel()


async def test_a_body_that_does_not_come_is_not_waited_for(tmp_path: Path) -> None:
    async with running_broker(tmp_path / "b.db") as (broker, _), connected(broker.url) as ends:
        reader, writer = ends
        writer.write(PUT + b"Content-Length: 100\r\n\r\n{")
        assert await closed(reader) == b""


async def test_a_connection_is_kept_between_two_requests(tmp_path: Path) -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with running_broker(tmp_path / "b.db") as (broker, _), connected(broker.url) as ends:
        reader, writer = ends
        for _ in range(2):
            writer.write(request)
            assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 ")
            async with connected(broker.url) as (silent, _):  # as long as a header may take
                assert await closed(silent) == b""


async def test_a_request_that_waits_for_news_is_not_closed(tmp_path: Path) -> None:
    async with running_broker(tmp_path / "b.db") as (_, rest):
        await rest("PUT", PORT, EXPORT)
        view = await rest("GET", "/job/feed/pe/0")
        again = await rest("GET", "/job/feed/pe/0?wait=1s", If_None_Match=view.headers["ETag"])

    assert again.status == 304


async def test_a_tls_handshake_that_does_not_begin_is_not_waited_for(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "tls", "first")
    pair = (authority.certificate, authority.key)
    broker = Broker(db=tmp_path / "b.db", port=0, certificate=pair)
    await broker.start()
    try:
        async with connected(broker.url) as (reader, _):
            assert await closed(reader) == b""
        trust = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=authority.ca))
        async with aiohttp.ClientSession(connector=trust) as session:
            assert (await Rest(broker.url, session)("GET", "/exports")).status == 200
    finally:
        await broker.stop()


async def test_beyond_the_cap_of_an_address_silent_connections_go_and_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doors, "HEADER_S", 60.0)
    follow = b"GET /api/subscriptions/events HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with (
        running_broker(tmp_path / "b.db", RateLimits(connections=8)) as (broker, _),
        connected(broker.url) as (first, _),
        connected(broker.url) as (busy, writer),
    ):
        writer.write(follow)
        assert (await busy.readline()).startswith(b"HTTP/1.1 200 ")
        async with connected(broker.url), connected(broker.url), connected(broker.url):
            assert await closed(first) == b""
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(busy.read(), 0.2)


async def test_where_all_connections_of_an_address_are_at_work_another_one_is_refused(
    tmp_path: Path,
) -> None:
    follow = b"GET /api/subscriptions/events HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with running_broker(tmp_path / "b.db", RateLimits(connections=2)) as (broker, _):
        async with connected(broker.url) as (busy, writer):
            writer.write(follow)
            assert (await busy.readline()).startswith(b"HTTP/1.1 200 ")
            async with connected(broker.url) as (refused, _):
                assert await closed(refused) == b""
        await asyncio.wait_for(served(broker.url), 10.0)


async def served(url: str) -> None:
    while not (await answer(url)).startswith(b"HTTP/1.0 200 "):
        pass


async def answer(url: str) -> bytes:
    async with connected(url) as (reader, writer):
        writer.write(b"GET /healthz HTTP/1.0\r\n\r\n")
        return await closed(reader)
