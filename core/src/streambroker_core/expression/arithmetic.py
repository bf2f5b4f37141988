"""Arithmetic of the language on int64 and float64; None is unknown.

Unknown are: integers outside int64; division and remainder by zero; shift counts outside 0..63;
bit operators and ``%`` on a float64. Integer division and remainder truncate toward zero. Shifts
work on a 64-bit register: bits shifted out are lost, ``>>`` keeps the sign.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeAlias

from streambroker_core.model.properties import INT64_MAX, INT64_MIN

Number: TypeAlias = "int | float"

_TWO_64 = 2**64


def int64_or_none(value: int) -> int | None:
    """Return an integer; None if it is outside int64."""
    return value if INT64_MIN <= value <= INT64_MAX else None


def divide(left: int, right: int) -> int | None:
    """Return the quotient, truncated toward zero."""
    if right == 0:
        return None
    quotient = abs(left) // abs(right)
    return int64_or_none(quotient if (left < 0) == (right < 0) else -quotient)


def remainder(left: int, right: int) -> int | None:
    """Return the remainder, with the sign of the dividend."""
    if right == 0:
        return None
    rest = abs(left) % abs(right)
    return -rest if left < 0 else rest


def shift_left(left: int, right: int) -> int | None:
    """Shift a 64-bit register to the left."""
    if not 0 <= right <= 63:
        return None
    bits = (left << right) % _TWO_64
    return bits - _TWO_64 if bits > INT64_MAX else bits


def shift_right(left: int, right: int) -> int | None:
    """Shift a 64-bit register to the right, keeping its sign."""
    return left >> right if 0 <= right <= 63 else None


def divide_floats(left: float, right: float) -> float | None:
    """Divide if at least one side is a float64."""
    return None if right == 0 else float(left) / float(right)


INTEGER: dict[str, Callable[[int, int], int | None]] = {
    "+": lambda a, b: int64_or_none(a + b),
    "-": lambda a, b: int64_or_none(a - b),
    "*": lambda a, b: int64_or_none(a * b),
    "/": divide,
    "%": remainder,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": shift_left,
    ">>": shift_right,
}
FLOAT: dict[str, Callable[[float, float], float | None]] = {
    "+": lambda a, b: float(a) + float(b),
    "-": lambda a, b: float(a) - float(b),
    "*": lambda a, b: float(a) * float(b),
    "/": divide_floats,
}
COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
