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
from streambroker_core.control.runtime.packing import RUNNING_BITS, numbers

_RUNNING = (1 << RUNNING_BITS) - 1


def slot_bits(rows: int) -> int:
    """Return the bits of a row's slot, in a part with so many rows; at least 1."""
    return max(RUNNING_BITS - rows.bit_length(), 1)


def spaced(places: pa.Array, bits: int) -> pa.Array:
    """Return the places of rows with room between them; ``places`` are without."""
    running = pc.bit_wise_and(places, _RUNNING)
    wide = pc.shift_left(running, pa.scalar(bits, pa.int64()))
    return pc.add(pc.add(pc.subtract(places, running), wide), 1 << (bits - 1))


def in_front(place: int, bits: int, number: int = 0) -> int:
    """Return the place of a control tuple that is in front of the row at a place without room.

    Args:
        place: of the row.
        bits: of a slot.
        number: which of the tuples in front of that row it is.
    """
    running = place & _RUNNING
    return place - running + (running << bits) + min(number, (1 << (bits - 1)) - 1)


def made_of(places: pa.Array, count: int, what: str) -> pa.Array:
    """Return places for ``count`` rows that a function has made of the rows at ``places``.

    They are between the first of these rows and what follows the last one, in rising order.

    Args:
        places: of the rows, with room between them, rising; at least one.
        count: how many rows were made.
        what: the function, for the message.

    Raises:
        OperatorError: there is no room for so many.
    """
    if count <= len(places):
        return places.slice(0, count)
    each = -(-count // len(places))
    together = reduce(or_, places.to_pylist())
    step = (together & -together).bit_length() - 1 - (each - 1).bit_length()
    if step < 1:
        raise OperatorError(
            f"{what} made {count} rows of {len(places)}, and there is no room for so many between"
            " control tuples: return fewer rows for each, or set a smaller"
            " spark.sql.execution.arrow.maxRecordsPerBatch."
        )
    order = numbers(0, count)
    slot = pc.divide(order, each)
    within = pc.subtract(order, pc.multiply(slot, each))
    offset = pc.shift_left(within, pa.scalar(step, pa.int64()))
    return pc.add(pc.add(places.take(slot), offset), 1 << (step - 1))
