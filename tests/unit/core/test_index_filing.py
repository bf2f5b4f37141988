"""What the index looks up, what it tries, and what it says of itself."""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streambroker_core.expression import parse
from streambroker_core.expression.evaluate import compile_code
from streambroker_core.matching import IndexMatcher, Match, NoMatch, ScanMatcher
from streambroker_core.matching.property_conditions import (
    MAX_ALTERNATIVES,
    Alternatives,
    Between,
    ValueIn,
    to_alternatives,
)
from streambroker_core.matching.sorted_numbers import SortedNumbers
from streambroker_core.model.properties import INT64_MAX, INT64_MIN
from support.core.resources import export_of, import_of


def alternatives(text: str) -> Alternatives:
    tree = parse(text).tree
    assert tree is not None
    return to_alternatives(tree)


def index_with(*subscriptions: str) -> IndexMatcher:
    index = IndexMatcher()
    for number, text in enumerate(subscriptions):
        index.put(import_of(f"i{number}/p", uid=f"i{number}", subscription=text))
    return index


def found(index: IndexMatcher, **properties: Any) -> set[str]:
    export = export_of("e/p", uid="e", properties=properties)
    outcomes = index.outcomes_for(export)
    index.put(export)
    backwards = {uid for uid in index._imports if "e" in index.matches_of("Import", uid)}
    index.remove("Export", "e")
    assert backwards == set(outcomes)
    return {uid for uid, outcome in outcomes.items() if isinstance(outcome, Match)}


@pytest.mark.parametrize(
    ("subscription", "value", "matched"),
    [
        ("a == 1", 1, True),
        ("a == 1", 1.0, True),
        ("a == 1.0", 1, True),
        ("a == 1", True, False),
        ("a == true", 1, False),
        ("a", 1, False),
        ("a", True, True),
        ("!a", 0, False),
        ("!a", False, True),
        ("a != true", False, True),
        ("a != true", 0, False),
        ('a == "1"', 1, False),
        ('a == "1"', "1", True),
        ("a in [1, 2]", True, False),
        ("a in [true]", 1, False),
        ("1 in a", [True], False),
        ("true in a", [1], False),
        ("1 in a", [1.0], True),
        ("1 in a", 1, False),
        ("a == 1", [1], False),
        ("a[0] == 1", [1], True),
        ("a[0] == 1", [2, 1], False),
        ("a[1] in [1, 2]", [0, 2], True),
        ("a == 9007199254740992.0", 2**53, True),
        ("a == 9007199254740992.0", 2**53 + 1, False),
        ("a == 9007199254740993", 2**53, False),
        ("a >= 9007199254740993 && a <= 9007199254740993", 2**53 + 1, True),
        ("a >= 9007199254740993 && a <= 9007199254740994", 2**53, False),
        ("a > 9223372036854775806 && a <= 9223372036854775807", INT64_MAX, True),
        ("a > 9223372036854775806 && a < 9223372036854775808.0", INT64_MAX, True),
        ("a >= -9223372036854775808 && a < -9223372036854775807", INT64_MIN, True),
        ("a >= -1e308 && a <= 1e308", 5, True),
        ("a >= 0.1 && a < 0.3", 0.1, True),
        ("a > 0 && a < 5e-324", 0, False),
        ("a >= 5 && a < 5", 5, False),
        ("a >= 5 && a <= 5", 5, True),
        ("a > 6 && a < 5", 5, False),
        ("!(a < 5) && !(a > 6)", 5.5, True),
        ("!(a < 5) && !(a > 6)", "x", False),
        ("!(a == 5)", 6, True),
        ("!(a == 5)", "x", False),
        ("!(a != 5)", 5, True),
        ("!(b == 5)", 6, False),
        ("!(b == 5) || a == 6", 6, True),
        ("!has(b)", 6, True),
        ("!(has(b) || a != 6)", 6, True),
        ("5 < a", 6, True),
        ("true", 1, True),
        ("false", 1, False),
        ("!false && a == 1", 1, True),
        ("a == 1 && false", 1, False),
    ],
)
def test_values_of_another_type_or_none_are_never_found(
    subscription: str, value: Any, matched: bool
) -> None:
    index = index_with(subscription)
    expected = parse(subscription).matches({"a": value})

    assert expected is matched
    assert found(index, a=value) == ({"i0"} if matched else set())


