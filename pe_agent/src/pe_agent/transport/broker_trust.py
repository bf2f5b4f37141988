"""Whom a job trusts when its broker speaks TLS: the certificates of a file, or of the system."""

from __future__ import annotations

import http.client
import logging
import os
import ssl
from pathlib import Path

from pe_agent.log.atomic_file import file_state
from streambroker_core.errors import StreambrokerError

VARIABLE = "STREAMBROKER_CA"

AGENT_TLS = "grpc+tls://"
"""How the location of an agent begins that speaks TLS."""
AGENT_NAME = "streambroker-agent"
"""The DNS name that every agent's certificate carries."""
AGENT_CA_VARIABLE = "STREAMBROKER_AGENT_CA"
CERTIFICATE_VARIABLE = "STREAMBROKER_AGENT_CERTIFICATE"
KEY_VARIABLE = "STREAMBROKER_AGENT_KEY"

_NAME_MISMATCH_CODES = (62, 64)
"""What OpenSSL says of a certificate that is good, and for another name or address."""

log = logging.getLogger("pe_agent")


class TrustError(StreambrokerError):
    """The file of certificates to trust cannot be used."""

    code = "ArgumentInvalid"


class BrokerTrust:
    """The certificates that a broker's has to come from; a file is read again when it changes.

    Args:
        path: their file, as PEM; None for those of the system.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._loaded_state: tuple[int, ...] | None = None
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """Return the context for the next connection; the one before, while the file is unusable.

        Raises:
            TrustError: the file could never be used.
        """
        try:
            state = () if self.path is None else file_state(self.path)
            if self._context is None or state != self._loaded_state:
                self._context = ssl.create_default_context(cafile=self.path)
                self._loaded_state = state
        except OSError as error:  # that of ssl is one, too
            reason = "it is no PEM" if isinstance(error, ssl.SSLError) else error.strerror
            said = f"the file {self.path} of certificates to trust cannot be used: {reason}"
            if self._context is None:
                raise TrustError(f"{said}. Correct `broker_ca=` or {VARIABLE}.") from error
            log.warning("%s; what was read before holds", said)
        return self._context


def resolve_broker_trust(file: str | Path | None) -> BrokerTrust:
    """Return whom to trust: the file that a job was given, or that of the environment.

    Raises:
        TrustError: the file cannot be used.
    """
    chosen = file if file is not None else os.environ.get(VARIABLE) or None
    trust = BrokerTrust(None if chosen is None else Path(chosen).absolute())
    if chosen is not None:
        trust.context()
    return trust


def remedy(error: Exception, url: str) -> str:
    """Return what to do about a connection that failed, if TLS may be the reason; else nothing.

    Args:
        error: that of the connection.
        url: of the broker.
    """
    scheme, _, rest = url.partition("://")
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _NAME_MISMATCH_CODES:
            return "Its certificate is for another name: use one of those that it is for."
        return (
            "Its certificate comes from nobody who is trusted here: give the CA's file with"
            f" `broker_ca=` or {VARIABLE}."
        )
    if isinstance(error, ssl.SSLError):
        return f"If it speaks no TLS, use http://{rest}."
    # Closed without a word, or with an alert: so ends HTTP at a port where TLS is spoken.
    if scheme == "http" and isinstance(error, ConnectionResetError | http.client.BadStatusLine):
        return f"If it speaks TLS, use https://{rest}."
    return ""
