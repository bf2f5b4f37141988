"""TLS between agents, and from a job to its agent: whom a caller trusts, what an agent shows.

Agents are called by the addresses of their pods, which no certificate can name beforehand. All
certificates of agents carry one DNS name instead, ``streambroker-agent``, and callers check that.
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
    """The files of what an agent shows, or who calls one: a certificate chain and its key, PEM."""

    chain: Path
    key: Path

    def read(self) -> tuple[bytes, bytes]:
        """Return chain and key.

        Raises:
            OSError, ValueError: they cannot be read, or are no pair.
        """
        # A key with a password is an error; without `password` the terminal would be asked for it.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(self.chain, self.key, password="")
        return self.chain.read_bytes(), self.key.read_bytes()

    def state(self) -> tuple[int, ...]:
        """Return what differs once one of them has been written; nothing if one is missing."""
        try:
            return (*file_state(self.chain), *file_state(self.key))
        except OSError:
            return ()


class AgentTrust:
    """Whose agents are called, what they are shown, and whether also such as speak no TLS.

    Args:
        path: file of the certificates to trust, PEM; it is read again when it changes.
        pem: the certificates themselves, for a process that has not the file.
        plain: whether agents without TLS are called although there are certificates to trust;
            without such they always are.
        certificate: the caller's own certificate, which agents see that ask for one.
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
        """Return the certificates to trust; those before, while the file is unusable.

        Raises:
            TrustError: the file could never be used.
        """
        if self.path is None:
            return self._pem
        try:
            state = file_state(self.path)
            if self._pem is None or state != self._anchors_state:
                pem = self.path.read_bytes()
                ssl.create_default_context(cadata=pem.decode("ascii"))
                self._pem, self._anchors_state = pem, state
        except (OSError, ValueError) as error:  # that of ssl is an OSError
            reason = getattr(error, "strerror", None)
            reason = "it is no PEM" if isinstance(error, ssl.SSLError) or not reason else reason
            said = (
                f"the file {self.path} of certificates of agents to trust cannot be used: {reason}"
            )
            if self._pem is None:
                raise TrustError(f"{said}. Correct `agent_ca=` or {AGENT_CA_VARIABLE}.") from error
            log.warning("%s; what was read before holds", said)
        return self._pem

    def pair(self) -> tuple[bytes, bytes] | None:
        """Return the caller's own chain and key; those before, while the files are unusable.

        A process that has not the files of ``own`` has those of its environment, or none.
        """
        for own in (self.certificate, _environment_certificate()):
            if own is None:
                continue
            state = own.state()
            if state and state != self._pair_state:
                self._pair_state = state
                try:
                    self._pair = own.read()
                except (OSError, ValueError) as error:  # those of ssl are OSErrors
                    log.warning("%s and %s cannot be shown: %s", own.chain, own.key, error)
            if state:
                break
        return self._pair

    def demands_tls(self) -> bool:
        """Return whether no agent without TLS is called.

        Raises:
            TrustError: see :meth:`anchors`.
        """
        return self.anchors() is not None and not self.plain

    def anchors_for(self, location: str) -> bytes | None:
        """Return what the certificate of one agent is checked with, None if it shows none.

        Args:
            location: of the agent; its scheme says whether it speaks TLS.

        Raises:
            AgentUnreachableError: it is not to be called like this; the message has the remedy.
            TrustError: see :meth:`anchors`.
        """
        pem = self.anchors()
        if location.startswith(AGENT_TLS):
            if pem is None:
                raise AgentUnreachableError(
                    f"the agent at {location} speaks TLS, and nothing says whose certificates"
                    f" to trust: give the CA's file with `agent_ca=` or {AGENT_CA_VARIABLE}."
                )
            return pem
        if self.demands_tls():
            raise AgentUnreachableError(
                f"the agent at {location} speaks no TLS, and here only agents with TLS are"
                f" called (`agent_ca=` or {AGENT_CA_VARIABLE} is set). Give that agent a"
                f" certificate, or set {PLAIN_VARIABLE}=allow until all agents have one."
            )
        return None

    def snapshot(self) -> AgentTrust:
        """Return the same with the certificates as they are, for processes without the file.

        A key goes nowhere: only where its file is.
        """
        return AgentTrust(pem=self.anchors(), plain=self.plain, certificate=self.certificate)


