"""``GET /events``: what changes, as server-sent events (HTML, section 9.2).

Each event has an id; whoever comes back with the last one in ``Last-Event-ID`` gets
what it has missed. Where that is not kept any more, and where a reader is too slow,
``reset`` says that it has to list everything anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from aiohttp import web

from streambroker_core.wire.encoding.canonical import canonical
from streambroker_operator.errors import RequestError
from streambroker_operator.rest.guard.authentication import is_still_authorised
from streambroker_operator.rest.guard.rate_limits import CALLER_LIMITS, too_many_error
from streambroker_operator.rest.http.paths import API
from streambroker_operator.rest.http.requests import RUNTIME, parse_namespace_or_all
from streambroker_operator.runtime.change_log import (
    ChangeEvent,
    ChangeLog,
    ChangeReader,
    select_events,
)

EVENTS_PER_PIECE = 256
"""How many events go into one piece."""
DRAIN_S = 30.0
"""How long a slow reader may take to read what is on its way to it, in seconds."""
MAX_SKIPPED = 1_000
"""After how many events of other namespaces a reader is told how far it has got."""
RETRY_MS = 1_000
"""After how long a reader whose connection broke comes back, in milliseconds."""

routes = web.RouteTableDef()


@routes.get(API + "/events")
async def get_events(request: web.Request) -> web.StreamResponse:
    """Answer events for as long as the reader and the broker are there."""
    namespace = parse_namespace_or_all(request)
    changes = request.app[RUNTIME].change_log
    gauges = request.app[CALLER_LIMITS]
    if changes.closed:
        raise RequestError(
            503, "NotSynced", "The broker is stopping.", headers={"Retry-After": "1"}
        )
    if changes.reader_count >= gauges.limits.followers:
        raise too_many_error(f"{gauges.limits.followers} readers follow already.", 5.0)
    with gauges.hold_follower(request):
        return await _answer(request, changes, namespace, gauges.limits.keepalive_s)


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
    """One reader's events."""

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
        """Send events until one of the two goes."""
        last = self._request.headers.get("Last-Event-ID")
        follower = self._changes.follow(last)
        greeting = f"retry: {RETRY_MS}\n\n".encode()
        if follower is None:
            follower = self._changes.follow(None)
            greeting += self._reset("the events since then are not kept")
        elif last is None:
            greeting = f"id: {self._changes.id_for(follower.position)}\n".encode() + greeting
        if follower is None:
            raise LookupError("whoever has no id can always follow")
        try:
            with suppress(ConnectionError):
                await self._follow(follower, greeting, keepalive_s)
        finally:
            self._changes.unfollow(follower)

    async def _follow(self, follower: ChangeReader, greeting: bytes, keepalive_s: float) -> None:
        await self._send(follower, greeting)
        while not follower.is_dropped and await is_still_authorised(self._request):
            found = self._changes.events_after(follower.position, EVENTS_PER_PIECE)
            if found is None:
                break
            if found:
                await self._send(follower, self._piece(found))
                follower.position = found[-1].number
            elif not await follower.wait_for_event(keepalive_s):
                await self._send(follower, b": still here\n\n")
        known = await is_still_authorised(self._request)
        await self._end("the reader is too slow" if known else "the token has gone")

    def _piece(self, events: Sequence[ChangeEvent]) -> bytes:
        """Return what a reader gets of some events; of many that are not its own, their end."""
        end = events[-1].number
        mine = select_events(events, self._namespace)
        if mine:
            self._sent_number = mine[-1].number
        elif end - self._sent_number >= MAX_SKIPPED:
            self._sent_number = end
            return _id(self._changes, end)
        return b"".join(
            _event(self._changes.id_for(one.number), one.name, one.data) for one in mine
        )

    async def _send(self, follower: ChangeReader, piece: bytes) -> None:
        """Send a piece, unless the reader is let go meanwhile."""
        if piece:
            await self._write(piece, until=follower.dropped)

    async def _write(self, piece: bytes, until: asyncio.Future[None]) -> None:
        writing = asyncio.ensure_future(self._response.write(piece))
        await asyncio.wait([writing, until], return_when=asyncio.FIRST_COMPLETED)
        if writing.done():
            await writing
        else:
            writing.cancel()

    async def _end(self, reason: str) -> None:
        """Tell a reader that is let go, and close its connection.

        What is still on its way to a slow reader gets some time; when the broker stops,
        none.
        """
        self._response.force_close()
        loop, transport = asyncio.get_running_loop(), self._request.transport
        if transport is None:
            return
        if self._changes.closed:
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


def _id(changes: ChangeLog, number: int) -> bytes:
    """Return a block that is no event: whoever comes back goes on after this number."""
    return f"id: {changes.id_for(number)}\n\n".encode()


def _event(id_: str, name: str, data: bytes) -> bytes:
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (id_.encode(), name.encode(), data)
