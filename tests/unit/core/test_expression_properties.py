from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streambroker_core.errors import ExpressionError, FilterError, SubscriptionError
from streambroker_core.expression import Expression, ExpressionKind, parse, tree
from streambroker_core.expression.evaluate import compile_test as decide
from streambroker_core.expression.parser import MAX_BYTES
from streambroker_core.expression.printer import print_tree
from support.core.expressions import any_tree, predicates, rows, texts, typed_filters

TRUTHS = (True, False, None)
subscriptions = any_tree(division=False)
filters = any_tree(division=True)
scalars = st.booleans() | st.integers(-5, 5) | st.floats(-9, 9) | texts
PROPERTIES = ("a", "b", "_x1", "has", "topic", "contains", "inner", "l")
properties = st.dictionaries(
    st.sampled_from(PROPERTIES), scalars | st.lists(st.integers(-5, 5), max_size=3), max_size=5
)
tokens = st.lists(
    st.sampled_from(
        [
            *("a", "b[1]", "xs", "true", "false", "in", "has", "has(a)", "topic(", "contains("),
            *("==", "!=", "<", "<=", ">", ">=", "=", "&&", "||", "!", "&", "|", "^", "<<", ">>"),
            *("+", "-", "*", "/", "%", "~", "(", ")", "[", "]", ",", '"x"', '"', "'", "\\", "\0"),
            *(
                "5",
                "5.",
                ".5",
                "1e3",
                "8l",
                "0",
                "05",
                "9223372036854775808",
                "1e999",
                "é",
                "\ud800",
            ),
        ]
    ),
    max_size=40,
)
kinds: st.SearchStrategy[ExpressionKind] = st.sampled_from(["subscription", "filter"])


@given(node=subscriptions)
def test_the_text_of_a_subscription_reads_as_the_same_tree(node: tree.Predicate) -> None:
    expression = Expression(kind="subscription", tree=node)

    again = parse(str(expression))

    assert again == expression
    assert str(again) == str(expression)


@given(node=filters)
def test_the_text_of_a_filter_reads_as_the_same_tree(node: tree.Predicate) -> None:
    expression = Expression(kind="filter", tree=node)

    assert parse(str(expression), "filter") == expression


@given(text=st.text(max_size=80) | tokens.map(" ".join) | tokens.map("".join), kind=kinds)
@example(text="(" * 2000, kind="filter")
@example(text="!" * 2000 + "a", kind="filter")
@example(text="~" * 2000 + "a==1", kind="subscription")
@example(text="-" * 2000 + "1 == a", kind="subscription")
@example(text="a==" + "1+" * 1000 + "1", kind="subscription")
@example(text="a[" * 1000, kind="filter")
@example(text="a in [" + "1," * 1000, kind="filter")
@example(text='"' + "\\" * 2000, kind="filter")
@example(text="a||" * 680 + "a", kind="subscription")
@example(text="\ud800", kind="filter")
def test_any_text_is_an_expression_or_refused_with_a_place_in_it(
    text: str, kind: ExpressionKind
) -> None:
    error = _refusal(text, kind)
    if error is None:
        assert parse(str(parse(text, kind)), kind) == parse(text, kind)
        return

    assert isinstance(error, SubscriptionError if kind == "subscription" else FilterError)
    assert 0 <= error.position["offset"] <= len(text)
    assert error.position["line"] == text[: error.position["offset"]].count("\n") + 1
    assert str(error).endswith((".", "?"))


def _refusal(text: str, kind: ExpressionKind) -> ExpressionError | None:
    try:
        parse(text, kind)
    except ExpressionError as error:
        return error
    return None


@given(text=tokens.map(" ".join), values=properties)
def test_any_expression_has_an_answer_for_any_properties(text: str, values: dict[str, Any]) -> None:
    try:
        expression = parse(text)
    except SubscriptionError:
        return
    answer = expression.evaluate(values)

    assert answer in TRUTHS
    assert expression.explain(values).value is answer


@given(node=subscriptions, values=properties)
def test_negation_keeps_unknown_and_turns_the_rest_around(
    node: tree.Predicate, values: dict[str, Any]
) -> None:
    answer = decide(node)(values)

    assert decide(tree.Not(node))(values) is (None if answer is None else not answer)
    assert decide(tree.Not(tree.Not(node)))(values) is answer


