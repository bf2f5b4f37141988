"""A network and an API server that misbehave: a proxy before a real one, over real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

import aiohttp
from aiohttp import web

from streambroker_core.wire.manifests.ports import OBJECTS
from streambroker_operator.kubernetes.client.kubeconfig import Access, Credentials

What = Literal["list", "marks", "watch", "get", "crd", "other"]

_PIECE = 64
"""Bytes at once when an answer is slow."""


@dataclass
class Fault:
    """What goes wrong with the next requests of a sort.

    Attributes:
        how: ``refuse`` answers with a status; ``cut`` breaks the answer off; ``hang`` never
            begins one; ``gone`` tells of a 410 inside a watch; ``silent`` begins a watch and
            tells nothing; ``deaf`` leaves out all events of a watch but its bookmarks; ``slow``
            sends a few bytes at a time; ``stale`` answers a list with the first one ever given,
            though never twice running to one who asks: that would be a restore.
    """

    on: tuple[What, ...]
    how: Literal["refuse", "cut", "hang", "gone", "silent", "deaf", "slow", "stale"]
    times: int = 1
    status: int = 500
    retry_after: int | None = None
    after: int = 0
    plural: str | None = None


@dataclass
class Asked:
    what: What
    plural: str
    path: str
    headers: dict[str, str] = field(default_factory=dict)


class KubeProxy:
    """Forwards to an API server, and does to the answers what the faults say."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._credentials = Credentials(access)
        self._first: dict[str, bytes] = {}
        self._watches: set[asyncio.Task[object]] = set()
        self._behind: set[tuple[str, bool]] = set()
        self._released = asyncio.Event()
        self.url = ""
        self.faults: list[Fault] = []
        self.asked: list[Asked] = []
        self.down = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[KubeProxy]:
        app = web.Application()
        app.router.add_route("*", "/{rest:.*}", self._serve)
        runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True
        )
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=2)
        async with aiohttp.ClientSession(
            trust_env=False, auto_decompress=False, timeout=timeout
        ) as session:
            self._session = session
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            try:
                yield self
            finally:
                self.release()
                await runner.cleanup()

    def access(self) -> Access:
        return Access(server=self.url, token=self._access.token, namespace="default")

    def release(self) -> None:
        """Let go what hangs or is silent."""
        self._released.set()
        self._released = asyncio.Event()

    def cut_watches(self) -> None:
        for watch in self._watches:
            watch.cancel()

    # ---- serving ---------------------------------------------------------

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        asked = _asked(request)
        self.asked.append(asked)
        if self.down:
            return _break(request)
        fault = self._fault(asked)
        if fault is None:
            return await self._forward(request, asked, None)
        if fault.how == "refuse":
            return _status(fault)
        if fault.how == "hang":
            await self._released.wait()
            return _break(request)
        if fault.how == "stale":
            first = self._first.get(_place(request))
            if first is not None and _asker(request) not in self._behind:
                self._behind.add(_asker(request))
                return web.Response(body=first, content_type="application/json")
            fault = None
        elif fault.how in ("gone", "silent"):
            return await self._watch_that_fails(request, fault)
        return await self._forward(request, asked, fault)

    def _fault(self, asked: Asked) -> Fault | None:
        for fault in self.faults:
            if asked.what in fault.on and fault.plural in (None, asked.plural):
                fault.times -= 1
                if fault.times <= 0:
                    self.faults.remove(fault)
                return fault
        return None

    async def _watch_that_fails(self, request: web.Request, fault: Fault) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        await answer.prepare(request)
        if fault.how == "silent":
            await self._released.wait()
        else:
            status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
            await answer.write(json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
        return answer

    async def _forward(
        self, request: web.Request, asked: Asked, fault: Fault | None
    ) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None
        if asked.what == "watch":
            self._watches.add(task)
        try:
            return await self._pass_on(request, asked, fault)
        except (aiohttp.ClientError, OSError):
            return _break(request)
        except asyncio.CancelledError:
            if asked.what != "watch" or request.transport is None:
                raise
            return _break(request)
        finally:
            self._watches.discard(task)

    async def _pass_on(
        self, request: web.Request, asked: Asked, fault: Fault | None
    ) -> web.StreamResponse:
        headers = {
            name: request.headers[name]
            for name in ("Accept", "Authorization", "Accept-Encoding", "Content-Type")
            if name in request.headers
        }
        secure = self._access.server.startswith("https:")
        async with self._session.request(
            request.method,
            f"{self._access.server}{request.path_qs}",
            data=await request.read() or None,
            headers=headers,
            ssl=self._credentials.tls() if secure else False,
        ) as source:
            answer = web.StreamResponse(status=source.status)
            for name in ("Content-Type", "Content-Length", "Content-Encoding", "Retry-After"):
                if name in source.headers:
                    answer.headers[name] = source.headers[name]
            whole = bytearray()
            try:
                await answer.prepare(request)
                by_line = fault is not None and fault.how == "deaf"
                async for data in source.content if by_line else source.content.iter_any():
                    await self._send(answer, bytes(data), len(whole), fault)
                    if asked.what != "watch":
                        whole += data
            finally:
                _abort(source)
        if asked.what in ("list", "marks") and source.status == 200:
            self._behind.discard(_asker(request))
            # Later pages are requested with its own mark, so they are as old as it is.
            if "continue" not in request.query:
                self._first.setdefault(_place(request), bytes(whole))
        return answer

    async def _send(
        self, answer: web.StreamResponse, data: bytes, sent: int, fault: Fault | None
    ) -> None:
        if fault is None:
            await answer.write(data)
        elif fault.how == "deaf":
            if b'"type":"BOOKMARK"' in data:
                await answer.write(data)
        elif fault.how == "slow":
            for start in range(0, len(data), _PIECE):
                await answer.write(data[start : start + _PIECE])
                await asyncio.sleep(0.0005)
        elif sent + len(data) >= fault.after:
            await answer.write(data[: max(0, fault.after - sent)])
            raise aiohttp.ClientConnectionError
        else:
            await answer.write(data)


def _asked(request: web.Request) -> Asked:
    last = request.path.rstrip("/").rpartition("/")[2]
    headers, plural = dict(request.headers), ""
    what: What = "other"
    if request.method != "GET":
        return Asked(what=what, plural=plural, path=request.path_qs, headers=headers)
    if "customresourcedefinitions/" in request.path:
        what, plural = "crd", last.partition(".")[0]
    elif "/streambroker.io/" in request.path:
        if last in OBJECTS.values():
            plural = last
            what = "marks" if "PartialObjectMetadataList" in headers.get("Accept", "") else "list"
            what = "watch" if request.query.get("watch") == "true" else what
        elif request.path.count("/") > 3:
            what, plural = "get", request.path.rstrip("/").rpartition("/")[0].rpartition("/")[2]
    return Asked(what=what, plural=plural, path=request.path_qs, headers=headers)


def _place(request: web.Request) -> str:
    return f"{request.path} {request.headers.get('Accept')}"


def _asker(request: web.Request) -> tuple[str, bool]:
    """Return who asks for a list: a feeder does so in pages, kopf beside it does not."""
    return _place(request), "limit" in request.query


def _status(fault: Fault) -> web.Response:
    headers = {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}
    body = {"kind": "Status", "code": fault.status, "message": "injected"}
    return web.json_response(body, status=fault.status, headers=headers)


def _abort(source: aiohttp.ClientResponse) -> None:
    """Close a connection that is not at its answer's end without TLS's long goodbye."""
    if source.connection is not None and source.connection.transport is not None:
        source.connection.transport.abort()


def _break(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()