@pytest.mark.parametrize(
    ("topic_filter", "topic", "matched"),
    [
        ("a/b", "a/b", True),
        ("a/b", "a/b/c", False),
        ("a/+", "a/b", True),
        ("+/b", "a/b", True),
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("a/#", "b/a", False),
        ("#", "a/b", True),
    ],
)
def test_topics_are_looked_up_by_their_levels(topic_filter: str, topic: str, matched: bool) -> None:
    index = index_with(f'topic("{topic_filter}")')

    assert found(index, topic=topic) == ({"i0"} if matched else set())
    assert index.stats().unindexed == (topic_filter == "#")


@pytest.mark.parametrize(
    ("subscription", "others"),
    [
        ('kind == "a"', 0),
        ('kind == "a" && price > 5', 0),
        ("price > 5 && price < 6", 0),
        ("kind in [1, 2]", 0),
        ("live", 0),
        ("false", 0),
        ("price > 5", 1),
        ('kind != "a"', 1),
        ('!(kind in ["a"])', 1),
        ("has(kind)", 1),
        ("a % 2 == 0", 1),
        ('startsWith(kind, "a")', 1),
        ('kind == "a" || price > 5', 1),
        ("true", 1),
        ("price >= -1e308 && price <= 1e308", 1),
        (f"kind in [{', '.join(map(str, range(65)))}]", 1),
    ],
)
def test_what_cannot_be_looked_up_is_counted(subscription: str, others: int) -> None:
    index = index_with(subscription)

    assert index.stats().unindexed == others
    index.remove("Import", "i0")
    assert index.stats().unindexed == 0
    assert index.stats().imports == 0


def test_more_than_a_thousand_that_cannot_be_looked_up_are_reported() -> None:
    index = index_with(*(f"price > {number}" for number in range(1000)))
    assert not index.stats().is_crowded

    index.put(import_of("more/p", uid="more", subscription="price > 1.5"))

    assert index.stats().is_crowded


def test_imports_that_want_nothing_are_filed_nowhere() -> None:
    index = index_with("", "  ", "a ==")
    index.put(import_of("none/p", uid="none", subscription=None))

    figures = index.stats()
    assert (figures.imports, figures.entries, figures.unindexed) == (4, 0, 0)
    assert found(index, a=1) == set()


def test_imports_by_name_are_found_by_their_stream_ids() -> None:
    index = IndexMatcher()
    names = [{"streamId": "s", "applicationName": "app"}, {"streamId": "t"}]
    index.put(import_of("i/p", uid="i", streams=names, subscription=None))
    index.put(export_of("e/p", uid="e", streamId="s", application={"name": "app"}))
    index.put(export_of("f/p", uid="f", streamId="s", application={"name": "other"}))
    index.put(export_of("g/p", uid="g", streamId="t"))
    index.put(export_of("h/p", uid="h", streamId="u"))

    assert set(index.matches_of("Import", "i")) == {"e", "g"}
    assert set(index.matches_of("Export", "e")) == {"i"}
    assert index.matches_of("Export", "f") == {}
    index.remove("Import", "i")
    assert index.matches_of("Export", "e") == {}


def test_near_refusals_are_answered_and_others_are_not() -> None:
    index = IndexMatcher()
    index.put(import_of("i/p", uid="i", filter="price > 1.0"))
    index.put(export_of("e/p", uid="e", allowFilter=False))
    index.put(export_of("f/p", uid="f", schema=[{"name": "size", "type": "bigint"}]))
    index.put(export_of("lab/g/0/p", uid="g"))
    index.put(export_of("h/p", uid="h", application={"scope": "Lab"}))

    outcomes = index.matches_of("Import", "i")
    reasons = {uid: o.reason for uid, o in outcomes.items() if isinstance(o, NoMatch)}
    assert reasons == {"e": "FilterForbidden", "f": "FilterInvalid"}
    assert index.matches_of("Export", "e") == {"i": outcomes["e"]}


