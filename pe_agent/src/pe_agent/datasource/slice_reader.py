"""The task side of a reader: rows of one slice, from the agents that have its blocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from pe_agent.datasource.objects.reader import read_objects
from pe_agent.datasource.options import Options
from pe_agent.datasource.packer import ImportPacker, read_row_numbers
from pe_agent.transport.agent_client import AgentClient, send
from pe_agent.transport.agent_tls import AgentTrust
from pe_agent.transport.flight_errors import AgentUnreachableError
from streambroker_core.control.runtime.control_rows import to_batch
from streambroker_core.control.tuples.epoch_control import parse_indexed
from streambroker_core.errors import StreambrokerError
from streambroker_core.ledger.offset import Offset, ranges
from streambroker_core.model import pe_of
from streambroker_core.wire.agent_rpc.reader import ReaderWhere

RETRYABLE_CODES = ("AgentUnreachable", "StorageUnavailable")
"""Errors of a read after which it is tried again for ``reconnect`` seconds."""


class Slice(InputPartition):
    """Blocks of planned epochs for one task: the ticket, and the TLS trust for its agent."""

    def __init__(self, ticket: dict[str, Any], trust: AgentTrust) -> None:
        self.value = ticket
        self.trust = trust


class SliceReader:
    """Reads one slice; resumes a lost connection for up to ``reconnect`` seconds.

    ``client`` returns the client of the own agent, which knows where blocks are. ``ticket`` has the
    blocks.
    """

    def __init__(
        self, slice_: Slice, options: Options, schema: StructType, client: Callable[[], AgentClient]
    ) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        self.ticket: dict[str, Any] = {**slice_.value, "query": current_query()}
        self._trust = slice_.trust
        self._options = options
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._client = client

    def read_rows(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        for batch, meta in self.read_blocks(self.ticket):
            if batch.num_rows:
                yield self._cast_batch(batch, meta)

    def read_packed(self, packer: ImportPacker) -> Iterator[pa.RecordBatch]:
        """Yield packed rows and control tuples."""
        ticket = self.ticket
        if "tuples" in ticket:
            yield from packer.pack_control([to_batch(parse_indexed(ticket["tuples"]))])
        elif ticket.get("control"):
            yield from packer.pack_control([batch for batch, _ in self.read_blocks(ticket)])
        else:
            if "marks" in ticket:
                marks = {**ticket["marks"], "query": ticket["query"]}
                control = [batch for batch, _ in self.read_blocks(marks)]
                yield from packer.pack_immediate(marks["before"], control)
            for number, (batch, meta) in enumerate(self.read_blocks(ticket)):
                packer.note_time(batch, meta)
                if batch.num_rows:
                    row_numbers = read_row_numbers(batch, filtered=ticket["filter"] is not None)
                    yield from packer.pack_rows(self._cast_batch(batch, meta), number, row_numbers)
        yield from packer.finish()

    def read_blocks(
        self, ticket: dict[str, Any]
    ) -> Iterator[tuple[pa.RecordBatch, dict[str, Any]]]:
        """Yield the blocks of a ticket with their metadata, from the bucket or the agent.

        Raises:
            AgentUnreachableError: no agent could send them for ``reconnect`` seconds.
        """
        location, done = ticket["location"], 0
        if ticket.get("direct"):
            done = yield from read_objects(AgentClient(location, trust=self._trust), ticket)
            if done == sum(last - first for _, first, last in ticket["pieces"]):
                return
        until: float | None = None
        while True:
            try:
                rows = AgentClient(location, trust=self._trust).get(
                    {**ticket, "skip": done}, stall=self._options.reconnect
                )
                for batch, meta in rows:
                    done, until = done + 1, None
                    yield batch, meta
                return
            except StreambrokerError as error:
                if error.code not in RETRYABLE_CODES:
                    raise
                until = until or time.monotonic() + self._options.reconnect
                if time.monotonic() > until:
                    raise AgentUnreachableError(
                        f"{error} Epochs {describe_epochs(ticket)} of stream {ticket['stream']} of"
                        f" {ticket['export']} could not be read at agent"
                        f" {pe_of(ticket['export'])} for {self._options.reconnect:.0f} s."
                        " Nothing was skipped; the batch is repeated when the query is started"
                        " again."
                    ) from None
                time.sleep(0.2)
                location = self._locate(ticket, location)

    def _locate(self, ticket: dict[str, Any], location: str) -> str:
        request = ReaderWhere(
            export=ticket["export"],
            stream=ticket["stream"],
            reader=ticket["reader"],
        )
        try:
            return send(self._client(), request).location
        except StreambrokerError:
            return location

    def _cast_batch(self, batch: pa.RecordBatch, meta: dict[str, Any]) -> pa.RecordBatch:
        if batch.schema.equals(self._schema):
            return batch
        arrays = []
        for column in self._schema:
            if column.name == "_source":
                source = build_source_column(column.type, batch.num_rows, self.ticket, meta)
                arrays.append(source)
            else:
                array = batch.column(column.name)
                arrays.append(array if array.type == column.type else array.cast(column.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def current_query() -> str | None:
    """Return the id of the query that this task belongs to; None outside of a task."""
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty("sql.streaming.queryId")


def build_source_column(
    type_: pa.DataType, rows: int, ticket: dict[str, Any], meta: dict[str, Any]
) -> pa.Array:
    """Return the `_source` column."""
    _, job, _, port = ticket["export"].split("/")
    value = {"job": job, "port": port, "stream": ticket["stream"], "epoch": meta["epoch"]}
    return pa.array([value] * rows, type=type_)


def describe_planned(start: dict[str, Any], end: dict[str, Any]) -> str:
    """Return the epochs that a batch reads, as text for messages."""
    planned = ranges(Offset.decode(start), Offset.decode(end))
    return ", ".join(f"epochs {f} to {n - 1} of stream {s}" for s, (f, n) in planned.items())


def describe_epochs(ticket: dict[str, Any]) -> str:
    """Return the range of epochs of a ticket, as text for messages."""
    numbers = [p[0] for p in ticket["pieces"]]
    return f"{min(numbers)} to {max(numbers)}"
