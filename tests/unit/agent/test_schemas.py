"""What every `schema=` takes: DDL, Spark's type, and an Arrow schema."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    DoubleType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pe_agent.aligned.runtime.hosting import parse_columns
from pe_agent.datasource.schemas import as_arrow_schema, as_ddl, as_spark_schema
from streambroker.patterns import MatchFunction
from streambroker_core.errors import SchemaError
from streambroker_core.model.schema import parse_ddl

DDL = "sku string, price double, at timestamp, tags array<string>"
SPARK = StructType(
    [
        StructField("sku", StringType()),
        StructField("price", DoubleType()),
        StructField("at", TimestampType()),
        StructField("tags", ArrayType(StringType())),
    ]
)
ARROW = pa.schema(
    [
        ("sku", pa.string()),
        ("price", pa.float64()),
        ("at", pa.timestamp("us", "UTC")),
        ("tags", pa.list_(pa.string())),
    ]
)


def matched(found: Any) -> None:
    del found


@pytest.mark.parametrize("given", [DDL, SPARK, ARROW], ids=["DDL", "StructType", "Arrow"])
def test_columns_are_the_same_in_whatever_form_they_are_given(given: Any) -> None:
    assert as_spark_schema(given).simpleString() == SPARK.simpleString()
    assert as_arrow_schema(given).names == ARROW.names
    assert [pa.types.is_list(one.type) for one in as_arrow_schema(given)] == [
        False,
        False,
        False,
        True,
    ]
    assert parse_ddl(as_ddl(given)) == parse_ddl(DDL)
    function = pickle.loads(pickle.dumps(MatchFunction(schema=given, matched=matched)))
    assert function.schema.names == ARROW.names


def test_an_operator_takes_an_arrow_schema() -> None:
    assert parse_columns(ARROW).simpleString() == SPARK.simpleString()


@pytest.mark.parametrize("use", [as_spark_schema, as_arrow_schema, as_ddl, parse_columns])
def test_what_is_no_schema_is_refused_by_name(use: Any) -> None:
    with pytest.raises(SchemaError, match="schema is dict; give DDL such as 'id string, price"):
        use({"sku": "string"})


def test_a_field_whose_name_is_no_word_keeps_it_in_ddl() -> None:
    inner = StructType([StructField("not c", ArrayType(StringType())), StructField("b`x", SPARK)])
    nested = StructType([StructField("odd name", inner), StructField("all", ArrayType(inner))])
    assert as_spark_schema(as_ddl(nested)) == nested
    assert as_ddl(StructType([StructField("in", SPARK)])) == (
        "`in` struct<sku:string,price:double,at:timestamp,tags:array<string>>"
    )
