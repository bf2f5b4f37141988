"""Columns of a program without Spark are those that Spark would have."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pe_agent.client.arrow_types import columns_of, published_schema
from pe_agent.datasource.options import format_ddl
from pe_agent.datasource.schemas import as_spark_schema, spark_to_arrow
from streambroker_core.errors import SchemaError
from streambroker_core.model.schema import parse_ddl, to_ddl

SIMPLE = st.sampled_from(
    (
        pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(),
        pa.uint32(), pa.float16(), pa.float32(), pa.float64(), pa.string(), pa.large_string(),
        pa.string_view(), pa.binary(), pa.large_binary(), pa.date32(), pa.date64(),
        pa.timestamp("s"), pa.timestamp("ns", tz="Europe/Berlin"), pa.decimal128(10, 2),
        pa.dictionary(pa.int8(), pa.string()),
    )
)  # fmt: skip
TYPES = st.recursive(
    SIMPLE,
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        st.tuples(SIMPLE, inner).map(lambda two: pa.map_(*two)),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda of: pa.struct([pa.field(f"f {n}", one) for n, one in enumerate(of)])
        ),
    ),
    max_leaves=6,
)


@given(st.lists(TYPES, min_size=1, max_size=4))
def test_columns_have_sparks_types(types: list[pa.DataType]) -> None:
    schema = pa.schema([pa.field(f"c{n}", one, nullable=False) for n, one in enumerate(types)])
    published = published_schema(schema)
    ddl = to_ddl(columns_of(published))

    assert ddl == format_ddl(as_spark_schema(published))
    assert parse_ddl(ddl) == columns_of(published)
    assert published_schema(published) == published


@given(st.lists(SIMPLE, min_size=1, max_size=4))
def test_rows_have_the_schema_that_spark_sends(types: list[pa.DataType]) -> None:
    published = published_schema(pa.schema([(f"c{n}", one) for n, one in enumerate(types)]))

    assert spark_to_arrow(as_spark_schema(to_ddl(columns_of(published)))) == published


@pytest.mark.parametrize(
    "kind",
    [pa.uint64(), pa.duration("s"), pa.time64("us"), pa.null(), pa.decimal256(50, 2)],
    ids=str,
)
def test_a_type_without_a_counterpart_is_refused_by_name(kind: pa.DataType) -> None:
    with pytest.raises(SchemaError, match="column 'odd' has the Arrow type"):
        published_schema(pa.schema([("odd", pa.list_(kind))]))
