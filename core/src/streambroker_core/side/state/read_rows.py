"""Reads rows of a side input into keys, times and values, and collects rejected rows."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.control.operators.dead_letters import to_json
from streambroker_core.side.definition import SideInput
from streambroker_core.side.errors import SideRowError, SideSchemaError
from streambroker_core.side.keys import make_keys
from streambroker_core.side.state.sorted_runs import SortedRun


@dataclass(frozen=True, slots=True)
class RejectedRows:
    """Rows that were rejected for one reason.

    Attributes:
        error: the error to raise if the policy is to fail.
        rows: all of them, as JSON text.
        times: their event times; None where there is none.
    """

    error: SideRowError
    rows: list[str]
    times: list[int | None]


def select_columns(name: str, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of a schema, in its order.

    Raises:
        SideSchemaError: a column is missing or has another type.
    """
    if batch.schema.equals(schema):
        return batch
    arrays = []
    for field in schema:
        at = batch.schema.get_field_index(field.name)
        if at < 0:
            raise SideSchemaError(
                name,
                f"column {field.name} is missing; there are: {', '.join(batch.schema.names)}",
                "has the table changed? Start a new checkpoint to use other columns",
            )
        if pa.types.is_null(batch.column(at).type):  # no value, so of any type
            arrays.append(pa.nulls(batch.num_rows, field.type))
            continue
        if batch.column(at).type != field.type:
            raise SideSchemaError(
                name,
                f"column {field.name} is {batch.column(at).type}, and was defined as {field.type}",
                "cast it, or start a new checkpoint to use another type",
            )
        arrays.append(batch.column(at))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def event_micros(batch: pa.RecordBatch, column: str | None) -> pa.Array:
    """Return event times as int64 microseconds; nulls if ``column`` is None."""
    if column is None:
        return pa.nulls(batch.num_rows, pa.int64())
    times = batch.column(column)
    return pc.cast(pc.cast(times, pa.timestamp("us", times.type.tz)), pa.int64())


def read_rows(
    side: SideInput, batch: pa.RecordBatch, *, needs_time: bool
) -> tuple[SortedRun, list[RejectedRows]]:
    """Return accepted rows in their order, and the rejected ones.

    Accepted rows are keys (0 if there is no key), times, deletion flags and values, not sorted by
    key. The batch has the side input's schema. ``needs_time`` rejects rows without event time.
    """
    keys = (
        make_keys([batch.column(name) for name in side.key])
        if side.key
        else pa.nulls(batch.num_rows, pa.int64()).fill_null(0)
    )
    times = event_micros(batch, side.event_time)
    deleted = (
        pc.fill_null(batch.column(side.deleted), False)
        if side.deleted
        else pa.nulls(batch.num_rows, pa.bool_()).fill_null(False)
    )
    values = pa.StructArray.from_arrays(
        [batch.column(name) for name in side.fields], fields=list(side.value_type)
    )
    rows, rejections = SortedRun(keys, times, deleted, values), []
    if keys.null_count:
        problem = f"rows whose key ({', '.join(side.key)}) is null"
        rejections.append(_reject(side, batch, pc.is_null(keys), problem, "give each row a key"))
    if needs_time and times.null_count:
        problem = f"rows whose event time ({side.event_time}) is null"
        timeless = pc.and_(pc.is_null(times), pc.is_valid(keys))
        rejections.append(_reject(side, batch, timeless, problem, "give each row a time"))
    if rejections:
        accepted = pc.is_valid(keys)
        if needs_time:
            accepted = pc.and_(accepted, pc.is_valid(times))
        rows = rows.filter(accepted)
    return rows, [rejected for rejected in rejections if rejected.rows]


def reject_rows(side: SideInput, rows: SortedRun, problem: str, remedy: str) -> RejectedRows:
    """Return rows that were already read as rejected."""
    shown = [
        {**({"key": key} if side.key else {}), **value}
        for key, value in zip(rows.keys.to_pylist(), rows.values.to_pylist(), strict=True)
    ]
    return RejectedRows(
        SideRowError(side.name, problem, shown, remedy),
        [to_json(row) for row in shown],
        rows.times.to_pylist(),
    )


def _reject(
    side: SideInput, batch: pa.RecordBatch, mask: pa.Array, problem: str, remedy: str
) -> RejectedRows:
    rejected = batch.filter(mask)
    rows = rejected.to_pylist()
    times = event_micros(rejected, side.event_time).to_pylist()
    return RejectedRows(
        SideRowError(side.name, problem, rows, remedy), [*map(to_json, rows)], times
    )
