"""Listening socket of an agent and its certificate reload.

Flight can neither change a server's certificate nor let two servers share a port. So a reload
replaces the server: the old one stops listening and completes its calls, the new one listens a few
milliseconds later. Callers reconnect by themselves, as after a restart of the agent.
"""

from __future__ import annotations

import hashlib
import logging
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.flight as flight

from pe_agent.transport.agent_tls import AgentCertificate, AgentTrust
from pe_agent.transport.broker_trust import AGENT_NAME, TrustError

CHECK_SECONDS = 1.0
WARN_AFTER_SECONDS = 5.0
"""Time without a successful restart of the server after which an error is logged."""

log = logging.getLogger("pe_agent")


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateChain:
    """A verified chain with its key; ``clients`` are the CAs of callers, None if not required."""

    chain: bytes
    key: bytes
    fingerprint: str
    valid_until: str
    clients: bytes | None = None

    def server_options(self) -> dict[str, list[tuple[bytes, bytes]] | bool | bytes]:
        """Return the TLS options of a Flight server."""
        certificates = [(self.chain, self.key)]
        if self.clients is None:
            return {"tls_certificates": certificates}
        return {
            "tls_certificates": certificates,
            "verify_client": True,
            "root_certificates": self.clients,
        }


class Listener:
    """One Flight server, replaced when the certificate changes.

    ``clients`` are the trusted CAs of callers; None if callers need no certificate.

    Raises:
        TrustError: the certificate is unusable.
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
        """Address of the agent for callers."""
        return self._location_at(self.port)

    def _location_at(self, port: int) -> str:
        return f"grpc+{'tls' if self._certificate else 'tcp'}://{self._host}:{port}"

    def open(self, port: int) -> None:
        """Start listening at ``port``, 0 for any.

        Raises:
            pa.ArrowException, OSError: the address is in use.
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
        return (*certificate.state(), self._clients and self._clients.anchors())

    def status(self) -> dict[str, str | None] | None:
        """Return the current certificate and the last reload error; None without TLS."""
        if self._chain is None:
            return None
        return {
            "sha256": self._chain.fingerprint,
            "until": self._chain.valid_until,
            "error": self._error,
        }

    # -- certificate reload ------------------------------------------------------------------

    def _watch_files(self) -> None:
        while not self._ended.wait(CHECK_SECONDS):
            try:
                self.reload()
            except Exception:
                # Without this thread no certificate would ever be reloaded.
                log.exception("cannot check the certificate files")

    def reload(self) -> None:
        """Reload changed files; an unusable certificate changes nothing."""
        certificate = self._certificate
        if certificate is None:
            return
        state = self._file_state(certificate)
        if state == self._loaded_state:
            return
        self._loaded_state = state
        try:
            chain = self._load_chain(certificate)
            if self._chain == chain:
                self._error = None
                return
            # Flight must accept it, too, before the working server is shut down.
            self._shut_down(self._start_server(0, chain))
        except (TrustError, pa.ArrowException, OSError) as error:
            self._error = str(error)
            log.warning("cannot reload the certificate, keeping the previous one: %s", error)
            return
        self._replace_server(chain)

    def _replace_server(self, chain: CertificateChain) -> None:
        self._shut_down(self._server)
        began, logged = time.monotonic(), False
        while not self._ended.is_set():
            try:
                self._server = self._start_server(self.port, chain)
            except (pa.ArrowException, OSError) as error:
                if not logged and time.monotonic() - began > WARN_AFTER_SECONDS:
                    logged = True
                    self._error = f"the agent cannot listen again at {self.location}: {error}"
                    log.error("%s; retrying", self._error)
                self._ended.wait(0.01 if not logged else 1.0)
            else:
                self._chain, self._error = chain, None
                log.info("reloaded the certificate: %s", chain.fingerprint)
                return

    def _shut_down(self, server: flight.FlightServerBase | None) -> None:
        if server is not None:
            thread = threading.Thread(target=server.shutdown, daemon=True, name="calls under way")
            thread.start()
            self._shutdown_threads = [t for t in self._shutdown_threads if t.is_alive()] + [thread]

    def close(self, seconds: float) -> None:
        """Shut down; wait up to ``seconds`` for calls in progress."""
        self._ended.set()
        if self._watcher.is_alive():
            self._watcher.join(seconds)
        self._shut_down(self._server)
        deadline = time.monotonic() + seconds
        for thread in self._shutdown_threads:
            thread.join(max(0.0, deadline - time.monotonic()))


def load_chain(certificate: AgentCertificate) -> CertificateChain:
    """Load a certificate and verify it by a TLS handshake in memory, as callers do.

    Raises:
        TrustError: key and chain do not match, are not for an agent, or have expired.
    """
    try:
        chain, key = certificate.chain.read_bytes(), certificate.key.read_bytes()
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # Without `password` a key with a password would prompt on the terminal; now it is an error.
        server.load_cert_chain(certificate.chain, certificate.key, password="")
        client = ssl.create_default_context(cadata=chain.decode("ascii"))
        # Callers verify the issuer; this verifies everything else.
        client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        valid_until = _shake_hands(client, server)
    except (OSError, ValueError) as error:  # ssl errors are OSErrors
        raise TrustError(
            f"{certificate.chain} and {certificate.key} are not a certificate of an agent with"
            f" its key: {error}. Pass both as PEM with `AgentTls.certificate` and `AgentTls.key`;"
            f" the certificate has to contain the DNS name {AGENT_NAME}."
        ) from error
    der = ssl.PEM_cert_to_DER_cert(_first_certificate(chain.decode("ascii")))
    return CertificateChain(
        chain=chain,
        key=key,
        fingerprint=hashlib.sha256(der).hexdigest(),
        valid_until=valid_until,
    )


def _shake_hands(client: ssl.SSLContext, server: ssl.SSLContext) -> str:
    """Perform a handshake in memory; return until when the server's certificate is valid."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_side = client.wrap_bio(to_client, to_server, server_hostname=AGENT_NAME)
    server_side = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (client_side, server_side):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return str((client_side.getpeercert() or {})["notAfter"])


def _first_certificate(pem: str) -> str:
    end = "-----END CERTIFICATE-----"
    return pem[pem.index("-----BEGIN CERTIFICATE-----") : pem.index(end) + len(end)]
