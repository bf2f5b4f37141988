"""Batch reads: what the exports of an import have, as a DataFrame that is not streaming."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import cast

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from pe_agent.datasource.options import BatchRange, Options, format_ddl
from pe_agent.datasource.slice_reader import Slice, SliceReader
from pe_agent.spark.pushed_filters import split_filters
from pe_agent.spark.worker import freeze_modules
from pe_agent.transport.agent_client import AgentClient, send
from pe_agent.transport.flight_errors import AgentRefusedError, AgentUnreachableError
from pe_agent.transport.messages import Ticket
from streambroker_core.errors import StreambrokerError
from streambroker_core.wire.agent_rpc.job import GetView
from streambroker_core.wire.agent_rpc.reader import ReaderDone, ReaderSnapshot

log = logging.getLogger("pe_agent")

RETRY_SECONDS = 0.2
PLAN_SECONDS = 60.0
_PASSING = ("AgentUnreachable", "RoutesUnknown")


class StreambrokerBatchReader(DataSourceReader):
    """Reads what the exports of an import have when Spark plans the query."""

    def __init__(self, schema: StructType, options: Options, range_: BatchRange) -> None:
        self._schema, self._options, self._range = schema, options, range_

    def partitions(self) -> Sequence[InputPartition]:
        """Plan all epochs from ``start`` to ``end``.

        Raises:
            AgentUnreachableError: for ``reconnect`` seconds the own agent, or that of an exporter,
                did not answer, or the routes of the import were unknown.
            AgentRefusedError: the import is not declared, or an exporter refuses: ``DataLoss``,
                ``SchemaMismatch``.
        """
        options, trust = self._options, self._options.trust()
        columns = StructType([f for f in self._schema.fields if f.name != "_source"])
        request = ReaderSnapshot(
            import_=options.port,
            reader=secrets.token_hex(16),
            columns=columns.names,
            schema=format_ddl(columns),
            start=self._range.start,
            end=self._range.end,
            filter=self._range.filter,
            lossy=options.skip_lost,
        )
        client = AgentClient(options.agent, options.token, trust)
        until = time.monotonic() + options.reconnect
        while True:
            try:
                answer = send(client, request, timeout=PLAN_SECONDS)
                break
            except StreambrokerError as error:
                if error.code not in _PASSING:
                    raise
                if time.monotonic() > until:
                    raise self._away_error(error) from None
                time.sleep(RETRY_SECONDS)
        for stream, parts in answer.lost.items():
            log.warning("continuing without epochs %s of stream %s", parts, stream)
        shown = trust.snapshot()  # executors need not have the file
        return [Slice(cast(Ticket, ticket), shown) for ticket in answer.slices]

    def _away_error(self, error: StreambrokerError) -> AgentUnreachableError:
        port, seconds = self._options.port, self._options.reconnect
        return AgentUnreachableError(
            f"import {port} cannot be read for {seconds:.0f} s: {error} A batch read needs all"
            " exporters; read again when they are back."
        )

    def _ended_error(self, error: AgentRefusedError) -> AgentRefusedError:
        if error.code != "NotPlanned":
            return error
        return AgentRefusedError(
            error.code,
            f"the snapshot of import {self._options.port} has ended: the export has removed epochs"
            " of it after they were read, or it was not read for longer than `buffer.grace`. Load"
            f" the DataFrame again. {error}",
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the slice's rows; resume a lost connection for up to ``reconnect`` seconds.

        Raises:
            AgentUnreachableError: no agent could send them for that long.
            AgentRefusedError: ``NotPlanned``, the snapshot has ended.
        """
        if isinstance(partition, Slice):  # Spark makes another one where there are no slices
            client = AgentClient(self._options.agent, self._options.token, partition.trust)
            reader = SliceReader(partition, self._options, self._schema, lambda: client)
            try:
                yield from reader.read_rows()
            except AgentRefusedError as error:
                raise self._ended_error(error) from None
            done = ReaderDone(reader=partition.value["reader"], slice=partition.value["slice"])
            try:
                send(client, done)
            except StreambrokerError as error:
                log.info("the plan of a batch read lasts until its lease ends: %s", error)
        freeze_modules("read")


class FilteringBatchReader(StreambrokerBatchReader):
    """Lets exporters evaluate filters of Spark; used where the session's setting allows it."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take the filters that exporters evaluate as Spark does; return the others."""
        options, view = self._options, GetView()
        client = AgentClient(options.agent, options.token, options.trust())
        known = send(client, view, timeout=PLAN_SECONDS).view or {}
        own = [self._range.filter, known.get("imports", {}).get(options.port, {}).get("filter")]
        texts = [f"({text})" for text in own if text is not None]
        pushed, left = split_filters(filters, self._schema, " && ".join(texts) or None)
        if pushed is not None:
            both = pushed if self._range.filter is None else f"({self._range.filter}) && {pushed}"
            self._range = replace(self._range, filter=both)
        return left
