"""Typed columns of matches; columns as conditions, which hold for the same rows as in Spark."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as classic
from pyspark.sql.connect import functions as connect

import streambroker as sb
from streambroker_core.cep.pattern.conditions import TextCondition
from streambroker_core.cep.pattern.errors import PatternError
from streambroker_core.errors import AlignedError
from support.patterns.spark import Given

NAN = float("nan")
DDL = (
    "v double, w double, n int, m int, s string, p string, b boolean, l array<int>,"
    " st struct<x:int>"
)
ROWS: list[tuple[Any, ...]] = [
    (1.5, 2.5, 1, 2, "A", "A", True, [1, None], Row(x=1)),
    (4.0, NAN, -4, 3, "it's", "Ab", False, [3], Row(x=None)),
    (NAN, NAN, 3, 3, "", "b", True, [], None),
    (NAN, 0.0, 7, 0, "Ä", "é", False, None, Row(x=3)),
    (-0.0, 0.0, 0, 0, "ab%", "z", None, [None], Row(x=3)),
    (float("inf"), None, 2**31 - 1, -1, "b", None, None, [3, 4], Row(x=2)),
    (None, 1.0, None, 5, None, "A", None, None, None),
    (3.0, 3.0, 3, None, "A", "B", True, [3, 3], Row(x=3)),
]

COLUMNS: dict[str, Callable[[Any], Any]] = {
    "greater": lambda f: f.col("v") > 3,
    "at least": lambda f: f.col("v") >= 3.0,
    "less": lambda f: f.col("v") < f.lit(3),
    "at most": lambda f: ~(f.col("v") <= 3),
    "literal first": lambda f: f.lit(3) < f.col("v"),
    "decimal": lambda f: f.col("v") > f.lit(Decimal("1.5")),
    "equal": lambda f: (f.col("n") == 3) | (f.col("s") == "A"),
    "not equal": lambda f: (f.col("v") != 3) & (f.col("s") != "it's"),
    "null-safe": lambda f: f.col("n").eqNullSafe(3),
    "null-safe null": lambda f: ~f.col("n").eqNullSafe(None),
    "null": lambda f: f.col("s").isNull() | f.col("v").isNotNull(),
    "in": lambda f: f.col("n").isin(1, 3) | ~f.col("s").isin("A", "b"),
    "between": lambda f: f.col("v").between(1, 4),
    "not between": lambda f: ~f.col("n").between(1, 4),
    "boolean": lambda f: f.col("b") & ~(f.col("b") == False),  # noqa: E712 - of a Column
    "starts": lambda f: f.col("s").startswith("A") | f.col("s").endswith("b"),
    "contains": lambda f: ~f.col("s").contains("t's"),
    "like": lambda f: f.col("s").like("a%") | f.col("s").like("%b") | f.col("s").like("A"),
    "like any": lambda f: f.col("s").like("%") & ~f.col("s").like("%t%"),
    "order of text": lambda f: f.col("s") > "B",
    "remainder": lambda f: f.col("n") % 3 == -1,
    "bits": lambda f: f.col("n").bitwiseAND(5) == 5,
    "bits of columns": lambda f: f.col("n").bitwiseXOR(f.col("m")) > 2,
    "doubles": lambda f: f.col("n") * 0.1 + 2.0 > 2.3,
    "columns": lambda f: f.col("v") > f.col("w"),
    "columns at least": lambda f: f.col("v") >= f.col("w"),
    "columns less": lambda f: ~(f.col("v") < f.col("w")),
    "columns at most": lambda f: f.col("v") <= f.col("w"),
    "equal columns": lambda f: f.col("v") == f.col("w"),
    "unequal columns": lambda f: f.col("v") != f.col("w"),
    "integer columns": lambda f: f.col("n") <= f.col("m"),
    "text columns": lambda f: f.col("s") < f.col("p"),
    "in a list": lambda f: ~f.array_contains(f.col("l"), 3),
    "field": lambda f: f.col("st.x") >= 2,
    "field by name": lambda f: f.col("st")["x"] == 3,
    "alias": lambda f: (f.col("n") > 1).alias("dear"),
    "SQL": lambda f: f.expr("v > 1.5 AND s NOT LIKE 'it''s%' OR n IN (0, -4)"),
    "SQL not between": lambda f: f.expr("n NOT BETWEEN 1 AND 3 OR NOT b"),
}
REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "overflow": (lambda f: f.col("n") + 1 > 2, "overflow raise or wrap in Spark"),
    "negative": (lambda f: -f.col("n") > 2, "overflow raise or wrap in Spark"),
    "division": (lambda f: f.col("n") / 2 > 2, "divides integers as doubles"),
    "by a column": (lambda f: f.col("n") % f.col("m") == 1, "only a positive whole number"),
    "cast": (lambda f: f.col("s").cast("int") == 1, "a cast that fails raises in ANSI mode"),
    "null": (lambda f: f.col("s") == f.lit(None), "a comparison with NULL is never true"),
    "null in list": (lambda f: f.col("n").isin(1, None), "a comparison with NULL is never true"),
    "choice": (lambda f: f.when(f.col("b"), 1).otherwise(2) == 1, "when"),
    "element": (lambda f: f.col("l")[0] == 1, "an element of an array or map"),
    "function": (lambda f: f.upper("s") == "A", "`upper` has no equal here"),
    "pattern": (lambda f: f.col("s").rlike("a.*"), "`rlike` has no equal here"),
    "time": (lambda f: f.col("s") > f.current_timestamp(), "`current_timestamp` has no equal here"),
    "day": (lambda f: f.col("s") > f.lit(date(2026, 1, 1)), "has no equal here"),
    "arithmetic and a column": (lambda f: f.col("v") * 2.0 > f.col("w"), "compared with a value"),
    "not finite": (lambda f: f.col("v") == NAN, "Spark rounds integers"),
}


def condition(column: Any) -> TextCondition:
    (stage,) = sb.Pattern.begin("a").where(column).stages()
    assert isinstance(stage.condition, TextCondition)
    return stage.condition


def answer(translated: TextCondition, row: Row) -> bool | None:
    fields = row.asDict()
    return translated.expression.evaluate(fields | {"st.x": fields["st"] and fields["st"]["x"]})


def test_a_column_holds_for_the_rows_for_which_it_holds_in_spark(spark: SparkSession) -> None:
    frame = spark.createDataFrame(ROWS, DDL)
    columns = {name: make(classic) for name, make in COLUMNS.items()} | {"of a frame": frame.n > 1}
    rows = frame.collect()
    expected = frame.select(*(column.alias(name) for name, column in columns.items())).collect()
    for name, column in columns.items():
        translated = condition(column)
        found = [answer(translated, row) for row in rows]
        assert found == [each[name] for each in expected], f"{name}: {translated}"
    for name, (make, reason) in REFUSED.items():
        with pytest.raises(PatternError, match=r"at stage `a`: .* is not translated") as refused:
            condition(make(classic))
        assert reason in str(refused.value), name


def test_a_column_of_connect_is_the_condition_of_a_classic_one(spark: SparkSession) -> None:
    for name, make in COLUMNS.items():
        assert condition(make(connect)) == condition(make(classic)), name
    for name, (make, reason) in REFUSED.items():
        with pytest.raises(PatternError, match=r"at stage `a`: .* is not translated") as refused:
            condition(make(connect))
        assert reason in str(refused.value), name


EVENT = "array<struct<t:timestamp,user:string,names:map<string,int>>>"
TYPED = "rule:string,version:bigint,key:{},time:timestamp,noticed:timestamp,events:{}"
TEXTS = TYPED.replace("timestamp", "timestamp_ntz").format("string", "string")


def test_the_columns_of_matches_have_the_types_of_the_stream_and_of_its_key(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = spark.readStream.schema("t timestamp, user string, names map<string,int>")
    stream = sb.stream(frame.parquet(str(tmp_path))).with_watermark("t", "1 second")
    pattern = sb.Pattern.begin("a").not_followed_by("no").followed_by("b").within("1s")
    files = (tmp_path / f"rules-{number}" for number in itertools.count())

    def columns(found: sb.PatternStream) -> str:
        found.rules.close()
        assert found.outputs["timeouts"].schema() == found.schema()
        return found.schema().simpleString().removeprefix("struct<").removesuffix(">")

    def rules(**settings: Any) -> sb.PatternStream:
        return stream.match_rules(Given([]), **{"control_file": next(files), **settings})

    of_rules, of_stages = f"map<string,{EVENT}>", f"struct<a:{EVENT},b:{EVENT}>"
    user, texts = "struct<user:string>", "map<string,string>"
    assert columns(stream.match(pattern, key="user")) == TYPED.format(user, of_stages)
    assert columns(stream.key_by("user").match(pattern)) == TYPED.format(user, of_stages)
    assert columns(stream.match(pattern)) == TYPED.format(texts, of_stages)
    assert columns(stream.match(pattern, key="user", output="json")) == TEXTS
    assert columns(rules(key="user")) == TYPED.format(user, of_rules)
    assert columns(rules(key="user", selectors=["t"])) == TYPED.format(texts, of_rules)
    assert columns(rules()) == TYPED.format(texts, of_rules)
    with pytest.raises(AlignedError, match="output is 'csv': give 'typed' or 'json'"):
        rules(output="csv")


def test_rules_keep_the_form_of_matches_that_their_control_file_began_with(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = spark.readStream.schema("t timestamp, user string").parquet(str(tmp_path))
    stream = sb.stream(frame).with_watermark("t", "1 second")

    def form(path: Path, **settings: Any) -> str:
        found = stream.match_rules(Given([]), control_file=path, key="user", **settings)
        found.rules.close()
        return found.schema()["events"].dataType.typeName()

    new, texts, old = tmp_path / "new", tmp_path / "texts", tmp_path / "old"
    assert [form(new), form(new), form(new, output="typed")] == ["map"] * 3
    assert [form(texts, output="json"), form(texts)] == ["string"] * 2
    head, entry = texts.read_text().splitlines()
    assert '"output":"json",' in entry
    earlier = entry.replace('"output":"json",', "")
    old.write_text(f"{head}\n{earlier}\n")
    assert form(old) == "string"
    with pytest.raises(AlignedError, match="with matches as json, and output is 'typed'"):
        form(old, output="typed")
