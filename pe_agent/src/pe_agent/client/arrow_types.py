"""Arrow schemas as the columns of an export: each type has one form, that of Spark's rows."""

from __future__ import annotations

import pyarrow as pa

from streambroker_core.errors import SchemaError
from streambroker_core.model.schema import Column, Schema, nested_name, widens

_UTC = pa.timestamp("us", tz="UTC")
_SIMPLE = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    _UTC: "timestamp",
    pa.timestamp("us"): "timestamp_ntz",
}
_ARROW = {ddl: kind for kind, ddl in _SIMPLE.items()}
_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.date64(): pa.date32(),
}


def published_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema that rows are published with; all columns are nullable.

    Raises:
        SchemaError: a column has a type that Spark does not have.
    """
    return pa.schema([pa.field(one.name, _published(one.type, one.name)) for one in schema])


def columns_of(schema: pa.Schema) -> Schema:
    """Return the columns of a schema from `published_schema`."""
    return tuple(Column(one.name, _ddl(one.type)) for one in schema)


def widen(schema: pa.Schema, columns: Schema) -> pa.Schema:
    """Return the Arrow schema of received rows, with types as wide as those of the columns."""
    wanted = {one.name: one.type for one in columns}
    return pa.schema(
        [
            field.with_type(_ARROW[wanted[field.name]])
            if widens(_SIMPLE.get(field.type, ""), wanted.get(field.name, ""))
            else field
            for field in schema
        ]
    )


def _published(kind: pa.DataType, name: str) -> pa.DataType:
    types = pa.types
    if kind in _SIMPLE:
        return kind
    if kind in _WIDER:
        return _WIDER[kind]
    if types.is_timestamp(kind):
        return _UTC if kind.tz else pa.timestamp("us")
    if types.is_decimal(kind) and kind.precision <= 38:
        return pa.decimal128(kind.precision, kind.scale)
    if types.is_dictionary(kind):
        return _published(kind.value_type, name)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(_published(kind.value_type, name))
    if types.is_map(kind):
        return pa.map_(_published(kind.key_type, name), _published(kind.item_type, name))
    if types.is_struct(kind):
        return pa.struct([pa.field(one.name, _published(one.type, name)) for one in kind])
    raise SchemaError(
        f"column {name!r} has the Arrow type {kind}, which Spark does not have: cast it, for"
        " instance to int64, float64 or string"
    )


def _ddl(kind: pa.DataType) -> str:
    types = pa.types
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if types.is_list(kind):
        return f"array<{_ddl(kind.value_type)}>"
    if types.is_map(kind):
        return f"map<{_ddl(kind.key_type)},{_ddl(kind.item_type)}>"
    return f"struct<{','.join(f'{nested_name(one.name)}:{_ddl(one.type)}' for one in kind)}>"
