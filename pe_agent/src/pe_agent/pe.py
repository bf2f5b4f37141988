"""The entry point of a job: start a PE, subscribe, publish, and change ports of running queries."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pe_agent.functions import old_methods
from pe_agent.job import owner_reference as owners
from pe_agent.job import publish as publishing
from pe_agent.job.agent.agent_process import AgentProcess
from pe_agent.job.agent.agent_start import AgentSettings
from pe_agent.job.agent.server_check import check_server
from pe_agent.job.agent.view_cache import ViewCache
from pe_agent.job.arguments import ArgumentError, seconds
from pe_agent.job.context import JobContext
from pe_agent.job.ports import ExportPort, ImportPort, PortsByName, is_known
from pe_agent.job.query_monitor import QueryMonitor
from pe_agent.job.send_control import Operators
from pe_agent.job.settings import AgentOptions, BrokerAuth
from pe_agent.job.statuses import PeStatus
from pe_agent.spark.session import is_connect
from pe_agent.streams import subscribe as subscribing
from pe_agent.transport.agent_client import AgentClient, send
from pe_agent.transport.agent_tls import is_loopback
from pe_agent.transport.broker_client import BrokerClient
from streambroker_core.model import DEFAULT_NAMESPACE, DEFAULT_SCOPE, PeKey
from streambroker_core.model.durations import Duration
from streambroker_core.wire.agent_rpc.job import GetStatus, GetView

if TYPE_CHECKING:
    from typing import Self

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from pe_agent.job.notebook.live_view import LiveView
    from pe_agent.streams.stream import Stream

log = logging.getLogger("pe_agent")


def start(
    spark: SparkSession,
    *,
    job: str,
    broker: str | None = None,
    application: str | None = None,
    scope: str = DEFAULT_SCOPE,
    namespace: str = DEFAULT_NAMESPACE,
    pe: int = 0,
    data_dir: str | Path | None = None,
    linger: Duration | None = None,
    auth: BrokerAuth | None = None,
    agent: AgentOptions | None = None,
    owner: Mapping[str, str] | None = None,
    storage: str | None = None,
) -> PE:
    """Start the PE of a job: its agent process, and the data source in this Spark session.

    Args:
        spark: the job's session.
        job: name of the job, a DNS label; unique in its namespace.
        broker: ``http://host:port`` or ``https://host:port``; without it the last known routes
            apply.
        application: name by which other jobs may import; default is the job's name.
        scope: application scope.
        namespace: namespace of the job.
        pe: number of the processing element.
        data_dir: directory of log, cursors and routes; default ``$STREAMBROKER_HOME/<job>/<pe>``.
        linger: how long the agent keeps serving after the driver has ended; a negative number for
            ever. Default is ``60s``; for ever with Spark Connect, where queries outlive a client.
        auth: token for the broker and CA of its certificate; default is the environment's.
        agent: address of the agent and its TLS; by default it listens on loopback.
        owner: in Kubernetes, owner of the Exports and Imports that the job makes; they are deleted
            with it: ``apiVersion``, ``kind``, ``name`` and ``uid`` of an object in the job's
            namespace that outlives the driver pod; default ``$STREAMBROKER_OWNER``, as JSON, or
            none.
        storage: bucket behind the exports, ``s3://bucket/prefix``, or a directory that several
            machines share, ``file:///directory``; default ``$STREAMBROKER_STORAGE``, or none. An
            agent with an empty ``data_dir`` goes on with what it has there.

    With a session of Spark Connect, the agent runs on the client's machine, and the server's tasks
    have to reach it. Operators, patterns and side inputs need a classic session.

    Raises:
        BucketUrlError: ``storage`` names no bucket, or the package ``obstore`` is missing.
        ArgumentError: ``linger`` is no duration, ``auth`` or ``agent`` no settings, or a Spark
            Connect server cannot reach the agent or lacks this package.
        OwnerError: the owner is incomplete, or a pod.
        TokenError: the token cannot be used, or both ``token`` and ``token_file`` are set.
        NotSecuredError: other machines could call the agent without a certificate.
        TrustError: a file of certificates cannot be used, or a required one is missing.
        AgentFailedError: the agent did not start, for instance because the port or the data
            directory is in use.
    """
    from pe_agent.datasource import StreambrokerDataSource

    key = PeKey.parse(f"{namespace}/{job}/{pe}")
    settings = AgentSettings(
        broker=broker,
        data_dir=data_dir,
        linger=linger if linger is not None else -1.0 if is_connect(spark) else "60s",
        auth=auth or BrokerAuth(),
        agent=agent or AgentOptions(),
        storage=storage,
    )
    settings.check(key)
    belongs_to = owners.resolve_owner(owner)
    if is_connect(spark):
        check_server(spark, loopback=is_loopback(settings.agent.host))
    spark.dataSource.register(StreambrokerDataSource)
    started = settings.start(key)
    return PE(
        spark,
        key,
        started.process,
        started.broker,
        {"name": application or job, "scope": scope},
        belongs_to,
    )


class PE:
    """One processing element of a running job.

    Attributes:
        imports: the ports subscribed so far, by name; others that its agent knows are found, too.
        exports: the ports published so far, by name; like ``imports``.
        operators: the operators of its queries, as receivers of control tuples.
        view_cache: the last known view of its ports.
        context: the PE as the parts of the job see it.
    """

    def __init__(
        self,
        spark: SparkSession,
        key: PeKey,
        process: AgentProcess,
        broker: BrokerClient | None,
        application: dict[str, str],
        owner: Mapping[str, str] | None = None,
    ) -> None:
        self.key = key
        self.imports: dict[str, ImportPort] = PortsByName("import", "subscribe", self._find_import)
        self.exports: dict[str, ExportPort] = PortsByName("export", "publish", self._find_export)
        self.view_cache = ViewCache(lambda: send(self.agent, GetView(), timeout=2.0).view)
        self.stopped = threading.Event()
        self.context = JobContext(
            key=key,
            spark=spark,
            process=process,
            broker_client=broker,
            application=application,
            owner=owner,
            queries=QueryMonitor(spark, lambda: self.agent),
            view_cache=self.view_cache,
            stopped=self.stopped,
            add_import=self._add_import,
            add_export=self._add_export,
        )
        self.operators = Operators(self.context)
        process.beat_callbacks.append(self.context.queries.beat)

    def _add_import(self, port: str) -> None:
        self.imports[port] = ImportPort(self.context, port)

    def _add_export(self, port: str, query: StreamingQuery | None) -> None:
        self.exports[port] = ExportPort(self.context, port, query=query)

    def __repr__(self) -> str:
        return f"PE('{self.key}')"

    def _repr_html_(self) -> str:
        """Return its ports with their routes, for notebooks; sends nothing to the broker."""
        ports = [*self.exports.values(), *self.imports.values()]
        return f"<h4>{self.key}</h4>" + "".join(port._repr_html_() for port in ports)

    def _find_import(self, name: str) -> ImportPort | None:
        known = is_known(self.context, "import", name)
        return ImportPort(self.context, name) if known else None

    def _find_export(self, name: str) -> ExportPort | None:
        known = is_known(self.context, "export", name)
        return ExportPort(self.context, name) if known else None

    @property
    def agent(self) -> AgentClient:
        """The PE's own agent."""
        return self.context.agent

    @property
    def data_dir(self) -> Path:
        """The directory of the PE's agent."""
        return self.context.process.home

    subscribe = subscribing.subscribe
    subscribe_stream = subscribing.subscribe_stream
    publish = publishing.publish
    export_writer = publishing.export_writer
    sink_options = publishing.sink_options

    def stream(self, frame: DataFrame) -> Stream:
        """Return a streaming DataFrame as one with control tuples, for operators.

        Raises:
            AlignedError: it is not streaming, or a column has a reserved name.
        """
        from pe_agent.streams.stream import stream

        return stream(frame, pe=self)

    aligned = old_methods.aligned
    emit_control = old_methods.emit_control
    send_control = old_methods.send_control
    set_import_subscription = old_methods.set_import_subscription
    set_import_filter = old_methods.set_import_filter
    set_import_streams = old_methods.set_import_streams
    set_export_properties = old_methods.set_export_properties
    get_import_subscription = old_methods.get_import_subscription
    get_import_filter = old_methods.get_import_filter
    get_import_streams = old_methods.get_import_streams
    get_export_properties = old_methods.get_export_properties

    # -- common ------------------------------------------------------------------------------

    def broker(self) -> BrokerClient:
        """Return the broker's client; raise BrokerUnavailableError if the PE has no broker."""
        return self.context.broker()

    def view(self) -> dict[str, Any] | None:
        """Return the agent's route table as it is now, None while none is known."""
        return send(self.agent, GetView()).view

    def status(self) -> PeStatus:
        """Return the agent's metrics: streams, readers, deliveries, unreachable agents."""
        status: dict[str, Any] = send(self.agent, GetStatus())
        return PeStatus.from_json(status)

    def live_view(self, interval: Duration = "1s") -> LiveView:
        """Return a widget for notebooks with the rates and the lag of this PE, read every interval.

        Raises:
            ArgumentError: ``interval`` is no duration, or the package ``anywidget`` is missing.
        """
        try:
            from pe_agent.job.notebook.live_view import LiveView
        except ImportError as error:
            raise ArgumentError(
                f"a live view needs a package: {error}. Install it: pip install anywidget"
            ) from error
        return LiveView(self.status, seconds(interval, "interval"), self.stopped)

    def on_beat(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` about twice a second while the agent answers."""
        self.context.process.beat_callbacks.append(callback)

    def stop(self, *, end_agent: bool = False) -> None:
        """Release the agent. It keeps serving for ``linger``; ``end_agent`` ends it at once."""
        self.stopped.set()
        self.context.queries.release()
        self.context.process.stop(end_agent=end_agent)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
