"""Rows that no rule has to see: which they are, and that nothing comes out otherwise without."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, note
from hypothesis import strategies as st

from streambroker_core.cep import Pattern
from streambroker_core.cep.operator import PatternOperator
from streambroker_core.cep.pattern.rule import PatternProcessor
from streambroker_core.cep.rules.push_down import TOO_LONG, compute_relevance, narrow_filter
from streambroker_core.cep.rules.rule_set import RuleSet
from streambroker_core.control.tuples import END_OF_TIME
from streambroker_core.expression import parse
from streambroker_core.model.schema import parse_ddl
from support.patterns.cases import compiled
from support.patterns.examples import LETTERS, one_of, patterns
from support.patterns.windows import Buckets, Emitted

DDL = parse_ddl("seq bigint, t bigint, n string, k bigint, day timestamp")
SCHEMA = pa.schema([("seq", pa.int64()), ("t", pa.int64()), ("n", pa.string()), ("k", pa.int64())])
Row = dict[str, Any]


def set_of(*patterns: Pattern) -> RuleSet:
    rules, outcomes = RuleSet().apply_update(
        PatternProcessor(id=f"r{n}", version=1, pattern=each) for n, each in enumerate(patterns)
    )
    assert all(one.change == "added" for one in outcomes), outcomes
    return rules


Shape = Callable[[list[str]], Pattern]
"""Makes a pattern of what each of four stages asks for."""


@st.composite
def shapes(draw: Any) -> Shape:
    """Draw a pattern but for its conditions; its rows may have any others between them."""
    how = st.sampled_from(("followed_by", "followed_by", "followed_by_any", "not"))
    more = st.sampled_from(("", "", "loop", "tight loop", "later"))
    stages = draw(st.lists(st.tuples(how, more), min_size=1, max_size=3))
    within = f"{draw(st.sampled_from((4, 9)))}us"

    def made(names: list[str]) -> Pattern:
        pattern = Pattern.begin("s0").where(one_of(names[0]))
        for place, ((contiguity, further), name) in enumerate(
            zip(stages, names[1:], strict=False), 1
        ):
            if contiguity == "not" and not pattern.elements[-1].contiguity.startswith("not"):
                pattern = pattern.not_followed_by(f"s{place}").where(one_of(name))
                continue
            method = "followed_by" if contiguity == "not" else contiguity
            pattern = getattr(pattern, method)(f"s{place}").where(one_of(name))
            if further.endswith("loop"):
                pattern = pattern.one_or_more(gap="4us" if further == "tight loop" else "0us")
                pattern = pattern if place == len(stages) else pattern.allow_combinations()
            elif further:
                pattern = pattern.where("t > last(s0.t)")
        return pattern.within(within)

    return made


@st.composite
def processors(draw: Any, name: str, version: int, time: int, shape: Shape) -> PatternProcessor:
    """Draw a version of a rule."""
    letters = draw(st.lists(st.sampled_from(LETTERS), min_size=4, max_size=4))
    return PatternProcessor(
        id=name,
        version=version,
        pattern=draw(patterns()) if draw(st.integers(0, 7)) == 0 else shape(letters),
        key=("k",),
        scheduled=time + draw(st.integers(0, 4)) if draw(st.booleans()) else None,
        keep_matches=draw(st.booleans()),
    )


@st.composite
def plays(draw: Any) -> list[tuple[list[PatternProcessor] | None, list[Row]]]:
    """Draw windows: the rules that are wanted from then on, None for the same, and rows."""
    windows: list[tuple[list[PatternProcessor] | None, list[Row]]] = []
    seq, time, version = 0, 0, 0
    known = {name: draw(shapes()) for name in "xyz"}
    for place in range(draw(st.integers(2, 5))):
        wanted = None
        if place == 0 or draw(st.booleans()):
            version += 1
            wanted = [
                draw(processors(name, version, time, known[name]))
                for name in draw(st.sampled_from(("", "x", "x", "y", "xy", "xz")))
            ]
        rows = []
        for name in draw(st.text(LETTERS + "ef", max_size=6)):
            time += draw(st.integers(-2, 2))
            rows.append({"seq": seq, "t": time, "n": name, "k": draw(st.integers(0, 1))})
            seq += 1
        windows.append((wanted, rows))
    return windows


class Run:
    """Three buckets over windows, with the rows that a filter lets pass or with all of them."""

    def __init__(self) -> None:
        self._buckets = Buckets(
            lambda: PatternOperator(key=("k",), event_time="t", maker=compiled), buckets=3
        )
        self.late: set[int] = set()

    def window(
        self, rows: list[Row], rules: RuleSet | None, mark: int | None, relevant: str | None = None
    ) -> Counter[str]:
        batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
        emitted = self._buckets.window(
            [batch] if rows else [], rules=rules, relevant=relevant, watermark=mark
        )
        self.late |= {row["seq"] for row in emitted.of("late")}
        return reported(emitted)


def reported(emitted: Emitted) -> Counter[str]:
    """Return matches and time-outs, with all that is said of them."""
    return Counter(
        json.dumps([output, row], sort_keys=True, default=str)
        for output in ("matches", "timeouts")
        for row in emitted.of(output)
    )


def taking_over_before_a_row_that_no_rule_needs() -> list[
    tuple[list[PatternProcessor] | None, list[Row]]
]:
    """Return windows: partial matches, then a scheduled version and a row behind its time."""
    pattern = Pattern.begin("s0").where('n == "a"').followed_by("s1").where('n == "a"')
    first = PatternProcessor(id="x", version=1, pattern=pattern.within("4us"), key=("k",))
    second = replace(first, version=2, scheduled=1, keep_matches=True)
    begins = [{"seq": seq, "t": 0, "n": "a", "k": 0} for seq in range(3)]
    return [([first], begins), ([second], [{"seq": 3, "t": 2, "n": "b", "k": 0}])]


@given(play=plays(), delay=st.sampled_from((2, 6)))
@example(play=taking_over_before_a_row_that_no_rule_needs(), delay=2)
def test_without_rows_that_no_rule_has_to_see_the_same_comes_out_in_each_window(
    play: list[tuple[list[PatternProcessor] | None, list[Row]]], delay: int
) -> None:
    whole, pushed = Run(), Run()
    rules, mark, latest = RuleSet(), None, None
    for wanted, rows in [*play, (None, [])]:
        sent = None
        if wanted is not None:
            rules, _ = rules.apply_update(wanted)
            sent = rules
        filter_ = compute_relevance(rules, DDL).filter
        note(f"{filter_} {rows}")
        some = rows if filter_ is None else [r for r in rows if parse(filter_, "filter").matches(r)]
        found = pushed.window(some, sent, mark, filter_)
        assert found == whole.window(rows, sent, mark, filter_)
        latest = max(
            [*([] if latest is None else [latest]), *(row["t"] for row in rows)], default=0
        )
        mark = latest - delay
    assert pushed.window([], None, END_OF_TIME) == whole.window([], None, END_OF_TIME)
    assert pushed.late <= whole.late


def test_rules_that_are_scheduled_or_off_have_their_rows() -> None:
    rules = set_of(Pattern.begin("a").where('n == "a"'))
    later = PatternProcessor(
        id="r0", version=2, pattern=Pattern.begin("b").where('n == "b"'), scheduled=10**15
    )
    rules, _ = rules.apply_update([*rules, later])
    assert compute_relevance(rules.with_disabled("r0", 1), DDL).filter == 'n == "a" || n == "b"'


def test_without_rules_no_row_has_to_be_seen() -> None:
    assert compute_relevance(RuleSet(), DDL).filter == "false"


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (Pattern.begin("a").where('n == "a"').next("b").where('n == "b"'), "next"),
        (Pattern.begin("a").where('n == "a"').not_next("b").where('n == "b"'), "next"),
        (Pattern.begin("a"), "matches any row"),
        (Pattern.begin("a").where('n == "a"').times(2).consecutive(), "consecutive"),
        (Pattern.begin("a").where('n == "a"').followed_by("b").where("t > last(a.t)"), "decided"),
        (Pattern.begin("a").where("day > 5"), "not a filter on these columns"),
        (Pattern.begin("a").where("nobody > 5"), "not a filter on these columns"),
    ],
)
def test_a_rule_that_has_to_see_every_row_is_named_with_the_reason(
    pattern: Pattern, why: str
) -> None:
    found = compute_relevance(set_of(Pattern.begin("z").where('n == "z"'), pattern), DDL)
    assert found.filter is None
    assert found.why.startswith("rule r1, version 1, ")
    assert why in found.why


def test_a_filter_that_nobody_could_read_is_none() -> None:
    found = compute_relevance(
        set_of(*(Pattern.begin("a").where(f"t == {n}") for n in range(300))), DDL
    )
    assert (found.filter, found.why) == (None, TOO_LONG)
    half = " || ".join(f"t == {n}" for n in range(130))
    assert narrow_filter(half, None) == half
    assert narrow_filter(half, half.replace("t", "seq")) is None


def test_a_filter_that_would_be_too_long_asks_less_and_lets_more_rows_pass() -> None:
    many = [
        Pattern.begin("a")
        .where(f't > {n} && n == "a"')
        .followed_by("b")
        .where(f'n == "b" || t == {n}')
        for n in range(3)
    ]
    assert (
        compute_relevance(set_of(*many[:1]), DDL).filter
        == 'n == "b" || t == 0 || t > 0 && n == "a"'
    )
    many = [Pattern.begin("a").where(f't > {n} && n == "a"') for n in range(300)]
    assert compute_relevance(set_of(*many), DDL).filter == 'n == "a"'


def test_a_filter_of_rules_and_one_of_the_import_let_pass_what_both_do() -> None:
    found = narrow_filter('n == "a" || n == "b"', "k == 1 || k == 2")
    assert found == '(n == "a" || n == "b") && (k == 1 || k == 2)'
    assert narrow_filter("false", "k == 1") == "false && k == 1"