def test_alternatives_are_sets_of_what_can_be_looked_up() -> None:
    assert alternatives('(k == "a" || k == "b") && x > 1 && 2 > x').items == [
        (ValueIn(("k", "text"), ("a",)), Between("x", 1, 2)),
        (ValueIn(("k", "text"), ("b",)), Between("x", 1, 2)),
    ]
    assert alternatives("a == 1 || has(b)").items == [()]
    assert alternatives("!(a == 1 || b)").items == [(ValueIn(("b", "boolean"), (False,)),)]
    assert alternatives("a == 1 && a == 1 || a == 1").items == [(ValueIn(("a", "number"), (1,)),)]


def test_too_many_alternatives_are_cut_to_what_fits_and_counted() -> None:
    pairs = " && ".join(f"(a{n} == 1 || b{n} == 1)" for n in range(12))
    wide = f'kind == "x" && {pairs}'

    made = alternatives(wide)
    assert made.is_truncated
    assert 0 < len(made.items) <= MAX_ALTERNATIVES
    index = index_with(wide)
    assert (index.stats().truncated, index.stats().unindexed) == (1, 0)
    assert found(index, kind="x", **{f"a{n}": 1 for n in range(12)}) == {"i0"}
    assert found(index, kind="x", a0=1) == set()
    index.remove("Import", "i0")
    assert index.stats().truncated == 0


def test_an_alternation_beyond_the_limit_is_tried_for_every_export() -> None:
    wide = " || ".join(f"a == {n}" for n in range(MAX_ALTERNATIVES + 1))
    index = index_with(wide)

    assert (index.stats().truncated, index.stats().unindexed) == (1, 1)
    assert found(index, a=64) == {"i0"}
    fits = " || ".join(f"a == {n}" for n in range(MAX_ALTERNATIVES))
    assert index_with(fits).stats().unindexed == 0


def test_a_value_that_all_share_is_not_what_they_are_filed_under() -> None:
    """Half of all live Exports are trades; a subscription names three conditions."""
    index = IndexMatcher()
    for n in range(100):
        properties = {"kind": "trade", "live": n % 2 == 0, "id": n, "symbols": [f"S{n % 20}"]}
        index.put(export_of(f"e{n}/p", uid=f"e{n}", properties=properties))
    for n in range(200):
        text = f'kind == "trade" && live && id == {n} && "S{n % 20}" in symbols'
        index.put(import_of(f"i{n}/p", uid=f"i{n}", subscription=text))

    (first, row), *others = index._import_index._tables.items()
    assert others == []
    assert {first, *row} == {("id", "number"), ("symbols", "in text")}


def test_a_condition_may_be_filed_with_many_others_and_alone() -> None:
    index = index_with("a == 1", *(f"a == 1 && b{n} == 1" for n in range(9)), "a == 1 && a == 1")

    assert found(index, a=1) == {"i0", "i10"}
    assert found(index, a=1, b3=1) == {"i0", "i4", "i10"}
    assert found(index, b3=1) == set()


def test_expressions_of_one_form_share_their_function() -> None:
    one, other = parse('a == 1 && "x" in b').tree, parse('a == 2.5 && "y" in b').tree
    third = parse('a == "1" && "x" in b').tree
    assert one is not None
    assert other is not None
    assert third is not None

    assert compile_code(one)[0] is compile_code(other)[0]
    assert compile_code(one)[1] == (1, "x")
    assert compile_code(other)[1] == (2.5, "y")
    assert compile_code(third)[0] is not compile_code(one)[0]


