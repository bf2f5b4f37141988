"""Send hints by UDP: without waiting or retries, at most one per PE and loop iteration.

Datagrams per address are rate-limited. A hint above the limit waits, and a later hint for the same
PE replaces it, so the last hint is always sent.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket

from streambroker_core.errors import ManifestError
from streambroker_core.model import PeKey
from streambroker_core.wire.broker.hints import POLL_SPACING_S
from streambroker_core.wire.broker.registration import is_hint_target, split_address
from streambroker_operator.cooperative import loop_time
from streambroker_operator.security.token_buckets import TokenBuckets

PER_PORT_S, PORT_BURST = 1 / POLL_SPACING_S, 50
"""Datagrams per second, and burst, to one address and port: as often as an agent polls."""
PER_HOST_S, HOST_BURST = 1_000.0, 2_000
"""Datagrams per second, and burst, to all ports of one address."""
CHALLENGES_PER_PORT_S, CHALLENGE_PORT_BURST = 0.1, 2
"""Challenges per second, and burst, to one port; they go to unverified addresses."""
CHALLENGES_PER_HOST_S, CHALLENGE_HOST_BURST = 10.0, 100
MAX_ADDRESSES = 20_000
"""Addresses remembered for limits; the one unused for longest is forgotten."""

_log = logging.getLogger("streambroker.hints")


class DatagramRateLimiter:
    """Rate limits per port and per address: datagrams per second, and burst."""

    def __init__(self, port: tuple[float, int], host: tuple[float, int]) -> None:
        self._port = TokenBuckets(*port, MAX_ADDRESSES)
        self._host = TokenBuckets(*host, MAX_ADDRESSES)

    def try_take(self, address: str, host: str, now: float) -> bool:
        """Take a token if a datagram may be sent; return whether it may."""
        if self._port.wait(address, now) or self._host.wait(host, now):
            return False
        self._port.take(address, now)
        self._host.take(host, now)
        return True


class HintSender:
    """Sends queued datagrams at the end of each loop iteration, from one socket per IP version.

    Datagrams that cannot be sent are dropped: the agent polls anyway.

    Attributes:
        sent: datagrams passed to the network.
        failed: datagrams that the network refused, or with an invalid address.
    """

    def __init__(self) -> None:
        # The datagram of each PE by address, and the address of each PE.
        self._pending: dict[str, dict[PeKey, bytes]] = {}
        self._addresses: dict[PeKey, str] = {}
        self._flushing: asyncio.Handle | None = None
        self._closed = False
        self._sockets: dict[socket.AddressFamily, socket.socket] = {}
        self._hint_rates = DatagramRateLimiter((PER_PORT_S, PORT_BURST), (PER_HOST_S, HOST_BURST))
        self._challenge_rates = DatagramRateLimiter(
            (CHALLENGES_PER_PORT_S, CHALLENGE_PORT_BURST),
            (CHALLENGES_PER_HOST_S, CHALLENGE_HOST_BURST),
        )
        self.sent = 0
        self.failed = 0

    def send(self, pe: PeKey, address: str, datagram: bytes) -> None:
        """Queue a datagram for ``IP:port``; a later one for the PE replaces it."""
        previous = self._addresses.get(pe)
        if previous is not None and previous != address:
            self._remove_pending(previous, pe)
        self._addresses[pe] = address
        self._pending.setdefault(address, {})[pe] = datagram
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().call_soon(self._flush)

    def challenge(self, address: str, datagram: bytes) -> None:
        """Send a datagram to an unverified address, or drop it if there are too many."""
        host, now = _parse_host(address), loop_time()
        if (
            host is not None
            and not self._closed
            and self._challenge_rates.try_take(address, host, now)
        ):
            self._send_one(address, host, datagram)

    def close(self) -> None:
        """Close the sockets and drop queued datagrams."""
        self._closed = True
        if self._flushing is not None:
            self._flushing.cancel()
        for sender in self._sockets.values():
            sender.close()
        self._sockets.clear()

    def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._flushing = None
        for address, of_address in list(self._pending.items()):
            host = _parse_host(address)
            for pe, datagram in list(of_address.items()):
                if host is None:
                    self._note_failure(address, "no hints are sent there")
                elif self._hint_rates.try_take(address, host, now):
                    self._send_one(address, host, datagram)
                else:
                    break
                self._remove_pending(address, pe)
        if self._pending:
            self._flushing = loop.call_later(POLL_SPACING_S, self._flush)

    def _remove_pending(self, address: str, pe: PeKey) -> None:
        of_address = self._pending[address]
        del of_address[pe], self._addresses[pe]
        if not of_address:
            del self._pending[address]

    def _send_one(self, address: str, host: str, datagram: bytes) -> None:
        version = ipaddress.ip_address(host).version
        family = socket.AF_INET if version == 4 else socket.AF_INET6
        try:
            self._socket(family).sendto(datagram, (host, split_address(address)[1]))
            self.sent += 1
        except OSError as error:
            self._note_failure(address, error)

    def _socket(self, family: socket.AddressFamily) -> socket.socket:
        sender = self._sockets.get(family)
        if sender is None:
            sender = socket.socket(family, socket.SOCK_DGRAM)
            sender.setblocking(False)
            self._sockets[family] = sender
        return sender

    def _note_failure(self, address: str, reason: object) -> None:
        self.failed += 1
        _log.debug("hint not sent to %s: %s", address, reason)


def _parse_host(address: str) -> str | None:
    """Return the IP address of ``host:port``; None if hints must not be sent there."""
    try:
        host, _ = split_address(address)
        return host if is_hint_target(host) else None
    except ManifestError:
        return None
