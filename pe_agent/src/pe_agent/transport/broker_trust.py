"""Trusted certificates of a broker with TLS: from a file or the system."""

from __future__ import annotations

import logging
import os
import ssl
from pathlib import Path

from pe_agent.log.atomic_file import file_state
from streambroker_core.errors import StreambrokerError

VARIABLE = "STREAMBROKER_CA"

AGENT_TLS = "grpc+tls://"
"""Location prefix of agents with TLS."""
AGENT_NAME = "streambroker-agent"
"""DNS name in every agent's certificate."""
AGENT_CA_VARIABLE = "STREAMBROKER_AGENT_CA"
CERTIFICATE_VARIABLE = "STREAMBROKER_AGENT_CERTIFICATE"
KEY_VARIABLE = "STREAMBROKER_AGENT_KEY"

log = logging.getLogger("pe_agent")


class TrustError(StreambrokerError):
    """The file of trusted certificates is unusable."""

    code = "ArgumentInvalid"


class BrokerTrust:
    """Trusted CAs of the broker, of a PEM file (reloaded on change) or of the system."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._loaded_state: tuple[int, ...] | None = None
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """Return the context for the next connection; the previous one while the file is unusable.

        Raises:
            TrustError: the file was never usable.
        """
        try:
            state = () if self.path is None else file_state(self.path)
            if self._context is None or state != self._loaded_state:
                self._context = ssl.create_default_context(cafile=self.path)
                self._loaded_state = state
        except OSError as error:  # ssl errors are OSErrors
            reason = "it is not PEM" if isinstance(error, ssl.SSLError) else error.strerror
            problem = f"the file {self.path} of certificates to trust cannot be used: {reason}"
            if self._context is None:
                raise TrustError(f"{problem}. Correct `BrokerAuth.ca` or {VARIABLE}.") from error
            log.warning(
                "cannot reload trusted certificates, keeping the previous ones: %s", problem
            )
        return self._context


def resolve_broker_trust(file: str | Path | None) -> BrokerTrust:
    """Return the trust settings from the argument, else from the environment.

    Raises:
        TrustError: the file is unusable.
    """
    chosen = file if file is not None else os.environ.get(VARIABLE) or None
    trust = BrokerTrust(None if chosen is None else Path(chosen).absolute())
    if chosen is not None:
        trust.context()
    return trust
