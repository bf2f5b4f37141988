"""Operators in a chain that share one hop: no shuffle between them, and one commit of their state.

A window of a bucket runs the first operator, and hands its output to the next one in memory. This
is possible if no bucket needs what another bucket emits. The next operator receives the same as
behind a shuffle:

- Rows of the bucket, in their order. Each is checked: it has to belong to the bucket. One check is
  for the rows of many buckets, because it costs about the same for any number.
- Control tuples that the first operator forwards. Each bucket has received all of them. Behind a
  shuffle the copy of bucket 0 counts, so in other buckets ``IMMEDIATE`` tuples precede all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.control.operators.operator import Operator, OperatorError
from streambroker_core.control.runtime.buckets import Layout, assign_buckets
from streambroker_core.control.runtime.control_rows import PositionedControl
from streambroker_core.control.runtime.emitter import EmittedRows
from streambroker_core.control.runtime.packing import (
    RUNNING_BITS,
    SEQ,
    Arrival,
    check_names,
    consecutive_numbers,
)
from streambroker_core.control.runtime.runner import WindowResult
from streambroker_core.control.tuples import Delivery


def find_obstacle(
    operator: Operator, layouts: Mapping[str, Layout], following: Layout
) -> str | None:
    """Return why the next operator cannot share the hop of an operator; None if it can.

    Args:
        operator: the operator.
        layouts: how its inputs are partitioned.
        following: how the input of the next operator is partitioned.
    """
    kind, buckets = type(operator), following.buckets
    if not operator.stays_in_bucket:
        return "does not declare stays_in_bucket"
    if kind.held_at is not Operator.held_at:
        return "holds rows back for event time"
    if any(one.buckets != buckets for one in layouts.values()):
        return "has another number of buckets"
    if buckets == 1:
        return None
    if kind.process_control is not Operator.process_control:
        return "handles control tuples"
    if any(one.key != following.key for one in layouts.values() if not one.broadcast):
        return "has another key"
    return None if following.key else "has no key"


class Handover:
    """What an operator of a hop hands over to the next one."""

    def __init__(
        self,
        output: str,
        schema: pa.Schema,
        layout: Layout,
        conform: Callable[[pa.RecordBatch], pa.RecordBatch],
    ) -> None:
        """Prepare it.

        Args:
            output: the output that feeds the next operator.
            schema: its declared columns.
            layout: how the input of the next operator is partitioned.
            conform: returns emitted rows with the declared columns.

        Raises:
            OperatorError: a column has a reserved name.
        """
        check_names(schema, layout)
        self._output, self._layout, self._conform = output, layout, conform
        self._schema = pa.schema([pa.field(SEQ, pa.int64(), nullable=False), *schema])
        self._text = layout.text()

    def arrivals(self, result: WindowResult, bucket: int) -> list[Arrival]:
        """Return what the next operator receives after a window of a bucket; empty for nothing.

        Raises:
            OperatorError: the columns of rows do not fit.
        """
        rows: list[EmittedRows] = []
        control: list[PositionedControl] = []
        for one in result.emitted:
            if one.output != self._output:
                continue
            if isinstance(one, EmittedRows):
                rows.append(one)
                continue
            position = one.position
            if bucket and one.control.delivery is Delivery.IMMEDIATE:
                position &= (1 << RUNNING_BITS) - 1
            control.append((position, one.control))
        arrivals = []
        if rows:
            positions, first = _positions(rows), 0
            for batch in _join([one.batch for one in rows]):
                order = positions.slice(first, batch.num_rows)
                arrivals.append(self._number(batch, order))
                first += batch.num_rows
        if control:
            control.sort(key=lambda one: one[0])
            arrivals.append(Arrival(port=self._layout.port, control=tuple(control)))
        return arrivals

    def _number(self, emitted: pa.RecordBatch, order: pa.Array) -> Arrival:
        columns = [order, *self._conform(emitted).columns]
        rows = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        return Arrival(port=self._layout.port, layout=self._text, rows=rows)

    def check(self, arrived: Mapping[int, Sequence[Arrival]]) -> None:
        """Raise OperatorError if a row belongs to another bucket than the one that emitted it.

        Args:
            arrived: what is handed over, by bucket.
        """
        names = [name for name, _ in self._layout.key]
        rows = [
            (bucket, one.rows.select([SEQ, *names]))
            for bucket, arrivals in arrived.items()
            for one in arrivals
            if one.rows is not None
        ]
        if not names or not rows:  # without a key there is one bucket
            return
        emitted_by = pa.concat_arrays(
            [pa.repeat(pa.scalar(bucket, pa.int32()), batch.num_rows) for bucket, batch in rows]
        )
        first = 0
        for batch in _join([batch for _, batch in rows]):
            expected = emitted_by.slice(first, batch.num_rows)
            stays = pc.equal(assign_buckets(batch, self._layout, batch.column(SEQ)), expected)
            if not pc.all(stays).as_py():
                self._refuse(batch.select(names), pc.index(stays, False).as_py())
            first += batch.num_rows

    def _refuse(self, keys: pa.RecordBatch, row: int) -> NoReturn:
        (leaving,) = keys.slice(row, 1).to_pylist()
        values = ", ".join(f"{name} {value!r}" for name, value in leaving.items())
        raise OperatorError(
            f"a row with {values} leaves its bucket for input {self._layout.port} of the next"
            " operator, although the operator that emits it declares stays_in_bucket. Set"
            " stays_in_bucket = False in its class, and start a new checkpoint."
        )


def _join(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return batches as one, or as more if a column is too long for one."""
    if len(batches) == 1:
        return batches
    return list(pa.Table.from_batches(batches).combine_chunks().to_batches())


def _positions(rows: Sequence[EmittedRows]) -> pa.Array:
    """Return the sequence of each row."""
    if all(low.seq + low.batch.num_rows == high.seq for low, high in pairwise(rows)):
        return consecutive_numbers(rows[0].seq, sum(one.batch.num_rows for one in rows))
    return pa.concat_arrays([consecutive_numbers(one.seq, one.batch.num_rows) for one in rows])
