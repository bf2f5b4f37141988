"""The entry point of a job: start a PE, subscribe, publish, and change ports of running queries."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pe_agent import functions
from pe_agent.job import owner_reference as owners
from pe_agent.job import publish as publishing
from pe_agent.job import send_control as emitted
from pe_agent.job.agent_process import AgentProcess, default_home
from pe_agent.job.context import JobContext
from pe_agent.job.ports import ExportPort, ImportPort, PortsByName
from pe_agent.job.query_monitor import QueryMonitor
from pe_agent.job.shard_agents import ShardAgentProcesses, parse_agents
from pe_agent.job.view_cache import ViewCache
from pe_agent.streams import subscribe as subscribing
from pe_agent.transport import agent_tls, tokens
from pe_agent.transport import broker_trust as tls
from pe_agent.transport.agent_client import AgentClient, send
from pe_agent.transport.broker_client import BrokerClient
from pe_agent.transport.broker_trust import BrokerTrust, TrustError
from pe_agent.transport.tokens import Token
from streambroker_core.errors import StreambrokerError
from streambroker_core.model import DEFAULT_NAMESPACE, DEFAULT_SCOPE, PeKey
from streambroker_core.wire.agent_rpc.job import GetStatus, GetView

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from pe_agent.streams.stream import Stream

log = logging.getLogger("pe_agent")


def start(
    spark: SparkSession,
    *,
    job: str,
    broker: str | None = None,
    application: str | None = None,
    scope: str = DEFAULT_SCOPE,
    pe: int = 0,
    agents: int | Sequence[tuple[str, str]] = 1,
    namespace: str = DEFAULT_NAMESPACE,
    data_dir: str | Path | None = None,
    linger: float = 60.0,
    host: str = "127.0.0.1",
    port: int = 0,
    hint_port: int = 0,
    token: str | None = None,
    token_file: str | Path | None = None,
    broker_ca: str | Path | None = None,
    agent_certificate: str | Path | None = None,
    agent_key: str | Path | None = None,
    agent_ca: str | Path | None = None,
    agent_clients: str | None = None,
    insecure: bool | None = None,
    owner: Mapping[str, str] | None = None,
) -> PE:
    """Start the PE of a job: its agent process, and the data source in this Spark session.

    Args:
        spark: the job's session.
        job: name of the job, a DNS label; unique in its namespace.
        broker: ``http://host:port`` or ``https://host:port``; without it the last known routes
            apply.
        application: name by which other jobs may import; default is the job's name.
        scope: application scope.
        pe: number of the processing element.
        agents: number of agents that share the job's exports, as PEs ``pe``, ``pe`` + 1, …. Tasks
            stage their rows at all of them in turn. The first publishes, the others only hold rows.
            Or address and token of each other agent; those run elsewhere and are not started.
        namespace: namespace of the job.
        data_dir: directory of log, cursors and routes; default ``$STREAMBROKER_HOME/<job>/<pe>``.
            Further agents use ``<data_dir>/pe-<pe>``, or their own default.
        linger: seconds that the agent keeps serving after the driver has ended.
        host: address the agent listens on.
        port: port of the agent; 0 for the one it had before, or any. Further agents use the ports
            after it.
        hint_port: UDP port at which the agent listens for hints of the broker; 0 for any.
        token: token for the broker; default ``$STREAMBROKER_TOKEN``, or none.
        token_file: file with the token, read again when it changes; excludes ``token``.
        broker_ca: file with the CA certificates of a broker at ``https://``, read again when it
            changes; default ``$STREAMBROKER_CA``, or those that the system trusts.
        agent_certificate: file with the certificate that the agent presents to other agents and
            this job, read again when it changes; default ``$STREAMBROKER_AGENT_CERTIFICATE``, or
            no TLS.
        agent_key: file with its key; default ``$STREAMBROKER_AGENT_KEY``.
        agent_ca: file with the CA certificates of agents, read again when it changes; default
            ``$STREAMBROKER_AGENT_CA``. With it only agents with TLS are called, unless
            ``$STREAMBROKER_AGENT_PLAIN`` is ``allow``.
        agent_clients: ``required``: the agent serves only callers that present a certificate of
            that CA; default ``$STREAMBROKER_AGENT_CLIENTS``, or ``any`` if only this machine can
            reach ``host``.
        insecure: let other machines call the agent without a certificate; by default only if
            ``$STREAMBROKER_AGENT_INSECURE`` is ``allow``.
        owner: in Kubernetes, owner of the Exports and Imports that the job makes; they are deleted
            with it: ``apiVersion``, ``kind``, ``name`` and ``uid`` of an object in the job's
            namespace that outlives the driver pod; default ``$STREAMBROKER_OWNER``, as JSON, or
            none.

    Raises:
        ShardAgentsInvalidError: ``agents`` are too many, or not of this job.
        OwnerError: the owner is incomplete, or a pod.
        TokenError: the token cannot be used, or both ``token`` and ``token_file`` are set.
        NotSecuredError: other machines could call the agent without a certificate.
        TrustError: a file of certificates cannot be used, or a required one is missing.
        AgentFailedError: the agent did not start, for instance because the port or the data
            directory is in use.
    """
    from pe_agent.datasource import StreambrokerDataSource

    key = PeKey.parse(f"{namespace}/{job}/{pe}")
    broker_token, trust = (
        tokens.resolve_token(token, token_file),
        tls.resolve_broker_trust(broker_ca),
    )
    certificate = agent_tls.resolve_certificate(agent_certificate, agent_key)
    agent_trust = agent_tls.resolve_agent_trust(agent_ca, certificate=certificate)
    required = agent_tls.are_clients_required(
        agent_clients, host, insecure=agent_tls.is_insecure(insecure)
    )
    agent_tls.check_secured(str(key), host, certificate, agent_trust, required=required)
    if agent_trust.anchors() is None and certificate is not None:
        raise TrustError(
            "the job could not call its own agent: give the CA of `agent_certificate=` with"
            f" `agent_ca=` or {tls.AGENT_CA_VARIABLE}."
        )
    belongs_to = owners.resolve_owner(owner)
    more, elsewhere = parse_agents(agents)
    spark.dataSource.register(StreambrokerDataSource)

    def launch(number: int) -> AgentProcess:
        pe_key = PeKey(namespace, job, pe + number)
        home = Path(data_dir) if data_dir else None
        if home is not None and number:
            home /= f"pe-{pe_key.pe}"
        return AgentProcess(
            pe_key,
            home or default_home(pe_key),
            # A shard agent has no ports, so it needs no broker.
            broker=None if number else broker,
            linger=linger,
            host=host,
            port=port + number if port else 0,
            hint_port=0 if number else hint_port,
            token=Token() if number else broker_token,
            broker_ca=trust.path,
            certificate=certificate,
            trust=agent_trust,
            clients=agent_clients,
            insecure=insecure,
        )

    process = launch(0)
    try:
        shard_agents = ShardAgentProcesses(
            process, launch, more, [AgentClient(at, known, agent_trust) for at, known in elsewhere]
        )
    except BaseException:
        process.stop(end_agent=False)
        raise
    named = {"name": application or job, "scope": scope}
    return PE(spark, key, process, broker, named, broker_token, trust, belongs_to, shard_agents)


class PE:
    """One processing element of a running job.

    Attributes:
        imports: the ports subscribed so far, by name.
        exports: the ports published so far, by name.
        view_cache: the last known view of its ports.
        context: the PE as the parts of the job see it.
    """

    def __init__(
        self,
        spark: SparkSession,
        key: PeKey,
        process: AgentProcess,
        broker: str | None,
        application: dict[str, str],
        token: Token | None = None,
        trust: BrokerTrust | None = None,
        owner: Mapping[str, str] | None = None,
        shard_agents: ShardAgentProcesses | None = None,
    ) -> None:
        self.key = key
        self._shard_agents = shard_agents
        self.imports: dict[str, ImportPort] = PortsByName("import", "subscribe")
        self.exports: dict[str, ExportPort] = PortsByName("export", "publish")
        self.view_cache = ViewCache(lambda: send(self.agent, GetView(), timeout=2.0).view)
        self.stopped = threading.Event()
        self.context = JobContext(
            key=key,
            spark=spark,
            process=process,
            broker_client=BrokerClient(broker, key.namespace, token, trust) if broker else None,
            application=application,
            owner=owner,
            queries=QueryMonitor(spark, lambda: self.agent),
            view_cache=self.view_cache,
            stopped=self.stopped,
            add_import=self._add_import,
            add_export=self._add_export,
        )
        process.beat_callbacks.append(self.context.queries.beat)

    def _add_import(self, port: str) -> None:
        self.imports[port] = ImportPort(self.context, port)

    def _add_export(self, port: str, query: StreamingQuery | None) -> None:
        self.exports[port] = ExportPort(self.context, port, query=query)

    @property
    def agent(self) -> AgentClient:
        """The PE's own agent."""
        return self.context.agent

    @property
    def data_dir(self) -> Path:
        """The directory of the PE's agent."""
        return self.context.process.home

    subscribe = subscribing.subscribe

    publish = publishing.publish

    def aligned(self, frame: DataFrame) -> Stream:
        """Return a streaming DataFrame as one with control tuples, for operators.

        Raises:
            AlignedError: it is not streaming, or a column has a reserved name.
        """
        from pe_agent.streams.stream import stream

        return stream(frame, pe=self)

    # -- control tuples ------------------------------------------------------------------------

    emit_control = emitted.emit_control
    send_control = emitted.send_control

    # -- functions of IBM Streams: codes instead of errors --------------------------------------

    set_import_subscription = functions.set_import_subscription
    set_import_filter = functions.set_import_filter
    set_import_streams = functions.set_import_streams
    set_export_properties = functions.set_export_properties
    get_import_subscription = functions.get_import_subscription
    get_import_filter = functions.get_import_filter
    get_import_streams = functions.get_import_streams
    get_export_properties = functions.get_export_properties

    # -- common ------------------------------------------------------------------------------

    def broker(self) -> BrokerClient:
        """Return the broker's client; raise BrokerUnavailableError if the PE has no broker."""
        return self.context.broker()

    def view(self) -> dict[str, Any] | None:
        """Return the agent's route table as it is now, None while none is known."""
        return send(self.agent, GetView()).view

    def status(self) -> dict[str, Any]:
        """Return the agent's metrics: streams, readers, deliveries, unreachable agents."""
        return send(self.agent, GetStatus())

    def on_beat(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` about twice a second while the agent answers."""
        self.context.process.beat_callbacks.append(callback)

    def stop(self, *, end_agent: bool = False) -> None:
        """Release the agent. It keeps serving for ``linger``; ``end_agent`` ends it at once."""
        self.stopped.set()
        try:
            self.context.queries.beat()
        except StreambrokerError as error:
            log.info("publisher leases not released: %s", error)
        self.context.process.stop(end_agent=end_agent)
        if self._shard_agents is not None:
            self._shard_agents.stop(end_agent=end_agent)
