"""The Spark schemas of a stream between its operators.

- *Rows*: the user's columns and ``_seq``, the position of the row. A *mixed* frame also has
  ``_control``, which is null in data rows. In a control row it contains a control tuple or progress
  messages, and the user's columns are null.
- *Packed*: many rows in one row per bucket, in the format of ``control.runtime.packing`` in core,
  with the slot of the bucket.
- *Emitted*: the output of an operator's buckets, one row per bucket, output and kind.

The position of an ``IMMEDIATE`` control tuple is between the rows; others have the position that
``control.runtime.emitter`` assigns. Positions of rows of operators and imports are spaced apart.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from pe_agent.aligned.runtime import progress_messages
from streambroker_core.control.operators.operator import OperatorError
from streambroker_core.control.runtime.packing import (
    PART_BITS,
    RANK_BITS,
    RESERVED,
    RUNNING_BITS,
    consecutive_numbers,
    sequence,
)
from streambroker_core.control.tuples import ControlError, ControlTuple, envelope
from streambroker_core.errors import AlignedError, StreambrokerError
from streambroker_core.wire.encoding.canonical import canonical

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SEQ, CONTROL, NOW = "_seq", "_control", "now"
EMITTED_DDL = "output string, kind string, bucket int, seq bigint, n int, payload binary"
EMITTED = pa.schema(
    [
        ("output", pa.string()),
        ("kind", pa.string()),
        ("bucket", pa.int32()),
        ("seq", pa.int64()),
        ("n", pa.int32()),
        ("payload", pa.binary()),
    ]
)
ROWS, TUPLES, PROGRESS = "rows", "tuples", "notes"
"""Kinds of emitted rows: an Arrow IPC stream, with ``_seq`` unless positions are consecutive;
packed control tuples; progress messages."""
END_POSITION = ((1 << RANK_BITS) - 1) << (PART_BITS + RUNNING_BITS)
"""First position after all rows of a window; no frame of a union has this rank."""
UNNUMBERED = -1
"""Position of rows that their task numbers in order of arrival."""


def add_sequence(frame: DataFrame) -> DataFrame:
    """Return a frame with ``_seq``, numbered in its tasks; raise AlignedError on reserved names."""
    from pyspark.sql import functions

    for name in frame.columns:
        if name.startswith(RESERVED):
            raise AlignedError(
                f"the stream has a column {name}: names that begin with {', '.join(RESERVED)} are"
                " reserved. Rename it."
            )
    return frame.withColumn(SEQ, functions.lit(UNNUMBERED).cast("bigint"))


def shift_sequence(ranks: int) -> Column:
    """Return ``_seq`` of a frame that follows ``ranks`` other frames in a union."""
    from pyspark.sql import functions

    seq, rank = functions.col(SEQ), functions.lit(ranks)
    place = functions.lit(ranks << (PART_BITS + RUNNING_BITS))
    return functions.when(seq <= UNNUMBERED, seq - rank).otherwise(seq + place)


class PositionAssigner:
    """Assigns positions to those rows of a task that have none yet.

    Such a row has ``UNNUMBERED`` minus the rank of its frame in a union as its position.
    """

    def __init__(self) -> None:
        self._next: dict[int, int] = {}

    def assign(self, seq: pa.Array) -> pa.Array:
        """Return the positions of the next rows."""
        low, high = pc.min_max(seq).values()
        if low.as_py() is None or low.as_py() > UNNUMBERED:
            return seq
        if low == high:
            return consecutive_numbers(self._reserve(low.as_py(), len(seq)), len(seq))
        positions = (self._reserve(one, 1) if one <= UNNUMBERED else one for one in seq.to_pylist())
        return pa.array(positions, pa.int64())

    def _reserve(self, unnumbered: int, count: int) -> int:
        number = self._next.get(unnumbered, 0)
        self._next[unnumbered] = number + count
        return sequence(rank=UNNUMBERED - unnumbered, part=_partition_id(), number=number)


def _partition_id() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else int(context.partitionId())


def mixed_schema(schema: StructType) -> StructType:
    """Return the schema of a mixed frame with a user's columns."""
    from pyspark.sql.types import BinaryType, LongType, StructField

    more = [StructField(SEQ, LongType()), StructField(CONTROL, BinaryType())]
    return StructType([*schema.fields, *more])


def encode_control(control: ControlTuple) -> bytes:
    """Return the ``_control`` value of a tuple."""
    return canonical(envelope.encode(control))


def decode_control(data: bytes) -> ControlTuple | list[progress_messages.ProgressMessage]:
    """Decode a ``_control`` value; raise if it is neither a tuple nor progress messages."""
    try:
        decoded: Any = json.loads(data)
    except (TypeError, ValueError) as error:
        raise ControlError(
            f"a control row contains no control tuple: {error}. Did a step in between change the"
            f" column {CONTROL}? Let control bypass that step, with transform()."
        ) from error
    if isinstance(decoded, list):
        return progress_messages.decode(data)
    try:
        return envelope.decode(decoded, CONTROL)
    except StreambrokerError as error:
        if error.code != "ManifestInvalid":
            raise
        raise ControlError(f"a control row contains no control tuple: {error}") from error


def conform(batch: pa.RecordBatch, schema: pa.Schema, producer: str) -> pa.RecordBatch:
    """Return a batch with exactly the declared columns, or raise OperatorError."""
    if batch.schema.equals(schema):
        return batch
    if batch.schema.names != schema.names:
        raise OperatorError(
            f"{producer} returns the columns {', '.join(batch.schema.names) or 'none'}, but"
            f" {', '.join(schema.names)} are declared: correct one of the two."
        )
    columns = []
    for column, field in zip(batch.columns, schema, strict=True):
        try:
            columns.append(column.cast(field.type))
        except pa.ArrowException as error:
            raise OperatorError(
                f"{producer} returns column {field.name} as {column.type}, but {field.type} is"
                f" declared: {error}."
            ) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def write_ipc(batches: Sequence[pa.RecordBatch]) -> bytes:
    """Return batches of one schema as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def read_positioned_rows(payload: bytes, first: int) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
    """Yield rows emitted as ``ROWS`` with their positions; ``first`` is the first position."""
    for batch in read_ipc(payload):
        if SEQ in batch.schema.names:
            yield batch.drop_columns([SEQ]), batch.column(SEQ)
            continue
        yield batch, consecutive_numbers(first, batch.num_rows)
        first += batch.num_rows


def read_ipc(payload: bytes) -> list[pa.RecordBatch]:
    """Read an Arrow IPC stream."""
    with pa.ipc.open_stream(payload) as reader:
        return list(reader)
