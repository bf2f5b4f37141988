"""TLS between agents, and from a job to its agent: trust settings and certificates.

Callers reach agents by pod address, which no certificate can name in advance. So all agent
certificates carry one DNS name, ``streambroker-agent``, which callers verify.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import ssl
from dataclasses import dataclass
from pathlib import Path

from pe_agent.log.atomic_file import file_state
from pe_agent.transport.broker_trust import (
    AGENT_CA_VARIABLE,
    AGENT_TLS,
    CERTIFICATE_VARIABLE,
    KEY_VARIABLE,
    TrustError,
)
from pe_agent.transport.flight_errors import AgentUnreachableError
from streambroker_core.errors import StreambrokerError

PLAIN_VARIABLE = "STREAMBROKER_AGENT_PLAIN"
CLIENTS_VARIABLE = "STREAMBROKER_AGENT_CLIENTS"
INSECURE_VARIABLE = "STREAMBROKER_AGENT_INSECURE"
ANY = "any"
REQUIRED = "required"

log = logging.getLogger("pe_agent")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCertificate:
    """Files of a certificate chain and its key (PEM), of an agent or of a caller."""

    chain: Path
    key: Path

    def read(self) -> tuple[bytes, bytes]:
        """Return chain and key.

        Raises:
            OSError, ValueError: a file cannot be read, or the key does not match the chain.
        """
        # Without `password` a key with a password would prompt on the terminal; now it is an error.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(self.chain, self.key, password="")
        return self.chain.read_bytes(), self.key.read_bytes()

    def state(self) -> tuple[int, ...]:
        """Return a value that changes with either file; empty if a file is missing."""
        try:
            return (*file_state(self.chain), *file_state(self.key))
        except OSError:
            return ()


class AgentTrust:
    """Trusted CAs and own certificate of a caller, and whether it may call agents without TLS.

    Args:
        path: file of the trusted certificates, PEM; it is reloaded on change.
        pem: the certificates themselves, for a process without the file.
        plain: allow agents without TLS although there are trusted certificates. Without trusted
            certificates such agents are always allowed.
        certificate: the caller's own certificate, for agents that request one.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        pem: bytes | None = None,
        plain: bool = False,
        certificate: AgentCertificate | None = None,
    ) -> None:
        self.path, self.plain, self.certificate = path, plain, certificate
        self._pem = pem
        self._anchors_state: tuple[int, ...] | None = None
        self._pair: tuple[bytes, bytes] | None = None
        self._pair_state: tuple[int, ...] | None = None

    def anchors(self) -> bytes | None:
        """Return the trusted certificates; the previous ones while the file is unusable.

        Raises:
            TrustError: the file was never usable.
        """
        if self.path is None:
            return self._pem
        try:
            state = file_state(self.path)
            if self._pem is None or state != self._anchors_state:
                pem = self.path.read_bytes()
                ssl.create_default_context(cadata=pem.decode("ascii"))
                self._pem, self._anchors_state = pem, state
        except (OSError, ValueError) as error:  # ssl errors are OSErrors
            reason = getattr(error, "strerror", None)
            reason = "it is not PEM" if isinstance(error, ssl.SSLError) or not reason else reason
            problem = (
                f"the file {self.path} of certificates of agents to trust cannot be used: {reason}"
            )
            if self._pem is None:
                raise TrustError(
                    f"{problem}. Correct `AgentTls.ca` or {AGENT_CA_VARIABLE}."
                ) from error
            log.warning(
                "cannot reload trusted certificates, keeping the previous ones: %s", problem
            )
        return self._pem

    def pair(self) -> tuple[bytes, bytes] | None:
        """Return the caller's chain and key, else the environment's; previous ones if unusable."""
        for own in (self.certificate, _environment_certificate()):
            if own is None:
                continue
            state = own.state()
            if state and state != self._pair_state:
                self._pair_state = state
                try:
                    self._pair = own.read()
                except (OSError, ValueError) as error:  # ssl errors are OSErrors
                    log.warning("%s and %s cannot be used: %s", own.chain, own.key, error)
            if state:
                break
        return self._pair

    def demands_tls(self) -> bool:
        """Return whether calls to agents without TLS are forbidden; raises like :meth:`anchors`."""
        return self.anchors() is not None and not self.plain

    def anchors_for(self, location: str) -> bytes | None:
        """Return the CAs to verify an agent's certificate with; None for a location without TLS.

        Raises:
            AgentUnreachableError: the trust settings forbid the call; the message has the remedy.
            TrustError: see :meth:`anchors`.
        """
        pem = self.anchors()
        if location.startswith(AGENT_TLS):
            if pem is None:
                raise AgentUnreachableError(
                    f"the agent at {location} uses TLS, and no trusted certificates are"
                    f" configured: give the CA's file with `AgentTls.ca` or {AGENT_CA_VARIABLE}."
                )
            return pem
        if self.demands_tls():
            raise AgentUnreachableError(
                f"the agent at {location} does not use TLS, but only agents with TLS are called"
                f" here (`AgentTls.ca` or {AGENT_CA_VARIABLE} is set). Give that agent a"
                f" certificate, or set {PLAIN_VARIABLE}=allow until all agents have one."
            )
        return None

    def snapshot(self) -> AgentTrust:
        """Return a copy with certificates as bytes, for other processes; keys are never copied."""
        return AgentTrust(pem=self.anchors(), plain=self.plain, certificate=self.certificate)


