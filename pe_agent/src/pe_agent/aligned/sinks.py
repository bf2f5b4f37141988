"""Streams with control tuples as exports: one sink, and one export or one for each output.

The sink receives the emitted rows of an operator's buckets, or rows with control rows among them.
It passes rows and tuples to the sinks of its exports, which are published one after the other. If
the job fails in between, Spark repeats the batch, and exports that already have it ignore it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from pe_agent.aligned.runtime.frames import (
    CONTROL,
    EMITTED,
    END_POSITION,
    PROGRESS,
    ROWS,
    SEQ,
    PositionAssigner,
    conform,
    decode_control,
    read_positioned_rows,
)
from pe_agent.aligned.runtime.packer import AT_END, immediate_error, unpack_tuples
from pe_agent.datasource.options import Options
from pe_agent.datasource.schemas import spark_to_arrow
from pe_agent.datasource.sink import StreambrokerStreamWriter
from pe_agent.datasource.unpacker import Unpacker
from pe_agent.job.publish import Publication, Sink
from pe_agent.spark.session import register_source
from streambroker_core.control.runtime.packing import NO_BUCKET, RUNNING_BITS
from streambroker_core.control.tuples import ControlTuple, Delivery
from streambroker_core.errors import AlignedError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from pe_agent.aligned.data import ControlFrame, RowsFrame

FORMAT = "streambroker-outputs"
SEPARATE_CONTROL = -1
"""Minus the position of a tuple separate from rows; an ``IMMEDIATE`` one has no position."""
EmittedRow = tuple[str, int, int, int, bytes]
"""Kind, bucket, sequence, number and payload of an emitted row."""


def sink_for_outputs(
    frame: DataFrame,
    exports: Mapping[str, Publication],
) -> tuple[DataFrame, Sink]:
    """Return the frame of an operator's emitted rows, and the sink of some of its outputs.

    ``exports`` are by output.

    Raises:
        AlignedError: no output, or two outputs for one export.
    """
    from pyspark.sql import functions

    ports = {output: one.port for output, one in exports.items()}
    if not ports or len(set(ports.values())) < len(ports):
        raise AlignedError(
            f"publish_outputs is given {ports}: each output needs an export of its own."
        )
    chosen = functions.col("output").isin(list(ports)) & (functions.col("kind") != PROGRESS)
    rows = {port: _count_emitted(output) for output, port in ports.items()}
    return frame.where(chosen), _build_sink(frame, exports, rows)


def sink_for_rows(
    rows: RowsFrame, control_frames: tuple[ControlFrame, ...], export: Publication
) -> tuple[DataFrame, Sink]:
    """Return rows and all control of a stream as one frame, and its sink."""
    from pyspark.sql import functions

    columns = export.columns
    if not rows.mixed and not control_frames:
        return rows.frame.drop(SEQ), Sink(exports=(export,), options={"export": export.port})
    frames = [rows.frame]
    if not rows.mixed:
        frames = [rows.frame.withColumn(CONTROL, functions.lit(None).cast("binary"))]
    for one in control_frames:
        user = [functions.lit(None).cast(c.dataType).alias(c.name) for c in columns]
        seq = functions.col(SEQ)
        place = (
            seq.bitwiseAND(~END_POSITION).bitwiseOR(END_POSITION)
            if one.immediate == AT_END
            else SEPARATE_CONTROL - seq
        )
        frames.append(one.with_positions().select(*user, place.alias(SEQ), CONTROL))
    frame = reduce(lambda low, high: low.unionByName(high), frames)
    count = functions.count(functions.when(functions.col(CONTROL).isNull(), 1))
    sink = _build_sink(frame, {"": export}, {export.port: count})
    return frame, replace(sink, sizing_schema=columns)


def _count_emitted(output: str) -> Column:
    from pyspark.sql import functions

    is_rows = (functions.col("output") == output) & (functions.col("kind") == ROWS)
    rows = functions.sum(functions.when(is_rows, functions.col("n")))
    return functions.coalesce(rows, functions.lit(0))


def _build_sink(
    frame: DataFrame, exports: Mapping[str, Publication], rows: Mapping[str, Column]
) -> Sink:
    register_source(frame.sparkSession, OutputsSink)
    outputs = {
        output: {"port": one.port, "columns": one.columns.jsonValue()}
        for output, one in exports.items()
    }
    return Sink(
        exports=tuple(exports.values()),
        format=FORMAT,
        options={"outputs": json.dumps(outputs)},
        rows=rows,
    )


@dataclass
class OutputCommits(WriterCommitMessage):
    """Commit message of a write task: one sink message per output."""

    by_output: dict[str, WriterCommitMessage | None]


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
        options = {k: v for k, v in dict(self.options).items() if k.lower() != "outputs"}
        writers: dict[str, StreambrokerStreamWriter] = {}
        schemas: dict[str, pa.Schema] = {}
        for output, one in json.loads(self.options["outputs"]).items():
            columns = StructType.fromJson(one["columns"])
            settings = Options.read({**options, "export": one["port"]}, "export")
            writers[output] = StreambrokerStreamWriter(columns, settings, overwrite)
            schemas[output] = spark_to_arrow(columns)
        return OutputsWriter(writers, schemas, mixed=CONTROL in schema.names)


class OutputsWriter(DataSourceStreamArrowWriter):
    """Writes one micro-batch to its exports."""

    def __init__(
        self,
        writers: Mapping[str, StreambrokerStreamWriter],
        schemas: Mapping[str, pa.Schema],
        *,
        mixed: bool = False,
    ) -> None:
        """Set up; ``mixed`` input is rows with control rows among them, for the one output."""
        self._writers, self._schemas, self._mixed = writers, schemas, mixed

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the task's rows; rows of several outputs are buffered in memory first."""
        if self._mixed:
            ((output, writer),) = self._writers.items()
            rows = partial(unpack_mixed_rows, iterator, self._schemas[output], "the export")
            return OutputCommits({output: writer.write_with_control(rows)})
        emissions = _read_emitted(iterator)
        by_output: dict[str, Iterator[EmittedRow]] = {}
        if len(self._writers) == 1:
            by_output = {output: (one for _, one in emissions) for output in self._writers}
        else:
            buffered: dict[str, list[EmittedRow]] = {output: [] for output in self._writers}
            for output, one in emissions:
                buffered[output].append(one)
            by_output = {output: iter(some) for output, some in buffered.items()}
        return OutputCommits(
            {
                output: writer.write_with_control(
                    partial(unpack_emitted_rows, by_output[output], self._schemas[output], output)
                )
                for output, writer in self._writers.items()
            }
        )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish to each export; after a crash the repeat is published once."""
        for output, writer in self._writers.items():
            writer.commit(_messages_for(messages, output), batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Discard the stages that were not published."""
        for output, writer in self._writers.items():
            writer.abort(_messages_for(messages, output), batchId)


