from __future__ import annotations

from typing import Any

import pytest

from streambroker_core.cep import Pattern, PatternError, Skip
from streambroker_core.cep.pattern.errors import RowPatternError
from streambroker_core.cep.sql import DynamicRowPattern, Measure, RowPattern, read_row_pattern


def statement(pattern: str = "A B", define: str = "", **parts: str) -> str:
    defined = f"DEFINE {define}" if define else ""
    return f"""
      SELECT {parts.get("columns", "*")} FROM {parts.get("table", "ticks")}
      MATCH_RECOGNIZE (
        {parts.get("partition", "PARTITION BY symbol")}
        {parts.get("order", "ORDER BY ts")}
        {parts.get("measures", "")}
        {parts.get("rows", "ONE ROW PER MATCH")}
        {parts.get("skip", "")}
        PATTERN ({pattern}) {parts.get("within", "")}
        {defined}
      ) {parts.get("alias", "AS T")}"""


def read(*given: str, **parts: str) -> RowPattern:
    found = read_row_pattern(statement(*given, **parts), tables=["ticks"])
    assert isinstance(found, RowPattern)
    return found


def test_a_statement_is_the_rule_that_python_makes() -> None:
    found = read(
        "A B+ C",
        "A AS price > 10, B AS B.price < LAST(B.price, 1) OR LAST(B.price, 1) IS NULL,"
        " C AS C.price > LAST(B.price) AND kind <> 'it''s'",
        measures="MEASURES FIRST(A.price) AS began, COUNT(B.price) AS n, C.price AS ended",
        within="WITHIN INTERVAL '10' SECOND",
        columns="began, n",
        order="ORDER BY ts ASC, seq",
    )

    assert found.pattern == (
        Pattern.begin("A", skip=Skip(strategy="skip_past_last")).where("price > 10")
        .next("B").where("price < last(B.price) || !has(last(B.price))")
        .one_or_more().consecutive().greedy()
        .next("C").where('price > last(B.price) && kind != "it\'s"').within("10s")
    )  # fmt: skip
    assert (found.table, found.key, found.order) == ("ticks", ("symbol",), ("ts", "seq"))
    assert found.columns == ("began", "n")
    assert found.measures == (
        Measure(name="began", function="first", stage="A", field="price"),
        Measure(name="n", function="count", stage="B", field="price"),
        Measure(name="ended", function="last", stage="C", field="price"),
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A.x > 1 AND NOT y = 2", "last(A.x) > 1 && !(y == 2)"),
        ("x BETWEEN 1 AND 2 + y * 3", "x >= 1 && x <= 2 + y * 3"),
        ("x IN ('a', 'b')", 'x in ["a", "b"]'),
        ("x IN (y, 2)", "x == y || x == 2"),
        ("x LIKE 'a%' OR x LIKE '%b%' OR x LIKE '%c'",
         'startsWith(x, "a") || contains(x, "b") || endsWith(x, "c")'),
        ("x IS NOT NULL", "has(x)"),
        ("SUM(B.x) < 10", "sum(B.x) + x < 10"),
        ("SUM(A.x) < 10", "sum(A.x) < 10"),
        ("COUNT(B.x) = 2", "count(B) + 1 == 2"),
        ("AVG(B.x) > 2.5", "(sum(B.x) + x) / (count(B) + 1.0) > 2.5"),
        ("PREV(x) < x", "previous(x) < x"),
        ("LAST(B.x) = FIRST(A.x)", "x == first(A.x)"),
        ("RUNNING LAST(A.x, 1) = FIRST(A.x, 2)", "last(A.x, 1) == first(A.x, 2)"),
        ("LAST(B.x, 0) = LAST(B.x, 3)", "x == last(B.x, 2)"),
        ("FIRST(B.x) = FIRST(B.x, 1)", "first(B.x, tested) == first(B.x, 1, tested)"),
        ("MAX(B.x) > MIN(A.x)", "max(B.x, tested) > min(A.x)"),
        ("flag = TRUE -- comment WHERE\n AND x = -(1)", "flag == true && x == -1"),
    ],
)  # fmt: skip
def test_conditions_in_sql_mean_the_same_in_our_language(text: str, expected: str) -> None:
    pattern = read("A B", f"B AS {text}").pattern
    _, stage = pattern.stages()

    assert str(stage.condition) == expected


