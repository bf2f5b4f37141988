"""Places with room between them, so that new rows fit in where old ones were.

A function on batches makes any number of rows of those it is given. Its task knows neither the
other rows of the part nor the control tuples in other tasks, so it may not count the rows again.
Row ``k`` of a part therefore gets a slot of ``2^bits`` places, and is in the middle of it: control
tuples before the row have the lower half, and the upper half is room for rows that are made of it.
The lowest bit that is set in a place says how much room follows it.
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
    """Return the bits of a row's slot, in a part with so many rows; at least 1."""
    return max(RUNNING_BITS - rows.bit_length(), 1)


def space_positions(positions: pa.Array, bits: int) -> pa.Array:
    """Return the places of rows with room between them; ``positions`` are without."""
    running = pc.bit_wise_and(positions, _RUNNING)
    wide = pc.shift_left(running, pa.scalar(bits, pa.int64()))
    return pc.add(pc.add(pc.subtract(positions, running), wide), 1 << (bits - 1))


def position_before(position: int, bits: int, number: int = 0) -> int:
    """Return the place of a control tuple that is in front of the row at a place without room.

    Args:
        position: of the row.
        bits: of a slot.
        number: which of the tuples in front of that row it is.
    """
    running = position & _RUNNING
    return position - running + (running << bits) + min(number, (1 << (bits - 1)) - 1)


def derive_positions(positions: pa.Array, count: int, function_name: str) -> pa.Array:
    """Return places for ``count`` rows that a function has made of the rows at ``positions``.

    They are between the first of these rows and what follows the last one, in rising order.

    Args:
        positions: of the rows, with room between them, rising; at least one.
        count: how many rows were made.
        function_name: the function, for the message.

    Raises:
        OperatorError: there is no room for so many.
    """
    if count <= len(positions):
        return positions.slice(0, count)
    each = -(-count // len(positions))
    together = reduce(or_, positions.to_pylist())
    step = (together & -together).bit_length() - 1 - (each - 1).bit_length()
    if step < 1:
        raise OperatorError(
            f"{function_name} made {count} rows of {len(positions)}, and there is no room for so"
            f" many between"
            " control tuples: return fewer rows for each, or set a smaller"
            " spark.sql.execution.arrow.maxRecordsPerBatch."
        )
    order = consecutive_numbers(0, count)
    slot = pc.divide(order, each)
    within = pc.subtract(order, pc.multiply(slot, each))
    offset = pc.shift_left(within, pa.scalar(step, pa.int64()))
    return pc.add(pc.add(positions.take(slot), offset), 1 << (step - 1))
