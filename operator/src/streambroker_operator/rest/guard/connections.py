"""Accept connections, and close those that hold a place and ask for nothing.

A connection is silent while no request of it is answered. Silent ones are closed when their time is
up, and earlier where a new connection needs the place: the oldest of the same address, or of all.
So there are always descriptors left for the rest of the process.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeAlias, cast

from aiohttp import web
from aiohttp.http import HttpProcessingError
from aiohttp.typedefs import Handler

HEADER_S = 10.0
"""How long a new connection may take for a whole header, or for a TLS handshake, in seconds."""
BODY_S = 30.0
"""How long the body may take that follows a header, in seconds."""
IDLE_S = 75.0
"""How long a connection is kept between two requests, or takes nothing of an answer, in seconds."""
REPORT_S = 60.0
"""The log has one line about closed connections in this time, in seconds."""
SWEEP_S = 1.0
RETRY_S = 0.1
"""Pause after the system has refused a connection, in seconds."""
AT_ONCE = 16
"""Connections that are accepted before other work, such as closing others, gets a turn."""
BACKLOG = 1_024
MOST_ADDRESSES = 64
"""Addresses that are counted for a line of the log."""

LATE, EVICTED, REFUSED = "were silent for too long", "made room for others", "found no room"
FAILED, STARVED = "failed in the TLS handshake", "could not be accepted by the system"
JUNK = "sent what is no HTTP"

_log = logging.getLogger("streambroker.connections")

_OF_CALLERS = (HttpProcessingError, web.RequestPayloadError, ConnectionError)
"""Failures of which the caller is the cause."""

_Where: TypeAlias = "tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]"


def places(allowed: int) -> int:
    """Return how many connections there may be, so many at most, below the limit of descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return allowed
    return min(allowed, max(8, soft - min(256, max(32, soft // 4))))


class Connection:
    """One connection.

    Attributes:
        address: of the caller.
        since: when it became silent last; its start, or the end of its last request.
        requests: how many it has begun.
        transport: None before the TLS handshake is over.
    """

    __slots__ = ("_unsent", "_unsent_since", "address", "close", "requests", "since", "transport")

    def __init__(self, address: str, now: float) -> None:
        self.address, self.since = address, now
        self.requests = 0
        self.transport: asyncio.Transport | None = None
        self.close: Callable[[], object] = lambda: None
        self._unsent, self._unsent_since = 0, now

    def late(self, now: float, *, silent: bool) -> bool:
        """Say whether its time is up: for a header, for the next request, or for taking answers."""
        unsent = 0 if self.transport is None else self.transport.get_write_buffer_size()
        if not unsent or unsent < self._unsent:
            self._unsent_since = now
        self._unsent = unsent
        if unsent:
            return now - self._unsent_since > IDLE_S
        return silent and now - self.since > (IDLE_S if self.requests else HEADER_S)


class Room:
    """All connections: which are silent, and which has to go for a new one.

    Args:
        most: connections in all.
        each: connections of one address.
    """

    def __init__(self, most: int, each: int) -> None:
        self._most, self._each = most, each
        self._count: Counter[str] = Counter()
        self.all: set[Connection] = set()
        # The one that has been silent for longest is the first; of all, and by address.
        self._silent: dict[Connection, None] = {}
        self._silent_of: dict[str, dict[Connection, None]] = {}

    def in_the_way(self, address: str) -> Connection | None:
        """Return the silent connection that has to go before another one of an address may come."""
        if self._count[address] >= self._each:
            return next(iter(self._silent_of.get(address, ())), None)
        if len(self.all) >= self._most:
            return next(iter(self._silent), None)
        return None

    def fits(self, address: str) -> bool:
        """Say whether there is room for another connection of an address."""
        return self._count[address] < self._each and len(self.all) < self._most

    def add(self, connection: Connection) -> None:
        """Take in a connection, which is silent."""
        self.all.add(connection)
        self._count[connection.address] += 1
        self.rest(connection)

    def remove(self, connection: Connection) -> None:
        """Forget a connection, if it is known."""
        if connection not in self.all:
            return
        self.all.discard(connection)
        self.work(connection)
        self._count[connection.address] -= 1
        if not self._count[connection.address]:
            del self._count[connection.address]

    def work(self, connection: Connection) -> None:
        """Note that a request of a connection is answered."""
        self._silent.pop(connection, None)
        of_address = self._silent_of.get(connection.address, {})
        of_address.pop(connection, None)
        if not of_address:
            self._silent_of.pop(connection.address, None)

    def rest(self, connection: Connection) -> None:
        """Note that a connection is silent from now on."""
        if connection in self.all:
            self._silent[connection] = None
            self._silent_of.setdefault(connection.address, {})[connection] = None

    def late(self, now: float) -> list[Connection]:
        """Return the connections whose time is up."""
        return [one for one in self.all if one.late(now, silent=one in self._silent)]

    def oldest(self) -> Connection | None:
        """Return the connection that has been silent for longest."""
        return next(iter(self._silent), None)


class Tally:
    """Counts what became of connections, for one line of the log each minute."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._addresses: Counter[str] = Counter()
        self._reported = float("-inf")

    def note(self, reason: str, address: str) -> None:
        """Count a connection."""
        self._counts[reason] += 1
        if address in self._addresses or len(self._addresses) < MOST_ADDRESSES:
            self._addresses[address] += 1

    def report(self, now: float) -> None:
        """Write the line, if there is something to report and the last one is a minute old."""
        if not self._counts or now - self._reported < REPORT_S:
            return
        told = ", ".join(f"{count} {reason}" for reason, count in sorted(self._counts.items()))
        address, count = self._addresses.most_common(1)[0]
        _log.warning("connections: %s; %d of them from %s", told, count, address)
        self._counts.clear()
        self._addresses.clear()
        self._reported = now


class HttpLog(logging.Logger):
    """What the HTTP server writes to the log, but for junk, which is counted.

    Args:
        tally: counts it.
    """

    def __init__(self, tally: Tally) -> None:
        super().__init__("streambroker.http")
        self.parent = logging.getLogger("streambroker")
        self._tally = tally

    def exception(self, msg: object, *args: object, **more: Any) -> None:
        """Write a failure with its trace, unless the caller is to blame."""
        if isinstance(more.get("exc_info"), _OF_CALLERS):
            self._tally.note(JUNK, str(args[0]) if args else "")
        else:
            super().exception(msg, *args, **more)


class Doors:
    """The port of an application.

    Args:
        most: connections in all.
        each: connections of one address.
        tls: shows the certificate; None for plain HTTP.
    """

    def __init__(self, most: int, each: int, tls: ssl.SSLContext | None = None) -> None:
        self.room, self.tally = Room(most, each), Tally()
        self._tls = tls
        self._sockets: list[socket.socket] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._opening: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """The port, once it is open; of several addresses, that of the first."""
        return int(self._sockets[0].getsockname()[1])

    async def open(self, host: str, port: int, server: Callable[[], asyncio.Protocol]) -> None:
        """Listen, and have a server answer.

        Raises:
            OSError: the address is taken, or is not of this machine.
        """
        loop = asyncio.get_running_loop()
        flags = socket.AI_PASSIVE
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=flags)
        try:
            for family, where in dict.fromkeys((each[0], each[4]) for each in found):
                self._sockets.append(_bound(family, where))
        except OSError:
            await self.close()
            raise
        self._tasks = [loop.create_task(self._accept(one, server)) for one in self._sockets]
        self._tasks.append(loop.create_task(self._sweep()))

    async def close(self, _: object = None) -> None:
        """Accept no more; connections that are there go on."""
        ending = [*self._tasks, *self._opening]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        for listening in self._sockets:
            listening.close()

    async def _accept(
        self, listening: socket.socket, server: Callable[[], asyncio.Protocol]
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            for _ in range(AT_ONCE):
                try:
                    accepted, where = await loop.sock_accept(listening)
                except OSError:
                    # Of descriptors, most often: other parts of the process have too many.
                    self._drop(self.room.oldest(), STARVED)
                    await asyncio.sleep(RETRY_S)
                    break
                self._admit(accepted, str(where[0]), server)
            await asyncio.sleep(0)

    def _admit(
        self, accepted: socket.socket, address: str, server: Callable[[], asyncio.Protocol]
    ) -> None:
        self._drop(self.room.in_the_way(address), EVICTED)
        if not self.room.fits(address):
            self.tally.note(REFUSED, address)
            accepted.close()
            return
        loop = asyncio.get_running_loop()
        connection = Connection(address, loop.time())
        self.room.add(connection)
        accepted.setblocking(False)
        task = loop.create_task(self._open(accepted, connection, server))
        self._opening.add(task)

        def opened(_: object) -> None:
            self._opening.discard(task)
            if connection.transport is None:
                self.room.remove(connection)
                accepted.close()

        task.add_done_callback(opened)
        connection.close = task.cancel

    async def _open(
        self,
        accepted: socket.socket,
        connection: Connection,
        server: Callable[[], asyncio.Protocol],
    ) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: _Watched(server(), connection, self.room),
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else HEADER_S,
            )
        except OSError:  # those of ssl are OSErrors
            self.tally.note(FAILED, connection.address)

    def _drop(self, connection: Connection | None, reason: str) -> None:
        if connection is None:
            return
        self.tally.note(reason, connection.address)
        self.room.remove(connection)
        connection.close()

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_S)
            for connection in self.room.late(loop.time()):
                if connection.requests:
                    self.room.remove(connection)
                    connection.close()
                else:
                    self._drop(connection, LATE)
            self.tally.report(loop.time())


def _bound(family: int, where: _Where) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(where)
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening


class _Watched(asyncio.Protocol):
    """Passes everything on to the server's protocol, and knows the connection."""

    def __init__(self, inner: asyncio.Protocol, connection: Connection, room: Room) -> None:
        self._inner, self.connection, self.room = inner, connection, room

    def data_received(self, data: bytes) -> None:
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.connection.transport = found = cast(asyncio.Transport, transport)
        self.connection.close = found.abort
        self._inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.room.remove(self.connection)
        self._inner.connection_lost(exc)


@web.middleware
async def occupied(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Keep a connection while a request of it is answered; close it if the body does not come."""
    protocol = None if request.transport is None else request.transport.get_protocol()
    if not isinstance(protocol, _Watched):
        return await handler(request)
    connection, room = protocol.connection, protocol.room
    loop = asyncio.get_running_loop()
    connection.requests += 1
    room.work(connection)

    def check() -> None:
        if not request.content.is_eof():
            connection.close()

    timer = loop.call_later(BODY_S, check) if request.can_read_body else None
    try:
        return await handler(request)
    finally:
        if timer is not None:
            timer.cancel()
        connection.since = loop.time()
        room.rest(connection)
