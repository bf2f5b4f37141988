"""The API client against servers that answer as no API server should."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from streambroker_operator.kubernetes.client.kubeconfig import Access
from streambroker_operator.kubernetes.client.watch_client import (
    ApiClient,
    ApiError,
    GoneError,
    LineBuffer,
    Timing,
)

Serve = Callable[[web.Request], Awaitable[web.StreamResponse]]
PATH = "/apis/streambroker.io/v1alpha1/exports"
QUICK = Timing(call_s=0.5, idle_s=0.3, page=2)


@asynccontextmanager
async def asking(serve: Serve, **access: Any) -> AsyncIterator[ApiClient]:
    """Run a server that answers everything in one way, and a client for it."""
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", serve)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    client = ApiClient(Access(server=url, **access), QUICK)
    try:
        yield client
    finally:
        await client.close()
        await runner.cleanup()


def listing(*items: dict[str, Any], version: int = 9, more: str = "") -> web.Response:
    metadata = {"resourceVersion": str(version), "continue": more}
    return web.json_response({"kind": "ExportList", "metadata": metadata, "items": list(items)})


async def whole(client: ApiClient) -> list[Any]:
    return [item async for items, _ in client.pages(PATH, {}) for item in items]


async def test_a_list_is_read_page_by_page() -> None:
    queries = []

    async def serve(request: web.Request) -> web.StreamResponse:
        queries.append(dict(request.query))
        if "continue" in request.query:
            return listing({"n": 3})
        return listing({"n": 1}, {"n": 2}, more="token")

    async with asking(serve) as client:
        assert await whole(client) == [{"n": 1}, {"n": 2}, {"n": 3}]

    assert queries == [{"limit": "2"}, {"limit": "2", "continue": "token"}]


@pytest.mark.parametrize(
    "answer",
    [
        web.Response,
        lambda: web.Response(text="<html>log in</html>"),
        lambda: web.json_response([]),
        lambda: web.json_response({}),
        lambda: web.json_response({"metadata": {"resourceVersion": "1"}}),
        lambda: web.json_response({"metadata": {}, "items": []}),
        lambda: web.json_response({"metadata": {"resourceVersion": "x"}, "items": []}),
        lambda: web.json_response({"metadata": {"resourceVersion": "1"}, "items": None}),
        lambda: web.json_response({"metadata": {"resourceVersion": "1"}, "items": []}, status=201),
    ],
)
async def test_what_is_no_list_is_an_error_and_not_an_empty_list(
    answer: Callable[[], web.Response],
) -> None:
    async def serve(_: web.Request) -> web.StreamResponse:
        return answer()

    async with asking(serve) as client:
        with pytest.raises(ApiError):
            await whole(client)


async def test_a_list_of_metadata_alone_that_is_null_is_empty() -> None:
    """So a real API server writes it; it says so by the kind, and the items have to be named."""
    answers: list[dict[str, Any]] = [
        {"kind": "PartialObjectMetadataList", "metadata": {"resourceVersion": "1"}, "items": None},
        {"kind": "PartialObjectMetadataList", "metadata": {"resourceVersion": "1"}},
    ]

    async def serve(_: web.Request) -> web.StreamResponse:
        return web.json_response(answers.pop(0))

    async with asking(serve) as client:
        assert await whole(client) == []
        with pytest.raises(ApiError):
            await whole(client)


async def test_a_server_that_sends_elsewhere_is_not_followed() -> None:
    async def serve(request: web.Request) -> web.StreamResponse:
        if request.path == "/elsewhere":
            return listing()
        return web.Response(status=302, headers={"Location": "/elsewhere"})

    async with asking(serve, token="secret") as client:
        with pytest.raises(ApiError) as refused:
            await whole(client)

    assert refused.value.status == 302


async def test_a_list_that_is_cut_is_an_error() -> None:
    async def serve(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Length": "1000"})
        await answer.prepare(request)
        await answer.write(b'{"metadata": {"resourceVersion": "1"}, "items": []}')
        assert request.transport is not None
        request.transport.abort()
        return answer

    async with asking(serve) as client:
        with pytest.raises(ApiError) as refused:
            await whole(client)

    assert refused.value.status == 0


@pytest.mark.parametrize("status", [429, 503])
async def test_a_server_that_asks_to_wait_is_asked_again_after_that(status: int) -> None:
    asked: list[float] = []
    loop = asyncio.get_running_loop()

    async def serve(_: web.Request) -> web.StreamResponse:
        asked.append(loop.time())
        if len(asked) == 1:
            return web.Response(status=status, headers={"Retry-After": "1"})
        return listing()

    async with asking(serve) as client:
        assert await whole(client) == []

    assert asked[1] - asked[0] >= 0.99


async def test_a_server_that_only_ever_asks_to_wait_is_given_up() -> None:
    async def serve(_: web.Request) -> web.StreamResponse:
        return web.json_response({"message": "busy"}, status=429, headers={"Retry-After": "0.01"})

    async with asking(serve) as client:
        with pytest.raises(ApiError, match="busy") as refused:
            await client.get(PATH)

    assert (refused.value.status, refused.value.retry_after_s) == (429, 0.01)


async def test_a_call_that_is_not_answered_ends() -> None:
    released = asyncio.Event()

    async def serve(_: web.Request) -> web.StreamResponse:
        await released.wait()
        return listing()

    async with asking(serve) as client:
        with pytest.raises(ApiError, match="in time"):
            await client.get(PATH)
        released.set()


async def test_an_answer_that_trickles_ends() -> None:
    async def serve(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        while True:
            await answer.write(b" ")
            await asyncio.sleep(0.05)

    async with asking(serve) as client:
        with pytest.raises(ApiError, match="in time"):
            await client.get(PATH)


async def test_a_server_that_is_not_there_is_an_error() -> None:
    async def serve(_: web.Request) -> web.StreamResponse:
        return listing()

    async with asking(serve) as client:
        gone = client.access
    client = ApiClient(gone, QUICK)
    with pytest.raises(ApiError):
        await client.get(PATH)
    await client.close()


def line(kind: str, **body: Any) -> bytes:
    return json.dumps({"type": kind, "object": body}).encode() + b"\n"


def watching(*pieces: bytes | float) -> Serve:
    """Answer with pieces; a number is a pause in seconds."""

    async def serve(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        for piece in pieces:
            if isinstance(piece, float):
                await asyncio.sleep(piece)
            else:
                await answer.write(piece)
        return answer

    return serve


async def watched(client: ApiClient) -> list[Any]:
    async with aclosing(client.watch(PATH, 5)) as events:
        return [event async for changes in events for event in changes]


async def test_a_watch_gives_events_however_they_are_cut() -> None:
    text = line("ADDED", n=1) + line("MODIFIED", n=2)
    pieces: list[bytes | float] = []
    for start in range(0, len(text), 9):
        pieces += [text[start : start + 9], 0.002]

    async with asking(watching(*pieces)) as client:
        assert await watched(client) == [("ADDED", {"n": 1}), ("MODIFIED", {"n": 2})]


async def test_what_a_watch_tells_of_an_error_asks_for_a_list() -> None:
    async with asking(watching(line("ERROR", code=410, message="too old"))) as client:
        with pytest.raises(GoneError, match="too old") as gone:
            await watched(client)

    assert gone.value.status == 410


async def test_a_watch_refused_with_410_asks_for_a_list() -> None:
    async def serve(_: web.Request) -> web.StreamResponse:
        return web.json_response({"message": "Expired"}, status=410)

    async with asking(serve) as client:
        with pytest.raises(GoneError):
            await watched(client)


async def test_half_a_line_at_a_watchs_end_is_no_event() -> None:
    async with asking(watching(line("ADDED", n=1), b'{"type": "ADDED"')) as client:
        assert await watched(client) == [("ADDED", {"n": 1})]


async def test_a_line_that_is_no_event_asks_for_a_list() -> None:
    async with asking(watching(b"<html>\n")) as client:
        with pytest.raises(GoneError):
            await watched(client)


@pytest.mark.parametrize("pieces", [(5.0,), (b" ", 0.1) * 30], ids=["silent", "trickling"])
async def test_a_watch_without_lines_is_given_up(pieces: tuple[bytes | float, ...]) -> None:
    async with asking(watching(*pieces)) as client:
        with pytest.raises(GoneError, match="silent"):
            await watched(client)


async def test_no_setting_of_the_environment_leads_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    headers: list[dict[str, str]] = []

    async def serve(request: web.Request) -> web.StreamResponse:
        headers.append(dict(request.headers))
        return listing()

    async with asking(serve, token="secret") as client:
        await client.get(PATH)

    assert headers[0]["Authorization"] == "Bearer secret"
    assert headers[0]["Accept-Encoding"] == "identity"


def test_lines_are_whole_however_the_bytes_come() -> None:
    lines, text, found = LineBuffer(), b"one\n\ntwo\nthree", []
    for place in range(len(text)):
        found += lines.feed(text[place : place + 1])

    assert found == [b"one", b"two"]
