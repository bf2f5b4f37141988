"""Positions with gaps, so that rows derived from a row fit behind it.

A function on batches returns any number of rows. Its task knows neither the other rows of the part
nor the control tuples in other tasks, so it cannot renumber rows. Therefore:

- Row ``k`` of a part gets a slot of ``2^bits`` positions and is in its middle.
- The lower half of the slot is for control tuples before the row.
- The upper half is for rows derived from it.
- The lowest set bit of a position shows how much room follows it.
"""

from __future__ import annotations

from functools import reduce
from operator import or_

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.control.operators.operator import OperatorError
from streambroker_core.control.runtime.packing import RUNNING_BITS, consecutive_numbers

_RUNNING = (1 << RUNNING_BITS) - 1


def slot_bits(rows: int) -> int:
    """Return the bits of a row's slot in a part with this many rows; at least 1."""
    return max(RUNNING_BITS - rows.bit_length(), 1)


def space_positions(positions: pa.Array, bits: int) -> pa.Array:
    """Return the positions of rows with gaps; ``positions`` have none."""
    running = pc.bit_wise_and(positions, _RUNNING)
    wide = pc.shift_left(running, pa.scalar(bits, pa.int64()))
    return pc.add(pc.add(pc.subtract(positions, running), wide), 1 << (bits - 1))


def position_before(position: int, bits: int, number: int = 0) -> int:
    """Return the position of the ``number``-th control tuple before the row at ``position``.

    ``position`` has no gaps yet; ``bits`` is the size of a slot.
    """
    running = position & _RUNNING
    return position - running + (running << bits) + min(number, (1 << (bits - 1)) - 1)


def derive_positions(positions: pa.Array, count: int, function_name: str) -> pa.Array:
    """Return positions for ``count`` rows that a function derived from the rows at ``positions``.

    They ascend, from the first of these rows to before the row after the last one. ``positions``
    have gaps, ascend and are not empty.

    Raises:
        OperatorError: there is no room for so many.
    """
    if count <= len(positions):
        return positions.slice(0, count)
    rows_per_slot = -(-count // len(positions))
    combined = reduce(or_, positions.to_pylist())
    step = (combined & -combined).bit_length() - 1 - (rows_per_slot - 1).bit_length()
    if step < 1:
        raise OperatorError(
            f"{function_name} returned {count} rows for {len(positions)}, and there is no room"
            " for so many between control tuples: return fewer rows for each, or set a smaller"
            " spark.sql.execution.arrow.maxRecordsPerBatch."
        )
    order = consecutive_numbers(0, count)
    slot = pc.divide(order, rows_per_slot)
    within = pc.subtract(order, pc.multiply(slot, rows_per_slot))
    offset = pc.shift_left(within, pa.scalar(step, pa.int64()))
    return pc.add(pc.add(positions.take(slot), offset), 1 << (step - 1))
