"""Spark types of the columns of a DDL text from an agent, parsed without a JVM."""

from __future__ import annotations

from pyspark.sql import types as spark

from streambroker_core.errors import SchemaError
from streambroker_core.model.schema import parse_ddl

_SIMPLE: dict[str, type[spark.DataType]] = {
    "tinyint": spark.ByteType,
    "smallint": spark.ShortType,
    "int": spark.IntegerType,
    "bigint": spark.LongType,
    "float": spark.FloatType,
    "double": spark.DoubleType,
    "string": spark.StringType,
    "boolean": spark.BooleanType,
    "binary": spark.BinaryType,
    "date": spark.DateType,
    "timestamp": spark.TimestampType,
    "timestamp_ntz": spark.TimestampNTZType,
}


def parse_struct(ddl: str) -> spark.StructType:
    """Return a DDL text as Spark types; raise SchemaError if rows of it cannot be packed."""
    return spark.StructType(
        [spark.StructField(c.name, _parse_type(c.type)) for c in parse_ddl(ddl)]
    )


def _parse_type(text: str) -> spark.DataType:
    if text in _SIMPLE:
        return _SIMPLE[text]()
    word, _, inner = text.partition("<")
    inner = inner.removesuffix(">")
    if word == "struct":
        return parse_struct(inner)
    if word == "array":
        return spark.ArrayType(_parse_type(inner))
    if word == "map":
        key, value = _split_map_types(inner)
        return spark.MapType(_parse_type(key), _parse_type(value))
    if text.startswith("decimal("):
        digits, scale = text.removeprefix("decimal(").removesuffix(")").split(",")
        return spark.DecimalType(int(digits), int(scale))
    raise SchemaError(f"rows with a column of type {text} cannot be packed for an operator")


def _split_map_types(inner: str) -> tuple[str, str]:
    """Return key and value type of a map; the types themselves may contain commas."""
    depth = 0
    for at, sign in enumerate(inner):
        depth += {"<": 1, "(": 1, ">": -1, ")": -1}.get(sign, 0)
        if sign == "," and not depth:
            return inner[:at], inner[at + 1 :]
    raise SchemaError(f"map<{inner}> does not have two types")
