"""Rows that the JVM leaves out before Python sees them: none that the filter lets pass."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from pe_agent.aligned.queries.jvm_prefilter import column_condition, prefilter
from pe_agent.filters import compile_filter
from streambroker_core.expression import parse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = (
    "id INT, n INT, small TINYINT, big BIGINT, price DOUBLE, part FLOAT, word STRING,"
    " live BOOLEAN, list ARRAY<STRING>"
)
NAN = float("nan")
VALUES: list[tuple[Any, ...]] = [
    (1, 1, 2**53 + 1, 1.0, 0.5, "a", True, ["a"]),
    (5, -1, 2**53, 5.0, 0.1, "b", False, None),
    (None, None, None, None, None, None, None, None),
    (-7, 127, -(2**63), NAN, NAN, "", True, []),
    (2**31 - 1, -128, 2**63 - 1, -0.0, -0.0, "\U0001f600", None, ["b"]),
    (0, 0, 0, float("inf"), float("-inf"), "\uffff", False, None),
    (4, 3, 3, float(2**53), 0.1, "aab", True, None),
]
SAME = (
    "n == 5", "n != 5", "5 > n", "n <= 2", "small < 100", "small == 100",
    "big == 9007199254740993", "big > 9007199254740992", "price == 0.0", "price < 2",
    "price != 2", "part == 0.1", "part < 0", 'word == "a"', 'word < "\U0001f600"',
    'word > "a"', "live", "live || n == 5", "live == false", "has(price)", 'startsWith(word, "a")',
    'endsWith(word, "b")', 'contains(word, "a")', 'contains(word, "")', "n in [1, 5, 7]",
    'word in ["a", ""]', 'n == 5 || word == "a" && live', "false", "n > 1 && n < 5 && live",
)  # fmt: skip
MORE = ("price > 1", "price >= 5.0", "n > 0 && n % 2 == 1", '"a" in list && live')
ALL = (
    "n % 2 == 1", "!(n == 5)", 'n == 5 || list[0] == "a"', "n == big",
    "price == 9007199254740993", '"a" in list',
)  # fmt: skip


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    rows = [(number, *values) for number, values in enumerate(VALUES)]
    return spark.createDataFrame(rows, COLUMNS).cache()


def passing(frame: DataFrame, text: str) -> tuple[set[int], set[int] | None]:
    """Return the rows that a filter lets pass, and those that Spark does; None for any."""
    table = frame.toArrow().combine_chunks()
    (batch,) = table.to_batches()
    expression = parse(text, "filter")
    exact = batch.filter(compile_filter(expression, batch.schema).mask(batch))
    found = column_condition(expression.tree, frame.schema)
    if found is None:
        return set(exact.column("id").to_pylist()), None
    return set(exact.column("id").to_pylist()), {row.id for row in frame.where(found).collect()}


@pytest.mark.parametrize("text", SAME)
def test_what_spark_compares_as_a_filter_does_is_left_out_exactly(
    frame: DataFrame, text: str
) -> None:
    exact, found = passing(frame, text)

    assert found == exact


@pytest.mark.parametrize("text", MORE)
def test_what_spark_sees_otherwise_lets_more_rows_pass_and_never_fewer(
    frame: DataFrame, text: str
) -> None:
    exact, found = passing(frame, text)

    assert found is not None
    assert exact < found < set(range(len(VALUES)))


@pytest.mark.parametrize("text", ALL)
def test_of_what_spark_cannot_be_asked_nothing_is_left_out(frame: DataFrame, text: str) -> None:
    assert passing(frame, text)[1] is None


def test_a_watermark_of_the_users_own_and_times_without_a_zone_are_left_alone(
    spark: SparkSession,
) -> None:
    rate = spark.readStream.format("rate").load()
    time = ("timestamp", "1 second")
    local = rate.selectExpr("CAST(timestamp AS TIMESTAMP_NTZ) AS timestamp", "value")

    assert prefilter(rate, "value > 1", time, "_control") is not None
    assert prefilter(rate.withWatermark("timestamp", "1 hour"), "value > 1", time, "_c") is None
    assert prefilter(local, "value > 1", time, "_control") is None
    assert prefilter(rate, "value % 2 == 1", time, "_control") is None


def test_rows_that_carry_something_else_stay(spark: SparkSession) -> None:
    time = datetime(2026, 1, 1, tzinfo=UTC)
    frame = spark.createDataFrame(
        [(1, time, None), (2, time, None), (None, None, b"c")], "n INT, t TIMESTAMP, c BINARY"
    )
    left = prefilter(frame, "n > 1", ("t", "1 second"), "c")

    assert left is not None
    assert sorted((row.n or 0, row.c) for row in left.collect()) == [(0, b"c"), (2, None)]