def resolve_agent_trust(
    file: str | Path | None, plain: str | None = None, certificate: AgentCertificate | None = None
) -> AgentTrust:
    """Return the trust settings from arguments, else from the environment.

    ``plain`` is ``allow`` to call agents without TLS, too.

    Raises:
        TrustError: ``plain`` has another value.
    """
    chosen = file if file is not None else os.environ.get(AGENT_CA_VARIABLE) or None
    path = None if chosen is None else Path(chosen).absolute()
    return AgentTrust(path, plain=_is_allowed(PLAIN_VARIABLE, plain), certificate=certificate)


def _is_allowed(variable: str, value: str | None = None) -> bool:
    """Return whether a setting, by default that of the environment, is ``allow``."""
    value = value if value is not None else os.environ.get(variable, "")
    if value not in ("", "allow"):
        raise TrustError(f"{variable} is {value!r}; it has to be `allow`, or nothing.")
    return value == "allow"


class NotSecuredError(StreambrokerError):
    """An agent that other machines can reach would accept callers without a certificate."""

    code = "NotSecured"


def is_insecure(setting: bool | None) -> bool:
    """Return whether an agent may serve other machines without client certificates.

    Raises:
        TrustError: the environment's value is not ``allow``.
    """
    return _is_allowed(INSECURE_VARIABLE) if setting is None else setting


def are_clients_required(setting: str | None, host: str, *, insecure: bool) -> bool:
    """Return whether an agent serves only callers with a certificate of the CA.

    Required where other machines reach ``host``: without a certificate gRPC reads a whole request
    of any size before the agent can reject it. ``insecure`` lifts this requirement.

    Raises:
        NotSecuredError: other machines reach the address, and ``setting`` is ``any``.
        TrustError: ``setting`` is neither ``required`` nor ``any``.
    """
    may_accept_any = insecure or is_loopback(host)
    value = setting if setting is not None else os.environ.get(CLIENTS_VARIABLE) or None
    if value not in (None, ANY, REQUIRED):
        raise TrustError(
            f"`AgentTls.clients` or {CLIENTS_VARIABLE} is {value!r}; it has to be"
            f" `{REQUIRED}`, or `{ANY}`."
        )
    if value == ANY and not may_accept_any:
        raise NotSecuredError(
            f"`AgentTls.clients` or {CLIENTS_VARIABLE} is `{ANY}`, and other machines can reach an"
            f" agent at {host}. Leave the setting out, {_ALTERNATIVES}"
        )
    return value == REQUIRED or (value is None and not may_accept_any)


def check_secured(
    pe: str, host: str, certificate: AgentCertificate | None, trust: AgentTrust, *, required: bool
) -> None:
    """Refuse settings with which an agent could not require client certificates.

    Raises:
        NotSecuredError: other machines can reach the agent.
        TrustError: client certificates were requested locally, or the CA file is unusable.
    """
    if not required or (certificate is not None and trust.anchors() is not None):
        return
    missing = (
        "a certificate, its key and the CA of its callers (`AgentTls.certificate`, `AgentTls.key`"
        " and `AgentTls.ca`, or --tls-cert, --tls-key and --agent-ca)"
    )
    if is_loopback(host):
        raise TrustError(
            f"the agent of {pe} requires certificates of its callers, but has no CA to check them"
            f" with, or no TLS. Give {missing}."
        )
    raise NotSecuredError(
        f"other machines can reach the agent of {pe} at {host}, but it cannot require"
        f" certificates of its callers. Give {missing}; `streambroker up --tls-self-signed`"
        f" writes them for local use. Otherwise {_ALTERNATIVES}"
    )


_ALTERNATIVES = (
    "listen at 127.0.0.1, or accept the risk with `AgentTls.insecure`, --insecure or"
    f" {INSECURE_VARIABLE}=allow."
)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def resolve_certificate(
    chain: str | Path | None, key: str | Path | None
) -> AgentCertificate | None:
    """Return the agent certificate from the arguments, else from the environment.

    Raises:
        TrustError: only one of chain and key is set.
    """
    if chain is None and key is None:
        chain = os.environ.get(CERTIFICATE_VARIABLE) or None
        key = os.environ.get(KEY_VARIABLE) or None
        if chain is None and key is None:
            return None
    if chain is None or key is None:
        raise TrustError(
            "an agent needs a certificate and its key: give both `AgentTls.certificate` and"
            f" `AgentTls.key`, or both {CERTIFICATE_VARIABLE} and {KEY_VARIABLE}."
        )
    return AgentCertificate(chain=Path(chain).absolute(), key=Path(key).absolute())


def _environment_certificate() -> AgentCertificate | None:
    chain, key = os.environ.get(CERTIFICATE_VARIABLE), os.environ.get(KEY_VARIABLE)
    return AgentCertificate(chain=Path(chain), key=Path(key)) if chain and key else None
