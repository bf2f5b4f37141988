"""Operators in a chain that share one hop: no shuffle between them, and one commit of their state.

A window of a bucket runs the first operator, and hands its output to the next one in memory. This
is possible if no bucket needs what another bucket emits. The next operator receives the same as
behind a shuffle:

- Rows of the bucket, in their order. Each is checked: it has to belong to the bucket.
- Control tuples that the first operator forwards. Each bucket has received all of them. Behind a
  shuffle the copy of bucket 0 counts, so in other buckets ``IMMEDIATE`` tuples precede all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.control.operators.operator import Operator, OperatorError
from streambroker_core.control.runtime.buckets import Layout, assign_buckets
from streambroker_core.control.runtime.control_rows import PositionedControl
from streambroker_core.control.runtime.emitter import EmittedRows
from streambroker_core.control.runtime.packing import (
    RUNNING_BITS,
    Arrival,
    consecutive_numbers,
    number_rows,
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


def hand_over(
    result: WindowResult,
    output: str,
    layout: Layout,
    bucket: int,
    conform: Callable[[pa.RecordBatch], pa.RecordBatch],
) -> list[Arrival]:
    """Return what the next operator of a hop receives in a window of a bucket; empty for nothing.

    Args:
        result: result of the operator before it.
        output: the output that feeds it.
        layout: how its input is partitioned.
        bucket: the bucket.
        conform: returns emitted rows with the declared columns.

    Raises:
        OperatorError: a row belongs to another bucket, or its columns do not fit.
    """
    rows: list[EmittedRows] = []
    control: list[PositionedControl] = []
    for one in result.emitted:
        if one.output != output:
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
        numbers, first = _number(rows), 0
        table = pa.Table.from_batches([one.batch for one in rows]).combine_chunks()
        for emitted in table.to_batches():
            batch, order = conform(emitted), numbers.slice(first, emitted.num_rows)
            _check_bucket(batch, layout, bucket, order)
            numbered = number_rows(batch, layout, order)
            arrivals.append(Arrival(port=layout.port, layout=layout.text(), rows=numbered))
            first += emitted.num_rows
    if control:
        control.sort(key=lambda one: one[0])
        arrivals.append(Arrival(port=layout.port, control=tuple(control)))
    return arrivals


def _number(rows: list[EmittedRows]) -> pa.Array:
    """Return the sequence of each row."""
    if all(low.seq + low.batch.num_rows == high.seq for low, high in pairwise(rows)):
        return consecutive_numbers(rows[0].seq, sum(one.batch.num_rows for one in rows))
    return pa.concat_arrays([consecutive_numbers(one.seq, one.batch.num_rows) for one in rows])


def _check_bucket(batch: pa.RecordBatch, layout: Layout, bucket: int, order: pa.Array) -> None:
    if not layout.key:  # one bucket
        return
    here = pc.equal(assign_buckets(batch, layout, order), bucket)
    if not pc.all(here).as_py():
        key = batch.select([name for name, _ in layout.key])
        leaving = key.filter(pc.invert(here)).slice(0, 1).to_pylist()[0]
        values = ", ".join(f"{name} {value!r}" for name, value in leaving.items())
        raise OperatorError(
            f"a row with {values} leaves bucket {bucket} for input {layout.port} of the next"
            " operator, although the operator that emits it declares stays_in_bucket. Set"
            " stays_in_bucket = False in its class, and start a new checkpoint."
        )
