"""Calls over HTTP: every answer is one, also a refusal in plain words; no answer is an error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from streambroker_operator.kubernetes.client.http_api import ApiUnreachableError, HttpApi
from streambroker_operator.kubernetes.client.kubeconfig import Access


@asynccontextmanager
async def served(handler: object, token_file: Path | None = None) -> AsyncIterator[HttpApi]:
    """Give out calls of a server that answers with a handler."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)  # type: ignore[arg-type]
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    file = None if token_file is None else str(token_file)
    api = HttpApi(Access(server=f"http://127.0.0.1:{runner.addresses[0][1]}", token_file=file))
    try:
        yield api
    finally:
        await api.close()
        await runner.cleanup()


async def test_a_call_carries_what_it_is_given(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.json_response(
            {
                "method": request.method,
                "path": request.path_qs,
                "type": request.content_type,
                "token": request.headers.get("Authorization"),
                "body": await request.json(),
            }
        )

    file = tmp_path / "token"
    file.write_text("abc\n")
    async with served(handler, file) as api:
        answer = await api.call(
            "PATCH",
            "/apis/x",
            {"a": 1},
            query={"force": "true"},
            content_type="application/apply-patch+yaml",
        )

    assert answer.body == {
        "method": "PATCH",
        "path": "/apis/x?force=true",
        "type": "application/apply-patch+yaml",
        "token": "Bearer abc",
        "body": {"a": 1},
    }


async def test_a_refusal_in_plain_words_is_an_answer() -> None:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(status=429, text="Too many requests\n", headers={"Retry-After": "7"})

    async with served(handler) as api:
        answer = await api.call("GET", "/x")

    assert (answer.status, answer.retry_after_s) == (429, 7.0)
    assert answer.body["message"] == "Too many requests"


async def test_a_date_to_try_again_after_is_passed_over() -> None:
    async def handler(_: web.Request) -> web.Response:
        date = {"Retry-After": "Sat, 21 Nov 2026 20:00:00 GMT"}
        return web.json_response({}, status=503, headers=date)

    async with served(handler) as api:
        assert (await api.call("GET", "/x")).retry_after_s is None


@pytest.mark.parametrize("text", ["<html>", "[]", "", '{"a": '])
async def test_what_says_that_all_is_well_and_is_no_object_is_no_answer(text: str) -> None:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(text=text)

    async with served(handler) as api:
        with pytest.raises(ApiUnreachableError, match="not a JSON object"):
            await api.call("GET", "/x")


async def test_a_server_that_does_not_answer_is_given_up_in_time() -> None:
    ended = asyncio.Event()

    async def handler(_: web.Request) -> web.Response:
        await ended.wait()
        return web.Response()

    async with served(handler) as api:
        with pytest.raises(ApiUnreachableError, match=r"no answer within 0\.2 s"):
            await api.call("GET", "/x", timeout_s=0.2)
        ended.set()


async def test_a_server_that_is_not_there_is_unreachable() -> None:
    async def handler(_: web.Request) -> web.Response:
        return web.Response()

    async with served(handler) as api:
        pass
    with pytest.raises(ApiUnreachableError):
        await api.call("GET", "/x")
    await api.close()


async def test_a_token_that_cannot_be_read_is_reported_as_such(tmp_path: Path) -> None:
    async def handler(_: web.Request) -> web.Response:
        return web.Response()

    async with served(handler, tmp_path / "missing") as api:
        with pytest.raises(ApiUnreachableError, match="missing"):
            await api.call("GET", "/x")
