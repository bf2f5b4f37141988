"""Unpacking of emitted rows, and user functions on batches that control bypasses.

All classes run inside Spark's tasks, as the function of a ``mapInArrow``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from pe_agent.aligned.runtime import progress_messages
from pe_agent.aligned.runtime.frames import (
    CONTROL,
    ROWS,
    SEQ,
    TUPLES,
    UNNUMBERED,
    conform,
    decode_control,
    encode_control,
    read_positioned_rows,
)
from pe_agent.aligned.runtime.packer import read_output, unpack_tuples
from streambroker_core.control.operators.operator import OperatorError
from streambroker_core.control.runtime.control_rows import PositionedControl
from streambroker_core.control.runtime.packing import RUNNING_BITS, by_bucket, unpack
from streambroker_core.control.runtime.row_packer import concat
from streambroker_core.control.runtime.spacing import (
    derive_positions,
    position_before,
    slot_bits,
    space_positions,
)
from streambroker_core.control.tuples import ControlTuple, Delivery

JOINED_ROWS, JOINED_BYTES = 10_000, 4 << 20
"""Size from which joined batches are passed on; Spark's own batches have up to 10,000 rows."""
BatchFunction = Callable[[pa.RecordBatch], "pa.RecordBatch | Iterable[pa.RecordBatch]"]


