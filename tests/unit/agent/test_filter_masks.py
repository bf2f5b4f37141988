from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pe_agent.filters import compile_filter, to_spark_schema
from streambroker_core.errors import FilterTypeError, SchemaError
from streambroker_core.expression import Expression, check_filter, parse
from streambroker_core.model.schema import parse_ddl
from support.core.expressions import ARROW, SCHEMA, batch_of, rows, typed_filters


def masked(text: str, columns: dict[str, pa.Array]) -> list[bool]:
    batch = pa.RecordBatch.from_pydict(columns)
    mask = compile_filter(parse(text, "filter"), batch.schema).mask(batch)
    assert isinstance(mask, pa.BooleanArray)
    assert mask.null_count == 0
    expected = [parse(text, "filter").matches(row) for row in batch.to_pylist()]
    assert mask.to_pylist() == expected
    return expected


@given(expression=typed_filters, values=st.lists(rows, max_size=8))
def test_a_mask_says_of_every_row_what_the_evaluator_says(
    expression: Expression, values: list[dict[str, Any]]
) -> None:
    check_filter(expression, SCHEMA)
    batch = batch_of(values)
    expected = [expression.matches(row) for row in batch.to_pylist()]

    mask = compile_filter(expression, SCHEMA).mask(batch)

    assert mask.to_pylist() == expected, str(expression)


@given(
    expressions=st.lists(typed_filters, min_size=2, max_size=4), values=st.lists(rows, max_size=4)
)
def test_filters_that_share_a_cache_answer_as_those_that_do_not(
    expressions: list[Expression], values: list[dict[str, Any]]
) -> None:
    batch = batch_of(values)
    cache: dict[str, pa.BooleanArray] = {}
    for expression in expressions:
        compiled = compile_filter(expression, ARROW)

        assert compiled.mask(batch, cache).equals(compiled.mask(batch))


@given(expression=typed_filters, values=st.lists(rows, min_size=3, max_size=6))
def test_a_slice_of_a_batch_is_masked_like_the_rows_it_has(
    expression: Expression, values: list[dict[str, Any]]
) -> None:
    compiled = compile_filter(expression, SCHEMA)
    part = batch_of(values).slice(1, len(values) - 2)

    assert compiled.mask(part).equals(compiled.mask(batch_of(values[1:-1])))


def test_an_int64_meets_a_double_by_exact_value() -> None:
    whole = pa.array([2**53 + 1, 2**53, 2**63 - 1, -(2**63), 5, None])
    real = pa.array([2.0**53, 2.0**53, 2.0**63, -(2.0**63), float("nan"), 1.0])

    assert masked("i == f", {"i": whole, "f": real}) == [False, True, False, True, False, False]
    assert masked("i > f", {"i": whole, "f": real}) == [True, False, False, False, False, False]
    assert masked("f > i", {"i": whole, "f": real}) == [False, False, True, False, False, False]
    assert masked("f >= 9007199254740993", {"f": real}) == [False, False, True, False, False, False]
    assert masked("f < 9007199254740993", {"f": real}) == [True, True, False, True, False, True]


def test_overflow_and_division_by_zero_spoil_their_own_row_only() -> None:
    i = pa.array([2**63 - 1, 1, -(2**63), 7])
    n = pa.array([1, 0, -1, 2])

    assert masked("i + 1 == 2", {"i": i}) == [False, True, False, False]
    assert masked("!(i + 1 == 2)", {"i": i}) == [False, False, True, True]
    assert masked("i / n == 3", {"i": i, "n": n}) == [False, False, False, True]
    assert masked("!(i / n == 3)", {"i": i, "n": n}) == [True, False, False, False]
    assert masked("i % n == 0", {"i": i, "n": n}) == [True, False, True, False]
    assert masked("i * n < 0", {"i": i, "n": n}) == [False, False, False, False]
    assert masked("!(-i < 0)", {"i": i}) == [False, False, False, False]


def test_a_zero_below_a_null_is_not_a_divisor() -> None:
    n = pc.if_else(pa.array([True, False]), pa.array([0, 3]), pa.scalar(None, pa.int64()))

    assert masked("6 / n == 2 || !has(n)", {"n": n}) == [False, True]


def test_lists_with_nulls_and_hidden_values_are_looked_up_row_by_row() -> None:
    lists = pa.array([[1, None], None, [], [3, 1], [None]])

    assert masked("1 in xs", {"xs": lists}) == [True, False, False, True, False]
    assert masked("!(2 in xs)", {"xs": lists}) == [False, False, True, True, False]
    assert masked("xs[1] == 1", {"xs": lists}) == [False, False, False, True, False]
    hidden = pa.ListArray.from_arrays(
        pa.array([0, 2, 4], pa.int32()), pa.array([1, 2, 1, 5]), mask=pa.array([False, True])
    )
    assert masked("1 in xs || xs[0] == 1", {"xs": hidden}) == [True, False]


