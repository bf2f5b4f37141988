from __future__ import annotations

import pytest

from streambroker_core.errors import (
    ExpressionError,
    FilterError,
    FilterTypeError,
    StreambrokerError,
    SubscriptionError,
)
from streambroker_core.expression import ExpressionKind, check_filter, parse
from streambroker_core.model.schema import parse_ddl

COLUMNS = parse_ddl(
    "price DOUBLE, qty INT, tiny TINYINT, name STRING, live BOOLEAN, xs ARRAY<INT>, "
    "at TIMESTAMP, deep ARRAY<ARRAY<INT>>"
)


def refusal(text: str, kind: ExpressionKind = "subscription") -> ExpressionError:
    with pytest.raises(ExpressionError) as caught:
        parse(text, kind)
    return caught.value


def mismatch(text: str) -> FilterTypeError:
    with pytest.raises(FilterTypeError) as caught:
        check_filter(parse(text, "filter"), COLUMNS)
    return caught.value


def test_a_refusal_says_where_what_and_what_instead() -> None:
    error = refusal("a == 1 &&\n  b = 2")

    assert error.position == {"line": 2, "column": 5, "offset": 14}
    assert error.found == "`=`"
    assert error.hint == "write `==` to compare"
    assert str(error).startswith("Invalid subscription at line 2, column 5: found `=`, expected")


def test_a_subscription_and_a_filter_have_errors_of_their_own() -> None:
    assert isinstance(refusal("a =="), SubscriptionError)
    assert refusal("a ==").code == "SubscriptionInvalid"
    assert isinstance(refusal("a ==", "filter"), FilterError)
    assert refusal("a ==", "filter").code == "FilterInvalid"
    assert mismatch("qty").code == "FilterInvalid"
    assert issubclass(ExpressionError, StreambrokerError)


@pytest.mark.parametrize(
    ("text", "column", "found", "hint"),
    [
        ("a and b", 3, "`and`", "write `&&`"),
        ("a == 1 or b == 2", 8, "`or`", "write `||`"),
        ("not kind == 1", 5, "`kind`", "write `!`"),
        ("a <> 1", 4, "`>`", "write `!=`"),
        ("s == 'x'", 6, "`'`", "a string is written in double quotes"),
        ("a == 1 == 2", 8, "`==`", "comparisons cannot be chained; join them with `&&`"),
        ("(a == 1) == 2", 1, "a comparison", "comparisons cannot be chained; join them with `&&`"),
        ("a == 8L", 6, "`8L`", "write `8` or `8l`"),
        ("a == 0x1F", 6, "`0x`", "numbers are decimal"),
        ("1a == 5", 1, "`1a`", "a name does not begin with a digit"),
        ("a[1][2] == 5", 5, "`[`", "only a name can have a subscript, and only one"),
        ("in == 5", 1, "`in`", "`in` is a word of the language and cannot be a name"),
        ("a == in", 6, "`in`", "`in` is a word of the language and cannot be a name"),
        ("startwith(a)", 10, "`(`", "did you mean `startsWith`?"),
        ("x == 1 && has(1)", 15, "a number", "write `has(name)`"),
        ("id % 0 == 1", 6, "0", "`% 0` has no value"),
        ("a in [1, true]", 10, "a boolean", "a list has elements of one kind"),
        ("a in 5", 6, "a number", None),
        ("a + 1", 1, "a number", "compare it with something, for instance with `==`"),
        ("a == +b", 6, "`+`", "a plus sign belongs to a number"),
        ('s == "a', 6, "a string without an end", None),
        ('s == "\\u12"', 7, "`\\u`", "write `\\\\u` for a backslash and a `u`"),
        ("a == 1.2.3", 9, "`.`", "a number has one decimal point"),
        ("a == \x01", 6, "character U+0001", None),
        ("a ==  ", 5, "the end of the text", None),
        ("a == 99999999999999999999", 6, "`99999999999999999999`", None),
    ],
)
def test_common_mistakes_are_pointed_at_and_mended(
    text: str, column: int, found: str, hint: str | None
) -> None:
    error = refusal(text)

    assert (error.position["column"], error.found) == (column, found)
    if hint is not None:
        assert error.hint == hint


def test_division_is_refused_in_a_subscription_and_read_in_a_filter() -> None:
    assert refusal("a / 2 == 1").position["column"] == 3
    assert str(parse("a/2 == 1", "filter")) == "a / 2 == 1"


def test_what_is_expected_depends_on_the_place() -> None:
    assert refusal("a ==").expected == "a name or a value"
    assert refusal("(a == 1").expected == "an operator or `)`"
    assert refusal("a == 1 b").expected == "an operator or the end of the text"
    assert refusal("a in [").expected == "a literal"
    assert refusal("a[x] == 1").expected == "an integer"


def test_a_text_that_is_too_long_is_counted_in_bytes() -> None:
    error = refusal('a == "' + "é" * 1021 + '"')

    assert error.found == "2049 bytes"
    assert error.expected == "at most 2048"


def test_nesting_is_bounded_wherever_it_comes_from() -> None:
    for text in ("(" * 65 + "a", "!" * 65 + "a", "a == " + "-" * 70 + "b", "1" + "+1" * 70 + "==a"):
        assert refusal(text).expected == "at most 64"


@pytest.mark.parametrize(
    ("text", "column", "found", "hint"),
    [
        ("pricee > 1", 1, "unknown column `pricee`", "did you mean `price`?"),
        ('topic("a/b")', 1, "no column `topic`", "in a filter `topic(…)` reads the column `topic`"),
        ("has(nam)", 1, "unknown column `nam`", "did you mean `name`?"),
        ("qty == 1.5", 8, "1.5", "the other side is int; compare with a whole number"),
        ("1 == 1 && tiny < 128", 18, "128", None),
        ("price % 2 == 0", 1, "`price` of type double", "`%` is for integers"),
        ("live < true", 6, "`<`", "booleans have no order"),
        ("xs == 1", 1, "the list `xs`", "write `xs[0]` for an element or `value in xs`"),
        ("qty[0] == 1", 1, "a subscript on `qty` of type int", "write `qty` alone"),
        ("xs[-1] == 1", 1, "subscript -1", "elements are counted from 0"),
        ("qty", 1, "`qty` of type int", "compare it with something, for instance with `==`"),
        ("name == 5", 9, "the number 5", "values of different types are never compared"),
        ('"a" in xs', 1, "a literal of type string", None),
        ("1 in qty", 6, "`qty` of type int", "write `==` to compare with `qty` itself"),
        ("1 in deep", 6, "`deep` of type array<array<int>>", None),
        ("at == 5", 1, "`at` of type timestamp", "only `has(at)` works with this type"),
        (
            "deep[0] == 1",
            1,
            "an element of type array<int>",
            "only `has(deep)` works with this type",
        ),
        ('contains(qty, "1")', 10, "type int", "`contains` reads strings"),
    ],
)
def test_a_filter_that_does_not_fit_is_pointed_at_and_mended(
    text: str, column: int, found: str, hint: str | None
) -> None:
    error = mismatch(text)

    assert (error.position["column"], error.found) == (column, found)
    if hint is not None:
        assert error.hint == hint


def test_the_place_of_a_type_error_is_in_the_text_as_it_was_written() -> None:
    error = mismatch("  live  &&\n(  pricee>1 )")

    assert error.position == {"line": 2, "column": 4, "offset": 14}


def test_a_filter_that_fits_is_accepted() -> None:
    check_filter(parse('price > 1 && 3 in xs && has(at) && name != "x"', "filter"), COLUMNS)
    check_filter(parse("", "filter"), ())