@dataclass(frozen=True, kw_only=True)
class OutputDataReader:
    """Reads the rows that one output emitted, with only the user's columns."""

    output: str
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the emitted rows of a task."""
        yield from join_batches(self._read(batches))

    def _read(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for kind, _, first, _, payload in read_output(batches, self.output):
            if kind == ROWS:
                for rows, _ in read_positioned_rows(payload, first):
                    yield conform(rows, self.schema, "an operator")


@dataclass(frozen=True, kw_only=True)
class OutputRowsReader:
    """Reads rows and control of one output as a mixed frame.

    A bucket's control tuples precede its rows.
    """

    output: str
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the emitted rows of a task."""
        yield from join_batches(self._read(batches))

    def _read(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tuples: dict[int, tuple[PositionedControl, ...]] = {}
        for kind, bucket, first, n, payload in read_output(batches, self.output):
            if kind == ROWS:
                rows = list(read_positioned_rows(payload, first))
                yield from self._read_bucket(rows, tuples.pop(bucket, ()))
            elif kind == TUPLES:
                tuples[bucket] = unpack_tuples(n, payload)
            else:
                yield mixed_control_row(
                    0, progress_messages.encode(progress_messages.decode(payload)), self.schema
                )
        for placed in tuples.values():
            yield from self._read_bucket([], placed)

    def _read_bucket(
        self, rows: list[tuple[pa.RecordBatch, pa.Array]], tuples: Sequence[PositionedControl]
    ) -> Iterator[pa.RecordBatch]:
        last = [seq[-1].as_py() for _, seq in rows[-1:]]
        last += [place for place, control in tuples if control.delivery is Delivery.IMMEDIATE]
        bits = slot_bits(max((place % (1 << RUNNING_BITS) for place in last), default=0) + 1)
        for position, control in tuples:
            between = control.delivery is Delivery.IMMEDIATE
            place = position_before(position, bits) if between else position
            yield mixed_control_row(place, encode_control(control), self.schema)
        for batch, seq in rows:
            yield mixed_rows(batch, space_positions(seq, bits), self.schema)


@dataclass(frozen=True, kw_only=True)
class PackedRowsReader:
    """Reads rows and control of packed rows as a mixed frame."""

    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the packed rows of a task."""
        for batch in batches:
            for _, packed in by_bucket(batch):
                arrival = unpack(packed)
                for place, control in arrival.control:
                    yield mixed_control_row(place, encode_control(control), self.schema)
                if arrival.rows is not None:
                    rows, seq = arrival.rows.drop_columns([SEQ]), arrival.rows.column(SEQ)
                    yield mixed_rows(rows, seq, self.schema)


def join_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small batches of one schema, because Spark takes about the same time for any batch."""
    small: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        small.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= JOINED_ROWS or size >= JOINED_BYTES:
            yield concat(small)
            small, rows, size = [], 0, 0
    if small:
        yield concat(small)


def mixed_rows(batch: pa.RecordBatch, seq: pa.Array, schema: pa.Schema) -> pa.RecordBatch:
    """Return data rows of a mixed frame."""
    batch = conform(batch, schema, "an operator or function")
    control = pa.nulls(batch.num_rows, pa.binary())
    return pa.RecordBatch.from_arrays(
        [*batch.columns, seq, control], schema=with_control_columns(schema)
    )


def mixed_control_row(position: int | None, control: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """Return a control row of a mixed frame."""
    columns = [pa.nulls(1, one.type) for one in schema]
    columns += [pa.array([position], pa.int64()), pa.array([control], pa.binary())]
    return pa.RecordBatch.from_arrays(columns, schema=with_control_columns(schema))


def with_control_columns(schema: pa.Schema) -> pa.Schema:
    """Return the schema of a mixed frame."""
    return schema.append(pa.field(SEQ, pa.int64())).append(pa.field(CONTROL, pa.binary()))


@dataclass(frozen=True, kw_only=True)
class BatchMapper:
    """Applies a user's function to batches; control rows keep their positions.

    The function is called for the rows between two ``IMMEDIATE`` tuples, which arrive before the
    rows. The resulting rows get positions between these tuples. If the input has no positions yet,
    the result has none either. `on_control` receives each control tuple that passes.
    """

    function: BatchFunction
    schema: pa.Schema
    on_control: Callable[[ControlTuple], None] | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Call the function on the rows of a task."""
        cuts: dict[int, list[int]] = {}
        for batch in batches:
            rows = batch
            if CONTROL in batch.schema.names:
                control = batch.column(CONTROL)
                yield from self._pass_control(batch.filter(pc.is_valid(control)), cuts)
                rows = batch.filter(pc.is_null(control)).drop_columns([CONTROL])
            if rows.num_rows:
                for run, seq in _split_runs(rows.drop_columns([SEQ]), rows.column(SEQ), cuts):
                    yield from self._map_run(run, seq)

    def _pass_control(
        self, rows: pa.RecordBatch, cuts: dict[int, list[int]]
    ) -> Iterator[pa.RecordBatch]:
        columns = (rows.column(name).to_pylist() for name in (SEQ, CONTROL))
        for place, data in zip(*columns, strict=True):
            decoded = decode_control(data)
            if isinstance(decoded, ControlTuple):
                if decoded.delivery is Delivery.IMMEDIATE:
                    insort(cuts.setdefault(place >> RUNNING_BITS, []), place)
                if self.on_control is not None:
                    self.on_control(decoded)
            yield mixed_control_row(place, data, self.schema)

    def _map_run(self, rows: pa.RecordBatch, seq: pa.Array) -> Iterator[pa.RecordBatch]:
        results = self._call_function(rows)
        if seq[0].as_py() <= UNNUMBERED:
            for batch in results:
                yield mixed_rows(batch, pa.repeat(seq[0], batch.num_rows), self.schema)
            return
        collected = list(results)
        count = sum(batch.num_rows for batch in collected)
        positions, first = derive_positions(seq, count, "the function of map_batches"), 0
        for batch in collected:
            yield mixed_rows(batch, positions.slice(first, batch.num_rows), self.schema)
            first += batch.num_rows

    def _call_function(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        result = self.function(rows)
        for batch in [result] if isinstance(result, pa.RecordBatch) else result:
            if not isinstance(batch, pa.RecordBatch):
                raise OperatorError(
                    f"the function of map_batches returned a {type(batch).__name__}: it has to"
                    " return a pyarrow.RecordBatch, or several."
                )
            if batch.num_rows:
                yield batch


def _split_runs(
    rows: pa.RecordBatch, seq: pa.Array, cuts: Mapping[int, Sequence[int]]
) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
    """Yield runs of rows of one part, between its cuts, with their positions."""
    part = pc.if_else(pc.less(seq, 0), seq, pc.shift_right(seq, RUNNING_BITS))
    runs, low = pc.run_end_encode(part), 0
    for number, high in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        bounds = [low, high]
        if number in cuts:
            positions = seq.slice(low, high - low).to_pylist()
            inner_cuts = cuts[number][
                bisect_right(cuts[number], positions[0]) : bisect_right(cuts[number], positions[-1])
            ]
            bounds[1:1] = sorted({low + bisect_left(positions, place) for place in inner_cuts})
        for first, end in pairwise(bounds):
            yield rows.slice(first, end - first), seq.slice(first, end - first)
        low = high
