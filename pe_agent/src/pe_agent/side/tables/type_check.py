"""Whether a column that has another type than before says the same: data never decide that."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.types as pt

_UNITS = ("s", "ms", "us", "ns")


def missing(found: pa.Schema, known: pa.Schema) -> str | None:
    """Return which column is not there any more; None if all are."""
    lost = [name for name in known.names if name not in found.names]
    return f"there is no column {lost[0]}" if lost else None


def changed(
    found: pa.Schema,
    known: pa.Schema,
    takes: Callable[[pa.DataType, pa.DataType], bool] | None = None,
    *,
    declared: bool = False,
) -> str | None:
    """Return what is wrong with columns; None if they say what they said before.

    Args:
        found: of a table, file or result; more columns than before are passed over.
        known: of the first version, or as they were declared.
        takes: tells whether a type can be taken for another one; None for `fits`.
        declared: ``known`` is what the user has declared, not what the first version had.
    """
    if (lost := missing(found, known)) is not None:
        return lost
    for field in known:
        type_ = found.field(field.name).type
        if not (takes or fits)(type_, field.type):
            return f"column {field.name} is {type_}, and {_remedy(field.type, declared=declared)}"
    return None


def _remedy(known: pa.DataType, *, declared: bool) -> str:
    if declared:
        return f"{known} is declared; declare its type, or cast it where it comes from"
    if pt.is_null(known):
        return (
            "the first version of the table had only nulls there, so no type; give the table"
            " another name, and its types with schema= or by a cast where it comes from"
        )
    return (
        f"the first version of the table has {known} there; cast it to that where it comes from, or"
        " give the new table another name"
    )


def takes(found: pa.DataType, known: pa.DataType) -> bool:
    """Tell whether Arrow makes Python values of a type to another one without changing them.

    It refuses by itself what is too large, and fractions that a decimal cannot have.
    """
    if pt.is_integer(found) and (pt.is_floating(known) or pt.is_decimal(known)):
        return True
    kinds = (pt.is_integer, pt.is_floating, pt.is_decimal, pt.is_timestamp, pt.is_time)
    return fits(found, known) or any(bool(kind(found) and kind(known)) for kind in kinds)


def fits(found: pa.DataType, known: pa.DataType) -> bool:
    """Tell whether every value of a type is one of another type, and means the same."""
    if found.equals(known) or pt.is_null(found):
        return True
    if pt.is_dictionary(found):
        return fits(found.value_type, known)
    if pt.is_integer(found) and pt.is_integer(known):
        signs = pt.is_signed_integer(found), pt.is_signed_integer(known)
        if signs == (True, False):
            return False
        return bool(found.bit_width + (signs[0] != signs[1]) <= known.bit_width)
    if pt.is_floating(found) and pt.is_floating(known):
        return bool(found.bit_width <= known.bit_width)
    if pt.is_decimal(found) and pt.is_decimal(known):
        whole = found.precision - found.scale <= known.precision - known.scale
        return bool(whole and found.scale <= known.scale)
    if pt.is_timestamp(found) and pt.is_timestamp(known):
        finer = _UNITS.index(known.unit) >= _UNITS.index(found.unit)
        return bool(found.tz == known.tz and finer)
    return _same_kind(found, known)


def _same_kind(found: pa.DataType, known: pa.DataType) -> bool:
    """Tell it of types that have more than one form, and of nested ones."""
    for forms in (
        (pt.is_string, pt.is_large_string, pt.is_string_view),
        (pt.is_binary, pt.is_large_binary, pt.is_binary_view),
    ):
        if any(form(found) for form in forms):
            return any(form(known) for form in forms)
    if pt.is_struct(found) and pt.is_struct(known):
        fields = {field.name: field.type for field in found}
        return fields.keys() == {field.name for field in known} and all(
            fits(fields[field.name], field.type) for field in known
        )
    lists = (pt.is_list, pt.is_large_list)
    if any(form(found) for form in lists) and any(form(known) for form in lists):
        return fits(found.value_type, known.value_type)
    return False
