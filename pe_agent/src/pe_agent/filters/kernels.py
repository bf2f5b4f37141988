"""Arrow kernels with the semantics of the scalar evaluator.

Arrow's own kernels differ: they raise on overflow and division by zero, round an int64 compared
with a double, and have no list lookup. Each function uses the fast kernel where it is correct, and
guards only the values that need it. A null in a result is the language's *unknown*.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.expression.arithmetic import COMPARE

EXACT = 2**53
INT64_MIN = -(2**63)
TWO_63 = 2.0**63

_KERNELS: dict[str, Callable[[Any, Any], Any]] = {
    "==": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
MIRRORED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def where_valid(array: pa.Array, answer: bool) -> pa.BooleanArray:
    """Return ``answer`` for every row, null where the array is null."""
    if array.null_count == 0:
        return pa.repeat(pa.scalar(answer), len(array))
    return pc.if_else(pc.is_valid(array), answer, pa.scalar(None, pa.bool_()))


def compare_with(op: str, array: pa.Array, value: Any) -> pa.BooleanArray:
    """Compare an array with one value of a comparable kind."""
    if pa.types.is_integer(array.type):
        return _integers_with(op, array, value)
    if pa.types.is_floating(array.type):
        return _floats_with(op, array, value)
    return _KERNELS[op](array, pa.scalar(value, array.type))


def compare(op: str, left: pa.Array, right: pa.Array) -> pa.BooleanArray:
    """Compare two arrays row by row; integers and floats are compared by exact value."""
    left_is_int, right_is_int = pa.types.is_integer(left.type), pa.types.is_integer(right.type)
    if left_is_int and pa.types.is_floating(right.type):
        return _integers_and_floats(op, left, right)
    if right_is_int and pa.types.is_floating(left.type):
        return _integers_and_floats(MIRRORED[op], right, left)
    if pa.types.is_string(left.type) and pa.types.is_large_string(right.type):
        left = left.cast(pa.large_string())
    elif pa.types.is_large_string(left.type) and pa.types.is_string(right.type):
        right = right.cast(pa.large_string())
    return _KERNELS[op](left, right)


def _integers_with(op: str, array: pa.Array, value: float) -> pa.BooleanArray:
    if isinstance(value, float):
        if not -TWO_63 <= value < TWO_63:  # NaN, too
            return where_valid(array, COMPARE[op](0, value))
        if not value.is_integer():
            if op in ("==", "!="):
                return where_valid(array, op == "!=")
            return _integers_with("<=" if op[0] == "<" else ">", array, math.floor(value))
        value = int(value)
    try:
        scalar = pa.scalar(value, array.type)
    except (pa.ArrowInvalid, OverflowError):
        scalar = pa.scalar(value, pa.int64())
    return _KERNELS[op](array, scalar)


def _floats_with(op: str, array: pa.Array, value: float) -> pa.BooleanArray:
    real = float(value)
    if real != value and not math.isnan(real):  # an int64 between two doubles
        if op in ("==", "!="):
            return where_valid(array, op == "!=")
        below = op[0] == "<"
        beyond = real > value if below else real < value
        if beyond:
            real = math.nextafter(real, -math.inf if below else math.inf)
        op = "<=" if below else ">="
    if array.type == pa.float32() and not _is_float32(real):
        array = array.cast(pa.float64())
    return _KERNELS[op](array, pa.scalar(real, array.type))


def _is_float32(value: float) -> bool:
    try:
        return bool(struct.unpack("f", struct.pack("f", value))[0] == value)
    except OverflowError:
        return False


def _integers_and_floats(op: str, whole: pa.Array, real: pa.Array) -> pa.BooleanArray:
    rounded = whole.cast(pa.float64(), safe=False)
    real = real.cast(pa.float64())
    nearest = _KERNELS[op](rounded, real)
    if whole.type.bit_width < 64:
        return nearest
    largest = pc.max(pc.abs(rounded)).as_py()
    if largest is None or largest <= EXACT:
        return nearest
    # Rounding keeps the order, so it can mislead only where the rounded value is equal.
    tie = pc.equal(rounded, real)
    inside = pc.less(real, TWO_63)
    exact = pc.if_else(pc.and_(tie, inside), real, 0.0).cast(pa.int64())
    decided = pc.if_else(inside, _KERNELS[op](whole, exact), op in ("!=", "<", "<="))
    return pc.if_else(tie, decided, nearest)


def negate(array: pa.Array) -> pa.Array:
    """Return the negative of int64 or double; null for the smallest int64."""
    if not pa.types.is_integer(array.type):
        return pc.negate(array)
    try:
        return pc.negate_checked(array)
    except pa.ArrowInvalid:
        return pc.negate(_null_where(pc.equal(array, INT64_MIN), array))


def compute(op: str, left: pa.Array, right: Any) -> pa.Array:
    """Apply an operator to two arrays of int64, or two of double; null where unknown."""
    return (_INTEGER if pa.types.is_integer(left.type) else _FLOAT)[op](left, right)


def _null_where(condition: pa.BooleanArray, array: pa.Array) -> pa.Array:
    return pc.if_else(condition, pa.scalar(None, array.type), array)


def _add(left: pa.Array, right: pa.Array) -> pa.Array:
    try:
        return pc.add_checked(left, right)
    except pa.ArrowInvalid:
        total = pc.add(left, right)
        crossed = pc.bit_wise_and(pc.bit_wise_xor(left, total), pc.bit_wise_xor(right, total))
        return _null_where(pc.less(crossed, 0), total)


def _subtract(left: pa.Array, right: pa.Array) -> pa.Array:
    try:
        return pc.subtract_checked(left, right)
    except pa.ArrowInvalid:
        rest = pc.subtract(left, right)
        crossed = pc.bit_wise_and(pc.bit_wise_xor(left, right), pc.bit_wise_xor(left, rest))
        return _null_where(pc.less(crossed, 0), rest)


def _multiply(left: pa.Array, right: pa.Array) -> pa.Array:
    try:
        return pc.multiply_checked(left, right)
    except pa.ArrowInvalid:
        product = pc.multiply(left, right)
        special = pc.or_(pc.equal(right, 0), pc.equal(right, -1))
        back = pc.divide(product, pc.if_else(special, 1, right))
        right_of = pc.if_else(special, True, pc.equal(back, left))
        lost = pc.and_(pc.equal(right, -1), pc.equal(left, INT64_MIN))
        return _null_where(pc.or_(pc.invert(right_of), lost), product)


def _divide(left: pa.Array, right: pa.Array) -> pa.Array:
    right = _nonzero(right)
    lost = pc.and_(pc.equal(left, INT64_MIN), pc.equal(right, -1))
    quotient = pc.divide(left, right)
    return _null_where(lost, quotient) if lost.true_count else quotient


def _remainder(left: pa.Array, right: pa.Array) -> pa.Array:
    return pc.remainder(left, _nonzero(right))


def _nonzero(right: pa.Array) -> pa.Array:
    zero = pc.equal(right, pa.scalar(0, right.type))
    return _null_where(zero, right) if zero.true_count else right


def _shift(left: pa.Array, right: pa.Array, *, to_left: bool) -> pa.Array:
    outside = pc.or_(pc.less(right, 0), pc.greater(right, 63))
    count = _null_where(outside, right)
    if to_left:
        # Arrow shifts a signed number by 62 at most, an unsigned one by 63.
        bits = pc.shift_left(left.view(pa.uint64()), count.view(pa.uint64()))
        return bits.view(pa.int64())
    first_part = pc.shift_right(count, 1)
    return pc.shift_right(pc.shift_right(left, first_part), pc.subtract(count, first_part))


def _divide_floats(left: pa.Array, right: pa.Array) -> pa.Array:
    return pc.divide(left, _nonzero(right))


_INTEGER: dict[str, Callable[[pa.Array, pa.Array], pa.Array]] = {
    "+": _add,
    "-": _subtract,
    "*": _multiply,
    "/": _divide,
    "%": _remainder,
    "&": pc.bit_wise_and,
    "|": pc.bit_wise_or,
    "^": pc.bit_wise_xor,
    "<<": lambda left, right: _shift(left, right, to_left=True),
    ">>": lambda left, right: _shift(left, right, to_left=False),
}
_FLOAT: dict[str, Callable[[pa.Array, pa.Array], pa.Array]] = {
    "+": pc.add,
    "-": pc.subtract,
    "*": pc.multiply,
    "/": _divide_floats,
}


def compute_with(op: str, array: pa.Array, value: float) -> pa.Array:
    """Combine an array of int64 or double with a number on the right, with only needed guards."""
    is_int = pa.types.is_integer(array.type)
    if op in ("/", "%") and value != 0 and (op == "%" or not is_int or value != -1):
        kernel = pc.remainder if op == "%" else pc.divide
        return kernel(array, pa.scalar(value, array.type))
    if op in ("&", "|", "^"):
        return _INTEGER[op](array, pa.scalar(value, pa.int64()))
    return compute(op, array, pa.repeat(pa.scalar(value, array.type), len(array)))


def element(lists: pa.Array, index: int) -> pa.Array:
    """Return one element of each list, null if the list is too short."""
    offsets = lists.offsets
    starts, ends = offsets[:-1], offsets[1:]
    if index >= 2**31 - 1:
        return pa.nulls(len(lists), lists.type.value_type)
    places = pc.add(starts.cast(pa.int64()), index)
    exists = pc.less(places, ends.cast(pa.int64()))
    if lists.null_count:
        exists = pc.and_(exists, pc.is_valid(lists))
    return lists.values.take(pc.if_else(exists, places, pa.scalar(None, pa.int64())))


def member(lists: pa.Array, test: Callable[[pa.Array, pa.Array | None], pa.Array]) -> pa.Array:
    """Return for each list whether one of its elements passes a test.

    The test receives the elements of all lists and the row offsets, and returns true, false or null
    per element. The result is null if no element passes, but the list or a test result is null.
    """
    offsets = lists.offsets
    first, last = offsets[0].as_py(), offsets[len(lists)].as_py()
    places = pc.subtract(offsets, pa.scalar(first, offsets.type))
    answers = test(lists.values.slice(first, last - first), places)
    result = _any_in_row(pc.fill_null(answers, False), places)
    if answers.null_count:
        has_unknown = _any_in_row(pc.is_null(answers), places)
        result = pc.if_else(
            result, True, pc.if_else(has_unknown, pa.scalar(None, pa.bool_()), False)
        )
    if lists.null_count:
        result = pc.if_else(pc.is_valid(lists), result, pa.scalar(None, pa.bool_()))
    return result


def contiguous(views: pa.Array) -> pa.LargeListArray:
    """Convert list views to lists; the cast of Arrow 26 creates invalid arrays for some."""
    lengths = pc.fill_null(pc.list_value_length(views), 0).cast(pa.int64())
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths)])
    return pa.LargeListArray.from_arrays(offsets, views.flatten(), mask=views.is_null())


def parent_rows(offsets: pa.Array, size: int) -> pa.Array:
    """Return the row of each element, from the row offsets."""
    lists = pa.ListArray if offsets.type == pa.int32() else pa.LargeListArray
    return pc.list_parent_indices(lists.from_arrays(offsets, pa.nulls(size)))


def _any_in_row(flags: pa.BooleanArray, offsets: pa.Array) -> pa.BooleanArray:
    """Return for each row whether one of its elements is flagged, by running totals."""
    if flags.true_count == 0:
        return pa.repeat(pa.scalar(False), len(offsets) - 1)
    running = pc.cumulative_sum(flags.cast(pa.uint8()).cast(pa.int32()))
    totals = pa.concat_arrays([pa.array([0], pa.int32()), running]).take(offsets)
    return pc.greater(totals[1:], totals[:-1])
