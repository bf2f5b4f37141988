"""What looks wrong: subscriptions that no export can fit, contradictions, types that clash."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streambroker_core.diagnose import (
    LintFinding,
    OfferedProperties,
    collect_lint_input,
    contradiction,
    lint,
    render_findings,
    take_snapshot,
)
from streambroker_core.errors import StreambrokerError
from streambroker_core.expression import Expression, parse
from streambroker_core.model import Resource
from support.core.resources import board_of, export_of, import_of

PRICE = [{"name": "price", "type": "double"}]


def found(*resources: Resource) -> list[LintFinding]:
    board = board_of(*resources)
    return lint(collect_lint_input(board.reader, take_snapshot(board.reader)))


def of_import(*resources: Resource) -> list[tuple[str, str]]:
    """Return codes and messages about imports."""
    return [
        (one.code, one.message)
        for one in found(*resources)
        if one.resource is not None and one.resource.startswith("import ")
    ]


# ---- contradictions ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a == 1 && a == 2", "`a == 1` and `a == 2` exclude each other"),
        ("a > 5 && a < 3", "`a > 5` and `a < 3` exclude each other"),
        ("a > 5 && a <= 5", "`a > 5` and `a <= 5` exclude each other"),
        ("3 > a && 5 < a", "`3 > a` and `5 < a` exclude each other"),
        ('a == "x" && a == 5', None),
        ("a == 1 && !(a == 1)", "`a == 1` and `!(a == 1)` exclude each other"),
        ("!has(a) && a > 1", "`!has(a)` and `a > 1` exclude each other"),
        ("a && !a", "`a` and `!a` exclude each other"),
        ("a && a == false", "`a` and `a == false` exclude each other"),
        ("a in [1, 2] && a > 2", "`a in [1, 2]` and `a > 2` exclude each other"),
        (
            "a in [1, 2] && a != 1 && a != 2",
            "`a in [1, 2]` leaves no value for `a` that satisfies the rest",
        ),
        ('startsWith(a, "x") && a == "y"', None),
        ("a % 2 == 0 && a % 2 == 1", "`a % 2 == 0` and `a % 2 == 1` exclude each other"),
        ("a == 3 && a % 2 == 0", "`a == 3` and `a % 2 == 0` exclude each other"),
        ('a > "m" && a < "b"', '`a > "m"` and `a < "b"` exclude each other'),
        ("a + 1 == 2 && a + 1 != 2", "`a + 1 == 2` and `a + 1 != 2` exclude each other"),
        ("1 == 2 && a", "`1 == 2` is never true"),
        ("false", "it is false for all values"),
        ("(a == 1 || a == 2) && a > 2", None),
        ('topic("x/+") && topic == "y/z"', None),
    ],
)
def test_a_contradiction_is_found_and_named(text: str, reason: str | None) -> None:
    tree = parse(text).tree
    assert tree is not None
    said = contradiction(tree)

    assert said is not None
    assert reason is None or said == reason


@pytest.mark.parametrize(
    "text",
    [
        "a > 5 && a < 6",
        "a >= 5 && a <= 5",
        "a == 1 || a == 2",
        "a != 1 && a != 2",
        '"x" in a && "y" in a',
        'a == 5 && a == 5.0 && b == "x"',
        "a == 5 && a / 2 == 2.5",
        "!(a == 1 && a == 2)",
        "has(a) && a > 1",
        " || ".join(f"(a == {n} && b == {n})" for n in range(70)),
        " && ".join(f"(a == {n} || b == {n})" for n in range(40)),
    ],
)
def test_what_may_be_true_is_no_contradiction(text: str) -> None:
    tree = parse(text, "filter").tree
    assert tree is not None

    assert contradiction(tree) is None


def test_between_two_whole_numbers_an_integer_column_has_nothing() -> None:
    tree = parse("a > 5 && a < 6", "filter").tree
    assert tree is not None

    assert contradiction(tree, integers=frozenset({"a"})) is not None
    assert contradiction(tree, integers=frozenset({"b"})) is None


@pytest.mark.parametrize(
    ("text", "nothing"),
    [
        ("!(a < 5.0) && !(a > 3.0)", False),
        ("!(a < 5.0) && !(a > 5.0) && a != 5.0", False),
        ("!(a < 5.0) && !(a > 3.0) && a > 1.0", True),
        ("!(a < 5.0) && a < 3.0", True),
        ("!(a != 5.0) && !(a > 3.0)", True),
        ('!(a < "y") && !(a > "x")', True),
    ],
)
def test_what_is_true_of_nan_forbids_no_row(text: str, nothing: bool) -> None:
    tree = parse(text, "filter").tree
    assert tree is not None

    assert (contradiction(tree, nan=True) is not None) is nothing
    assert contradiction(tree) is not None
    assert contradiction(tree, nan=True, integers=frozenset({"a"})) is not None


def test_a_filter_that_lets_rows_with_nan_pass_is_not_called_empty() -> None:
    wants = import_of(filter="!(price < 5.0) && !(price > 3.0)")
    whole = import_of(
        "b/p",
        filter="!(n < 5) && !(n > 3)",
        schema=[{"name": "n", "type": "int"}],
        subscription=None,
    )

    assert [code for code, _ in of_import(export_of(), wants)] == []
    assert [code for code, _ in of_import(export_of(), whole)] == ["FilterForbidsAll"]


NAN = float("nan")
VALUES: list[Any] = [None, 0, 1, 2, 3, 0.5, 2.5, "x", "xy", "y", True, False, [1, 2], ["x"], []]
LITERALS = ("0", "1", "2", "2.0", "2.5", '"x"', '"y"', "true", "false")
OPERATORS = ("==", "!=", "<", "<=", ">", ">=")
names = st.sampled_from("ab")
literals = st.sampled_from(LITERALS)
operators = st.sampled_from(OPERATORS)
atoms = st.one_of(
    st.builds("{} {} {}".format, names, operators, literals),
    st.builds("{2} {1} {0}".format, names, operators, literals),
    st.builds("{} % 2 {} {}".format, names, operators, literals),
    st.builds("{} + 1 {} {}".format, names, operators, literals),
    st.builds("{}[0] {} {}".format, names, operators, literals),
    st.builds("{} in [1, 2]".format, names),
    st.builds('{} in ["x", "y"]'.format, names),
    st.builds("{1} in {0}".format, names, literals),
    st.builds("has({})".format, names),
    st.builds('startsWith({}, "x")'.format, names),
    names,
)
texts = st.recursive(
    st.one_of(atoms, st.builds("!({})".format, atoms)),
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=4).map(lambda parts: f"({' && '.join(parts)})"),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({' || '.join(parts)})"),
        st.builds("!({})".format, inner),
    ),
    max_leaves=6,
)


def read(text: str) -> Expression | None:
    """Return an expression; None where its types are refused already."""
    try:
        return parse(text)
    except StreambrokerError:
        return None


@given(text=texts)
def test_what_is_called_a_contradiction_is_true_of_nothing(text: str) -> None:
    expression = read(text)
    if expression is None or expression.tree is None or contradiction(expression.tree) is None:
        return

    true = [(a, b) for a in VALUES for b in VALUES if expression.test({"a": a, "b": b}) is True]
    assert true == []


@given(text=texts)
def test_what_is_called_a_contradiction_of_a_filter_is_not_true_of_nan_either(text: str) -> None:
    expression = read(text)
    if expression is None or expression.tree is None:
        return
    if contradiction(expression.tree, nan=True) is None:
        return

    values = [*VALUES, NAN]
    true = [(a, b) for a in values for b in values if expression.test({"a": a, "b": b}) is True]
    assert true == []


@given(text=texts, offered=st.lists(st.tuples(*[st.sampled_from(VALUES)] * 2), max_size=6))
def test_what_is_called_never_offered_is_true_of_no_export(
    text: str, offered: list[tuple[Any, Any]]
) -> None:
    expression = read(text)
    if expression is None or expression.tree is None:
        return
    exports = [
        export_of(f"x{n}/p", uid=f"x{n}", properties={"a": a, "b": b})
        for n, (a, b) in enumerate(offered)
    ]
    offer = OfferedProperties(exports).visible_from("default", "Default")

    if exports and offer.find_faults(expression.tree):
        assert not any(expression.matches(export.properties or {}) for export in exports)


# ---- one import against all exports ------------------------------------------------------------

TRADES = [export_of(f"feed-{n}/p", properties={"kind": "trade", "level": n}) for n in range(3)]


@pytest.mark.parametrize(
    ("subscription", "code", "message"),
    [
        (
            'knid == "trade"',
            "PropertyNeverOffered",
            '`knid == "trade"` is true of no export: no export offers `knid`; did you mean `kind`?',
        ),
        (
            'level == "2"',
            "TypeNeverOffered",
            '`level == "2"` is true of no export: `level` is int64 in 3 exports',
        ),
        (
            'kind == "quote" && level > 0',
            "ValueNeverOffered",
            '`kind == "quote"` is true of no export: `kind` is trade',
        ),
        (
            "!(level < 9)",
            "ValueNeverOffered",
            "`!(level < 9)` is true of no export: `level` is 0, 1, 2",
        ),
        (
            "!has(level)",
            "ValueNeverOffered",
            "`!(has(level))` is true of no export: `level` is 0, 1, 2",
        ),
        (
            "level == 1 && level == 2",
            "SubscriptionContradicts",
            "no properties can fit the subscription: `level == 1` and `level == 2` exclude each "
            "other",
        ),
    ],
)
def test_a_subscription_that_no_export_can_fit_is_found(
    subscription: str, code: str, message: str
) -> None:
    assert of_import(*TRADES, import_of(subscription=subscription)) == [(code, message)]


@pytest.mark.parametrize(
    "subscription", ['kind == "trade"', 'kind == "quote" || level == 2', "level != 1", "has(kind)"]
)
def test_a_subscription_that_some_export_fits_is_left_alone(subscription: str) -> None:
    assert of_import(*TRADES, import_of(subscription=subscription)) == []


def test_each_side_of_an_or_is_reported_if_both_are_impossible() -> None:
    reported = of_import(*TRADES, import_of(subscription='kind == "a" || kind == "b"'))

    assert [code for code, _ in reported] == ["ValueNeverOffered"] * 2


def test_a_scope_that_nobody_exports_in_is_found() -> None:
    reported = of_import(*TRADES, import_of(applicationScope="Lab"))

    assert reported == [
        (
            "ScopeUnknown",
            "nothing in the scope Lab may be imported from the namespace default; exports are in "
            "Default",
        )
    ]


def test_names_that_nobody_exports_are_found() -> None:
    export = export_of("feed/p", streamId="nyse", application={"name": "market"})
    wants = import_of(
        streams=[
            {"streamId": "nyze"},
            {"streamId": "nyse", "applicationName": "lab"},
            {"streamId": "nyse", "applicationName": "market"},
        ]
    )

    assert of_import(export, wants) == [
        ("StreamNeverExported", "no export has the stream id nyze; did you mean nyse?"),
        (
            "ApplicationNeverExports",
            "the stream id nyse is not exported by the application lab, but by market",
        ),
    ]


def test_filters_that_forbid_every_row_are_found() -> None:
    wants = import_of(filter="price > 5.0 && price < 3.0")
    whole = import_of(
        "b/p", filter="n > 5 && n < 6", schema=[{"name": "n", "type": "int"}], subscription=None
    )

    assert of_import(export_of(), wants, whole) == [
        (
            "FilterForbidsAll",
            "the filter rejects every row: `price > 5.0` and `price < 3.0` exclude each other",
        ),
        (
            "FilterForbidsAll",
            "the filter rejects every row: `n > 5` and `n < 6` exclude each other",
        ),
    ]


def test_an_import_that_only_its_filter_keeps_from_all_exports_is_found() -> None:
    reported = of_import(
        export_of("a/p", allowFilter=False),
        export_of("b/p", allowFilter=False),
        import_of(filter="price > 1.0"),
    )

    assert reported == [
        ("FilterForbidden", "2 exports would match, except for FilterForbidden; no other does")
    ]


def test_columns_of_several_types_in_what_one_import_gets_are_found() -> None:
    reported = of_import(
        export_of("a/p", schema=PRICE),
        export_of("b/p", schema=[{"name": "price", "type": "bigint"}]),
        export_of("c/p", schema=[{"name": "price", "type": "bigint"}]),
        import_of(),
    )

    assert reported == [
        (
            "ColumnTypesDiffer",
            "column `price` is bigint in 2 exports and double in 1 that it imports",
        )
    ]


def test_an_import_with_a_narrower_type_than_its_export_is_found() -> None:
    reported = of_import(
        export_of(schema=[{"name": "n", "type": "bigint"}, {"name": "price", "type": "float"}]),
        import_of(schema=[{"name": "n", "type": "int"}, {"name": "price", "type": "double"}]),
    )

    assert reported == [
        (
            "SchemaWidened",
            "column `n` is int in the import and bigint in default/feed/0/trades: its query stops"
            " before rows of that type",
        )
    ]


# ---- exports -----------------------------------------------------------------------------------


def test_a_property_of_several_types_is_found_with_the_counts() -> None:
    prices = [1, 2, 3, 2.5]
    exports = [
        export_of(f"x{n}/p", properties={"price": price, "mark": "a" if n else 1})
        for n, price in enumerate(prices)
    ]
    clashes = [one for one in found(*exports) if one.code == "PropertyTypesDiffer"]

    assert [(one.resource, one.message) for one in clashes] == [
        (
            None,
            "property `mark` is string in 3 exports and int64 in 1 in the scope Default; no "
            "predicate is true of both",
        ),
        (
            None,
            "property `price` is int64 in 3 exports and double in 1 in the scope Default; numbers "
            "are compared by value",
        ),
    ]


def test_exports_that_nobody_imports_are_found() -> None:
    reported = found(export_of(), export_of("b/p", properties={}), export_of("c/p"), import_of())

    assert [(one.code, one.resource, one.message) for one in reported] == [
        (
            "NobodyImports",
            "export default/b/0/p",
            "its properties are empty, which matches nothing",
        )
    ]
    assert render_findings(reported, 1).splitlines() == [
        "NobodyImports: export default/b/0/p: its properties are empty, which matches nothing",
        "1 finding",
    ]


def test_resources_that_hold_no_port_are_found_and_offer_nothing() -> None:
    reported = found(
        export_of(uid="a", created=1.0),
        export_of(uid="b", created=2.0, properties={"kind": "quote"}),
        import_of(subscription='kind == "quote"'),
    )

    assert [one.code for one in reported] == ["ValueNeverOffered", "NobodyImports", "PortTaken"]


def test_nothing_is_found_where_all_is_well() -> None:
    assert found(export_of(), import_of()) == []
    assert render_findings([], 0) == "nothing found"