@pytest.mark.parametrize(
    ("quantifier", "expected"),
    [
        ("{3}", Pattern.begin("B").times(3).consecutive()),
        ("{2,3}", Pattern.begin("B").times(2, 3).consecutive().greedy()),
        ("{2,}?", Pattern.begin("B").times_or_more(2).consecutive()),
        ("{,2}", Pattern.begin("B").times(1, 2).consecutive().greedy().optional()),
        ("*", Pattern.begin("B").one_or_more().consecutive().greedy().optional()),
        ("*?", Pattern.begin("B").one_or_more().consecutive().optional()),
        ("?", Pattern.begin("B").optional()),
    ],
)
def test_quantifiers_are_greedy_unless_they_say_otherwise(
    quantifier: str, expected: Pattern
) -> None:
    pattern = read(f"B{quantifier} C").pattern

    assert pattern.elements[0] == expected.elements[0]


def test_groups_and_skips() -> None:
    found = read("A (B C){2} D", skip="AFTER MATCH SKIP TO LAST A").pattern

    group = Pattern.begin("B").next("C")
    assert found == (
        Pattern.begin("A", skip=Skip(strategy="skip_to_last", stage="A"))
        .next(group).times(2).consecutive().next("D")
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A (B | C D) E", Pattern.begin("A").next(
            Pattern.either(Pattern.begin("B"), Pattern.begin("C").next("D"))).next("E")),
        ("A | B", Pattern.either(Pattern.begin("A"), Pattern.begin("B"))),
        ("(A | B)+? C", Pattern.begin(
            Pattern.either(Pattern.begin("A"), Pattern.begin("B"))
        ).one_or_more().consecutive().next("C")),
        ("PERMUTE(A, B C)", Pattern.either(
            Pattern.begin("A").next("B").next("C"), Pattern.begin("B").next("C").next("A"))),
        ("permute(A, B, C)?", Pattern.begin(Pattern.either(*(
            Pattern.begin(a).next(b).next(c)
            for a, b, c in ("ABC", "ACB", "BAC", "BCA", "CAB", "CBA")))).optional()),
    ],
)  # fmt: skip
def test_alternatives_and_permutations_are_those_of_python(text: str, expected: Pattern) -> None:
    skip = Skip(strategy="skip_past_last")

    if text.endswith(")?"):
        with pytest.raises(RowPatternError, match="a greedy quantifier at the end"):
            read(text)
        text = f"{text} D"
        expected = expected.next("D")

    assert read(text).pattern == expected.skipping(skip)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"rows": "ALL ROWS PER MATCH"}, "line 7, column 9: ALL ROWS PER MATCH is not supported"),
        ({"pattern": "A | B {- C -}"}, "line 9, column 24: exclusion {- -} is not supported"),
        ({"pattern": "A | | B"}, "line 9, column 22: found `|`, expected"),
        ({"pattern": "A (B | C+)"}, "line 9, column 25: a greedy quantifier at the end is not"),
        ({"pattern": "PERMUTE(A, B+)"}, "line 9, column 29: a greedy quantifier at the end"),
        ({"pattern": "(A | B)+ C"}, "column 18: a greedy quantifier on a group is not supported"),
        ({"pattern": "(A | B C)*? D"}, "line 9, column 18: `?` after a quantifier from 0"),
        ({"pattern": "PERMUTE(A, B, C, D, E, F)"}, "column 26: PERMUTE of 6 parts is not supp"),
        ({"pattern": "(A | B) C", "define": "B AS PREV(x) > 1"},
         "PREV is not supported in B, which may be the first variable"),
        ({"pattern": "PERMUTE(A, B)", "define": "B AS PREV(x) > 1"}, "not supported in B, which"),
        ({"pattern": "A? B? C D", "define": "C AS PREV(x) > 1"}, "PREV is not supported in C"),
        ({"pattern": "^A"}, "the anchor ^ is not supported"),
        ({"pattern": "A B+"}, "line 9, column 20: a greedy quantifier at the end is not supported"),
        ({"pattern": "A (B C)+ D"}, "a greedy quantifier on a group is not supported"),
        ({"define": "A AS PREV(x) > 1"}, "PREV is not supported in A, which may be the first"),
        ({"define": "B AS LAST(A.x, 1001) > 1"}, "an offset is at most 1000, not 1001"),
        ({"define": "B AS LAST(A.x, -1) > 1"}, "line 10, column 31: found `-`, expected integer"),
        ({"define": "B AS MAX(A.x, 1) > 1"}, "MAX takes no offset; FIRST and LAST do"),
        ({"define": "B AS FINAL LAST(A.x) > 1"}, "line 10, column 27: FINAL is for MEASURES"),
        ({"define": "B AS CLASSIFIER() = 'A'"}, "CLASSIFIER() is for MEASURES; the row that DEFIN"),
        ({"define": "B AS MATCH_NUMBER() > 1"}, "MATCH_NUMBER() is for MEASURES"),
        ({"define": "Z AS x > 1"}, "`Z` is defined and is not in the pattern"),
        ({"define": "B AS Z.x > 1"}, "`Z` is not a variable of the pattern; there are A, B"),
        ({"define": "B AS x LIKE 'a_b'"}, "LIKE 'a_b' is not supported"),
        ({"define": "B AS NEXT(x) > 1"}, "NEXT() (rows behind the current one) is not supported"),
        ({"measures": "MEASURES A.x + 1 AS y"}, "measure `y` is not supported"),
        ({"measures": "MEASURES MATCH_NUMBER(A.x) AS y"}, "measure `y` is not supported"),
        ({"measures": "MEASURES CLASSIFIER(A.x) AS y"}, "measure `y` is not supported"),
        ({"measures": "MEASURES COUNT() AS y"}, "measure `y` is not supported"),
        ({"measures": "MEASURES SUM(A.x, 1) AS y"}, "FIRST or LAST with an offset up to 1000"),
        ({"measures": "MEASURES LAST(Z.x) AS y"}, "measure `y` is not supported"),
        ({"table": "prices"}, "there is no stream `prices`; known: ticks"),
        ({"order": ""}, "ORDER BY is missing"),
        ({"order": "ORDER BY ts DESC"}, "ORDER BY … DESC is not supported"),
        ({"alias": "WHERE x > 1"}, "WHERE is not supported"),
        ({"within": "WITHIN INTERVAL 'x' SECOND"}, "'x' is not a number"),
        ({"pattern": "A B{"}, "found `)`, expected"),
    ],
)  # fmt: skip
def test_what_is_outside_of_the_subset_is_refused_by_name(
    parts: dict[str, str], message: str
) -> None:
    with pytest.raises(RowPatternError) as caught:
        read(**parts)

    assert message in str(caught.value)


