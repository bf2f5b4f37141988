"""``GET /events``: changes as server-sent events (HTML, section 9.2).

- A reader that reconnects with ``Last-Event-ID`` receives the events it missed.
- If those are no longer kept, or a reader is too slow, ``reset`` asks it to list everything again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from aiohttp import web

from streambroker_core.wire.encoding.canonical import canonical
from streambroker_operator.rest.guard.authentication import is_still_authorised
from streambroker_operator.rest.guard.rate_limits import CALLER_LIMITS, too_many_error
from streambroker_operator.rest.http.paths import API
from streambroker_operator.rest.http.requests import RUNTIME, parse_namespace_or_all
from streambroker_operator.rest.http.responses import not_synced_error
from streambroker_operator.runtime.change_log import (
    ChangeEvent,
    ChangeLog,
    ChangeReader,
    select_events,
)

EVENTS_PER_PIECE = 256
"""Events sent in one chunk, at most."""
DRAIN_S = 30.0
"""How long a dropped reader may take to read what was sent, in seconds."""
MAX_SKIPPED = 1_000
"""A reader receives its position after this many events of other namespaces."""
RETRY_MS = 1_000
"""Reconnect delay for readers, in milliseconds."""

routes = web.RouteTableDef()


@routes.get(API + "/events")
async def get_events(request: web.Request) -> web.StreamResponse:
    """Stream events until the reader disconnects or the broker stops."""
    namespace = parse_namespace_or_all(request)
    changes = request.app[RUNTIME].change_log
    limits = request.app[CALLER_LIMITS]
    if changes.closed:
        raise not_synced_error("The broker is stopping.")
    if changes.reader_count >= limits.limits.followers:
        raise too_many_error(f"There are already {limits.limits.followers} readers of events.", 5.0)
    with limits.followers.hold(request):
        return await _answer(request, changes, namespace, limits.limits.keepalive_s)


async def _answer(
    request: web.Request, changes: ChangeLog, namespace: str, keepalive_s: float
) -> web.StreamResponse:
    response = web.StreamResponse(
        headers={
            "Content-Type": "text/event-stream",
            "Cache-Control": "no-store",
            "X-Accel-Buffering": "no",
        }
    )
    await response.prepare(request)
    if request.method == "GET":
        await _Stream(request, response, changes, namespace).run(keepalive_s)
    return response


class _Stream:
    def __init__(
        self,
        request: web.Request,
        response: web.StreamResponse,
        changes: ChangeLog,
        namespace: str,
    ) -> None:
        self._request = request
        self._response = response
        self._changes = changes
        self._namespace = namespace
        self._sent_number = changes.count

    async def run(self, keepalive_s: float) -> None:
        """Send events until the reader disconnects or is dropped."""
        last = self._request.headers.get("Last-Event-ID")
        reader = self._changes.follow(last)
        preamble = f"retry: {RETRY_MS}\n\n".encode()
        if reader is None:
            reader = self._changes.follow(None)
            preamble += self._reset("the events since then are no longer stored")
        elif last is None:
            preamble = f"id: {self._changes.id_for(reader.position)}\n".encode() + preamble
        if reader is None:
            raise LookupError("a reader without an id can always follow")
        try:
            with suppress(ConnectionError):
                await self._follow(reader, preamble, keepalive_s)
        finally:
            self._changes.unfollow(reader)

    async def _follow(self, follower: ChangeReader, greeting: bytes, keepalive_s: float) -> None:
        await self._write(greeting, until=follower.dropped)
        while not follower.is_dropped and await is_still_authorised(self._request):
            events = self._changes.events_after(follower.position, EVENTS_PER_PIECE)
            if events is None:
                break
            if events:
                await self._write(self._piece(events), until=follower.dropped)
                follower.position = events[-1].number
            elif not await follower.wait_for_event(keepalive_s):
                await self._write(b": still here\n\n", until=follower.dropped)
        authorised = await is_still_authorised(self._request)
        await self._end("the reader is too slow" if authorised else "the token is no longer valid")

    def _piece(self, events: Sequence[ChangeEvent]) -> bytes:
        """Return the reader's events; after many events of other namespaces, the new position."""
        end = events[-1].number
        mine = select_events(events, self._namespace)
        if mine:
            self._sent_number = mine[-1].number
        elif end - self._sent_number >= MAX_SKIPPED:
            self._sent_number = end
            # A reader that reconnects continues after this number.
            return f"id: {self._changes.id_for(end)}\n\n".encode()
        return b"".join(
            _event(self._changes.id_for(one.number), one.name, one.data) for one in mine
        )

    async def _write(self, piece: bytes, until: asyncio.Future[None]) -> None:
        if not piece:
            return
        writing = asyncio.ensure_future(self._response.write(piece))
        await asyncio.wait([writing, until], return_when=asyncio.FIRST_COMPLETED)
        if writing.done():
            await writing
        else:
            writing.cancel()

    async def _end(self, reason: str) -> None:
        """Send a reset to a dropped reader and close its connection.

        A slow reader gets `DRAIN_S` to read what was sent; when the broker stops, none.
        """
        self._response.force_close()
        loop, transport = asyncio.get_running_loop(), self._request.transport
        if transport is None or self._changes.closed:
            return
        done = loop.create_future()
        loop.call_later(0.0, done.set_result, None)
        await self._write(self._reset(reason), until=done)
        transport.close()
        loop.call_later(DRAIN_S, transport.abort)

    def _reset(self, reason: str) -> bytes:
        point = list(self._request.app[RUNTIME].board.point)
        data = canonical({"type": "RESET", "reason": reason, "point": point})
        return _event(self._changes.id_for(self._changes.count), "reset", data)


def _event(id_: str, name: str, data: bytes) -> bytes:
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (id_.encode(), name.encode(), data)