def resolve_agent_trust(
    file: str | Path | None, plain: str | None = None, certificate: AgentCertificate | None = None
) -> AgentTrust:
    """Return whom to trust: the file that was given, or that of the environment.

    Args:
        file: of certificates, PEM.
        plain: ``allow`` for agents without TLS, too; None for what the environment says.
        certificate: what to show to agents that ask; None for that of the environment.

    Raises:
        TrustError: ``plain`` is another word.
    """
    chosen = file if file is not None else os.environ.get(AGENT_CA_VARIABLE) or None
    word = plain if plain is not None else os.environ.get(PLAIN_VARIABLE, "")
    if word not in ("", "allow"):
        raise TrustError(f"{PLAIN_VARIABLE} is {word!r}; it has to be `allow`, or nothing.")
    path = None if chosen is None else Path(chosen).absolute()
    return AgentTrust(path, plain=word == "allow", certificate=certificate)


class NotSecuredError(StreambrokerError):
    """Other machines could reach an agent that serves callers without a certificate."""

    code = "NotSecured"


def is_insecure(setting: bool | None) -> bool:
    """Return whether an agent may serve other machines without asking for certificates.

    Args:
        setting: None for what the environment says.

    Raises:
        TrustError: the environment has another word than ``allow``.
    """
    if setting is not None:
        return setting
    word = os.environ.get(INSECURE_VARIABLE, "")
    if word not in ("", "allow"):
        raise TrustError(f"{INSECURE_VARIABLE} is {word!r}; it has to be `allow`, or nothing.")
    return word == "allow"


def are_clients_required(setting: str | None, host: str, *, insecure: bool) -> bool:
    """Return whether an agent serves only callers with a certificate of the CA.

    It has to where other machines reach it: without a certificate gRPC reads a whole request of
    any size before the agent can look at it.

    Args:
        setting: ``required`` or ``any``; None for what the environment says, or what
            ``run_operator`` needs.
        host: the address at which the agent listens.
        insecure: accept callers without a certificate at any address.

    Raises:
        NotSecuredError: other machines reach the address, and ``setting`` is ``any``.
        TrustError: it is another word.
    """
    open_ = insecure or is_loopback(host)
    word = setting if setting is not None else os.environ.get(CLIENTS_VARIABLE) or None
    if word not in (None, ANY, REQUIRED):
        raise TrustError(
            f"`agent_clients=` or {CLIENTS_VARIABLE} is {word!r}; it has to be"
            f" `{REQUIRED}`, or `{ANY}`."
        )
    if word == ANY and not open_:
        raise NotSecuredError(
            f"`agent_clients=` or {CLIENTS_VARIABLE} is `{ANY}`, and other machines can reach an"
            f" agent at {host}. Leave the setting out, {_ALTERNATIVES}"
        )
    return word == REQUIRED or (word is None and not open_)


def check_secured(
    pe: str, host: str, certificate: AgentCertificate | None, trust: AgentTrust, *, required: bool
) -> None:
    """Refuse settings with which an agent could not ask its callers for certificates.

    Args:
        pe: the PE of the agent.
        host: the address at which it listens.
        certificate: what it shows.
        trust: whom it trusts.
        required: whether it has to ask.

    Raises:
        NotSecuredError: other machines can reach it.
        TrustError: it was told to ask, or the CA's file cannot be used.
    """
    if not required or (certificate is not None and trust.anchors() is not None):
        return
    missing = (
        "a certificate, its key and the CA of its callers (`agent_certificate=`, `agent_key=` and"
        " `agent_ca=`, or --tls-cert, --tls-key and --agent-ca)"
    )
    if is_loopback(host):
        raise TrustError(
            f"the agent of {pe} is to ask its callers for certificates, and has no CA to check"
            f" them with, or no TLS. Give {missing}."
        )
    raise NotSecuredError(
        f"other machines can reach the agent of {pe} at {host}, and it cannot ask its callers for"
        f" certificates. Give {missing}; `streambroker up --tls-self-signed` writes them for local"
        f" use. Otherwise {_ALTERNATIVES}"
    )


_ALTERNATIVES = (
    "listen at 127.0.0.1, or accept the risk with `insecure=True`, --insecure or"
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
    """Return what an agent shows: the files that were given, or those of the environment.

    Raises:
        TrustError: one of the two is missing.
    """
    if chain is None and key is None:
        chain = os.environ.get(CERTIFICATE_VARIABLE) or None
        key = os.environ.get(KEY_VARIABLE) or None
        if chain is None and key is None:
            return None
    if chain is None or key is None:
        raise TrustError(
            "an agent needs a certificate and its key: give both `agent_certificate=` and"
            f" `agent_key=`, or both {CERTIFICATE_VARIABLE} and {KEY_VARIABLE}."
        )
    return AgentCertificate(chain=Path(chain).absolute(), key=Path(key).absolute())


def _environment_certificate() -> AgentCertificate | None:
    chain, key = os.environ.get(CERTIFICATE_VARIABLE), os.environ.get(KEY_VARIABLE)
    return AgentCertificate(chain=Path(chain), key=Path(key)) if chain and key else None
