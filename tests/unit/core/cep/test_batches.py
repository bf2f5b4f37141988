"""Rows in batches: masks, gaps, cuts, state between windows give what one matcher gives."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from streambroker_core.cep import Pattern, Skip
from streambroker_core.cep.engine.condition_masks import MaskMaker, row_by_row
from streambroker_core.cep.nfa.condition_bits import ConditionBits
from streambroker_core.cep.nfa.matcher import Matcher
from streambroker_core.cep.operator import PatternOperator
from streambroker_core.cep.pattern.conditions import local_part
from streambroker_core.cep.pattern.match_buffer import Event
from streambroker_core.cep.pattern.rule import PatternProcessor
from streambroker_core.cep.pattern.run_limits import RunLimits
from streambroker_core.cep.rules.push_down import joint_predicate
from streambroker_core.cep.rules.rule_set import RuleSet
from streambroker_core.control.tuples import END_OF_TIME
from streambroker_core.expression import parse
from support.patterns.cases import compiled
from support.patterns.examples import automaton_of, inputs, pairs, patterns
from support.patterns.windows import Bucket, Buckets, Windows

SCHEMA = pa.schema([("seq", pa.int64()), ("t", pa.int64()), ("n", pa.string()), ("k", pa.int64())])
FREE = RunLimits(runs=None)
EPOCH = datetime.fromtimestamp(0, UTC).replace(tzinfo=None)
Found = Counter[tuple[str, int, Any]]
"""Number of matches by rule, time in microseconds, and events."""


def expected(rules: list[PatternProcessor], events: list[dict[str, Any]]) -> Found:
    """Return what matchers give that see every event."""
    found: Found = Counter()
    for rule in rules:
        automaton = automaton_of(rule.pattern)
        assert automaton is not None
        new = partial(Matcher, automaton, ConditionBits(automaton), FREE)
        matchers: dict[int, Matcher] = defaultdict(new)
        for row in sorted(events, key=lambda row: row["t"]):
            key = row["k"] if rule.key else 0
            matches, _ = matchers[key].process(Event(row["seq"], row["t"], row))
            found.update((rule.id, match.time, pairs(match)) for match in matches)
        for matcher in matchers.values():
            ended, _ = matcher.advance(END_OF_TIME)
            found.update((rule.id, match.time, pairs(match)) for match in ended)
    return found


def got(
    rules: list[PatternProcessor], windows: list[list[dict[str, Any]]], maker: MaskMaker
) -> Found:
    """Return what an operator gives; after each window the watermark is before all later rows."""
    rule_set, _ = RuleSet().apply_update(rules)
    bucket = Bucket(lambda: PatternOperator(event_time="t", maker=maker, rules=rule_set))
    found = given_by(bucket, windows)
    assert not any(name.startswith("waiting") for name in bucket.blobs)
    return found


def given_by(bucket: Windows, windows: list[list[dict[str, Any]]]) -> Found:
    emitted = []
    for place, window in enumerate(windows):
        later = [row["t"] for rows in windows[place + 1 :] for row in rows]
        batch = pa.RecordBatch.from_pylist(window, schema=SCHEMA)
        emitted.append(bucket.window([batch] if window else []))
        if later:
            emitted.append(bucket.window(watermark=min(later) - 1))
    emitted.append(bucket.window(watermark=END_OF_TIME))
    return Counter(
        (
            row["rule"],
            (row["time"] - EPOCH) // timedelta(microseconds=1),
            tuple(
                sorted(
                    ((stage, e["seq"]) for stage, events in row["events"].items() for e in events),
                    key=lambda pair: pair[1],
                )
            ),
        )
        for each in emitted
        for row in each.of("matches")
    )


@st.composite
def jobs(draw: Any) -> tuple[list[PatternProcessor], list[list[dict[str, Any]]]]:
    """Draw rules, and rows cut into windows."""
    strategy = draw(st.sampled_from(("no_skip", "skip_to_next", "skip_past_last")))
    shapes = draw(st.lists(patterns(), min_size=1, max_size=2))
    key = draw(st.sampled_from(((), ("k",))))
    rules = [
        PatternProcessor(
            id=f"r{n}", version=1, pattern=shape.skipping(Skip(strategy=strategy)), key=key,
            limits=FREE,
        )
        for n, shape in enumerate(shapes)
        if automaton_of(shape)
    ]  # fmt: skip
    rows = [
        {"seq": seq, "t": time, "n": name, "k": draw(st.integers(0, 1))}
        for seq, (name, time) in enumerate(draw(inputs()))
    ]
    cuts = draw(st.lists(st.integers(0, len(rows)), max_size=3))
    edges = [0, *sorted(cuts), len(rows)]
    return rules, [rows[low:high] for low, high in pairwise(edges)]


def check_cuts(job: tuple[list[PatternProcessor], list[list[dict[str, Any]]]]) -> None:
    rules, windows = job
    note(f"{rules} {windows}")

    assert got(rules, windows, compiled) == expected(rules, [r for rows in windows for r in rows])


@settings(max_examples=60)
@given(job=jobs())
def test_batches_of_any_cut_give_what_every_event_by_itself_gives(
    job: tuple[list[PatternProcessor], list[list[dict[str, Any]]]],
) -> None:
    check_cuts(job)


@settings(max_examples=40)
@given(job=jobs(), seed=st.integers(0, 99))
def test_buckets_and_the_way_there_make_no_difference(
    job: tuple[list[PatternProcessor], list[list[dict[str, Any]]]], seed: int
) -> None:
    rules, windows = job
    rule_set, _ = RuleSet().apply_update(rules)
    buckets = Buckets(
        lambda: PatternOperator(event_time="t", maker=compiled, rules=rule_set, copied=True),
        buckets=3,
        selectors=rule_set.selectors(()),
        seed=seed,
    )

    found = given_by(buckets, windows)

    assert found == expected(rules, [row for window in windows for row in window])


@pytest.mark.long
@settings(max_examples=5_000)
@given(job=jobs())
def test_batches_of_any_cut_give_what_every_event_by_itself_gives_at_length(
    job: tuple[list[PatternProcessor], list[list[dict[str, Any]]]],
) -> None:
    check_cuts(job)


def rows_of(text: str) -> list[dict[str, Any]]:
    return [{"seq": i, "t": i, "n": letter, "k": 0} for i, letter in enumerate(text)]


def rule_of(pattern: Pattern, **fields: Any) -> PatternProcessor:
    return PatternProcessor(id="r", version=1, pattern=pattern, **fields)


def letter(name: str) -> str:
    return f'n == "{name}"'


@pytest.mark.parametrize(
    ("pattern", "appetite"),
    [
        (Pattern.begin("a").where(letter("a")).followed_by("b").where(letter("b")), "matching"),
        (Pattern.begin("a").where(letter("a")).followed_by_any("b").where(letter("b")), "matching"),
        (Pattern.begin("a").where(letter("a")).optional().followed_by("b").where(letter("b")),
         "matching"),
        (Pattern.begin("a").where(letter("a")).one_or_more().followed_by("b").where(letter("b")),
         "matching"),
        (Pattern.begin("a").where(letter("a")).next("b").where(letter("b")), "gaps"),
        (Pattern.begin("a").where(letter("a")).times(2).consecutive(), "gaps"),
        (Pattern.begin("a").where(letter("a")).not_next("b").where(letter("b")), "gaps"),
        (Pattern.begin("a").where(letter("a")).one_or_more().not_followed_by("b")
         .where(letter("b")).within(5), "gaps"),
        (Pattern.begin("a").where(letter("a")).not_followed_by("b").where(letter("b")).within(5),
         "matching"),
        (Pattern.begin("a").where(letter("a")).followed_by("any"), "all"),
    ],
)  # fmt: skip
def test_which_events_a_pattern_has_to_see(pattern: Pattern, appetite: str) -> None:
    automaton = automaton_of(pattern)

    assert automaton is not None
    assert automaton.event_need == appetite


def test_only_rows_that_match_something_are_tested() -> None:
    pattern = Pattern.begin("a").where(letter("a")).followed_by("b").where(letter("b"))
    rules, _ = RuleSet().apply_update([rule_of(pattern)])
    bucket = Bucket(lambda: PatternOperator(event_time="t", maker=compiled, rules=rules))
    bucket.window([pa.RecordBatch.from_pylist(rows_of("xxaxxxbxx"), schema=SCHEMA)])

    bucket.window(watermark=100)

    assert bucket.last is not None
    metrics = bucket.last.engine.active[("r", 1)].metrics
    assert (metrics.tested, metrics.matches, metrics.alive) == (2, 1, 0)


def test_a_condition_of_several_rules_is_asked_once() -> None:
    asked: list[str] = []

    def counting(expression: Any, schema: pa.Schema) -> Any:
        inner = row_by_row(expression, schema)

        def mask(batch: pa.RecordBatch, cache: Any) -> Any:
            asked.append(str(expression))
            return inner(batch, cache)

        return mask

    rules = [
        PatternProcessor(
            id=f"r{n}", version=1,
            pattern=Pattern.begin("a").where("t > 3").followed_by("b").where(f"t > {n + 10}"),
        )
        for n in range(3)
    ]  # fmt: skip

    got(rules, [rows_of("xxxxxx")], counting)

    assert sorted(asked) == ["t > 10", "t > 11", "t > 12", "t > 3"]


def test_many_rules_that_look_for_one_text_each_find_their_rows_in_one_pass() -> None:
    rules = [
        PatternProcessor(
            id=f"r{name}", version=1,
            pattern=Pattern.begin("a").where(letter(name)).followed_by("b").where(letter("z")),
        )
        for name in "abcdefgh"
    ]  # fmt: skip

    assert got(rules, [rows_of("abxcz")], compiled) == expected(rules, rows_of("abxcz"))
    assert sum(got(rules, [rows_of("abxcz")], compiled).values()) == 3


def test_rows_that_came_late_are_handed_out_and_never_matched() -> None:
    pattern = Pattern.begin("a").where(letter("a"))
    rules, _ = RuleSet().apply_update([rule_of(pattern)])
    bucket = Bucket(lambda: PatternOperator(event_time="t", rules=rules))
    bucket.window(watermark=5)

    emitted = bucket.window(
        [pa.RecordBatch.from_pylist(
            [{"seq": 0, "t": 5, "n": "a", "k": 0}, {"seq": 1, "t": 6, "n": "a", "k": 0},
             {"seq": 2, "t": None, "n": "a", "k": 0}], schema=SCHEMA)]
    )  # fmt: skip

    assert [row["seq"] for row in emitted.of("late")] == [0, 2]
    assert [row["seq"] for row in emitted.rows["late"]] == [0, 2]
    matches = bucket.window(watermark=6).of("matches")
    assert [row["events"]["a"][0]["seq"] for row in matches] == [1]


def test_time_ends_a_window_without_an_event_of_its_key() -> None:
    pattern = Pattern.begin("a").where(letter("a")).followed_by("b").where(letter("b"))
    rules, _ = RuleSet().apply_update([rule_of(pattern.within("5us", "previous_and_current"))])
    bucket = Bucket(lambda: PatternOperator(event_time="t", maker=compiled, rules=rules))
    bucket.window([pa.RecordBatch.from_pylist(rows_of("a"), schema=SCHEMA)])
    bucket.window(watermark=0)
    assert bucket.last is not None
    assert bucket.last.wake_at() == 5
    assert not bucket.window(watermark=4).of("timeouts")

    (row,) = bucket.window(watermark=5).of("timeouts")

    assert row["time"].microsecond == 5
    assert bucket.last.wake_at() is None


def test_the_joint_predicate_lets_pass_what_some_rule_sees() -> None:
    ab = automaton_of(Pattern.begin("a").where(letter("a")).followed_by("b").where("t > 5"))
    ca = automaton_of(Pattern.begin("c").where(f"{letter('c')} && t > last(c.t)"))
    assert ab is not None
    assert ca is not None

    assert str(joint_predicate([ab, ca])) == 'n == "a" || n == "c" || t > 5'
    assert str(joint_predicate([])) == "false"


@pytest.mark.parametrize(
    "pattern",
    [
        Pattern.begin("a").where(letter("a")).next("b").where(letter("b")),
        Pattern.begin("a").where(letter("a")).followed_by("b"),
        Pattern.begin("a").where("t > last(a.t)"),
        Pattern.begin("a").where(lambda row, run: True),
    ],
)
def test_rules_that_look_at_every_row_allow_no_joint_predicate(pattern: Pattern) -> None:
    automaton = automaton_of(pattern)
    assert automaton is not None

    assert joint_predicate([automaton]) is None


@settings(max_examples=60)
@given(pattern=patterns(), events=inputs())
def test_rows_that_the_joint_predicate_holds_back_change_no_match(
    pattern: Pattern, events: list[tuple[str, int]]
) -> None:
    automaton = automaton_of(pattern)
    joint = None if automaton is None else joint_predicate([automaton])
    if joint is None:
        return
    rows = [{"seq": i, "t": t, "n": n, "k": 0} for i, (n, t) in enumerate(events)]
    rule = rule_of(pattern, limits=FREE)

    passed = [row for row in rows if joint.matches(row)]

    assert expected([rule], passed) == expected([rule], rows)


def test_the_local_part_of_a_condition_is_what_the_event_alone_decides() -> None:
    pattern = Pattern.begin("a").where('n == "a" && t > sum(a.t) && k == 1')
    (stage,) = pattern.stages()
    assert stage.condition is not None

    assert local_part(stage.condition) == parse('n == "a" && k == 1', "filter")


def is_a(row: Any, run: Any) -> bool:
    return bool(row["n"] == "a")


def test_of_two_conditions_of_which_a_function_is_one_the_event_alone_decides_nothing() -> None:
    pattern = Pattern.begin("a").where(is_a).or_('n == "b"')
    (stage,) = pattern.stages()
    assert stage.condition is not None
    rules, _ = RuleSet().apply_update([rule_of(pattern)])
    bucket = Bucket(
        lambda: PatternOperator(
            event_time="t", maker=compiled, rules=rules, functions={"is_a": is_a}
        )
    )
    bucket.window([pa.RecordBatch.from_pylist(rows_of("axb"), schema=SCHEMA)])

    assert local_part(stage.condition) is None
    assert len(bucket.window(watermark=9).of("matches")) == 2


@pytest.mark.parametrize(
    ("windows", "matches"),
    [(["ab"], 1), (["a", "b"], 1), (["ax", "b"], 0), (["a", "x", "b"], 0), (["a", "xb"], 0),
     (["axb"], 0), (["xa", "bx"], 1)],
)  # fmt: skip
def test_what_stands_between_two_rows_counts_whatever_window_it_is_in(
    windows: list[str], matches: int
) -> None:
    pattern = Pattern.begin("a").where(letter("a")).next("b").where(letter("b"))
    rows, left = rows_of("".join(windows)), []
    for window in windows:
        left.append(rows[: len(window)])
        rows = rows[len(window) :]

    assert sum(got([rule_of(pattern)], left, compiled).values()) == matches


def test_a_partial_match_that_waits_for_two_things_is_reported_once_when_its_time_is_over() -> None:
    pattern = Pattern.begin("a").where(letter("a")).one_or_more().allow_combinations()
    pattern = pattern.followed_by("b").where(letter("b")).within("5us")
    rules, _ = RuleSet().apply_update([rule_of(pattern)])
    bucket = Bucket(lambda: PatternOperator(event_time="t", maker=compiled, rules=rules))
    bucket.window([pa.RecordBatch.from_pylist(rows_of("aa"), schema=SCHEMA)])

    over = bucket.window(watermark=9).of("timeouts")

    taken = [[row["seq"] for row in each["events"]["a"]] for each in over]
    assert sorted(taken) == [[0], [0, 1], [1]]
