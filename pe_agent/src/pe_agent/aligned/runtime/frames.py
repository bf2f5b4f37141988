"""The forms that a stream has between its operators, as Spark sees them.

*Rows*: the user's columns, ``_seq``, the place of the row, and in a *mixed* frame ``_control``,
which is null in rows of data; where it is not, it holds a control tuple, or notes, and the user's
columns are null. *Packed*: one row per bucket and many rows, as ``control.packing`` in core has
it. *Emitted*: what the buckets of an operator hand out, one row per bucket, output and kind.

The place of a control tuple is its position: between the rows if it is ``IMMEDIATE``, else as
``control.emitting`` has it. Rows of operators and imports have room between their places.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from pe_agent.aligned.errors import AlignedError
from pe_agent.aligned.runtime import progress_messages as notes
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
from streambroker_core.errors import StreambrokerError
from streambroker_core.wire.encoding.canonical import canonical

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SEQ, CONTROL, NOW = "_seq", "_control", "now"
PACKED_DDL = "bucket int, seq bigint, n int, event_time timestamp, payload binary"
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
"""Kinds of emitted rows: an Arrow IPC stream, with ``_seq`` unless the places are in a row; packed
control tuples; notes."""
END_POSITION = ((1 << RANK_BITS) - 1) << (PART_BITS + RUNNING_BITS)
"""From here on places are behind all rows of a window; no frame of a union has this rank."""
UNNUMBERED = -1
"""The place of rows that are numbered in their task, in the order in which they come."""


def add_sequence(frame: DataFrame) -> DataFrame:
    """Return a user's frame with ``_seq``: its rows are numbered in the tasks, as they come.

    Raises:
        AlignedError: a column has a reserved name.
    """
    from pyspark.sql import functions

    for name in frame.columns:
        if name.startswith(RESERVED):
            raise AlignedError(
                f"the stream has a column {name}: names that begin with {', '.join(RESERVED)} are"
                " reserved. Rename it."
            )
    return frame.withColumn(SEQ, functions.lit(UNNUMBERED).cast("bigint"))


def shift_sequence(ranks: int) -> Column:
    """Return ``_seq`` of a frame that stands behind ``ranks`` others in a union."""
    from pyspark.sql import functions

    seq, rank = functions.col(SEQ), functions.lit(ranks)
    place = functions.lit(ranks << (PART_BITS + RUNNING_BITS))
    return functions.when(seq <= UNNUMBERED, seq - rank).otherwise(seq + place)


class PositionAssigner:
    """Gives the rows of a task their places, where they have none yet.

    Such a row has, for its place, ``UNNUMBERED`` less the rank of its frame in a union.
    """

    def __init__(self) -> None:
        self._next: dict[int, int] = {}

    def assign(self, seq: pa.Array) -> pa.Array:
        """Return the places of rows that come next."""
        low, high = pc.min_max(seq).values()
        if low.as_py() is None or low.as_py() > UNNUMBERED:
            return seq
        if low == high:
            return consecutive_numbers(self._reserve(low.as_py(), len(seq)), len(seq))
        places = (self._reserve(one, 1) if one <= UNNUMBERED else one for one in seq.to_pylist())
        return pa.array(places, pa.int64())

    def _reserve(self, unnumbered: int, count: int) -> int:
        given = self._next.get(unnumbered, 0)
        self._next[unnumbered] = given + count
        return sequence(rank=UNNUMBERED - unnumbered, part=_partition_id(), number=given)


def _partition_id() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else int(context.partitionId())


def spark_to_arrow(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of columns; all may be null, times are in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    found = to_arrow_schema(schema, timezone="UTC")
    return pa.schema([one.with_nullable(True) for one in found])


def as_nullable(schema: StructType) -> StructType:
    """Return the columns, all of which may be null: they are in control rows."""
    found = StructType()
    for one in schema:
        found.add(one.name, one.dataType, True)
    return found


def mixed_schema(schema: StructType) -> StructType:
    """Return the columns of a mixed frame with a user's columns."""
    from pyspark.sql.types import BinaryType, LongType, StructField

    more = [StructField(SEQ, LongType()), StructField(CONTROL, BinaryType())]
    return StructType([*schema.fields, *more])


def encode_control(control: ControlTuple) -> bytes:
    """Return what stands in ``_control`` for a tuple."""
    return canonical(envelope.encode(control))


def decode_control(data: bytes) -> ControlTuple | list[notes.ProgressMessage]:
    """Read what stands in ``_control``.

    Raises:
        ControlError: it is no control tuple.
        FormatTooNewError: it is of a newer release.
        OperatorError: it is no note.
    """
    try:
        found: Any = json.loads(data)
    except (TypeError, ValueError) as error:
        raise ControlError(
            f"a control row holds no control tuple: {error}. Did something on the way change the"
            f" column {CONTROL}? Let control go around it, with through()."
        ) from error
    if isinstance(found, list):
        return notes.decode(data)
    try:
        return envelope.decode(found, CONTROL)
    except StreambrokerError as error:
        if error.code != "ManifestInvalid":
            raise
        raise ControlError(f"a control row holds no control tuple: {error}") from error


def conform(batch: pa.RecordBatch, schema: pa.Schema, producer: str) -> pa.RecordBatch:
    """Return a batch with exactly the declared columns.

    Raises:
        OperatorError: it has others, or they cannot be cast without loss.
    """
    if batch.schema.equals(schema):
        return batch
    if batch.schema.names != schema.names:
        raise OperatorError(
            f"{producer} gives the columns {', '.join(batch.schema.names) or 'none'}, and declared"
            f" are"
            f" {', '.join(schema.names)}: mend one of both."
        )
    columns = []
    for column, field in zip(batch.columns, schema, strict=True):
        try:
            columns.append(column.cast(field.type))
        except pa.ArrowException as error:
            raise OperatorError(
                f"{producer} gives column {field.name} as {column.type}, and declared is"
                f" {field.type}:"
                f" {error}."
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
    """Give the rows that were emitted as ``ROWS``, with their places; ``first`` is the first."""
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