@given(nodes=st.lists(subscriptions, min_size=2, max_size=4), values=properties)
def test_and_is_the_least_and_or_the_greatest_of_its_parts(
    nodes: list[tree.Predicate], values: dict[str, Any]
) -> None:
    rank = {False: 0, None: 1, True: 2}
    answers = [decide(node)(values) for node in nodes]

    assert decide(tree.And(tuple(nodes)))(values) is min(answers, key=rank.__getitem__)
    assert decide(tree.Or(tuple(nodes)))(values) is max(answers, key=rank.__getitem__)


@given(left=subscriptions, right=subscriptions, values=properties)
def test_a_negated_and_is_an_or_of_negations(
    left: tree.Predicate, right: tree.Predicate, values: dict[str, Any]
) -> None:
    one = tree.Not(tree.And((left, right)))
    other = tree.Or((tree.Not(left), tree.Not(right)))

    assert decide(one)(values) is decide(other)(values)


@given(node=subscriptions, values=properties)
def test_properties_that_are_not_named_do_not_matter(
    node: tree.Predicate, values: dict[str, Any]
) -> None:
    named = {name: value for name, value in values.items() if name in tree.names(node)}

    assert decide(node)(named) is decide(node)(values)


@given(node=subscriptions, values=properties)
def test_a_nearest_miss_names_predicates_that_are_not_as_wanted(
    node: tree.Predicate, values: dict[str, Any]
) -> None:
    explanation = Expression(kind="subscription", tree=node).explain(values)

    if explanation.value is True:
        assert explanation.nearest == ()
    for miss in explanation.nearest:
        assert miss.wrong
        for finding, wanted in zip(miss.wrong, miss.desired, strict=True):
            assert finding.value is not wanted


atoms_of_flags = predicates(st.sampled_from("abcd").map(tree.Name))


@given(node=atoms_of_flags, row=st.fixed_dictionaries({n: st.sampled_from(TRUTHS) for n in "abcd"}))
def test_the_nearest_miss_is_enough_and_no_other_change_is_smaller(
    node: tree.Predicate, row: dict[str, bool | None]
) -> None:
    explanation = Expression(kind="filter", tree=node).explain(row)
    fewest = _fewest_changes(node, row)
    if not explanation.nearest:
        assert fewest in (0, None)
        return
    nearest = explanation.nearest[0]
    changed = row | {
        finding.text: wanted for finding, wanted in zip(nearest.wrong, nearest.desired, strict=True)
    }

    assert decide(node)(changed) is True
    assert len(nearest.wrong) == fewest


def _fewest_changes(node: tree.Predicate, row: dict[str, bool | None]) -> int | None:
    changes = [
        sum(row[name] is not value for name, value in zip("abcd", values, strict=True))
        for values in itertools.product(TRUTHS, repeat=4)
        if decide(node)(dict(zip("abcd", values, strict=True))) is True
    ]
    return min(changes, default=None)


@given(expression=typed_filters, row=rows)
def test_a_filter_that_fits_its_columns_has_an_answer_for_every_row(
    expression: Expression, row: dict[str, Any]
) -> None:
    assert expression.evaluate(row) in TRUTHS


@given(strings=st.lists(st.text(min_size=1, max_size=3), min_size=1, max_size=300))
def test_a_text_that_fits_still_fits_when_it_is_printed(strings: list[str]) -> None:
    def quote(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    written = "||".join(f"a=={quote(text)}" for text in strings)
    while len(written.encode()) > MAX_BYTES:
        strings = strings[:-1]
        written = "||".join(f"a=={quote(text)}" for text in strings)
    expression = parse(written)

    assert len(str(expression).encode()) <= MAX_BYTES
    assert parse(str(expression)) == expression


@pytest.mark.parametrize("kind", ["subscription", "filter"])
def test_the_densest_texts_still_fit_when_they_are_printed(kind: ExpressionKind) -> None:
    for part in ("5 ina", "a==.5", "a==5.", "a==1e9", "a==100.", "a==1e-9", "~a==1", "a in[1,2]"):
        expression = parse("||".join([part] * ((MAX_BYTES + 2) // (len(part) + 2))), kind)

        text = print_tree(expression.tree) if expression.tree else ""

        assert len(text) <= MAX_BYTES
        assert parse(text, kind) == expression
