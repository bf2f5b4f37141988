from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from pe_agent.filters import compile_filter
from streambroker_core.expression import Expression, parse
from support.core.expressions import ARROW, SCHEMA, batch_of, rows, typed_filters
from support.core.spark_sql import NotTheSame, Translation

ROWS = 200
FILTERS = 150
T = TypeVar("T")
BY_HAND = (
    "f64 != f64",
    "f64 > 1e308",
    "f64 == g64 || f32 < 0",
    "i64 + j64 > 0",
    "!(i64 * 3 == j64)",
    "i64 / j64 == 0 || i64 % j64 == 0",
    "i64 << j64 != 0",
    "!(1 in il)",
    "fl[0] in fl",
    "s in sl || s < t",
    'topic("a/+/#")',
    "b && !c",
)


def drawn(strategy: st.SearchStrategy[T], count: int) -> list[T]:
    """Return so many generated values."""
    values: list[T] = []

    @settings(max_examples=count, phases=[Phase.generate], database=None, deadline=None)
    @given(strategy)
    def take(value: T) -> None:
        values.append(value)

    take()
    return values


@pytest.fixture
def interpreted(spark: SparkSession) -> Iterator[SparkSession]:
    """A session that compiles nothing: so many different expressions are interpreted faster."""
    session = spark.newSession()
    session.conf.set("spark.sql.codegen.wholeStage", "false")
    session.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    yield session
    spark.createDataFrame([], "a int")  # makes it the active one again


@pytest.mark.slow
def test_a_where_clause_passes_the_rows_that_the_filter_passes(interpreted: SparkSession) -> None:
    batch = batch_of(drawn(rows, ROWS))
    filters = {str(parse(text, "filter")): parse(text, "filter") for text in BY_HAND}
    filters |= {str(expression): expression for expression in drawn(typed_filters, FILTERS)}
    clauses = _clauses(filters)

    answers = _answers(interpreted, batch, list(clauses.values()))

    assert len(clauses) > FILTERS / 2
    rows_as_read = batch.to_pylist()
    for text, answer in zip(clauses, answers, strict=True):
        assert answer == [filters[text].matches(row) for row in rows_as_read], (
            text,
            clauses[text],
        )
        assert answer == compile_filter(filters[text], ARROW).mask(batch).to_pylist()


def _clauses(filters: dict[str, Expression]) -> dict[str, str]:
    """Return the filters that Spark can mean, as WHERE clauses."""
    translation = Translation(SCHEMA)
    clauses = {}
    for text, expression in filters.items():
        if expression.tree is None:
            continue
        try:
            clauses[text] = translation.predicate(expression.tree)
        except NotTheSame:
            continue
    return clauses


def _answers(spark: SparkSession, batch: pa.RecordBatch, clauses: list[str]) -> list[list[Any]]:
    """Return for each clause which rows pass, in the order of the batch."""
    frame = spark.createDataFrame(pa.Table.from_batches([batch])).coalesce(1)
    columns = [f"coalesce({clause}, false) AS c{n}" for n, clause in enumerate(clauses)]
    table = frame.selectExpr(*columns).toArrow()
    return [column.to_pylist() for column in table.columns]
