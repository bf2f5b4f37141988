"""Columns in the forms that users pass them: DDL, Spark's type, or an Arrow schema."""

from __future__ import annotations

from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql.types import StructType

from pe_agent.datasource.columns import parse_struct
from streambroker_core.errors import SchemaError

Columns: TypeAlias = "str | StructType | pa.Schema"
"""Type of every ``schema=`` argument."""


def as_spark_schema(schema: Columns) -> StructType:
    """Return columns as a Spark type, without running Spark; raise SchemaError if unreadable."""
    if isinstance(schema, StructType):
        return schema
    if isinstance(schema, pa.Schema):
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(schema)
    return parse_struct(check_ddl(schema))


def as_arrow_schema(schema: Columns) -> pa.Schema:
    """Return columns as an Arrow schema; raise SchemaError if unreadable."""
    if isinstance(schema, pa.Schema):
        return schema
    return spark_to_arrow(as_spark_schema(schema))


def spark_to_arrow(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of columns; all are nullable, times are in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    converted = to_arrow_schema(schema, timezone="UTC")
    return pa.schema([one.with_nullable(True) for one in converted])


def as_nullable(schema: StructType) -> StructType:
    """Return the columns as nullable, because they are null in control rows."""
    nullable = StructType()
    for one in schema:
        nullable.add(one.name, one.dataType, True)
    return nullable


def as_ddl(schema: Columns) -> str:
    """Return columns as DDL, a text unchanged; raise SchemaError if they are no text or schema."""
    if isinstance(schema, StructType | pa.Schema):
        from pe_agent.datasource.options import format_ddl

        return format_ddl(as_spark_schema(schema))
    return check_ddl(schema)


def check_ddl(schema: Any) -> str:
    """Return DDL unchanged; raise SchemaError if it is no text."""
    if not isinstance(schema, str):
        raise SchemaError(
            f"schema is {type(schema).__name__}; give DDL such as 'id string, price double', a"
            " StructType or a pyarrow schema"
        )
    return schema
