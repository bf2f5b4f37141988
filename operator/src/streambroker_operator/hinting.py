"""Send hints by UDP: never waited for, never repeated, at most one per PE and turn."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket

from streambroker_core.errors import ManifestError
from streambroker_core.model import PeKey
from streambroker_core.wire.registration import split_address

_log = logging.getLogger("streambroker.hints")


class HintSender:
    """A pair of UDP sockets and what is to go out in this turn of the event loop.

    What cannot be sent is forgotten: the agent polls anyway.

    Attributes:
        sent: datagrams handed to the network.
        failed: datagrams that the network or the resolver refused.
    """

    def __init__(self) -> None:
        self._pending: dict[PeKey, tuple[str, bytes]] = {}
        self._sockets: dict[socket.AddressFamily, socket.socket] = {}
        self._lookups: set[asyncio.Task[None]] = set()
        self.sent = 0
        self.failed = 0

    def send(self, pe: PeKey, address: str, datagram: bytes) -> None:
        """Send a datagram at the end of this turn; a later one for the PE replaces it.

        Args:
            pe: whose agent it is for.
            address: ``host:port``.
            datagram: the signed hint.
        """
        if not self._pending:
            asyncio.get_running_loop().call_soon(self._flush)
        self._pending[pe] = (address, datagram)

    async def settled(self) -> None:
        """Return when no name is being looked up any more."""
        await asyncio.gather(*self._lookups)

    def close(self) -> None:
        """Close the sockets and forget what waits for a name to be looked up."""
        for lookup in self._lookups:
            lookup.cancel()
        for sender in self._sockets.values():
            sender.close()
        self._sockets.clear()

    def _flush(self) -> None:
        pending, self._pending = self._pending, {}
        for address, datagram in pending.values():
            self._send_one(address, datagram)

    def _send_one(self, address: str, datagram: bytes) -> None:
        try:
            host, port = split_address(address)
            self._send_to(host, port, datagram)
        except (ManifestError, OSError) as error:
            self._note_failure(address, error)

    def _send_to(self, host: str, port: int, datagram: bytes) -> None:
        try:
            version = ipaddress.ip_address(host).version
        except ValueError:
            lookup = asyncio.get_running_loop().create_task(self._look_up(host, port, datagram))
            self._lookups.add(lookup)
            lookup.add_done_callback(self._lookups.discard)
            return
        family = socket.AF_INET if version == 4 else socket.AF_INET6
        self._socket(family).sendto(datagram, (host, port))
        self.sent += 1

    async def _look_up(self, host: str, port: int, datagram: bytes) -> None:
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_DGRAM)
            family, _, _, _, where = found[0]
            self._socket(family).sendto(datagram, where)
            self.sent += 1
        except OSError as error:
            self._note_failure(f"{host}:{port}", error)

    def _socket(self, family: socket.AddressFamily) -> socket.socket:
        sender = self._sockets.get(family)
        if sender is None:
            sender = socket.socket(family, socket.SOCK_DGRAM)
            sender.setblocking(False)
            self._sockets[family] = sender
        return sender

    def _note_failure(self, address: str, error: Exception) -> None:
        self.failed += 1
        _log.debug("hint not sent to %s: %s", address, error)
