"""Which filters of Spark an exporter evaluates, and that both keep the same rows."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest
from pyspark.sql import datasource as spark

from pe_agent.datasource.columns import parse_struct
from pe_agent.filters import compile_filter
from pe_agent.spark.pushed_filters import split_filters
from streambroker_core.expression import parse

COLUMNS = parse_struct(
    "n int, big bigint, x double, text string, flag boolean, `true` int, `a b` int, day date"
)
A = ("n",)


@pytest.mark.parametrize(
    ("pushed", "text"),
    [
        (spark.EqualTo(A, 5), "n == 5"),
        (spark.EqualTo(A, -5), "n == -5"),
        (spark.GreaterThanOrEqual(("big",), 5), "big >= 5"),
        (spark.Not(spark.EqualTo(A, 5)), "!(n == 5)"),
        (spark.In(A, (1, 2)), "n == 1 || n == 2"),
        (spark.Not(spark.In(("text",), ("a",))), '!(text == "a")'),
        (spark.IsNull(A), "!has(n)"),
        (spark.IsNotNull(("day",)), "has(day)"),
        (spark.EqualNullSafe(A, None), "!has(n)"),
        (spark.EqualNullSafe(A, 5), "has(n) && n == 5"),
        (spark.LessThan(("x",), 0.5), "x < 0.5"),
        (spark.EqualTo(("flag",), True), "flag == true"),
        (spark.StringContains(("text",), 'a"b'), 'contains(text, "a\\"b")'),
    ],
)
def test_a_filter_with_the_same_meaning_is_pushed(pushed: spark.Filter, text: str) -> None:
    assert split_filters([pushed], COLUMNS, None) == (f"({text})", [])


@pytest.mark.parametrize(
    "kept",
    [
        spark.GreaterThan(("x",), 0.5),
        spark.Not(spark.GreaterThan(("x",), 0.5)),
        spark.EqualTo(("x",), math.nan),
        spark.EqualTo(A, 1 << 40),
        spark.EqualTo(("true",), 5),
        spark.EqualTo(("a b",), 5),
        spark.EqualTo(("day",), 5),
        spark.EqualTo(("struct", "field"), 5),
        spark.In(A, (1, None)),
        spark.GreaterThan(("flag",), False),
        spark.EqualTo(("text",), "x" * 3000),
    ],
)
def test_a_filter_that_means_something_else_is_left_to_spark(kept: spark.Filter) -> None:
    assert split_filters([kept, spark.EqualTo(A, 5)], COLUMNS, None) == ("(n == 5)", [kept])


def test_what_does_not_fit_beside_the_filter_of_the_import_is_left_to_spark() -> None:
    long, own = spark.EqualTo(("text",), "x" * 1020), f'text != "{"y" * 1020}"'

    assert split_filters([long], COLUMNS, None)[1] == []
    assert split_filters([long, spark.EqualTo(A, 5)], COLUMNS, own) == ("(n == 5)", [long])


def test_null_and_nan_are_kept_as_spark_keeps_them() -> None:
    """Spark: null is no answer, also under NOT; NaN is neither less than a number nor equal."""
    rows = pa.RecordBatch.from_pydict({"x": pa.array([None, math.nan, 1.0, 2.0], pa.float64())})
    columns = parse_struct("x double")
    kept = {}
    for one in (spark.LessThan(("x",), 2.0), spark.Not(spark.LessThan(("x",), 2.0))):
        text, _ = split_filters([one], columns, None)
        assert text is not None
        mask = compile_filter(parse(text, "filter"), rows.schema).mask(rows)
        kept[type(one).__name__] = [bool(value) for value in mask.to_pylist()]

    assert kept == {"LessThan": [False, False, True, False], "Not": [False, True, False, True]}
