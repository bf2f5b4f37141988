"""Client of the Kubernetes API for feeds: get, paged list, watch.

- Every call has a timeout: an API server without etcd may never answer.
- An incomplete or malformed response is an error, never an empty list.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar, cast

import aiohttp

from streambroker_operator.kubernetes.client.connection import ConnectionPool
from streambroker_operator.kubernetes.client.documents import Document
from streambroker_operator.kubernetes.client.http_api import parse_seconds
from streambroker_operator.kubernetes.client.kubeconfig import Access

JSON = "application/json"
OBJECT_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
LIST_METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

_RETRY_STATUSES = (429, 503)
_MAX_TRIES = 4
_MAX_PAUSE_S = 30.0
_MAX_ERROR_BYTES = 4096
_MAX_MESSAGE_CHARS = 200
_T = TypeVar("_T")

WatchEvent = tuple[str, Document]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Timeouts and intervals in seconds, and the page size.

    Attributes:
        call_s: timeout of one call, from connecting to the end of the response.
        server_s: time after which the server ends a watch.
        idle_s: time without a line after which a watch is dead; bookmarks arrive every minute.
        page: objects per page of a list.
        resync_s: interval of resyncs, varied by 10 %.
        refused_s: interval of checks whether a refused namespace can be listed again.
        settle_s: time in which the watch may deliver what a resync has listed.
        confirm_s: pause before a contradicting list is requested again.
        retry_s: shortest and longest pause after a failure.
        restart_s: the same for kopf's process.
    """

    call_s: float = 10.0
    server_s: int = 300
    idle_s: float = 90.0
    page: int = 500
    resync_s: float = 60.0
    refused_s: float = 10.0
    settle_s: float = 1.0
    confirm_s: float = 2.0
    retry_s: tuple[float, float] = (0.2, 5.0)
    restart_s: tuple[float, float] = (2.0, 30.0)


class ApiError(Exception):
    """Failed call.

    Attributes:
        status: HTTP status; 0 without a usable response.
        retry_after_s: seconds that the server asks to wait; 0 if it does not.
    """

    def __init__(self, status: int, message: str, retry_after_s: float = 0.0) -> None:
        self.status = status
        self.retry_after_s = retry_after_s
        super().__init__(message)


class GoneError(ApiError):
    """The version has expired or the watch is unreliable: list again."""


async def with_timeout(
    seconds: float, awaitable: Awaitable[_T], discard: Callable[[_T], None] | None = None
) -> _T:
    """Wait for an awaitable with a timeout in seconds, like `asyncio.wait_for`.

    Before Python 3.12 `wait_for` may lose a cancellation that coincides with the result, so the
    caller would never end. `discard` receives a result that arrives after the wait has ended.

    Raises:
        asyncio.TimeoutError: no result in time.
    """
    task = asyncio.ensure_future(awaitable)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    except BaseException:
        _abandon(task, discard)
        raise
    if not done:
        _abandon(task, discard)
        raise TimeoutError
    return task.result()


def _abandon(task: asyncio.Future[_T], discard: Callable[[_T], None] | None) -> None:
    def late(done: asyncio.Future[_T]) -> None:
        # Late results and errors are dropped.
        if not done.cancelled() and done.exception() is None and discard is not None:
            discard(done.result())

    task.add_done_callback(late)
    task.cancel()


