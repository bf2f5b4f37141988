"""Settings of a PE that most jobs leave alone: its token and trust, its agent's address and TLS."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class BrokerAuth:
    """How a job proves itself to the broker, and how it checks the broker.

    Attributes:
        token: token for the broker; default ``$STREAMBROKER_TOKEN``, or none.
        token_file: file with the token, read again when it changes; excludes ``token``.
        ca: file with the CA certificates of a broker at ``https://``, read again when it changes;
            default ``$STREAMBROKER_CA``, or those that the system trusts.
    """

    token: str | None = field(default=None, repr=False)
    token_file: str | Path | None = None
    ca: str | Path | None = None


@dataclass(frozen=True, kw_only=True)
class AgentTls:
    """TLS between agents, and from the job to its own agent.

    Attributes:
        certificate: file with the certificate that the agent presents to other agents and this job,
            read again when it changes; default ``$STREAMBROKER_AGENT_CERTIFICATE``, or no TLS.
        key: file with its key; default ``$STREAMBROKER_AGENT_KEY``.
        ca: file with the CA certificates of agents, read again when it changes; default
            ``$STREAMBROKER_AGENT_CA``. With it only agents with TLS are called, unless
            ``$STREAMBROKER_AGENT_PLAIN`` is ``allow``.
        clients: ``required``: the agent serves only callers that present a certificate of that CA;
            default ``$STREAMBROKER_AGENT_CLIENTS``, or ``any`` if only this machine can reach
            ``host``.
        insecure: let other machines call the agent without a certificate; by default only if
            ``$STREAMBROKER_AGENT_INSECURE`` is ``allow``.
    """

    certificate: str | Path | None = None
    key: str | Path | None = None
    ca: str | Path | None = None
    clients: str | None = None
    insecure: bool | None = None


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """The agent's addresses and TLS.

    Attributes:
        host: address the agent listens on.
        port: port of the agent; 0 for the one it had before, or any.
        hint_port: UDP port at which the agent listens for hints of the broker; 0 for any.
        tls: certificates; the default takes them from the environment.
    """

    host: str = "127.0.0.1"
    port: int = 0
    hint_port: int = 0
    tls: AgentTls = field(default_factory=AgentTls)