def test_a_pattern_that_contradicts_itself_is_refused_as_ever() -> None:
    with pytest.raises(PatternError, match="`B`: the name is used twice"):
        read("A B B")


def test_rules_from_a_discoverer() -> None:
    text = """select * from ticks match_recognize_dynamic (
        partition by symbol order by ts pattern_processor_discoverer_factory = rules) t"""

    found = read_row_pattern(text, tables={"ticks": None}, factories={"rules": object()})

    assert found == DynamicRowPattern(
        table="ticks", key=("symbol",), order=("ts",), columns=(), factory="rules"
    )
    with pytest.raises(RowPatternError, match="there is no factory `rules`; known: none"):
        read_row_pattern(text, tables=["ticks"])


def read_dynamic(options: str, columns: str = "*", alias: str = "AS T") -> DynamicRowPattern:
    text = f"SELECT {columns} FROM ticks MATCH_RECOGNIZE_DYNAMIC ({options}) {alias}"
    found = read_row_pattern(text, tables=["ticks"], factories=["org.x.Factory"])
    assert isinstance(found, DynamicRowPattern)
    return found


FACTORY = "pattern_processor_discoverer_factory = org.x.Factory"


@pytest.mark.parametrize("name", ["org.x.Factory", "'org.x.Factory'", "`org.x.Factory`"])
def test_a_dynamic_statement_may_have_options_alone(name: str) -> None:
    options = "'bootstrap.servers' = 'it''s', interval = 1.5, Retries = 3"

    found = read_dynamic(
        f"PATTERN_PROCESSOR_DISCOVERER_FACTORY = {name}, {options}", "T.aid, T.bid, cid"
    )

    assert found == DynamicRowPattern(
        table="ticks",
        key=(),
        order=(),
        columns=("aid", "bid", "cid"),
        factory="org.x.Factory",
        options={"bootstrap.servers": "it's", "interval": 1.5, "Retries": 3},
    )