class LineBuffer:
    """Splits a stream of bytes into lines."""

    def __init__(self) -> None:
        self._partial = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that are complete now, and keep the rest."""
        end = data.rfind(b"\n")
        if end < 0:
            self._partial += data
            return []
        complete = bytes(self._partial) + data[:end]
        self._partial = bytearray(data[end + 1 :])
        return [line for line in complete.split(b"\n") if line]


class ApiClient:
    """Connection pool to one API server."""

    def __init__(self, access: Access, timing: Timing | None = None) -> None:
        self.timing = timing or Timing()
        self.access = access
        self._connection = ConnectionPool(access)

    async def close(self) -> None:
        """Close all connections."""
        await self._connection.close()

    async def get(
        self, path: str, params: Mapping[str, str] | None = None, *, accept: str = JSON
    ) -> Document:
        """Return the response to a GET; retry 429 and 503 with Retry-After a few times.

        Raises:
            GoneError: 410.
            ApiError: any other error, a timeout, or a body that is no JSON object.
        """
        tries = 1
        while True:
            try:
                return await self._get(path, params or {}, accept)
            except ApiError as error:
                can_retry = error.status in _RETRY_STATUSES and error.retry_after_s > 0
                if not can_retry or tries == _MAX_TRIES:
                    raise
                await asyncio.sleep(min(error.retry_after_s, _MAX_PAUSE_S))
            tries += 1

    async def _get(self, path: str, params: Mapping[str, str], accept: str) -> Document:
        limit = aiohttp.ClientTimeout(total=self.timing.call_s)
        async with self._open_answer(path, params, accept, limit) as response:
            text = await response.read()
        try:
            body = json.loads(text)
        except ValueError as error:
            raise ApiError(0, f"{path}: the answer is not JSON: {error}") from error
        if not isinstance(body, dict):
            raise ApiError(0, f"{path}: the answer is not an object")
        return cast(Document, body)

    async def pages(
        self, path: str, params: Mapping[str, str], *, accept: str = JSON
    ) -> AsyncIterator[tuple[list[Document], int]]:
        """Yield the pages of a consistent list, each with the version of the whole list.

        Raises:
            GoneError: the list expired before its end.
            ApiError: a page could not be read.
        """
        query = {"limit": str(self.timing.page), **params}
        while True:
            body = await self.get(path, query, accept=accept)
            metadata: object = body.get("metadata")
            items = _list_items(body)
            if not isinstance(metadata, dict) or not isinstance(items, list):
                raise ApiError(
                    0, f"{path}: the answer is not a list: {str(body)[:_MAX_MESSAGE_CHARS]}"
                )
            yield items, _list_version(path, metadata)
            if not metadata.get("continue"):
                return
            query = {"limit": str(self.timing.page), "continue": str(metadata["continue"])}

    async def watch(self, path: str, version: int) -> AsyncGenerator[list[WatchEvent], None]:
        """Yield the events after a version, in batches as received.

        The first batch is empty: the server has begun to respond. Ends when the server ends the
        watch.

        Raises:
            GoneError: the version expired, the server reports an error, or nothing arrives, not
                even bookmarks.
            ApiError: the server rejects the watch, or the connection breaks.
        """
        params = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": str(version),
            "timeoutSeconds": str(self.timing.server_s),
        }
        limit = aiohttp.ClientTimeout(total=None, sock_connect=self.timing.call_s)
        async with self._open_answer(path, params, JSON, limit) as response:
            yield []
            loop, lines = asyncio.get_running_loop(), LineBuffer()
            deadline = loop.time() + self.timing.idle_s
            while data := await self._read_more(path, response, deadline - loop.time()):
                events = [_parse_event(path, line) for line in lines.feed(data)]
                if events:
                    deadline = loop.time() + self.timing.idle_s
                    yield events

    async def _read_more(self, path: str, answer: aiohttp.ClientResponse, seconds: float) -> bytes:
        try:
            return await with_timeout(max(seconds, 0.001), answer.content.readany())
        except TimeoutError as error:
            raise GoneError(0, f"{path}: the watch is silent") from error

    @asynccontextmanager
    async def _open_answer(
        self, path: str, params: Mapping[str, str], accept: str, limit: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            headers = {"Accept": accept}
            request = self._connection.request(
                "GET", path, query=params, headers=headers, limits=limit
            )
            response = await with_timeout(self.timing.call_s, request, aiohttp.ClientResponse.close)
            async with response:
                if response.status != 200:
                    raise await _refusal(path, response)
                yield response
        except TimeoutError as error:
            raise ApiError(0, f"{path}: no answer in time") from error
        except (aiohttp.ClientError, OSError) as error:
            raise ApiError(0, f"{path}: {type(error).__name__}: {error}") from error


async def _refusal(path: str, answer: aiohttp.ClientResponse) -> ApiError:
    text = await answer.content.read(_MAX_ERROR_BYTES)
    try:
        message = str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        message = text[:_MAX_MESSAGE_CHARS].decode(errors="replace")
    pause = parse_seconds(answer.headers.get("Retry-After")) or 0.0
    error_class = GoneError if answer.status == 410 else ApiError
    return error_class(answer.status, f"{path}: {answer.status}: {message}", pause)


def _list_items(body: Document) -> object:
    """Return the items of a list; an empty metadata list has null instead."""
    if body.get("kind") == "PartialObjectMetadataList" and body.get("items", ...) is None:
        return []
    return body.get("items")


def _list_version(path: str, metadata: Mapping[str, str]) -> int:
    try:
        return int(metadata["resourceVersion"])
    except (KeyError, ValueError, TypeError) as error:
        raise ApiError(0, f"{path}: a list without a version") from error


def _parse_event(path: str, line: bytes) -> WatchEvent:
    try:
        event = json.loads(line)
        kind, body = event["type"], event["object"]
    except (ValueError, KeyError, TypeError) as error:
        raise GoneError(0, f"{path}: the watch has a line that is not an event") from error
    if kind == "ERROR":
        raise GoneError(int(body.get("code", 0)), f"{path}: {body.get('message')}")
    return kind, body
