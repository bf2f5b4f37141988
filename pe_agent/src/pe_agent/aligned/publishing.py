"""Several outputs of an operator, published by one query: each export once per batch.

One sink takes what the buckets emit, sorts it by output, and hands each output's rows to the sink
of its export. Those are published one after the other. If the job dies in between, Spark repeats
the batch, and the exports that have it already say so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from pe_agent.aligned.errors import AlignedError
from pe_agent.aligned.forms import EMITTED, ROWS, arrow_of, fitting, read_ipc
from pe_agent.datasource.options import Options
from pe_agent.datasource.sink import StreambrokerStreamWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from pe_agent.pe import PE

FORMAT = "streambroker-outputs"


def publish_outputs(
    pe: PE,
    frame: DataFrame,
    ports: Mapping[str, str],
    columns: Mapping[str, StructType],
    *,
    checkpoint: str | Path,
    properties: Mapping[str, Mapping[str, Any]] | None = None,
    trigger: Mapping[str, Any] | None = None,
    query_name: str | None = None,
) -> StreamingQuery:
    """Declare an export for each output, and start the query that publishes them all.

    Raises:
        AlignedError: no output, two outputs for one export, or properties of none.
    """
    from pyspark.sql import functions

    if not ports or len(set(ports.values())) < len(ports):
        raise AlignedError(
            f"publish_outputs is given {dict(ports)}: each output needs an export of its own."
        )
    told = dict(properties or {})
    lost = [output for output in told if output not in ports]
    if lost:
        raise AlignedError(f"properties are given for output {lost[0]}, which is not published.")
    frame.sparkSession.dataSource.register(OutputsSink)
    chosen = frame.where(
        (functions.col("kind") == ROWS) & functions.col("output").isin(list(ports))
    )
    outputs = {
        output: {"port": port, "columns": columns[output].jsonValue()}
        for output, port in ports.items()
    }

    def start(options: Mapping[str, str]) -> StreamingQuery:
        writer = (
            chosen.writeStream.format(FORMAT)
            .options(**options)
            .option("outputs", json.dumps(outputs))
            .option("checkpointLocation", str(checkpoint))
            .outputMode("append")
        )
        if trigger is not None:
            writer = writer.trigger(**trigger)
        if query_name is not None:
            writer = writer.queryName(query_name)
        return writer.start()

    exports = {port: (columns[output], told.get(output)) for output, port in ports.items()}
    return pe._publish_all(frame, exports, start)


@dataclass
class Parts(WriterCommitMessage):
    """What one task tells the commit: for each output, what its export's sink told."""

    of: dict[str, WriterCommitMessage | None]


class OutputsSink(DataSource):
    """``format("streambroker-outputs")``."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Return the writer of a batch."""
        del schema
        given: Mapping[str, Any] = json.loads(self.options["outputs"])
        options = {k: v for k, v in dict(self.options).items() if k.lower() != "outputs"}
        columns = {output: StructType.fromJson(told["columns"]) for output, told in given.items()}
        writers = {
            output: StreambrokerStreamWriter(
                columns[output],
                Options.read({**options, "export": told["port"]}, "export"),
                overwrite,
            )
            for output, told in given.items()
        }
        schemas = {output: arrow_of(one) for output, one in columns.items()}
        return OutputsWriter(writers, schemas)


class OutputsWriter(DataSourceStreamArrowWriter):
    """Writes one micro-batch to several exports."""

    def __init__(
        self, writers: Mapping[str, StreambrokerStreamWriter], schemas: Mapping[str, pa.Schema]
    ) -> None:
        self._writers, self._schemas = writers, schemas

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the task's rows, output by output; they are in memory meanwhile."""
        given: dict[str, list[bytes]] = {output: [] for output in self._writers}
        for batch in iterator:
            columns = (
                batch.column(EMITTED.get_field_index(name)) for name in ("output", "payload")
            )
            for output, payload in zip(*(one.to_pylist() for one in columns), strict=True):
                given[output].append(payload)
        return Parts(
            {
                output: writer.write(self._batches(output, given[output]))
                for output, writer in self._writers.items()
            }
        )

    def _batches(self, output: str, payloads: list[bytes]) -> Iterator[pa.RecordBatch]:
        for payload in payloads:
            for batch in read_ipc(payload):
                yield fitting(batch, self._schemas[output], f"output {output}")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish to each export; repeated after a crash, each has the batch once."""
        for output, writer in self._writers.items():
            writer.commit(_of(messages, output), batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Discard what was staged and not published."""
        for output, writer in self._writers.items():
            writer.abort(_of(messages, output), batchId)


def _of(
    messages: list[WriterCommitMessage | None], output: str
) -> list[WriterCommitMessage | None]:
    return [one.of.get(output) for one in messages if isinstance(one, Parts)]
