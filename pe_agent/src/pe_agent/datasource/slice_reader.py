"""The task side of a reader: rows of one slice, from the agents that have its blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from pe_agent.datasource.options import Options
from pe_agent.datasource.packer import ImportPacker, read_row_numbers
from pe_agent.spark.worker import QUERY_ID, task_property
from pe_agent.transport.agent_client import AgentClient
from pe_agent.transport.agent_tls import AgentTrust
from pe_agent.transport.messages import BlockMetadata, Ticket
from pe_agent.transport.rows.block_reader import BlockReader
from pe_agent.transport.rows.casts import cast_column
from streambroker_core.control.runtime.control_rows import to_batch
from streambroker_core.control.tuples.epoch_control import parse_indexed


class Slice(InputPartition):
    """Blocks of planned epochs for one task: the ticket, and the TLS trust for its agent."""

    def __init__(self, ticket: Ticket, trust: AgentTrust) -> None:
        self.value = ticket
        self.trust = trust


class SliceReader:
    """Reads one slice; resumes a lost connection for up to ``reconnect`` seconds.

    ``client`` returns the client of the own agent, which knows where blocks are. ``ticket`` has the
    blocks, and ``blocks`` reads them.
    """

    def __init__(
        self, slice_: Slice, options: Options, schema: StructType, client: Callable[[], AgentClient]
    ) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        self.ticket = slice_.value.copy()
        self.ticket["query"] = task_property(QUERY_ID)
        self.blocks = BlockReader(slice_.trust, options.reconnect, client)
        self._schema = to_arrow_schema(schema, timezone="UTC")

    def read_rows(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        for batch, meta in self.blocks.read(self.ticket):
            if batch.num_rows:
                yield self._cast_batch(batch, meta)

    def read_packed(self, packer: ImportPacker) -> Iterator[pa.RecordBatch]:
        """Yield packed rows and control tuples."""
        ticket = self.ticket
        if "tuples" in ticket:
            yield from packer.pack_control([to_batch(parse_indexed(ticket["tuples"]))])
        elif ticket.get("control"):
            yield from packer.pack_control([batch for batch, _ in self.blocks.read(ticket)])
        else:
            if "marks" in ticket:
                marks = {**ticket["marks"], "query": ticket["query"]}
                control = [batch for batch, _ in self.blocks.read(marks)]
                yield from packer.pack_immediate(ticket["marks"]["before"], control)
            for number, (batch, meta) in enumerate(self.blocks.read(ticket)):
                packer.note_time(batch, meta)
                if batch.num_rows:
                    row_numbers = read_row_numbers(batch, filtered=ticket["filter"] is not None)
                    yield from packer.pack_rows(self._cast_batch(batch, meta), number, row_numbers)
        yield from packer.finish()

    def _cast_batch(self, batch: pa.RecordBatch, meta: BlockMetadata) -> pa.RecordBatch:
        if batch.schema.equals(self._schema):
            return batch
        arrays = []
        for column in self._schema:
            if column.name == "_source":
                _, job, _, port = self.ticket["export"].split("/")
                stream, epoch = self.ticket["stream"], meta["epoch"]
                source = {"job": job, "port": port, "stream": stream, "epoch": epoch}
                arrays.append(pa.array([source] * batch.num_rows, column.type))
            else:
                arrays.append(cast_column(batch.column(column.name), column))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
