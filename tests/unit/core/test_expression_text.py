from __future__ import annotations

import pickle

import pytest

from streambroker_core.errors import PropertyError
from streambroker_core.expression import Expression, parse, tree


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("a==5&&b!=6||c<7", "a == 5 && b != 6 || c < 7"),
        ("((a == 5))", "a == 5"),
        ("(a == 5 || b == 6) && c == 7", "(a == 5 || b == 6) && c == 7"),
        ("a && (b && c)", "a && b && c"),
        ("a == 2.0", "a == 2.0"),
        ("a == 2l", "a == 2"),
        ("a == 05", "a == 5"),
        ("a == .5", "a == 0.5"),
        ("a == 1e3", "a == 1000.0"),
        ("5 ina", "5 in a"),
        ("a in[1,2]", "a in [1, 2]"),
        ("!a==1", "!(a == 1)"),
        ("!(a)", "!a"),
        ("(a&2)==2", "a & 2 == 2"),
        ("(a+1)*2==4", "(a + 1) * 2 == 4"),
        ("a-(b-c)==1", "a - (b - c) == 1"),
        ("(a-b)-c==1", "a - b - c == 1"),
        ("a == -(-5)", "a == 5"),
        ("-a == - 9223372036854775808", "-a == -9223372036854775808"),
        ('s == "\\u00e9\\n\\q"', 's == "é\\nq"'),
        ('topic( "a/+" )', 'topic("a/+")'),
        ('contains(a [ 1 ],"x")', 'contains(a[1], "x")'),
        ("  ", ""),
    ],
)
def test_texts_are_brought_to_one_form(written: str, canonical: str) -> None:
    assert str(parse(written)) == canonical
    assert parse(canonical) == parse(written)


def test_literals_of_different_types_make_different_expressions() -> None:
    assert parse("a == 2") != parse("a == 2.0")
    assert parse("a == true") != parse("a == 1")
    assert parse("a == 2", "filter") != parse("a == 2", "subscription")


def test_equal_expressions_are_one_key() -> None:
    assert len({parse("a==1"), parse("a == 1"), parse("(a) == 1")}) == 1


def test_an_expression_that_was_used_can_be_copied_to_another_process() -> None:
    expression = parse("a  == 1")
    assert expression.matches({"a": 1})

    copy = pickle.loads(pickle.dumps(expression))

    assert copy == expression
    assert copy.source == "a  == 1"
    assert copy.matches({"a": 1})


def test_names_are_all_that_an_expression_asks_for() -> None:
    expression = parse('a == b[1] && has(c) || d in e && startsWith(f, "x") && topic("y")')

    assert expression.names() == {"a", "b", "c", "d", "e", "f", "topic"}
    assert parse("").names() == frozenset()


def test_a_blank_text_has_no_tree() -> None:
    assert parse(" ").tree is None
    assert parse(" ").matches({"a": 1}) is False
    assert parse(" ", "filter").matches({"a": 1}) is True
    assert parse("", "filter").explain({}).value is True


def test_properties_are_normalised_before_they_are_matched() -> None:
    expression = parse("a % 2 == 0")

    assert expression.matches({"a": 4.0})
    with pytest.raises(PropertyError, match="`b`"):
        expression.matches({"a": 4, "b": float("nan")})
    with pytest.raises(PropertyError):
        expression.explain({"a": 2**63})


def test_a_row_is_taken_as_it_is() -> None:
    row = {"a": float("nan"), "b": None, "c": object()}

    assert parse("a != a", "filter").matches(row)
    assert parse("has(c) && !has(b)", "filter").matches(row)
    assert parse("c == 1", "filter").evaluate(row) is None


def test_an_explanation_lists_each_predicate_with_its_reason() -> None:
    explanation = parse('kind == "trade" && px[3] > 2 && id % n == 1').explain(
        {"kind": 5, "px": [1], "id": 4, "n": 0}
    )

    assert explanation.value is None
    assert [(item.text, item.value, item.why) for item in explanation.findings] == [
        ('kind == "trade"', None, "`kind` is 5, the two sides cannot be compared"),
        ("px[3] > 2", None, "`px` has 1 element, none at 3"),
        ("id % n == 1", None, "`id % n` divides by zero, `id` is 4, `n` is 0"),
    ]


def test_the_nearest_misses_come_with_the_fewest_changes_first() -> None:
    explanation = parse("(a == 1 && b == 1) || c == 1 || !d && a == 1").explain({"d": True})

    assert [[item.text for item in miss.wrong] for miss in explanation.nearest] == [
        ["c == 1"],
        ["a == 1", "b == 1"],
        ["a == 1", "d"],
    ]
    assert explanation.nearest[2].desired == (True, False)
    assert "to match: `c == 1` should be true (`c` is missing)" in str(explanation)


def test_what_cannot_match_has_no_nearest_miss() -> None:
    assert parse("false && a == 1").explain({}).nearest == ()
    assert parse("a && !a").explain({"a": True}).nearest == ()


def test_a_long_explanation_is_found_in_bounded_time() -> None:
    text = "&&".join(f"(a{n}||b{n})" for n in range(150))

    nearest = parse(text).explain({}).nearest

    assert [len(miss.wrong) for miss in nearest] == [150] * 3


def test_a_tree_made_by_hand_is_an_expression_too() -> None:
    expression = Expression(kind="filter", tree=tree.Not(tree.Name("a")))

    assert str(expression) == "!a"
    assert expression.matches({"a": False})
