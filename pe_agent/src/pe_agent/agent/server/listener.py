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

CHECK_SECONDS = 1.0
WARN_AFTER_SECONDS = 5.0
"""After so long without being able to listen again, the log says so."""

log = logging.getLogger("pe_agent")


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateChain:
    """A certificate chain with its key, checked: they belong together and are an agent's.

    Attributes:
        clients: the certificates of which a caller has to have one; None if it needs none.
    """

    chain: bytes
    key: bytes
    fingerprint: str
    valid_until: str
    clients: bytes | None = None

    def server_options(self) -> dict[str, Any]:
        """Return what a Flight server is made with."""
        certificates = {"tls_certificates": [(self.chain, self.key)]}
        if self.clients is None:
            return certificates
        return {**certificates, "verify_client": True, "root_certificates": self.clients}


class Listener:
    """One Flight server, replaced when the certificate changes.

    Args:
        host: address to listen at.
        create_server: makes the server for a location and what it shows.
        certificate: what to show; None for no TLS.
        clients: whose certificates callers need; None if they need none.

    Raises:
        TrustError: the certificate cannot be used.
    """

    def __init__(
        self,
        host: str,
        create_server: Callable[[str, CertificateChain | None], flight.FlightServerBase],
        certificate: AgentCertificate | None,
        clients: AgentTrust | None = None,
    ) -> None:
        self._host, self._create_server, self._certificate = host, create_server, certificate
        self._clients = clients
        self._loaded_state: tuple[object, ...] = ()
        self._chain: CertificateChain | None = None
        self._error: str | None = None
        self._server: flight.FlightServerBase | None = None
        self._ended = threading.Event()
        self._shutdown_threads: list[threading.Thread] = []
        self._watcher = threading.Thread(target=self._watch_files, daemon=True, name="certificate")
        self.port = 0
        if certificate is not None:
            self._loaded_state = self._file_state(certificate)
            self._chain = self._load_chain(certificate)

    @property
    def location(self) -> str:
        """Where callers find the agent."""
        return self._location_at(self.port)

    def _location_at(self, port: int) -> str:
        return f"grpc+{'tls' if self._certificate else 'tcp'}://{self._host}:{port}"

    def open(self, port: int) -> None:
        """Listen.

        Args:
            port: 0 for any.

        Raises:
            pa.ArrowException, OSError: the address is taken.
        """
        self._server = self._start_server(port, self._chain)
        self.port = self._server.port
        if self._certificate is not None:
            self._watcher.start()

    def _start_server(self, port: int, chain: CertificateChain | None) -> flight.FlightServerBase:
        return self._create_server(self._location_at(port), chain)

    def _load_chain(self, certificate: AgentCertificate) -> CertificateChain:
        clients = None if self._clients is None else self._clients.anchors()
        return replace(load_chain(certificate), clients=clients)

    def _file_state(self, certificate: AgentCertificate) -> tuple[object, ...]:
        """Return what differs once something else is to be shown, or asked for."""
        return (*certificate.state(), self._clients and self._clients.anchors())

    def status(self) -> dict[str, Any] | None:
        """Return which certificate is shown and why not a later one, None without TLS."""
        if self._chain is None:
            return None
        return {
            "sha256": self._chain.fingerprint,
            "until": self._chain.valid_until,
            "error": self._error,
        }

    # -- another certificate -----------------------------------------------------------------

    def _watch_files(self) -> None:
        while not self._ended.wait(CHECK_SECONDS):
            try:
                self.reload()
            except Exception:
                # Without this thread no certificate would ever be taken in again.
                log.exception("the certificate was not looked at")

    def reload(self) -> None:
        """Show what the files have become; what cannot be used changes nothing."""
        certificate = self._certificate
        if certificate is None:
            return
        state = self._file_state(certificate)
        if state == self._loaded_state:
            return
        self._loaded_state = state
        try:
            found = self._load_chain(certificate)
            if self._chain == found:
                self._error = None
                return
            # Flight has to take it, too, before the server that works goes.
            self._shut_down(self._start_server(0, found))
        except (TrustError, pa.ArrowException, OSError) as error:
            self._error = str(error)
            log.warning("the certificate before stays: %s", error)
            return
        self._replace_server(found)

    def _replace_server(self, chain: CertificateChain) -> None:
        self._shut_down(self._server)
        began, told = time.monotonic(), False
        while not self._ended.is_set():
            try:
                self._server = self._start_server(self.port, chain)
            except (pa.ArrowException, OSError) as error:
                if not told and time.monotonic() - began > WARN_AFTER_SECONDS:
                    told = True
                    self._error = f"the agent cannot listen again at {self.location}: {error}"
                    log.error("%s; trying on", self._error)
                self._ended.wait(0.01 if not told else 1.0)
            else:
                self._chain, self._error = chain, None
                log.info("the certificate was taken in anew, %s", chain.fingerprint)
                return

    def _shut_down(self, server: flight.FlightServerBase | None) -> None:
        """Listen no longer; the calls under way come to their end."""
        if server is not None:
            thread = threading.Thread(target=server.shutdown, daemon=True, name="calls under way")
            thread.start()
            self._shutdown_threads = [t for t in self._shutdown_threads if t.is_alive()] + [thread]

    def close(self, seconds: float) -> bool:
        """End, and give calls under way so long; whether all have ended."""
        self._ended.set()
        if self._watcher.is_alive():
            self._watcher.join(seconds)
        self._shut_down(self._server)
        deadline = time.monotonic() + seconds
        for thread in self._shutdown_threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._shutdown_threads)


def load_chain(certificate: AgentCertificate) -> CertificateChain:
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
        peer = _handshake(client, server)
    except (OSError, ValueError) as error:  # those of ssl are OSErrors
        raise TrustError(
            f"{certificate.chain} and {certificate.key} are no certificate of an agent with its"
            f" key: {error}. Give both as PEM with `agent_certificate=` and `agent_key=`; the"
            f" certificate has to carry the DNS name {AGENT_NAME}."
        ) from error
    der = ssl.PEM_cert_to_DER_cert(_first_certificate(chain.decode("ascii")))
    return CertificateChain(
        chain=chain,
        key=key,
        fingerprint=hashlib.sha256(der).hexdigest(),
        valid_until=str(peer["notAfter"]),
    )


def _handshake(client: ssl.SSLContext, server: ssl.SSLContext) -> dict[str, Any]:
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


def _first_certificate(pem: str) -> str:
    end = "-----END CERTIFICATE-----"
    return pem[pem.index("-----BEGIN CERTIFICATE-----") : pem.index(end) + len(end)]
