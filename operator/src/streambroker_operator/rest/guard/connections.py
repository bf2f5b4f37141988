"""HTTP listener: accepts connections, limits their number and closes idle ones.

A connection is idle while none of its requests is being handled. The listener closes:

- connections whose time limit has passed;
- if a limit is reached, the longest idle connection, of the same address or of all.

This keeps file descriptors free for the rest of the process.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from aiohttp import web
from aiohttp.http import HttpProcessingError
from aiohttp.typedefs import Handler

HEADER_S = 10.0
"""Time limit for a TLS handshake, and for the first header of a connection, in seconds."""
BODY_S = 30.0
"""Time limit for the body after the header, in seconds."""
IDLE_S = 75.0
"""Time limit between two requests, and for unsent response bytes without progress, in seconds."""
REPORT_S = 60.0
"""Minimum interval between log lines about closed connections, in seconds."""
SWEEP_S = 1.0
RETRY_S = 0.1
"""Pause after a failed accept, in seconds."""
ACCEPTS_PER_TURN = 16
"""Connections accepted in a row before other tasks run."""
BACKLOG = 1_024
MAX_ADDRESSES = 64
"""Addresses counted for one log line, at most."""

LATE, EVICTED, REFUSED = "were silent for too long", "made room for others", "were over the limit"
FAILED, STARVED = "failed in the TLS handshake", "could not be accepted by the system"
NOT_HTTP = "sent data that is not HTTP"

_log = logging.getLogger("streambroker.connections")

_CALLER_ERRORS = (HttpProcessingError, web.RequestPayloadError, ConnectionError)
"""Errors that the caller caused."""

_SocketAddress: TypeAlias = "tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]"


def connection_limit(maximum: int) -> int:
    """Return the connection limit: at most `maximum`, and below the descriptor limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return maximum
    return min(maximum, max(8, soft - min(256, max(32, soft // 4))))


@dataclass(slots=True, eq=False)
class ClientConnection:
    """One connection.

    Attributes:
        address: of the caller.
        idle_since: start of the connection, or end of its last request.
        requests: requests begun on it.
        transport: None until the TLS handshake has finished.
    """

    address: str
    idle_since: float
    requests: int = 0
    transport: asyncio.Transport | None = None
    close: Callable[[], object] = lambda: None
    _unsent: int = 0
    _unsent_since: float = field(init=False)

    def __post_init__(self) -> None:
        self._unsent_since = self.idle_since

    def is_expired(self, now: float, *, is_idle: bool) -> bool:
        """Return whether a header, the next request or unsent bytes exceeded their time limit."""
        unsent = 0 if self.transport is None else self.transport.get_write_buffer_size()
        if not unsent or unsent < self._unsent:
            self._unsent_since = now
        self._unsent = unsent
        if unsent:
            return now - self._unsent_since > IDLE_S
        return is_idle and now - self.idle_since > (IDLE_S if self.requests else HEADER_S)


class ConnectionTable:
    """Open connections, and the order in which idle ones are evicted."""

    def __init__(self, max_total: int, max_per_address: int) -> None:
        self._max_total, self._max_per_address = max_total, max_per_address
        self._count_by_address: Counter[str] = Counter()
        self.connections: set[ClientConnection] = set()
        # Longest idle first: of all connections, and per address.
        self._idle: dict[ClientConnection, None] = {}
        self._idle_by_address: dict[str, dict[ClientConnection, None]] = {}

    def eviction_candidate(self, address: str) -> ClientConnection | None:
        """Return the idle connection to evict before `address` adds one; None if there is none."""
        if self._count_by_address[address] >= self._max_per_address:
            return next(iter(self._idle_by_address.get(address, ())), None)
        if len(self.connections) >= self._max_total:
            return next(iter(self._idle), None)
        return None

    def has_room(self, address: str) -> bool:
        """Return whether both limits allow another connection of an address."""
        return (
            self._count_by_address[address] < self._max_per_address
            and len(self.connections) < self._max_total
        )

    def add(self, connection: ClientConnection) -> None:
        """Add a connection; it starts idle."""
        self.connections.add(connection)
        self._count_by_address[connection.address] += 1
        self.mark_idle(connection)

    def remove(self, connection: ClientConnection) -> None:
        """Remove a connection; unknown ones are ignored."""
        if connection not in self.connections:
            return
        self.connections.discard(connection)
        self.mark_busy(connection)
        self._count_by_address[connection.address] -= 1
        if not self._count_by_address[connection.address]:
            del self._count_by_address[connection.address]

    def mark_busy(self, connection: ClientConnection) -> None:
        """Mark a connection as handling a request."""
        self._idle.pop(connection, None)
        of_address = self._idle_by_address.get(connection.address, {})
        of_address.pop(connection, None)
        if not of_address:
            self._idle_by_address.pop(connection.address, None)

    def mark_idle(self, connection: ClientConnection) -> None:
        """Mark a connection as idle."""
        if connection in self.connections:
            self._idle[connection] = None
            self._idle_by_address.setdefault(connection.address, {})[connection] = None

    def expired(self, now: float) -> list[ClientConnection]:
        """Return the connections that exceeded a time limit."""
        return [one for one in self.connections if one.is_expired(now, is_idle=one in self._idle)]

    def longest_idle(self) -> ClientConnection | None:
        """Return the longest idle connection."""
        return next(iter(self._idle), None)


class ConnectionCounter:
    """Counts closed and refused connections, for one log line each minute."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._addresses: Counter[str] = Counter()
        self._reported = float("-inf")

    def note(self, reason: str, address: str) -> None:
        """Count a connection."""
        self._counts[reason] += 1
        if address in self._addresses or len(self._addresses) < MAX_ADDRESSES:
            self._addresses[address] += 1

    def report(self, now: float) -> None:
        """Write the log line, if anything was counted and the last line is `REPORT_S` old."""
        if not self._counts or now - self._reported < REPORT_S:
            return
        summary = ", ".join(f"{count} {reason}" for reason, count in sorted(self._counts.items()))
        address, count = self._addresses.most_common(1)[0]
        _log.warning("connections: %s; %d of them from %s", summary, count, address)
        self._counts.clear()
        self._addresses.clear()
        self._reported = now


class HttpLogger(logging.Logger):
    """Logger of the HTTP server; counts malformed input instead of logging it."""

    def __init__(self, counter: ConnectionCounter) -> None:
        super().__init__("streambroker.http")
        self.parent = logging.getLogger("streambroker")
        self._counter = counter

    def exception(self, msg: object, *args: object, **more: Any) -> None:
        """Log an error with its trace, unless the caller caused it."""
        if isinstance(more.get("exc_info"), _CALLER_ERRORS):
            self._counter.note(NOT_HTTP, str(args[0]) if args else "")
        else:
            super().exception(msg, *args, **more)


class Listener:
    """Listening sockets of an application; `tls` None means plain HTTP."""

    def __init__(
        self, max_total: int, max_per_address: int, tls: ssl.SSLContext | None = None
    ) -> None:
        self.connections, self.counter = (
            ConnectionTable(max_total, max_per_address),
            ConnectionCounter(),
        )
        self._tls = tls
        self._sockets: list[socket.socket] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._opening: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """The port, once it is open; with several addresses, that of the first."""
        return int(self._sockets[0].getsockname()[1])

    async def open(self, host: str, port: int, server: Callable[[], asyncio.Protocol]) -> None:
        """Listen, and pass connections to a server.

        Raises:
            OSError: the address is taken, or does not belong to this machine.
        """
        loop = asyncio.get_running_loop()
        flags = socket.AI_PASSIVE
        infos = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=flags)
        try:
            for family, address in dict.fromkeys((info[0], info[4]) for info in infos):
                self._sockets.append(_bind(family, address))
        except OSError:
            await self.close()
            raise
        self._tasks = [
            loop.create_task(self._accept(listening, server)) for listening in self._sockets
        ]
        self._tasks.append(loop.create_task(self._sweep()))

    async def close(self, _: object = None) -> None:
        """Stop accepting; open connections continue."""
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
            for _ in range(ACCEPTS_PER_TURN):
                try:
                    accepted, peer = await loop.sock_accept(listening)
                except OSError:
                    # Usually out of file descriptors: other parts of the process hold too many.
                    self._drop(self.connections.longest_idle(), STARVED)
                    await asyncio.sleep(RETRY_S)
                    break
                self._admit(accepted, str(peer[0]), server)
            await asyncio.sleep(0)

    def _admit(
        self, accepted: socket.socket, address: str, server: Callable[[], asyncio.Protocol]
    ) -> None:
        self._drop(self.connections.eviction_candidate(address), EVICTED)
        if not self.connections.has_room(address):
            self.counter.note(REFUSED, address)
            accepted.close()
            return
        loop = asyncio.get_running_loop()
        connection = ClientConnection(address, loop.time())
        self.connections.add(connection)
        accepted.setblocking(False)
        task = loop.create_task(self._open(accepted, connection, server))
        self._opening.add(task)

        def opened(_: object) -> None:
            self._opening.discard(task)
            if connection.transport is None:
                self.connections.remove(connection)
                accepted.close()

        task.add_done_callback(opened)
        connection.close = task.cancel

    async def _open(
        self,
        accepted: socket.socket,
        connection: ClientConnection,
        server: Callable[[], asyncio.Protocol],
    ) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: _TrackedProtocol(server(), connection, self.connections),
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else HEADER_S,
            )
        except OSError:  # ssl errors are OSErrors
            self.counter.note(FAILED, connection.address)

    def _drop(self, connection: ClientConnection | None, reason: str) -> None:
        if connection is None:
            return
        self.counter.note(reason, connection.address)
        self.connections.remove(connection)
        connection.close()

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_S)
            for connection in self.connections.expired(loop.time()):
                if connection.requests:
                    self.connections.remove(connection)
                    connection.close()
                else:
                    self._drop(connection, LATE)
            self.counter.report(loop.time())


def _bind(family: int, where: _SocketAddress) -> socket.socket:
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


class _TrackedProtocol(asyncio.Protocol):
    def __init__(
        self, inner: asyncio.Protocol, connection: ClientConnection, connections: ConnectionTable
    ) -> None:
        self._inner, self.connection, self.connections = inner, connection, connections

    def data_received(self, data: bytes) -> None:
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.connection.transport = stream = cast(asyncio.Transport, transport)
        self.connection.close = stream.abort
        self._inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.connections.remove(self.connection)
        self._inner.connection_lost(exc)


@web.middleware
async def track_connection(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Mark the connection busy while a request is handled; close it if the body is late."""
    protocol = None if request.transport is None else request.transport.get_protocol()
    if not isinstance(protocol, _TrackedProtocol):
        return await handler(request)
    connection, table = protocol.connection, protocol.connections
    loop = asyncio.get_running_loop()
    connection.requests += 1
    table.mark_busy(connection)

    def check() -> None:
        if not request.content.is_eof():
            connection.close()

    timer = loop.call_later(BODY_S, check) if request.can_read_body else None
    try:
        return await handler(request)
    finally:
        if timer is not None:
            timer.cancel()
        connection.idle_since = loop.time()
        table.mark_idle(connection)
