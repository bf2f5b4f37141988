"""Where an agent listens, and the certificate that it shows there.

Flight cannot change the certificate of a server, nor let two servers listen at one port. So one
with the new certificate takes the place of the other: the old one stops listening and ends its
calls under way, the new one listens a few milliseconds later. Callers connect again by themselves,
as after a restart of the agent.
"""

from __future__ import annotations

import hashlib
import logging
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from pe_agent.transport.agent_tls import AgentCertificate, AgentTrust
from pe_agent.transport.broker_trust import AGENT_NAME, TrustError

LOOK_SECONDS = 1.0
LONG_SECONDS = 5.0
"""After so long without being able to listen again, the log says so."""

log = logging.getLogger("pe_agent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A certificate chain with its key, checked: they belong together and are an agent's.

    Attributes:
        clients: the certificates of which a caller has to have one; None if it needs none.
    """

    chain: bytes
    key: bytes
    fingerprint: str
    until: str
    clients: bytes | None = None

    def settings(self) -> dict[str, Any]:
        """Return what a Flight server is made with."""
        certificates = {"tls_certificates": [(self.chain, self.key)]}
        if self.clients is None:
            return certificates
        return {**certificates, "verify_client": True, "root_certificates": self.clients}


class Listener:
    """One Flight server, replaced when the certificate changes.

    Args:
        host: address to listen at.
        make: makes the server for a location and what it shows.
        certificate: what to show; None for no TLS.
        clients: whose certificates callers need; None if they need none.

    Raises:
        TrustError: the certificate cannot be used.
    """

    def __init__(
        self,
        host: str,
        make: Callable[[str, Shown | None], flight.FlightServerBase],
        certificate: AgentCertificate | None,
        clients: AgentTrust | None = None,
    ) -> None:
        self._host, self._make, self._certificate = host, make, certificate
        self._clients = clients
        self._seen: tuple[object, ...] = ()
        self._shown: Shown | None = None
        self._error: str | None = None
        self._server: flight.FlightServerBase | None = None
        self._ended = threading.Event()
        self._leaving: list[threading.Thread] = []
        self._follower = threading.Thread(target=self._follow, daemon=True, name="certificate")
        self.port = 0
        if certificate is not None:
            self._seen = self._state(certificate)
            self._shown = self._read(certificate)

    @property
    def location(self) -> str:
        """Where callers find the agent."""
        return self._at(self.port)

    def _at(self, port: int) -> str:
        return f"grpc+{'tls' if self._certificate else 'tcp'}://{self._host}:{port}"

    def open(self, port: int) -> None:
        """Listen.

        Args:
            port: 0 for any.

        Raises:
            pa.ArrowException, OSError: the address is taken.
        """
        self._server = self._serving(port, self._shown)
        self.port = self._server.port
        if self._certificate is not None:
            self._follower.start()

    def _serving(self, port: int, shown: Shown | None) -> flight.FlightServerBase:
        return self._make(self._at(port), shown)

    def _read(self, certificate: AgentCertificate) -> Shown:
        clients = None if self._clients is None else self._clients.anchors()
        return replace(read(certificate), clients=clients)

    def _state(self, certificate: AgentCertificate) -> tuple[object, ...]:
        """Return what differs once something else is to be shown, or asked for."""
        return (*certificate.state(), self._clients and self._clients.anchors())

    def status(self) -> dict[str, Any] | None:
        """Return which certificate is shown and why not a later one, None without TLS."""
        if self._shown is None:
            return None
        return {
            "sha256": self._shown.fingerprint,
            "until": self._shown.until,
            "error": self._error,
        }

    # -- another certificate -----------------------------------------------------------------

    def _follow(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            try:
                self.look()
            except Exception:
                # Without this thread no certificate would ever be taken in again.
                log.exception("the certificate was not looked at")

    def look(self) -> None:
        """Show what the files have become; what cannot be used changes nothing."""
        certificate = self._certificate
        if certificate is None:
            return
        state = self._state(certificate)
        if state == self._seen:
            return
        self._seen = state
        try:
            found = self._read(certificate)
            if self._shown == found:
                self._error = None
                return
            # Flight has to take it, too, before the server that works goes.
            self._let_go(self._serving(0, found))
        except (TrustError, pa.ArrowException, OSError) as error:
            self._error = str(error)
            log.warning("the certificate before stays: %s", error)
            return
        self._replace(found)

    def _replace(self, found: Shown) -> None:
        self._let_go(self._server)
        began, told = time.monotonic(), False
        while not self._ended.is_set():
            try:
                self._server = self._serving(self.port, found)
            except (pa.ArrowException, OSError) as error:
                if not told and time.monotonic() - began > LONG_SECONDS:
                    told = True
                    self._error = f"the agent cannot listen again at {self.location}: {error}"
                    log.error("%s; trying on", self._error)
                self._ended.wait(0.01 if not told else 1.0)
            else:
                self._shown, self._error = found, None
                log.info("the certificate was taken in anew, %s", found.fingerprint)
                return

    def _let_go(self, server: flight.FlightServerBase | None) -> None:
        """Listen no longer; the calls under way come to their end."""
        if server is not None:
            thread = threading.Thread(target=server.shutdown, daemon=True, name="calls under way")
            thread.start()
            self._leaving = [t for t in self._leaving if t.is_alive()] + [thread]

    def close(self, seconds: float) -> bool:
        """End, and give calls under way so long; whether all have ended."""
        self._ended.set()
        if self._follower.is_alive():
            self._follower.join(seconds)
        self._let_go(self._server)
        deadline = time.monotonic() + seconds
        for thread in self._leaving:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._leaving)


def read(certificate: AgentCertificate) -> Shown:
    """Return what the files have, after a handshake in memory as callers make it.

    Raises:
        TrustError: they are no pair, not for an agent, or out of date.
    """
    try:
        chain, key = certificate.chain.read_bytes(), certificate.key.read_bytes()
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # A key with a password is an error; without `password` the terminal would be asked for it.
        server.load_cert_chain(certificate.chain, certificate.key, password="")
        client = ssl.create_default_context(cadata=chain.decode("ascii"))
        # Who has signed it is the callers' question. Asked here: does the rest hold?
        client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        peer = _peer(client, server)
    except (OSError, ValueError) as error:  # those of ssl are OSErrors
        raise TrustError(
            f"{certificate.chain} and {certificate.key} are no certificate of an agent with its"
            f" key: {error}. Give both as PEM with `agent_certificate=` and `agent_key=`; the"
            f" certificate has to carry the DNS name {AGENT_NAME}."
        ) from error
    der = ssl.PEM_cert_to_DER_cert(_first(chain.decode("ascii")))
    return Shown(
        chain=chain,
        key=key,
        fingerprint=hashlib.sha256(der).hexdigest(),
        until=str(peer["notAfter"]),
    )


def _peer(client: ssl.SSLContext, server: ssl.SSLContext) -> dict[str, Any]:
    """Shake hands in memory and return what the client sees of the server's certificate."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(down, up, server_hostname=AGENT_NAME)
    answering = server.wrap_bio(up, down, server_side=True)
    for _ in range(4):
        for side in (asking, answering):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return dict(asking.getpeercert() or {})


def _first(pem: str) -> str:
    end = "-----END CERTIFICATE-----"
    return pem[pem.index("-----BEGIN CERTIFICATE-----") : pem.index(end) + len(end)]