def test_a_subscript_may_be_larger_than_any_list() -> None:
    lists = pa.array([[1]])

    assert masked("xs[9223372036854775807] == 1", {"xs": lists}) == [False]


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())],
)
def test_every_arrow_string_is_a_string(kind: pa.DataType) -> None:
    values = pa.array(["a", "é", None, "", "\U0001f600"]).cast(kind)

    assert masked('s >= "é"', {"s": values}) == [False, True, False, False, True]
    assert masked('s in ["a", "x", "", "y"]', {"s": values}) == [True, False, False, True, False]
    assert masked('startsWith(s, "a")', {"s": values}) == [True, False, False, False, False]
    assert masked("s == t", {"s": values, "t": pa.array(["a"] * 5)})[0] is True


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.int32()),
        pa.large_list(pa.int64()),
        pa.list_(pa.int8(), 2),
        pa.list_view(pa.int64()),
    ],
)
def test_every_arrow_list_is_a_list(kind: pa.DataType) -> None:
    values = pa.array([[1, 2], [3, 4], None], kind)

    assert masked("4 in xs || xs[0] == 1", {"xs": values}) == [True, True, False]
    assert masked("n in xs", {"xs": values, "n": pa.array([2, 2, 2])}) == [True, False, False]


def test_integers_of_every_width_widen_before_they_are_added() -> None:
    for kind in (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32()):
        assert masked("i + 100 == 200", {"i": pa.array([100], kind)}) == [True]


def test_a_float_column_is_compared_as_double() -> None:
    assert masked("f == 0.1", {"f": pa.array([0.1], pa.float32())}) == [False]
    assert masked("f == 0.5", {"f": pa.array([0.5], pa.float32())}) == [True]


def test_a_filter_without_columns_decides_every_row_at_once() -> None:
    assert masked("5 == 5", {"i": pa.array([1, 2])}) == [True, True]
    assert masked("1 / (1 - 1) == 1", {"i": pa.array([1, 2])}) == [False, False]
    assert masked("true && i == 1", {"i": pa.array([1, 2])}) == [True, False]


def test_a_batch_without_rows_has_an_empty_mask() -> None:
    assert (
        masked(
            "i == 1 || 2 in xs",
            {"i": pa.array([], pa.int64()), "xs": pa.array([], pa.list_(pa.int8()))},
        )
        == []
    )
    assert masked("", {"i": pa.array([], pa.int64())}) == []


def test_a_blank_filter_lets_every_row_pass() -> None:
    assert masked("  ", {"i": pa.array([1, None])}) == [True, True]


def test_a_column_of_another_type_can_only_be_asked_for_with_has() -> None:
    times = pa.array([0, None], pa.timestamp("us"))

    assert masked("has(at)", {"at": times}) == [True, False]
    with pytest.raises(FilterTypeError):
        masked("at == 0", {"at": times})


def test_a_compiled_filter_names_its_columns_and_its_text() -> None:
    compiled = compile_filter(
        parse('b=="x"&&has(a)', "filter"), parse_ddl("a INT, b STRING, c INT")
    )

    assert compiled.columns == ("a", "b")
    assert compiled.text == 'b == "x" && has(a)'


def test_equal_predicates_are_computed_once_per_batch() -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1, 2], "b": [1, 1]})
    cache: dict[str, pa.BooleanArray] = {}
    for text in ("a==1 && b == 1", "b==1 || a == 1"):
        compile_filter(parse(text, "filter"), batch.schema).mask(batch, cache)

    assert sorted(cache) == ["a == 1", "b == 1"]


def test_a_batch_without_a_column_is_refused_by_name() -> None:
    compiled = compile_filter(parse("a == 1", "filter"), parse_ddl("a INT"))
    with pytest.raises(SchemaError, match="no column `a`"):
        compiled.mask(pa.RecordBatch.from_pydict({"b": [1]}))


def test_a_batch_with_a_column_of_another_kind_is_refused_by_name() -> None:
    compiled = compile_filter(parse("a == 1", "filter"), parse_ddl("a INT"))
    with pytest.raises(SchemaError, match="column `a` is string in the batch, not int"):
        compiled.mask(pa.RecordBatch.from_pydict({"a": ["x"]}))


def test_arrow_types_become_spark_types() -> None:
    schema = pa.schema(
        {
            "a": pa.int16(),
            "b": pa.large_list(pa.string_view()),
            "c": pa.timestamp("us"),
            "d": pa.uint64(),
        }
    )

    kinds = [column.type for column in to_spark_schema(schema)]

    assert kinds == ["smallint", "array<string>", "arrow timestamp[us]", "arrow uint64"]
