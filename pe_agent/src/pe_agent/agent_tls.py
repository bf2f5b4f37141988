"""TLS between agents, and from a job to its agent: whom a caller trusts, what an agent shows.

Agents are called by the addresses of their pods, which no certificate can name beforehand. All
certificates of agents carry one DNS name instead, ``streambroker-agent``, and callers check that.
"""

from __future__ import annotations

import logging
import os
import ssl
from dataclasses import dataclass
from pathlib import Path

from pe_agent.flight_errors import AgentUnreachableError
from pe_agent.tls import AGENT_CA_VARIABLE, AGENT_TLS, TrustError, file_state

CERTIFICATE_VARIABLE = "STREAMBROKER_AGENT_CERTIFICATE"
KEY_VARIABLE = "STREAMBROKER_AGENT_KEY"
PLAIN_VARIABLE = "STREAMBROKER_AGENT_PLAIN"

log = logging.getLogger("pe_agent")


class AgentTrust:
    """Whose agents are called, and whether also such as speak no TLS.

    Args:
        path: file of the certificates to trust, PEM; it is read again when it changes.
        pem: the certificates themselves, for a process that has not the file.
        plain: whether agents without TLS are called although there are certificates to trust;
            without such they always are.
    """

    def __init__(
        self, path: Path | None = None, *, pem: bytes | None = None, plain: bool = False
    ) -> None:
        self.path, self.plain = path, plain
        self._pem = pem
        self._seen: tuple[int, ...] | None = None

    def anchors(self) -> bytes | None:
        """Return the certificates to trust; those before, while the file is unusable.

        Raises:
            TrustError: the file could never be used.
        """
        if self.path is None:
            return self._pem
        try:
            state = file_state(self.path)
            if self._pem is None or state != self._seen:
                pem = self.path.read_bytes()
                ssl.create_default_context(cadata=pem.decode("ascii"))
                self._pem, self._seen = pem, state
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

    def now(self) -> AgentTrust:
        """Return the same with the certificates as they are, for processes without the file."""
        return AgentTrust(pem=self.anchors(), plain=self.plain)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCertificate:
    """The files of what an agent shows: a certificate chain and its key, both PEM."""

    chain: Path
    key: Path


def trusted(file: str | Path | None, plain: str | None = None) -> AgentTrust:
    """Return whom to trust: the file that was given, or that of the environment.

    Args:
        file: of certificates, PEM.
        plain: ``allow`` for agents without TLS, too; None for what the environment says.

    Raises:
        TrustError: ``plain`` is another word.
    """
    chosen = file if file is not None else os.environ.get(AGENT_CA_VARIABLE) or None
    word = plain if plain is not None else os.environ.get(PLAIN_VARIABLE, "")
    if word not in ("", "allow"):
        raise TrustError(f"{PLAIN_VARIABLE} is {word!r}; it has to be `allow`, or nothing.")
    return AgentTrust(None if chosen is None else Path(chosen).absolute(), plain=word == "allow")


def shown(chain: str | Path | None, key: str | Path | None) -> AgentCertificate | None:
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