def test_literals_of_a_shared_form_keep_their_places() -> None:
    text = 'a == {} && topic("{}") && startsWith(b, "{}") && c in [{}] && "{}" in d && e % {} == {}'
    one = parse(text.format(1, "t/+", "x", "1, 2", "q", 5, 2))
    other = parse(text.format(2, "u/+", "y", "3, 4", "r", 7, 3))
    fits = {"a": 1, "topic": "t/z", "b": "xx", "c": 2, "d": ["q"], "e": 12}

    assert one.matches(fits)
    assert not other.matches(fits)
    assert other.matches({"a": 2, "topic": "u/z", "b": "yy", "c": 3, "d": ["r"], "e": 10})


@given(
    numbers=st.lists(st.integers(-50, 50) | st.floats(-50, 50), unique=True),
    removed=st.randoms(use_true_random=False),
    low=st.none() | st.integers(-60, 60),
    high=st.none() | st.floats(-60, 60),
)
def test_ordered_numbers_count_and_yield_what_lies_between(
    numbers: list[float], removed: random.Random, low: float | None, high: float | None
) -> None:
    kept, ordered = list(numbers), SortedNumbers()
    for number in numbers:
        ordered.add(number)
    for number in removed.sample(numbers, len(numbers) // 3):
        ordered.remove(number)
        kept.remove(number)

    assert_holds(ordered, sorted(kept), low, high)


def test_thousands_of_ordered_numbers_are_kept_in_blocks() -> None:
    shuffled, ordered = list(range(10_000)), SortedNumbers()
    random.Random(1).shuffle(shuffled)
    for number in shuffled:
        ordered.add(number)
    for number in shuffled[:7_000]:
        ordered.remove(number)
    kept = sorted(shuffled[7_000:])

    for low, high in ((None, None), (5, 4_000), (2_500.5, 2_500.7), (9_999, None), (20_000, None)):
        assert_holds(ordered, kept, low, high)
    for number in kept:
        ordered.remove(number)
    assert_holds(ordered, [], None, None)


def assert_holds(
    ordered: SortedNumbers, kept: Sequence[float], low: float | None, high: float | None
) -> None:
    start = 0 if low is None else bisect_left(kept, low)
    end = len(kept) if high is None else bisect_right(kept, high)
    expected = list(kept[start : max(start, end)])
    assert list(ordered.iter_between(low, high)) == expected
    assert ordered.count(low, high) == len(expected)
    assert ordered.size == len(kept)


def test_a_thousand_of_each_are_answered_as_by_the_scan() -> None:
    """Enough for live counts, blocks and buckets of more than one."""
    rng = random.Random(7)
    index, scan = IndexMatcher(), ScanMatcher()
    for n in range(1000):
        properties = {
            "kind": f"k{rng.randrange(5)}",
            "price": rng.choice([rng.randrange(100), round(rng.uniform(0, 100), 1)]),
            "symbols": [f"S{rng.randrange(20)}" for _ in range(3)],
            "live": rng.random() < 0.5,
        }
        low = rng.randrange(100)
        text = rng.choice(
            [
                f'kind == "k{n % 5}" && "S{n % 20}" in symbols',
                f"price >= {low} && price < {low + rng.choice([1, 5, 0.5])}",
                f'live && price <= {low} || "S{n % 20}" in symbols && kind == "k{n % 5}"',
                f"price > {low + 60}",
            ]
        )
        for matcher in (index, scan):
            matcher.put(export_of(f"e{n}/p", uid=f"e{n}", properties=properties))
            matcher.put(import_of(f"i{n}/p", uid=f"i{n}", subscription=text))
    for n in range(0, 1000, 2):
        for matcher in (index, scan):
            matcher.remove("Export", f"e{n}")
            matcher.remove("Import", f"i{n + 1}")

    for n in range(1, 1000, 40):
        assert index.matches_of("Export", f"e{n}") == scan.matches_of("Export", f"e{n}")
        assert index.matches_of("Import", f"i{n - 1}") == scan.matches_of("Import", f"i{n - 1}")
