"""Publishing without Spark: an export whose batches a program numbers itself."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from pe_agent.client.agent_port import RECONNECT_SECONDS, AgentPort
from pe_agent.client.arrow_types import columns_of, published_schema
from pe_agent.client.connect import broker_url
from pe_agent.job.agent.agent_start import AgentSettings
from pe_agent.job.arguments import ArgumentError
from pe_agent.job.port_settings import ExportSettings, export_spec
from pe_agent.job.settings import AgentOptions, BrokerAuth
from pe_agent.transport.agent_client import send
from pe_agent.transport.rows.stage_writer import StageWriter, publish
from streambroker_core.errors import SchemaError, StreambrokerError
from streambroker_core.model import DEFAULT_NAMESPACE, PortKey
from streambroker_core.model.durations import Duration
from streambroker_core.model.schema import to_ddl, to_items
from streambroker_core.wire.agent_rpc.publisher import (
    PublisherAdmit,
    PublisherFinish,
    PublisherPublish,
    PublisherRenew,
    PublisherRenounce,
)

if TYPE_CHECKING:
    from typing import Self, Unpack

log = logging.getLogger("pe_agent")

Rows: TypeAlias = "pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch]"


def writer(
    port: str,
    schema: pa.Schema,
    *,
    job: str,
    broker: str | None = None,
    namespace: str = DEFAULT_NAMESPACE,
    query: str | None = None,
    redeclare: bool = False,
    linger: Duration = "60s",
    auth: BrokerAuth | None = None,
    agent: AgentOptions | None = None,
    storage: str | None = None,
    **settings: Unpack[ExportSettings],
) -> Writer:
    """Export a stream without Spark.

    Args:
        port: name of the export port.
        schema: columns of the rows, as an Arrow schema.
        job: name of the job, a DNS label; unique in its namespace. Its agent keeps the rows in
            ``$STREAMBROKER_HOME/<job>/0``.
        broker: address of the broker; default ``$STREAMBROKER_URL`` or ``http://127.0.0.1:8470``.
        namespace: namespace of the job.
        query: id of the publisher whose batches are numbered; default is ``<job>/<port>``. Another
            id begins a new stream.
        redeclare: overwrite the Export that exists.
        linger: how long the agent goes on serving after `Writer.close`; a negative number for
            ever.
        auth: token for the broker and CA of its certificate; default is the environment's.
        agent: address of the agent and its TLS; default is loopback, and the environment's TLS.
        storage: bucket behind the export, see `streambroker.start`.
        settings: ``stream_id``, ``properties`` and the others of `ExportSettings`.

    Raises:
        ArgumentError, PropertyError, SchemaError: nothing was started.
        StreambrokerError: the agent did not start, see `streambroker.start`.
    """
    key = PortKey.parse(f"{namespace}/{job}/0/{port}")
    published = published_schema(schema)
    columns = columns_of(published)
    spec = export_spec("writer", port, settings) or {"properties": {}}
    started = AgentPort(
        "export",
        key,
        AgentSettings(
            broker=broker_url(broker),
            linger=linger,
            auth=auth or BrokerAuth(),
            agent=agent or AgentOptions(),
            storage=storage,
        ),
    )
    try:
        started.declare(spec, application=job, redeclare=redeclare, schema=to_items(columns))
    except BaseException:
        started.close()
        raise
    return Writer(started, published, to_ddl(columns), query or f"{job}/{port}")


class Writer:
    """Publishes the batches of one export. Not thread-safe."""

    def __init__(self, port: AgentPort, schema: pa.Schema, ddl: str, query: str) -> None:
        self.schema = schema
        self._port, self._ddl, self._query = port, ddl, query
        self._name = port.key.port
        self._run = secrets.token_hex(8)
        renew = PublisherRenew(export=self._name, query=query)
        port.on_beat(lambda: send(port, renew))

    def publish(self, batch: int, rows: Rows) -> bool:
        """Publish rows as one epoch; waits while readers with ``wait`` hold the full log.

        Args:
            batch: number of the batch, one above that before; a gap begins a new stream. A program
                that stores it with its own progress may repeat a batch after a crash: each is
                published once.
            rows: columns are selected by name and cast to the schema.

        Returns:
            Whether the batch was published now; False if it had been before.

        Raises:
            ArgumentError, SchemaError: the batch number or the rows are wrong; nothing was sent.
            AgentRefusedError: ``BatchDiffers``: it was published with other rows; other refusals.
            AgentUnreachableError: the agent did not answer for a minute.
        """
        if isinstance(batch, bool) or not isinstance(batch, int) or batch < 0:
            raise ArgumentError(f"batch is {batch!r}; it has to be a number from 0 on.")
        batches = (self._cast(one) for one in _batches(rows) if one.num_rows)
        admit = PublisherAdmit(
            export=self._name,
            query=self._query,
            run=self._run,
            batch=batch,
            ddl=self._ddl,
            renewed=None,
        )
        stage = StageWriter(lambda: self._port.agent, admit, RECONNECT_SECONDS)
        first = next(batches, None)
        stages = []
        if first is None:
            stage.admit()
        else:
            stages.append(stage.stage(first, batches))
        request = PublisherPublish(
            export=self._name,
            query=self._query,
            run=self._run,
            batch=batch,
            stages=stages,
            ddl=self._ddl if stages else None,
        )
        return publish(lambda: self._port.agent, request, RECONNECT_SECONDS).published

    def finish(self) -> None:
        """Mark the export as ended: readers with ``stop_at_end`` end once they have read all."""
        send(self._port, PublisherFinish(export=self._name, query=self._query, run=self._run))

    def close(self) -> None:
        """Release the export and the agent; it goes on serving readers for ``linger``."""
        try:
            send(self._port, PublisherRenounce(export=self._name, query=self._query))
        except StreambrokerError as error:
            log.info("publisher lease not released: %s", error)
        self._port.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _cast(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        missing = [name for name in self.schema.names if name not in batch.schema.names]
        if missing:
            raise SchemaError(
                f"the rows have no column {missing[0]!r}; the export {self._name} has"
                f" {', '.join(self.schema.names)}"
            )
        selected = batch.select(self.schema.names)
        if selected.schema.equals(self.schema):
            return selected
        try:
            return selected.cast(self.schema)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise SchemaError(f"the rows do not fit export {self._name}: {error}") from error


def _batches(rows: Rows) -> Iterator[pa.RecordBatch]:
    if isinstance(rows, pa.RecordBatch):
        return iter((rows,))
    if isinstance(rows, pa.Table):
        return iter(rows.to_batches())
    return chain(rows)
