"""Columns as users give them: DDL, Spark's type, or an Arrow schema."""

from __future__ import annotations

from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql.types import StructType

from pe_agent.datasource.columns import parse_struct
from streambroker_core.errors import SchemaError

Columns: TypeAlias = "str | StructType | pa.Schema"
"""What every ``schema=`` takes."""


def as_spark_schema(schema: Columns) -> StructType:
    """Return columns as Spark has them; no Spark has to run.

    Raises:
        SchemaError: it is no list of columns.
    """
    if isinstance(schema, StructType):
        return schema
    if isinstance(schema, pa.Schema):
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(schema)
    return parse_struct(check_ddl(schema))


def as_arrow_schema(schema: Columns) -> pa.Schema:
    """Return columns as Arrow has them.

    Raises:
        SchemaError: as for :func:`as_spark_schema`.
    """
    if isinstance(schema, pa.Schema):
        return schema
    from pe_agent.aligned.runtime.frames import spark_to_arrow

    return spark_to_arrow(as_spark_schema(schema))


def as_ddl(schema: Columns) -> str:
    """Return columns as DDL; a text as it is.

    Raises:
        SchemaError: it is neither a text nor a schema.
    """
    if isinstance(schema, StructType | pa.Schema):
        from pe_agent.datasource.options import format_ddl

        return format_ddl(as_spark_schema(schema))
    return check_ddl(schema)


def check_ddl(schema: Any) -> str:
    """Return DDL, or refuse what is no schema.

    Raises:
        SchemaError: it is none.
    """
    if not isinstance(schema, str):
        raise SchemaError(
            f"schema is {type(schema).__name__}; give DDL such as 'id string, price double', a"
            " StructType or a pyarrow schema"
        )
    return schema
