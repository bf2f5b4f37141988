"""Settings of a PE's agent, checked before anything is started, and the start of the agent."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pe_agent.job.agent.agent_process import AgentProcess, default_home
from pe_agent.job.arguments import ArgumentError, seconds
from pe_agent.job.settings import AgentOptions, BrokerAuth
from pe_agent.log.objects.bucket import open_bucket
from pe_agent.transport import agent_tls, tokens
from pe_agent.transport import broker_trust as tls
from pe_agent.transport.agent_tls import AgentCertificate, AgentTrust
from pe_agent.transport.broker_client import BrokerClient
from pe_agent.transport.broker_trust import TrustError
from streambroker_core.model import PeKey
from streambroker_core.model.durations import Duration


class StartedAgent(NamedTuple):
    """The agent of a PE, and the client of its broker; None without a broker."""

    process: AgentProcess
    broker: BrokerClient | None


@dataclass(frozen=True, kw_only=True)
class AgentSettings:
    """Settings of an agent; the arguments of `streambroker.start` of these names."""

    broker: str | None = None
    data_dir: str | Path | None = None
    linger: Duration = "60s"
    auth: BrokerAuth = field(default_factory=BrokerAuth)
    agent: AgentOptions = field(default_factory=AgentOptions)
    storage: str | None = None

    def check(self, key: PeKey) -> None:
        """Check the settings for a PE; start nothing.

        Raises:
            ArgumentError, BucketUrlError, TokenError, TrustError, NotSecuredError: see
                `streambroker.start`.
        """
        for what, settings, kind in (
            ("auth", self.auth, BrokerAuth),
            ("agent", self.agent, AgentOptions),
        ):
            if not isinstance(settings, kind):
                raise ArgumentError(f"{what} is {settings!r}: it has to be {kind.__name__}(…).")
        seconds(self.linger, "linger")
        if self.storage is not None:
            open_bucket(self.storage)
        tokens.resolve_token(self.auth.token, self.auth.token_file)
        tls.resolve_broker_trust(self.auth.ca)
        certificate, trust = self._certificates()
        host, given = self.agent.host, self.agent.tls
        required = agent_tls.are_clients_required(
            given.clients, host, insecure=agent_tls.is_insecure(given.insecure)
        )
        agent_tls.check_secured(str(key), host, certificate, trust, required=required)
        if trust.anchors() is None and certificate is not None:
            raise TrustError(
                "the job could not call its own agent: add the CA of its certificate with"
                f" AgentTls(ca=…) or {tls.AGENT_CA_VARIABLE}."
            )

    def start(self, key: PeKey) -> StartedAgent:
        """Start the agent, or adopt the one that runs in the data directory.

        Raises:
            AgentFailedError: it did not start, for instance because the data directory is in use.
        """
        token = tokens.resolve_token(self.auth.token, self.auth.token_file)
        broker_trust = tls.resolve_broker_trust(self.auth.ca)
        certificate, trust = self._certificates()
        process = AgentProcess(
            key,
            Path(self.data_dir) if self.data_dir else default_home(key),
            broker=self.broker,
            linger=seconds(self.linger, "linger"),
            host=self.agent.host,
            port=self.agent.port,
            hint_port=self.agent.hint_port,
            token=token,
            broker_ca=broker_trust.path,
            certificate=certificate,
            trust=trust,
            clients=self.agent.tls.clients,
            insecure=self.agent.tls.insecure,
            storage=self.storage,
        )
        url = self.broker
        client = BrokerClient(url, key.namespace, token, broker_trust) if url else None
        return StartedAgent(process, client)

    def _certificates(self) -> tuple[AgentCertificate | None, AgentTrust]:
        given = self.agent.tls
        certificate = agent_tls.resolve_certificate(given.certificate, given.key)
        return certificate, agent_tls.resolve_agent_trust(given.ca, certificate=certificate)
