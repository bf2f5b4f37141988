"""Whether a column's type may replace another one; only types decide this, never data."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.types as pt

_UNITS = ("s", "ms", "us", "ns")


def missing_column(actual: pa.Schema, expected: pa.Schema) -> str | None:
    """Return a problem text for a missing column; None if all are there."""
    missing = [name for name in expected.names if name not in actual.names]
    return f"there is no column {missing[0]}" if missing else None


def schema_problem(
    actual: pa.Schema,
    expected: pa.Schema,
    accepts: Callable[[pa.DataType, pa.DataType], bool] | None = None,
    *,
    declared: bool = False,
) -> str | None:
    """Return what is wrong with columns; None if they mean the same as before.

    Additional columns are ignored. ``accepts`` returns whether a type can replace another one, by
    default `can_widen`. With ``declared`` the user declared ``expected``; else it is of the first
    version.
    """
    if (missing := missing_column(actual, expected)) is not None:
        return missing
    for field in expected:
        type_ = actual.field(field.name).type
        if not (accepts or can_widen)(type_, field.type):
            return f"column {field.name} is {type_}, and {_remedy(field.type, declared=declared)}"
    return None


def _remedy(expected: pa.DataType, *, declared: bool) -> str:
    if declared:
        return f"{expected} is declared; declare its type, or cast it where it comes from"
    if pt.is_null(expected):
        return (
            "the first version of the table had only nulls there, so no type; give the table"
            " another name, and its types with schema= or by a cast where it comes from"
        )
    return (
        f"the first version of the table has {expected} there; cast it to that where it comes"
        f" from, or"
        " give the new table another name"
    )


def can_convert(actual: pa.DataType, expected: pa.DataType) -> bool:
    """Return whether Arrow converts Python values of a type to another one without changing them.

    Arrow itself refuses values that are too large, and fractions that a decimal cannot represent.
    """
    if pt.is_integer(actual) and (pt.is_floating(expected) or pt.is_decimal(expected)):
        return True
    kinds = (pt.is_integer, pt.is_floating, pt.is_decimal, pt.is_timestamp, pt.is_time)
    return can_widen(actual, expected) or any(
        bool(kind(actual) and kind(expected)) for kind in kinds
    )


def can_widen(actual: pa.DataType, expected: pa.DataType) -> bool:
    """Return whether every value of a type is one of another type, and means the same."""
    if actual.equals(expected) or pt.is_null(actual):
        return True
    if pt.is_dictionary(actual):
        return can_widen(actual.value_type, expected)
    if pt.is_integer(actual) and pt.is_integer(expected):
        signs = pt.is_signed_integer(actual), pt.is_signed_integer(expected)
        if signs == (True, False):
            return False
        return bool(actual.bit_width + (signs[0] != signs[1]) <= expected.bit_width)
    if pt.is_floating(actual) and pt.is_floating(expected):
        return bool(actual.bit_width <= expected.bit_width)
    if pt.is_decimal(actual) and pt.is_decimal(expected):
        integers_fit = actual.precision - actual.scale <= expected.precision - expected.scale
        return bool(integers_fit and actual.scale <= expected.scale)
    if pt.is_timestamp(actual) and pt.is_timestamp(expected):
        finer = _UNITS.index(expected.unit) >= _UNITS.index(actual.unit)
        return bool(actual.tz == expected.tz and finer)
    return _same_kind(actual, expected)


def _same_kind(actual: pa.DataType, expected: pa.DataType) -> bool:
    """Do the same for types with more than one form, and for nested types."""
    for forms in (
        (pt.is_string, pt.is_large_string, pt.is_string_view),
        (pt.is_binary, pt.is_large_binary, pt.is_binary_view),
    ):
        if any(form(actual) for form in forms):
            return any(form(expected) for form in forms)
    if pt.is_struct(actual) and pt.is_struct(expected):
        fields = {field.name: field.type for field in actual}
        return fields.keys() == {field.name for field in expected} and all(
            can_widen(fields[field.name], field.type) for field in expected
        )
    lists = (pt.is_list, pt.is_large_list)
    if any(form(actual) for form in lists) and any(form(expected) for form in lists):
        return can_widen(actual.value_type, expected.value_type)
    return False
