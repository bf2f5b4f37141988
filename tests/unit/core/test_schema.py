from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streambroker_core.errors import SchemaError
from streambroker_core.model.schema import (
    Column,
    Schema,
    find_missing_column,
    from_items,
    parse_ddl,
    to_ddl,
    to_items,
)


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("INT", "int"),
        ("integer", "int"),
        ("LONG", "bigint"),
        ("Short", "smallint"),
        ("byte", "tinyint"),
        ("REAL", "float"),
        ("Double", "double"),
        ("STRING", "string"),
        ("DECIMAL", "decimal(10,0)"),
        ("numeric( 5 )", "decimal(5,0)"),
        ("DEC(5, 2)", "decimal(5,2)"),
        ("VARCHAR(10)", "varchar(10)"),
        ("TIMESTAMP_NTZ", "timestamp_ntz"),
        ("INTERVAL DAY TO SECOND", "interval day to second"),
        ("ARRAY< INT >", "array<int>"),
        ("MAP<STRING, ARRAY<LONG>>", "map<string,array<bigint>>"),
        ("STRUCT<Aa: INT NOT NULL, b STRING COMMENT 'x, y'>", "struct<Aa:int,b:string>"),
        ("struct<`odd name`:int>", "struct<`odd name`:int>"),
        ("struct<>", "struct<>"),
    ],
)
def test_types_are_written_as_spark_writes_them(written: str, kept: str) -> None:
    assert parse_ddl(f"a {written}") == (Column("a", kept),)
    assert parse_ddl(f"a {kept}") == (Column("a", kept),)


def test_columns_may_carry_what_is_not_kept() -> None:
    schema = parse_ddl(
        "price DOUBLE NOT NULL COMMENT 'in, cents', `odd ``name`: STRING,\n"
        " n int default (1 + 2), m int"
    )

    assert schema == (
        Column("price", "double"),
        Column("odd `name", "string"),
        Column("n", "int"),
        Column("m", "int"),
    )
    assert parse_ddl("  ") == ()


@pytest.mark.parametrize(
    ("text", "column", "problem"),
    [
        ("a", 2, "expected a type"),
        ("a strng", 3, "did you mean `string`"),
        ("a int b int", 7, "expected `,`"),
        ("a int,, b int", 7, "expected a name"),
        ("a array<int", 12, "expected `>`"),
        ("a array int", 9, "expected `<`"),
        ("a map<int>", 10, "expected `,`"),
        ("a int; b int", 6, "expected `,`"),
        ("-a int", 1, "expected a name"),
    ],
)
def test_a_fault_is_pointed_at(text: str, column: int, problem: str) -> None:
    with pytest.raises(SchemaError, match=problem) as caught:
        parse_ddl(text)

    assert caught.value.position == {"line": 1, "column": column, "offset": column - 1}
    assert caught.value.code == "SchemaInvalid"


def test_a_name_cannot_appear_twice() -> None:
    with pytest.raises(SchemaError, match="`a` appears twice"):
        parse_ddl("a INT, a STRING")
    with pytest.raises(SchemaError, match="`a` appears twice"):
        from_items([{"name": "a", "type": "int"}, {"name": "a", "type": "int"}])


def test_items_are_checked_and_brought_to_spark_types() -> None:
    schema = from_items([{"name": "a", "type": "LONG"}, {"name": "x y", "type": "array<DOUBLE>"}])

    assert schema == (Column("a", "bigint"), Column("x y", "array<double>"))
    assert from_items(to_items(schema)) == schema


@pytest.mark.parametrize(
    "item",
    [{}, {"name": "a"}, {"type": "int"}, {"name": "", "type": "int"}, {"name": 5, "type": "int"}],
)
def test_an_item_without_name_or_type_is_refused(item: dict[str, object]) -> None:
    with pytest.raises(SchemaError, match="column 0"):
        from_items([item])


def test_a_type_in_an_item_that_is_wrong_is_refused_with_its_column() -> None:
    with pytest.raises(SchemaError, match="column `a`: unknown type"):
        from_items([{"name": "a", "type": "flot"}])
    with pytest.raises(SchemaError, match="after the type"):
        from_items([{"name": "a", "type": "int, b int"}])


def test_a_schema_covers_what_it_has_with_equal_types() -> None:
    exported = parse_ddl("price DOUBLE, qty INT, name STRING")

    assert find_missing_column(exported, parse_ddl("name STRING, price DOUBLE")) is None
    assert find_missing_column(exported, ()) is None
    assert find_missing_column(exported, parse_ddl("qty STRING")) == (
        "Column `qty` is int in the export, but string is wanted."
    )
    assert find_missing_column(exported, parse_ddl("prise DOUBLE")) == (
        "The export has no column `prise`; did you mean `price`?"
    )
    assert (
        find_missing_column(exported, parse_ddl("Zone INT")) == "The export has no column `Zone`."
    )


types = st.recursive(
    st.sampled_from(["int", "string", "decimal(5,2)", "interval day", "char(3)", "timestamp_ntz"]),
    lambda inner: (
        inner.map(lambda kind: f"array<{kind}>")
        | st.tuples(inner, inner).map(lambda pair: f"map<{pair[0]},{pair[1]}>")
        | st.tuples(inner, inner).map(lambda pair: f"struct<A:{pair[0]},`b c`:{pair[1]}>")
    ),
    max_leaves=4,
)
columns = st.builds(Column, st.text(min_size=1, max_size=5).filter(str.strip), types)


@given(st.lists(columns, max_size=5, unique_by=lambda column: column.name).map(tuple))
def test_a_schema_reads_back_from_its_ddl(schema: Schema) -> None:
    assert parse_ddl(to_ddl(schema)) == schema


marks = st.sampled_from([*"a<>(),:`'", "int", "array", "struct", "map", "not", "decimal"])


@given(st.text(max_size=40) | st.lists(marks).map(" ".join))
def test_any_text_is_a_schema_or_refused(text: str) -> None:
    try:
        schema = parse_ddl(text)
    except SchemaError:
        return
    assert parse_ddl(to_ddl(schema)) == schema


def test_deep_types_are_refused_before_they_overflow() -> None:
    with pytest.raises(SchemaError, match="deeper than 64"):
        parse_ddl("a " + "array<" * 5000)
