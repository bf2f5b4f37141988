"""Send hints by UDP: never waited for, never repeated, at most one per PE and turn."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from streambroker_core.errors import ManifestError
from streambroker_core.model import PeKey
from streambroker_core.wire.registration import split_address

RESOLVERS = 2
"""Threads that look host names up; a slow name keeps nothing else waiting."""
MAX_LOOKUPS = 64
"""Addresses that may wait for their names at once; hints for more are forgotten."""

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
        # By address: who looks it up, and the last datagram for it.
        self._lookups: dict[str, asyncio.Task[None]] = {}
        self._latest: dict[str, bytes] = {}
        self._resolvers = ThreadPoolExecutor(RESOLVERS, "hint names")
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
        await asyncio.gather(*self._lookups.values())

    def close(self) -> None:
        """Close the sockets and forget what waits for a name to be looked up."""
        for lookup in self._lookups.values():
            lookup.cancel()
        self._resolvers.shutdown(wait=False, cancel_futures=True)
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
            self._send_to(address, host, port, datagram)
        except (ManifestError, OSError) as error:
            self._note_failure(address, error)

    def _send_to(self, address: str, host: str, port: int, datagram: bytes) -> None:
        try:
            version = ipaddress.ip_address(host).version
        except ValueError:
            self._wait_for_name(address, host, port, datagram)
            return
        family = socket.AF_INET if version == 4 else socket.AF_INET6
        self._socket(family).sendto(datagram, (host, port))
        self.sent += 1

    def _wait_for_name(self, address: str, host: str, port: int, datagram: bytes) -> None:
        if address not in self._lookups:
            if len(self._lookups) >= MAX_LOOKUPS:
                self._note_failure(address, OSError("too many names are looked up"))
                return
            lookup = asyncio.get_running_loop().create_task(self._look_up(address, host, port))
            self._lookups[address] = lookup
        self._latest[address] = datagram

    async def _look_up(self, address: str, host: str, port: int) -> None:
        loop = asyncio.get_running_loop()
        asked = partial(socket.getaddrinfo, host, port, type=socket.SOCK_DGRAM)
        try:
            found = await loop.run_in_executor(self._resolvers, asked)
            family, _, _, _, where = found[0]
            self._socket(family).sendto(self._latest[address], where)
            self.sent += 1
        except (OSError, UnicodeError) as error:
            self._note_failure(address, error)
        finally:
            del self._lookups[address], self._latest[address]

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
