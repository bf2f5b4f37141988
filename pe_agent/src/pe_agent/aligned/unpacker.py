"""Emitted rows to rows again, and a user's function on batches with control going around it.

All run inside Spark's tasks, as the function of a ``mapInArrow``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pe_agent.aligned import notes
from pe_agent.aligned.forms import (
    CONTROL,
    ROWS,
    SEQ,
    TUPLES,
    Numbering,
    control_text,
    fitting,
    read_ipc,
)
from pe_agent.aligned.packer import emitted, tuples_of
from streambroker_core.control.operator import OperatorError
from streambroker_core.control.packing import RUNNING_BITS, by_bucket, numbers, unpack

BatchFunction = Callable[[pa.RecordBatch], "pa.RecordBatch | Iterable[pa.RecordBatch]"]


@dataclass(frozen=True, kw_only=True)
class DataOf:
    """The rows that one output emitted, as the user's columns alone."""

    output: str
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read what a task emitted."""
        for kind, _, _, payload in emitted(batches, self.output):
            if kind == ROWS:
                yield from (fitting(one, self.schema, "an operator") for one in read_ipc(payload))


@dataclass(frozen=True, kw_only=True)
class RowsOf:
    """Rows and control of one output, as a mixed frame."""

    output: str
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read what a task emitted."""
        for kind, first, n, payload in emitted(batches, self.output):
            if kind == ROWS:
                seq = first
                for batch in read_ipc(payload):
                    yield mixed(batch, numbers(seq, batch.num_rows), self.schema)
                    seq += batch.num_rows
            elif kind == TUPLES:
                for place, control in tuples_of(n, payload):
                    yield control_row(place, control_text(control), self.schema)
            else:
                yield control_row(0, notes.encode(notes.decode(payload)), self.schema)


@dataclass(frozen=True, kw_only=True)
class RowsOfPacked:
    """Rows and control of packed rows, as a mixed frame."""

    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the packed rows of a task."""
        for batch in batches:
            for _, packed in by_bucket(batch):
                arrival = unpack(packed)
                for place, control in arrival.control:
                    yield control_row(place, control_text(control), self.schema)
                if arrival.rows is not None:
                    rows, seq = arrival.rows.drop_columns([SEQ]), arrival.rows.column(SEQ)
                    yield mixed(rows, seq, self.schema)


def mixed(batch: pa.RecordBatch, seq: pa.Array, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows of data of a mixed frame."""
    batch = fitting(batch, schema, "an operator or function")
    control = pa.nulls(batch.num_rows, pa.binary())
    return pa.RecordBatch.from_arrays([*batch.columns, seq, control], schema=with_control(schema))


def control_row(place: int | None, control: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """Return a control row of a mixed frame."""
    columns = [pa.nulls(1, one.type) for one in schema]
    columns += [pa.array([place], pa.int64()), pa.array([control], pa.binary())]
    return pa.RecordBatch.from_arrays(columns, schema=with_control(schema))


def with_control(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a mixed frame."""
    return schema.append(pa.field(SEQ, pa.int64())).append(pa.field(CONTROL, pa.binary()))


@dataclass(frozen=True, kw_only=True)
class OnBatches:
    """A user's function on batches, with control rows left in their places.

    Rows are numbered anew behind it, part by part, so that their order is what it was.
    """

    function: BatchFunction
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Call the function on the rows of a task."""
        given: dict[int, int] = {}
        numbering = Numbering()
        for batch in batches:
            for part, rows, control in _runs(batch, numbering.fill(batch.column(SEQ))):
                place = given.setdefault(part, part << RUNNING_BITS)
                if control is not None:
                    yield control_row(place, control, self.schema)
                    continue
                for made in self._made(rows):
                    yield mixed(made, numbers(place, made.num_rows), self.schema)
                    place += made.num_rows
                given[part] = place

    def _made(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        found = self.function(rows)
        for made in [found] if isinstance(found, pa.RecordBatch) else found:
            if not isinstance(made, pa.RecordBatch):
                raise OperatorError(
                    f"the function of map_batches gave a {type(made).__name__}: it has to return"
                    " a pyarrow.RecordBatch, or several."
                )
            if made.num_rows:
                yield made


def _runs(
    batch: pa.RecordBatch, places: pa.Array
) -> Iterator[tuple[int, pa.RecordBatch, bytes | None]]:
    """Give runs of rows of one part, and control rows one by one."""
    if not batch.num_rows:
        return
    mixed = CONTROL in batch.schema.names and batch.column(CONTROL).null_count < batch.num_rows
    low, high = (one.as_py() for one in pc.min_max(places).values())
    if not mixed and places.null_count == 0 and low >> RUNNING_BITS == high >> RUNNING_BITS:
        hidden = [name for name in (CONTROL, SEQ) if name in batch.schema.names]
        yield low >> RUNNING_BITS, batch.drop_columns(hidden), None
        return
    seq = places.to_pylist()
    control = [None] * batch.num_rows
    if CONTROL in batch.schema.names:
        control = batch.column(CONTROL).to_pylist()
        batch = batch.drop_columns([CONTROL])
    rows = batch.drop_columns([SEQ])
    first = 0
    for at, told in enumerate(control):
        part = (seq[at] or 0) >> RUNNING_BITS
        last = at + 1 == len(control)
        if told is not None:
            yield part, rows, told
            first = at + 1
        elif last or control[at + 1] is not None or (seq[at + 1] or 0) >> RUNNING_BITS != part:
            yield part, rows.slice(first, at + 1 - first), None
            first = at + 1
