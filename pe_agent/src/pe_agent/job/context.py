"""What the parts of a job share: its session, its agent, its broker and its queries."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pe_agent.transport.agent_client import send
from pe_agent.transport.broker_client import BrokerClient
from streambroker_client.errors import BrokerUnavailableError
from streambroker_core.model import Kind, PeKey, PortKey
from streambroker_core.wire.agent_rpc.job import Declare
from streambroker_core.wire.manifests.ports import read_spec, write_spec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from pe_agent.job.agent.agent_process import AgentProcess
    from pe_agent.job.agent.view_cache import ViewCache
    from pe_agent.job.query_monitor import QueryMonitor
    from pe_agent.transport.agent_client import AgentClient

_KINDS: Mapping[str, Kind] = {"export": "Export", "import": "Import"}


@dataclass(frozen=True, kw_only=True, eq=False)
class JobContext:
    """One PE of a job, as its ports, streams and functions see it; only the `PE` builds it.

    Attributes:
        broker_client: None if the PE was started without a broker.
        application: name and scope under which other jobs may import.
        owner: owner of the resources in Kubernetes, if any.
        stopped: set by ``pe.stop()``.
        add_import: adds an import to the ports of the PE.
        add_export: adds an export with the query that publishes to it, None before it starts.
    """

    key: PeKey
    spark: SparkSession
    process: AgentProcess
    broker_client: BrokerClient | None
    application: Mapping[str, str]
    owner: Mapping[str, str] | None
    queries: QueryMonitor
    view_cache: ViewCache
    stopped: threading.Event
    add_import: Callable[[str], None]
    add_export: Callable[[str, StreamingQuery | None], None]

    @property
    def agent(self) -> AgentClient:
        """The client of the PE's own agent; a restart of the agent replaces it."""
        return self.process.client

    def broker(self) -> BrokerClient:
        """Return the broker's client; raise BrokerUnavailableError if the PE has no broker."""
        if self.broker_client is None:
            raise BrokerUnavailableError("the PE was started without a broker; give broker=.")
        return self.broker_client

    def agent_options(self) -> dict[str, str]:
        """Return the data source options by which tasks find and trust the agent."""
        trust = self.process.trust
        options = {"agent": self.agent.location, "agentToken": self.agent.token}
        if trust.path is not None:
            options |= {"agentCa": str(trust.path), "agentPlain": "allow" if trust.plain else ""}
        if trust.certificate is not None:
            options |= {
                "agentCertificate": str(trust.certificate.chain),
                "agentKey": str(trust.certificate.key),
            }
        return options

    def declare(
        self, kind: str, port: str, spec: dict[str, Any], *, redeclare: bool, schema: Any = None
    ) -> None:
        """Declare a port at the agent; an empty ``spec`` attaches to the one that exists."""
        key = PortKey.parse(f"{self.key}/{port}")
        if spec:
            spec = {"application": dict(self.application), **spec}
            if schema is not None:
                spec["schema"] = schema
            written = write_spec(read_spec(_KINDS[kind], spec, key=key))
            spec = {name: written.get(name, value) for name, value in spec.items()}
        declare = Declare(
            kind=kind,
            port=port,
            spec=spec or None,
            schema=schema,
            redeclare=redeclare,
            owner=self.owner,
        )
        send(self.agent, declare)


class Job(Protocol):
    """What has the context of a job: the `PE`."""

    @property
    def context(self) -> JobContext:
        """The context."""
