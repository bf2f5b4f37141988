"""Keys in comparison form: columns of any type become one column of few types.

- Integers of all widths become int64, floats double with one zero, texts string, times int64.
- Several columns become one text. Each part has its length before it, so keys never collide.
- Null and NaN are not keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from streambroker_core.side.errors import SideSchemaError

_KINDS = (
    ("boolean", pt.is_boolean, pa.int64()),
    ("integer", pt.is_integer, pa.int64()),
    ("float", pt.is_floating, pa.float64()),
    ("text", lambda t: pt.is_string(t) or pt.is_large_string(t), pa.string()),
    ("binary", lambda t: pt.is_binary(t) or pt.is_large_binary(t), pa.binary()),
    ("timestamp", pt.is_timestamp, pa.int64()),
    ("date", pt.is_date, pa.int64()),
    ("decimal", pt.is_decimal, pa.string()),
)


def comparison_kind(type_: pa.DataType) -> str:
    """Return the kind within which a type is comparable; a dictionary has its values' kind."""
    if pt.is_dictionary(type_):
        type_ = type_.value_type
    return next((word for word, test, _ in _KINDS if test(type_)), str(type_))


def equality_class(type_: pa.DataType) -> str:
    """Return the class within which values can be equal: the kind, for decimals with the scale."""
    plain = type_.value_type if pt.is_dictionary(type_) else type_
    word = comparison_kind(plain)
    return f"{word} of scale {plain.scale}" if pt.is_decimal(plain) else word


def key_type(types: Sequence[pa.DataType]) -> pa.DataType:
    """Return the type of keys of these columns; raise SideSchemaError if one is not comparable."""
    physical_types = []
    for type_ in types:
        word = comparison_kind(type_)
        physical = [physical for kind, _, physical in _KINDS if kind == word]
        if not physical:
            raise SideSchemaError(
                "key", f"a key of type {type_}", "use numbers, texts, times or binary as key"
            )
        physical_types += physical
    return physical_types[0] if len(physical_types) == 1 else pa.string()


def make_keys(columns: Sequence[pa.Array]) -> pa.Array:
    """Return the keys of rows, from at least one column, as one array of :func:`key_type`.

    A key is null where any part is null or NaN.
    """
    parts = [_normalize_part(column) for column in columns]
    if len(parts) == 1:
        return parts[0]
    texts: list[pa.Array] = []
    for part in parts:
        text = part if pt.is_string(part.type) else _part_as_text(part)
        texts += (pc.cast(pc.binary_length(text), pa.string()), text)
    return pc.binary_join_element_wise(*texts, ":")


def make_key(values: Sequence[Any], types: Sequence[pa.DataType]) -> pa.Array:
    """Return the key of Python values as an array of length 1."""
    return make_keys(
        [pa.array([value], type=type_) for value, type_ in zip(values, types, strict=True)]
    )


def _part_as_text(part: pa.Array) -> pa.Array:
    if pt.is_binary(part.type):
        return pa.array([None if v is None else v.hex() for v in part.to_pylist()], pa.string())
    return pc.cast(part, pa.string())


def _normalize_part(column: pa.Array) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pt.is_dictionary(column.type):
        column = column.dictionary_decode()
    word = comparison_kind(column.type)
    if word == "timestamp":
        return pc.cast(pc.cast(column, pa.timestamp("us", column.type.tz)), pa.int64())
    if word == "date":
        return pc.cast(pc.cast(pc.cast(column, pa.date32()), pa.int32()), pa.int64())
    normalized = pc.cast(column, key_type([column.type]))
    if word == "float":
        normalized = pc.add(
            pc.if_else(pc.is_nan(normalized), pa.scalar(None, normalized.type), normalized), 0.0
        )
    return normalized