@pytest.mark.parametrize(
    ("columns", "alias", "expected"),
    [
        ("T.a", "T", ("a",)),
        ("ticks.a", "", ("a",)),
        ("`T`.a, b", "AS T;", ("a", "b")),
        ("T.*", "AS T", ()),
    ],
)
def test_columns_are_selected_by_the_name_of_the_result(
    columns: str, alias: str, expected: tuple[str, ...]
) -> None:
    assert read_dynamic(FACTORY, columns, alias).columns == expected
    assert read(columns=columns, alias=alias).columns == expected


@pytest.mark.parametrize(
    ("options", "columns", "message"),
    [
        (FACTORY, "ticks.a", "line 1, column 8: `ticks` is not the name of the result; write T"),
        (FACTORY, "U.*", "line 1, column 8: `U` is not the name of the result; write T"),
        ("n = 1", "*", "no option names the discoverer; write pattern_processor_discoverer_f"),
        (f"{FACTORY}.B", "*", "line 1, column 85: there is no factory `org.x.Factory.B`; known: "),
        (f"{FACTORY}, n = 1, n = 2", "*", "`n` is set twice"),
        (f"{FACTORY}, {FACTORY}", "*", "`pattern_processor_discoverer_factory` is set twice"),
        (f"MEASURES A.x AS y {FACTORY}", "*", "MEASURES in MATCH_RECOGNIZE_DYNAMIC is not"),
        ("", "*", "found `)`, expected"),
    ],
)
def test_a_dynamic_statement_that_does_not_fit_is_refused_with_its_place(
    options: str, columns: str, message: str
) -> None:
    with pytest.raises(RowPatternError) as caught:
        read_dynamic(options, columns)

    assert message in str(caught.value)


def test_measures_are_taken_from_a_match() -> None:
    given = [("A", 1), ("A", None), ("B", 7), ("A", 5)]
    rows = [(variable, {"x": value}) for variable, value in given]

    def of(function: str, field: str | None = "x", stage: str | None = "A", offset: int = 0) -> Any:
        measure = Measure(name="m", function=function, stage=stage, field=field, offset=offset)
        return measure.evaluate(rows, 3)

    assert [of(f) for f in ("first", "last", "count", "sum", "avg", "min", "max")] == [
        1, 5, 2, 6, 3.0, 1, 5,
    ]  # fmt: skip
    assert of("count", None, None) == 4
    assert of("sum", stage="C") is None
    assert [of("first", offset=n) for n in range(4)] == [1, None, 5, None]
    assert [of("last", offset=n) for n in range(4)] == [5, None, 1, None]
    assert [of("last", stage=None, offset=n) for n in (0, 1)] == [5, 7]
    assert (of("classifier", None, None), of("match_number", None, None)) == ("A", 3)


def test_a_statement_is_numbered_only_if_it_asks_for_the_number() -> None:
    statement = read(
        measures="MEASURES CLASSIFIER() AS c, FINAL LAST(A.x, 1) AS x, MATCH_NUMBER() AS n"
    )

    assert statement.measures == (
        Measure(name="c", function="classifier", stage=None, field=None),
        Measure(name="x", function="last", stage="A", field="x", offset=1),
        Measure(name="n", function="match_number", stage=None, field=None),
    )
    assert statement.is_numbered
    assert not read(measures="MEASURES CLASSIFIER() AS c").is_numbered
