"""Orders the rows of one window and splits them at control tuples.

The result must not depend on how rows arrive. So batches are joined, sorted by sequence if needed,
and cut at ports, at control tuples, and every ``CHUNK`` rows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.control.operators.operator import OperatorError
from streambroker_core.control.runtime.control_rows import PositionedControl
from streambroker_core.control.runtime.packing import SEQ
from streambroker_core.control.tuples import ControlTuple, sort_key

CHUNK = 65_536
"""Maximum number of rows in one call of ``process``."""

InputStep = tuple[str, pa.RecordBatch | ControlTuple]
"""A port, and rows without their sequence or a control tuple."""


def sort_rows(port: str, batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """Return the rows of a port by ascending ``_seq``.

    Raises:
        OperatorError: batches have different columns, or two rows have one sequence.
    """
    for batch in batches[1:]:
        if not batch.schema.equals(batches[0].schema):
            raise OperatorError(
                f"rows of input {port} arrive with the columns {_describe_columns(batches[0])}"
                f" and with {_describe_columns(batch)}: all rows of an input have the same"
                " columns."
            )
    spans = sorted(
        (
            (one.column(0)[0].as_py(), one.column(0)[-1].as_py(), at)
            for at, one in enumerate(batches)
        )
    )
    table = pa.Table.from_batches([batches[at] for _, _, at in spans])
    if all(low[1] < high[0] for low, high in pairwise(spans)):
        return table
    table = table.combine_chunks()
    seq = table.column(SEQ)
    table = table.take(pc.sort_indices(seq))
    seq = table.column(SEQ)
    same = pc.equal(seq.slice(1), seq.slice(0, len(seq) - 1))
    if pc.any(same).as_py():
        duplicate = seq[pc.index(same, True).as_py()].as_py()
        raise OperatorError(
            f"input {port} has the duplicate sequence number {duplicate}: each row needs its own."
            " Do two sources of a union have the same rank?"
        )
    return table


def sort_by_position(positioned: Iterable[PositionedControl]) -> list[PositionedControl]:
    """Return control tuples of one port by position, then by ``sort_key``."""
    return sorted(positioned, key=lambda one: (one[0], sort_key(one[1])))


def iter_by_port(
    tables: Mapping[str, pa.Table],
    control: Mapping[str, Sequence[PositionedControl]],
    ports: Sequence[str],
) -> Iterator[InputStep]:
    """Yield rows and ``IMMEDIATE`` tuples, port by port, each port in its order.

    ``control`` is ordered like the result of :func:`sort_by_position`.
    """
    for port in ports:
        positioned = control.get(port, ())
        table = tables.get(port)
        if table is None:
            yield from ((port, one) for _, one in positioned)
            continue
        rows, seq, first = _drop_sequence(table), _sequences(table) if positioned else (), 0
        for position, one in positioned:
            until = bisect_left(seq, position, lo=first)
            yield from _iter_chunks(port, rows, first, until)
            yield port, one
            first = until
        yield from _iter_chunks(port, rows, first, table.num_rows)


def iter_by_column(
    tables: Mapping[str, pa.Table], column: str, ports: Sequence[str]
) -> Iterator[InputStep]:
    """Yield rows of all ports merged by a column; at ties by port, then by sequence.

    Nulls are last.

    Raises:
        OperatorError: a port lacks the column, or has it with another type.
    """
    present = [port for port in ports if port in tables]
    _check_column(tables, column, present)
    if not present:
        return
    keys = pa.concat_tables(
        [
            pa.table(
                {
                    "value": tables[port].column(column),
                    "port": pa.repeat(pa.scalar(at, pa.int32()), tables[port].num_rows),
                }
            )
            for at, port in enumerate(present)
        ]
    )
    starts, total = [], 0
    for port in present:
        starts.append(total)
        total += tables[port].num_rows
    order = pc.sort_indices(
        keys.append_column("row", pa.array(range(total), pa.int64())),
        sort_keys=[("value", "ascending"), ("row", "ascending")],
    )
    port_indices = keys.column("port").combine_chunks().take(order)
    runs, first = pc.run_end_encode(port_indices), 0
    for at, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        rows = pc.subtract(order.slice(first, end - first).cast(pa.int64()), starts[at])
        merged = _drop_sequence(tables[present[at]].take(rows))
        yield from _iter_chunks(present[at], merged, 0, end - first)
        first = end


def _check_column(tables: Mapping[str, pa.Table], column: str, ports: Sequence[str]) -> None:
    kinds = {}
    for port in ports:
        if column not in tables[port].schema.names:
            raise OperatorError(
                f"rows of input {port} have no column {column}, by which the inputs are ordered."
            )
        kinds[port] = tables[port].schema.field(column).type
    if len(set(kinds.values())) > 1:
        types = ", ".join(f"{kind} in {port}" for port, kind in kinds.items())
        raise OperatorError(
            f"column {column}, by which the inputs are ordered, is {types}: cast it to one type."
        )


def _drop_sequence(table: pa.Table) -> list[pa.RecordBatch]:
    """Return the rows for an operator: one batch, or more if a column is too long for one."""
    rows = table.drop_columns([SEQ]).replace_schema_metadata(None)
    return list(rows.combine_chunks().to_batches())


def _sequences(table: pa.Table) -> Sequence[int]:
    """Return the sequences of a table's rows as a view, so that a search creates no objects."""
    column = table.column(SEQ).combine_chunks()
    view = memoryview(column.buffers()[1]).cast("B").cast("q")
    return view[column.offset : column.offset + len(column)]


def _iter_chunks(
    port: str, batches: Sequence[pa.RecordBatch], first: int, until: int
) -> Iterator[InputStep]:
    for batch in batches:
        end = min(until, batch.num_rows)
        while first < end:
            rows = min(CHUNK, end - first)
            yield port, batch.slice(first, rows)
            first += rows
        first, until = max(0, first - batch.num_rows), until - batch.num_rows
        if until <= 0:
            return


def _describe_columns(batch: pa.RecordBatch) -> str:
    return ", ".join(f"{one.name} {one.type}" for one in batch.schema if one.name != SEQ)
