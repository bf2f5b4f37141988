"""Casts of received columns to the types of a reader, never to narrower ones."""

from __future__ import annotations

import pyarrow as pa

from streambroker_core.errors import StreambrokerError


class SchemaWidenedError(StreambrokerError):
    """An export has wider types now than the reader, which stops before rows of them."""

    code = "SchemaWidened"


def cast_column(column: pa.Array, field: pa.Field) -> pa.Array:
    """Return a column in the type of the reader's field.

    Raises:
        SchemaWidenedError: the field has a narrower type.
    """
    if column.type == field.type:
        return column
    if _is_wider(column.type, field.type) and column.null_count < len(column):
        raise SchemaWidenedError(
            f"column `{field.name}` has rows of type {column.type}, and the reader has"
            f" {field.type}. Start the reader again with the wider type in schema=."
        )
    return column.cast(field.type)


def _is_wider(exported: pa.DataType, wanted: pa.DataType) -> bool:
    types = pa.types
    if types.is_timestamp(exported) and types.is_date(wanted):
        return True
    is_same_kind = (types.is_integer(exported) and types.is_integer(wanted)) or (
        types.is_floating(exported) and types.is_floating(wanted)
    )
    return is_same_kind and bool(exported.bit_width > wanted.bit_width)