def unpack_emitted_rows(
    emitted: Iterator[EmittedRow], schema: pa.Schema, output: str, unpacker: Unpacker
) -> Iterator[pa.RecordBatch]:
    """Yield the rows that an output emitted, and add its tuples to the unpacker, by bucket."""
    for kind, bucket, seq, n, payload in emitted:
        if kind == ROWS:
            for batch, places in read_positioned_rows(payload, seq):
                rows = conform(batch, schema, f"output {output}")
                yield unpacker.add_rows(bucket, places, rows)
        else:
            for position, control in unpack_tuples(n, payload):
                unpacker.add_control(bucket, position, control)


def unpack_mixed_rows(
    batches: Iterator[pa.RecordBatch], schema: pa.Schema, location: str, unpacker: Unpacker
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a mixed frame, and add its tuples to the unpacker; a part is a group."""
    positions = PositionAssigner()
    for batch in batches:
        control_column = batch.column(CONTROL)
        control = batch.filter(pc.is_valid(control_column))
        for position, data in zip(
            *(control.column(n).to_pylist() for n in (SEQ, CONTROL)), strict=True
        ):
            _add_control(unpacker, position, decode_control(data), location)
        rows = batch.filter(pc.is_null(control_column))
        if rows.num_rows:
            seq = positions.assign(rows.column(SEQ))
            yield from _split_parts(
                rows.drop_columns([SEQ, CONTROL]), seq, schema, location, unpacker
            )


def _split_parts(
    rows: pa.RecordBatch, seq: pa.Array, schema: pa.Schema, location: str, unpacker: Unpacker
) -> Iterator[pa.RecordBatch]:
    runs = pc.run_end_encode(pc.shift_right(seq, RUNNING_BITS))
    first = 0
    for part, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        part_rows = conform(rows.slice(first, end - first), schema, location)
        yield unpacker.add_rows(part, seq.slice(first, end - first), part_rows)
        first = end


def _add_control(unpacker: Unpacker, position: int, decoded: Any, location: str) -> None:
    if not isinstance(decoded, ControlTuple):
        return
    if position <= SEPARATE_CONTROL:
        if decoded.delivery is Delivery.IMMEDIATE:
            raise immediate_error(decoded, location)
        position = SEPARATE_CONTROL - position
    unpacker.add_control(
        NO_BUCKET if position >= END_POSITION else position >> RUNNING_BITS, position, decoded
    )


def _read_emitted(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, EmittedRow]]:
    names = ("output", "kind", "bucket", "seq", "n", "payload")
    for batch in batches:
        columns = (batch.column(EMITTED.get_field_index(name)).to_pylist() for name in names)
        for output, *emission in zip(*columns, strict=True):
            yield output, tuple(emission)


def _messages_for(
    messages: list[WriterCommitMessage | None], output: str
) -> list[WriterCommitMessage | None]:
    return [one.by_output.get(output) for one in messages if isinstance(one, OutputCommits)]
