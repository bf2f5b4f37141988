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
from streambroker_operator.rest.guard.authentication import still_known
from streambroker_operator.rest.guard.rate_limits import GAUGES, too_many
from streambroker_operator.rest.http.paths import API
from streambroker_operator.rest.http.requests import RUNTIME, chosen_namespace
from streambroker_operator.runtime.change_log import Change, ChangeLog, Follower, selected

AT_ONCE = 256
"""How many events go into one piece."""
PARTING_S = 30.0
"""How long a slow reader may take to read what is on its way to it, in seconds."""
UNTOLD = 1_000
"""After how many events of other namespaces a reader is told how far it has got."""
RETRY_MS = 1_000
"""After how long a reader whose connection broke comes back, in milliseconds."""

routes = web.RouteTableDef()


@routes.get(API + "/events")
async def get_events(request: web.Request) -> web.StreamResponse:
    """Answer events for as long as the reader and the broker are there."""
    namespace = chosen_namespace(request)
    changes = request.app[RUNTIME].changes
    gauges = request.app[GAUGES]
    if changes.closed:
        raise RequestError(
            503, "NotSynced", "The broker is stopping.", headers={"Retry-After": "1"}
        )
    if changes.followers >= gauges.limits.followers:
        raise too_many(f"{gauges.limits.followers} readers follow already.", 5.0)
    with gauges.following(request):
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
        self._told = changes.count

    async def run(self, keepalive_s: float) -> None:
        """Send events until one of the two goes."""
        last = self._request.headers.get("Last-Event-ID")
        follower = self._changes.follow(last)
        greeting = f"retry: {RETRY_MS}\n\n".encode()
        if follower is None:
            follower = self._changes.follow(None)
            greeting += self._reset("the events since then are not kept")
        elif last is None:
            greeting = f"id: {self._changes.id_of(follower.place)}\n".encode() + greeting
        if follower is None:
            raise LookupError("whoever has no id can always follow")
        try:
            with suppress(ConnectionError):
                await self._follow(follower, greeting, keepalive_s)
        finally:
            self._changes.leave(follower)

    async def _follow(self, follower: Follower, greeting: bytes, keepalive_s: float) -> None:
        await self._send(follower, greeting)
        while not follower.lost and await still_known(self._request):
            found = self._changes.after(follower.place, AT_ONCE)
            if found is None:
                break
            if found:
                await self._send(follower, self._piece(found))
                follower.place = found[-1].number
            elif not await follower.news(keepalive_s):
                await self._send(follower, b": still here\n\n")
        known = await still_known(self._request)
        await self._part("the reader is too slow" if known else "the token has gone")

    def _piece(self, found: Sequence[Change]) -> bytes:
        """Return what a reader gets of some events; of many that are not its own, their end."""
        end = found[-1].number
        mine = selected(found, self._namespace)
        if mine:
            self._told = mine[-1].number
        elif end - self._told >= UNTOLD:
            self._told = end
            return _id(self._changes, end)
        return b"".join(_event(self._changes.id_of(one.number), one.name, one.data) for one in mine)

    async def _send(self, follower: Follower, piece: bytes) -> None:
        """Send a piece, unless the reader is let go meanwhile."""
        if piece:
            await self._write(piece, until=follower.gone)

    async def _write(self, piece: bytes, until: asyncio.Future[None]) -> None:
        writing = asyncio.ensure_future(self._response.write(piece))
        await asyncio.wait([writing, until], return_when=asyncio.FIRST_COMPLETED)
        if writing.done():
            await writing
        else:
            writing.cancel()

    async def _part(self, reason: str) -> None:
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
        loop.call_later(PARTING_S, transport.abort)

    def _reset(self, reason: str) -> bytes:
        point = list(self._request.app[RUNTIME].board.point)
        data = canonical({"type": "RESET", "reason": reason, "point": point})
        return _event(self._changes.id_of(self._changes.count), "reset", data)


def _id(changes: ChangeLog, number: int) -> bytes:
    """Return a block that is no event: whoever comes back goes on after this number."""
    return f"id: {changes.id_of(number)}\n\n".encode()


def _event(id_: str, name: str, data: bytes) -> bytes:
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (id_.encode(), name.encode(), data)
