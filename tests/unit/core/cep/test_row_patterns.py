"""Statements of MATCH_RECOGNIZE over rows: alternatives, permutations, offsets and numbers.

A row ``b5`` is of kind ``b`` with the value 5; a variable takes the kind of its name.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from streambroker_core.cep import Pattern
from streambroker_core.cep.engine.outputs import MatchedEvents
from streambroker_core.cep.operator import MatchFunction, PatternOperator
from streambroker_core.cep.pattern.rule import PatternProcessor
from streambroker_core.cep.rules.rule_set import RuleContext, RuleSet
from streambroker_core.cep.sql import RowPattern, read_row_pattern
from support.patterns.ticker import PRICES, TICKER
from support.patterns.windows import Bucket


class Played:
    """The one bucket of a statement; its matches have the measures as texts of Python."""

    def __init__(self, text: str) -> None:
        statement = read_row_pattern(text, tables=["t", "Ticker"])
        assert isinstance(statement, RowPattern)
        self.statement, self._time = statement, 0
        rule = PatternProcessor(
            id="r",
            version=1,
            pattern=statement.pattern,
            function="rows",
            numbered=statement.is_numbered,
        )
        context = RuleContext(outputs=frozenset({"rows"}))
        rules, (outcome,) = RuleSet().apply_update([rule], context)
        assert outcome.change == "added", outcome
        function = MatchFunction(schema=pa.schema([("found", pa.string())]), matched=self._row)
        self.bucket = Bucket(
            lambda: PatternOperator(
                key=statement.key,
                event_time=statement.order[0],
                rules=rules,
                match_functions={"rows": function},
            )
        )

    def _row(self, match: MatchedEvents) -> dict[str, Any]:
        values = [one.evaluate(match.rows, match.number) for one in self.statement.measures]
        return {"found": " ".join([*map(str, match.key), *map(str, values)])}

    def batch(self, rows: pa.RecordBatch) -> list[str]:
        """Return the matches of rows, which the watermark then passes."""
        self._time += 10_000_000_000_000_000
        found = [self.bucket.window([rows]), self.bucket.window(watermark=self._time)]
        return [row["found"] for each in found for row in each.of("rows")]

    def rows(self, words: str, key: str = "k") -> list[str]:
        """Return the matches of rows as the module writes them, a second apart."""
        rows = [
            {"t": self._time + n, "k": key, "n": word[0], "v": int(word[1:]) if word[1:] else None}
            for n, word in enumerate(words.split(), 1)
        ]
        return self.batch(pa.RecordBatch.from_pylist(rows, SCHEMA))


SCHEMA = pa.schema([("t", pa.int64()), ("k", pa.string()), ("n", pa.string()), ("v", pa.int64())])


def made(
    pattern: str, define: str = "", measures: str = "", skip: str = "SKIP PAST LAST ROW"
) -> Played:
    names = dict.fromkeys(re.findall(r"\b[A-E]\b", pattern))
    known = [name for name in names if f"{name} AS" not in define]
    defined = [f"{name} AS n = '{name.lower()}'" for name in known]
    taken = "FIRST(v) AS f, LAST(v) AS l, CLASSIFIER() AS c"
    return Played(f"""
        SELECT * FROM t MATCH_RECOGNIZE (
          PARTITION BY k ORDER BY t MEASURES {measures or taken} AFTER MATCH {skip}
          PATTERN ({pattern}) DEFINE {", ".join([*defined, *([define] if define else [])])})""")


def test_the_first_example_of_the_original_has_its_result() -> None:
    played = Played(TICKER)
    start = datetime(2011, 4, 1, 10, 0, 0, tzinfo=UTC).replace(tzinfo=None)
    rows = [
        {"symbol": "ACME", "rowtime": start.replace(second=second), "price": price, "tax": 1}
        for second, price in enumerate(PRICES)
    ]
    schema = pa.schema(
        [
            ("symbol", pa.string()),
            ("rowtime", pa.timestamp("us")),
            ("price", pa.int64()),
            ("tax", pa.int64()),
        ]
    )

    found = played.batch(pa.RecordBatch.from_pylist(rows, schema))

    assert found == ["ACME 2011-04-01 10:00:04 2011-04-01 10:00:07 2011-04-01 10:00:08"]


@pytest.mark.parametrize(
    ("pattern", "words", "expected"),
    [
        ("A (B | C) D", "a1 b2 d3 a4 c5 d6 a7 d8", ["k 1 3 D", "k 4 6 D"]),
        ("A | B", "b1 a2 c3", ["k 1 1 B", "k 2 2 A"]),
        # the left one is preferred, even where it ends later; the other one if it leads nowhere
        ("A B C | A B", "a1 b2 c3 a4 b5 a6", ["k 1 3 C", "k 4 5 B"]),
        ("A B | A B C", "a1 b2 c3", ["k 1 2 B"]),
        ("A (B | C)+? D", "a1 b2 c3 b4 d5", ["k 1 5 D"]),
        ("A? (B | C) D", "b1 d2 a3 c4 d5", ["k 1 2 D", "k 3 5 D"]),
        ("A (B+ | C) D", "a1 b2 b3 d4 a5 c6 d7 a8 c9 c10 d11", ["k 1 4 D", "k 5 7 D"]),
        ("PERMUTE(A, B, C)", "c1 a2 b3 a4 a5 c6 b7", ["k 1 3 B", "k 5 7 B"]),
        ("PERMUTE(A, B C) D", "b1 c2 a3 d4 a5 b6 c7 d8 b9 a10 c11 d12", ["k 1 4 D", "k 5 8 D"]),
    ],
)  # fmt: skip
def test_alternatives_take_the_left_one_that_leads_to_a_match(
    pattern: str, words: str, expected: list[str]
) -> None:
    assert made(pattern).rows(words) == expected


def test_an_alternative_is_preferred_as_long_as_it_may_lead_to_a_match() -> None:
    played = made("A (B C | B) D", "D AS n = 'c'")

    assert played.rows("a1 b2 c3 c4 a5 b6 c7 a8") == ["k 1 4 D", "k 5 7 D"]


def test_a_row_that_fits_two_alternatives_is_of_the_left_one() -> None:
    define = "A AS v > 1, B AS v > 0"

    assert made("(A | B) C", define).rows("x2 c x1 c") == ["k 2 None C", "k 1 None C"]
    assert [
        made(pattern, define, "CLASSIFIER() AS c").rows("x2 x1 x2 x2")
        for pattern in ("A | B", "B | A", "PERMUTE(A, B)")
    ] == [["k A", "k B", "k A", "k A"], ["k B"] * 4, ["k B", "k B"]]


def test_a_preferred_match_survives_the_bytes_of_each_window() -> None:
    played = made("A B C | A B")

    assert played.rows("a1 b2") == []
    assert played.rows("a3") == ["k 1 2 B"]
    assert played.rows("b4") == []
    assert played.rows("c5") == ["k 3 5 C"]


def test_a_skip_to_a_variable_names_one_outside_of_alternatives() -> None:
    played = made("A B (C | D)", skip="SKIP TO LAST B")

    assert played.rows("a1 b2 c3") == ["k 1 3 C"]
    with pytest.raises(Exception, match="in a group; name one of `A`, `B`"):
        made("A B (C | D)", skip="SKIP TO LAST D")
    with pytest.raises(Exception, match="in a group; use skip_past_last or skip_to_next"):
        made("A | B", skip="SKIP TO LAST B")


@pytest.mark.parametrize(
    ("condition", "words", "expected"),
    [
        # of another variable: as many rows back, or from its first one; NULL where there is none
        ("C.v = LAST(A.v, 1)", "a1 a2 a3 c2", ["k 1 2 C"]),
        ("C.v = LAST(A.v, 1)", "a1 c1", []),
        ("LAST(A.v, 1) IS NULL", "a1 c1 a2 a3 c4", ["k 1 1 C", "k 3 4 C"]),
        ("C.v = FIRST(A.v, 1)", "a1 a2 a3 c2", ["k 1 2 C"]),
        ("C.v = FIRST(A.v, 2)", "a1 a2 c2", []),
        ("FIRST(A.v, 2) IS NULL AND NOT LAST(A.v, 1) > 5", "a9 a1 c a2 a3 c", ["k 2 None C"]),
        # a row without a value counts
        ("LAST(A.v, 1) IS NULL AND FIRST(A.v) = 1", "a1 a a3 c4", ["k 1 4 C"]),
        # NULL is not true, and neither is NOT NULL
        ("C.v > LAST(A.v, 1)", "a1 c9", []),
        ("NOT C.v > LAST(A.v, 1)", "a1 c9", []),
    ],
)  # fmt: skip
def test_offsets_count_the_rows_of_their_variable(
    condition: str, words: str, expected: list[str]
) -> None:
    assert made("A+ C", f"C AS n = 'c' AND {condition}").rows(words) == expected


@pytest.mark.parametrize(
    ("condition", "words", "expected"),
    [
        ("LAST(B.v, 0) > 1", "a b2 b3 c a b2 b1 c", ["k None None C"]),
        ("B.v > LAST(B.v, 1) OR LAST(B.v, 1) IS NULL", "a1 b1 b2 c3 a4 b2 b1 c5", ["k 1 3 C"]),
        ("B.v = LAST(B.v, 2) OR LAST(B.v, 2) IS NULL", "a1 b7 b8 b7 b8 c3", ["k 1 3 C"]),
        ("B.v < FIRST(B.v) + 3", "a1 b1 b3 b2 c4 a5 b1 b4 c6", ["k 1 4 C"]),
        ("FIRST(B.v, 1) IS NULL OR FIRST(B.v, 1) = 2", "a1 b9 b2 b9 c4 a5 b2 b9 c6", ["k 1 4 C"]),
        ("MAX(B.v) < 5 AND MIN(B.v) > 1", "a1 b4 b2 c3 a4 b2 b5 c6 a7 b1 c8", ["k 1 3 C"]),
    ],
)
def test_the_row_that_is_tested_is_the_newest_of_its_variable(
    condition: str, words: str, expected: list[str]
) -> None:
    assert made("A B+ C", f"B AS n = 'b' AND ({condition})").rows(words) == expected


def test_matches_are_numbered_by_key_over_windows() -> None:
    played = made("A B", measures="MATCH_NUMBER() AS n, LAST(v, 1) AS v")

    assert played.rows("a1 b2 a3 b4 a5") == ["k 1 1", "k 2 3"]
    assert played.rows("a1 b2", key="other") == ["other 1 1"]
    assert played.rows("b6 a7 b8") == ["k 3 5", "k 4 7"]
    assert played.rows("a1 b2", key="other") == ["other 2 1"]


@pytest.mark.parametrize("scheduled", [None, 4])
@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [(True, True, [1, 2, 3]), (True, False, [1, None]), (False, True, [None, 1])],
)
def test_a_version_that_takes_over_runs_goes_on_with_their_numbers(
    before: bool, after: bool, scheduled: int | None, expected: list[int | None]
) -> None:
    numbers: list[int | None] = []
    noted = MatchFunction(
        schema=pa.schema([("n", pa.int64())]), matched=lambda found: numbers.append(found.number)
    )

    def rule(version: int, *, numbered: bool) -> PatternProcessor:
        pattern = Pattern.begin("a").where(f"v < {version + 2}").next("b").where("v > 5")
        return PatternProcessor(
            id="r", version=version, pattern=pattern, function="noted", keep_matches=True,
            numbered=numbered, scheduled=scheduled if version == 2 else None,
        )  # fmt: skip

    context = RuleContext(outputs=frozenset({"noted"}))
    first, second = rule(1, numbered=before), rule(2, numbered=after)
    old, _ = RuleSet().apply_update([first], context)
    new, _ = old.apply_update([second] if scheduled is None else [first, second], context)
    bucket = Bucket(
        lambda: PatternOperator(key=("k",), event_time="t", match_functions={"noted": noted})
    )
    rows = [{"t": t, "k": "x", "n": "", "v": v} for t, v in enumerate((1, 9, 1, 9, 1, 9), 1)]
    batch = pa.RecordBatch.from_pylist(rows, SCHEMA)

    bucket.window([batch.slice(0, 3)], rules=old)
    if scheduled is None:
        bucket.window(watermark=3)
    bucket.window([batch.slice(3)], rules=new)
    bucket.window(watermark=6)

    assert numbers == expected
