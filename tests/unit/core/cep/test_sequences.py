"""Plain sequences are followed through rows: what comes out is what matchers give, in its order."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from streambroker_core.cep import Pattern, PatternError, Skip
from streambroker_core.cep.engine.active_rule import RuleResult
from streambroker_core.cep.engine.engine import Engine
from streambroker_core.cep.engine.row_view import OrderedRows
from streambroker_core.cep.nfa.compiled import compile_rule
from streambroker_core.cep.nfa.matcher import PatternMatch, Timeout
from streambroker_core.cep.pattern.errors import RunError
from streambroker_core.cep.pattern.rule import PatternProcessor
from streambroker_core.cep.pattern.run_limits import RunLimits
from streambroker_core.cep.rules.rule_set import RuleSet
from streambroker_core.control.operators.keyed_state import KeyedState
from support.patterns.examples import END, LETTERS, alike, letters, one_of, pairs

SCHEMA = pa.schema([("n", pa.string()), ("k", pa.int64()), ("seq", pa.int64()), ("t", pa.int64())])
ABC = Pattern.begin("a").where('n == "a"').followed_by("b").where('n == "b"')
AB_STRICT = Pattern.begin("a").where('n == "a"').next("b").where('n == "b"')


def is_plain(pattern: Pattern) -> bool:
    return (
        compile_rule(PatternProcessor(id="r", version=1, pattern=pattern)).linear_pattern
        is not None
    )


@pytest.mark.parametrize(
    "pattern",
    [
        ABC,
        ABC.within("5us"),
        AB_STRICT,
        ABC.times(3),
        ABC.times(2).consecutive(),
        ABC.not_followed_by("x").where('n == "c"').followed_by("d").where('n == "d"'),
        AB_STRICT.not_next("x").where('n == "c"').next("d").where('n == "d" || n == "b"'),
    ],
    ids=lambda pattern: " ".join(f"{e.contiguity} {e.name}" for e in pattern.elements),
)
def test_stages_that_follow_each_other_are_plain(pattern: Pattern) -> None:
    assert is_plain(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        Pattern.begin("a").where('n == "a"'),
        ABC.optional(),
        ABC.one_or_more(),
        ABC.times(1, 2),
        ABC.times(2).allow_combinations(),
        ABC.times(2, gap="3us"),
        ABC.within("3us", "previous_and_current"),
        Pattern.begin("a").where('n == "a"').followed_by_any("b").where('n == "b"'),
        ABC.not_followed_by("x").where('n == "c"').within("5us"),
        ABC.followed_by("c").where("sum(a.seq) < 4"),
        ABC.skipping(Skip(strategy="skip_to_next")),
        ABC.skipping(Skip(strategy="skip_past_last")),
        ABC.followed_by("c"),
        AB_STRICT.not_next("x").where('n == "c"').followed_by("d").where('n == "d"'),
    ],
    ids=lambda pattern: " ".join(f"{e.contiguity} {e.name}" for e in pattern.elements),
)
def test_what_branches_waits_skips_or_remembers_is_not_plain(pattern: Pattern) -> None:
    assert not is_plain(pattern)


@st.composite
def plain_patterns(draw: Any) -> Pattern:
    pattern = Pattern.begin("s0").where(one_of(draw(letters)))
    for place in range(1, draw(st.integers(2, 4))):
        join = draw(st.sampled_from(("next", "followed_by")))
        negation = draw(st.sampled_from((None, None, "not_next", "not_followed_by")))
        if negation is not None:
            with suppress(PatternError):
                pattern = getattr(pattern, negation)(f"x{place}").where(one_of(draw(letters)))
        pattern = getattr(pattern, join)(f"s{place}").where(one_of(draw(letters)))
        if draw(st.integers(0, 3)) == 0:
            pattern = pattern.times(2)
            if draw(st.booleans()):
                pattern = pattern.consecutive()
    return pattern.within(f"{draw(st.sampled_from((0, 2, 4, 9)))}us")


limits = st.builds(
    RunLimits,
    runs=st.sampled_from((None, None, 1, 2)),
    policy=st.sampled_from(("drop_oldest", "refuse", "fail")),
)


@st.composite
def jobs(draw: Any) -> tuple[list[PatternProcessor], list[list[dict[str, Any]]]]:
    """Draw rules, and rows in batches; half of the jobs have rules that can share runs."""
    one_limit = draw(limits)
    patterns = draw(
        st.lists(plain_patterns().filter(is_plain), min_size=1, max_size=2)
        | alike().filter(lambda found: all(map(is_plain, found)))
    )
    rules = [
        PatternProcessor(
            id=f"r{number}", version=1, pattern=pattern, key=("k",),
            limits=one_limit if len(patterns) > 2 else draw(limits), on_error="disable",
        )
        for number, pattern in enumerate(patterns)
    ]  # fmt: skip
    time, seq, batches = 0, 0, []
    for _ in range(draw(st.integers(1, 3))):
        batch = []
        for name in draw(st.text(LETTERS, max_size=8)):
            time += draw(st.integers(0, 2))
            batch.append({"n": name, "k": draw(st.integers(0, 1)), "seq": seq, "t": time})
            seq += 1
        batches.append(batch)
    return rules, batches


def reported(result: RuleResult) -> tuple[Any, ...]:
    out = result.outcome
    if isinstance(out, RunError):
        return (*result[:3], str(out), result.trigger)
    known = out.noticed if isinstance(out, PatternMatch) else out.waited
    return (*result[:3], type(out), pairs(out), out.time, known, result.trigger)


def ran(
    job: tuple[list[PatternProcessor], list[list[dict[str, Any]]]],
    followed: list[bool],
    *,
    timed: bool,
) -> list[Any]:
    """Return all that can be seen of rules at work.

    Args:
        job: rules, and rows in batches.
        followed: for each batch whether plain sequences are followed; else matchers see every row.
        timed: time-outs are told.
    """
    rules, batches = job
    rule_set, refused = RuleSet().apply_update(rules)
    assert all(one.change == "added" for one in refused)
    engine = Engine(KeyedState("runs"), reports_timeouts=lambda rule: timed)
    engine.set_rules(rule_set, 0)
    made = {name: active.compiled for name, active in engine.active.items()}
    assert all(each.linear_pattern for each in made.values())
    seen: list[Any] = []
    for batch, follow in zip(batches, followed, strict=True):
        for name, active in engine.active.items():
            active.compiled = made[name] if follow else replace(made[name], linear_pattern=None)
        columns = pa.RecordBatch.from_pylist(batch, SCHEMA)
        zeros = pa.repeat(pa.scalar(0), len(batch))
        rows = OrderedRows(columns, columns["t"], zeros, columns["seq"], 0)
        seen.append([reported(each) for each in engine.process(rows)])
        seen.append({rule.id: str(engine.run_states(rule.id)) for rule in rules})
        engine.keys.save()
        seen.append([engine.keys.first_held(), list(engine.failed)])
    over = [reported(each) for each in engine.advance(END)]
    seen.append(sorted(over, key=lambda each: each[:3]))  # of rules and keys no order is promised
    seen += [replace(each.metrics, nanoseconds=0) for each in engine.active.values()]
    return seen


def check(
    job: tuple[list[PatternProcessor], list[list[dict[str, Any]]]],
    mixed: list[bool],
    timed: bool,
) -> None:
    count = len(job[1])
    note(f"{job}")

    by_matchers = ran(job, [False] * count, timed=timed)

    assert ran(job, [True] * count, timed=timed) == by_matchers
    assert ran(job, mixed[:count], timed=timed) == by_matchers


turns = st.lists(st.booleans(), min_size=3, max_size=3)


@settings(max_examples=150)
@given(job=jobs(), mixed=turns, timed=st.booleans())
def test_following_gives_what_matchers_give_in_their_order(
    job: tuple[list[PatternProcessor], list[list[dict[str, Any]]]], mixed: list[bool], timed: bool
) -> None:
    check(job, mixed, timed)


@pytest.mark.long
@settings(max_examples=5_000)
@given(job=jobs(), mixed=turns, timed=st.booleans())
def test_following_gives_what_matchers_give_in_their_order_at_length(
    job: tuple[list[PatternProcessor], list[list[dict[str, Any]]]], mixed: list[bool], timed: bool
) -> None:
    check(job, mixed, timed)


def test_a_run_that_began_before_goes_on_and_another_is_over() -> None:
    rule = PatternProcessor(id="r", version=1, pattern=ABC.within("5us"), key=("k",))
    rows = [("a", 1, 0, 1), ("a", 2, 1, 2), ("b", 2, 2, 6), ("b", 1, 3, 6)]
    given_ = [dict(zip(SCHEMA.names, row, strict=True)) for row in rows]

    found = ran(([rule], [given_[:2], given_[2:]]), [True, True], timed=True)

    assert found[3] == [
        ("r", 1, (2,), PatternMatch, (("a", 1), ("b", 2)), 6, 6, 2),
        ("r", 1, (1,), Timeout, (("a", 0),), 6, "`b`", 3),
    ]


def test_each_run_is_given_up_at_the_first_row_behind_its_end() -> None:
    pattern = ABC.followed_by("c").where('n == "c"').within("5us")
    rule = PatternProcessor(id="r", version=1, pattern=pattern, key=("k",))
    names, times = "aacccbc", (0, 2, 4, 5, 7, 8, 9)
    rows = [
        {"n": name, "k": 1, "seq": seq, "t": time}
        for seq, (name, time) in enumerate(zip(names, times, strict=True))
    ]

    found = ran(([rule], [rows]), [True], timed=True)

    assert found[0] == [
        ("r", 1, (1,), Timeout, (("a", 0),), 5, "`b`", 3),
        ("r", 1, (1,), Timeout, (("a", 1),), 7, "`b`", 4),
    ]


A = Pattern.begin("a").where('n == "a"')
LEFT_OUT = [
    A.not_next("x").where(f'n == "{letter}"').next("s").where('n == "b"').optional()
    .next("d").where('n == "d"').next("e").where('n == "e"').within("1h")
    for letter in "cb"
]  # fmt: skip
REMEMBERED = [
    A.followed_by("b").where(f'n == "b"{more}').followed_by("c").where('n == "c"').within("9us")
    for more in (" && last(a.seq) == 1", "")
]
BRANCHED = [
    join(A, "b").where('n == "b"').followed_by("c").where('n == "c"').within("9us")
    for join in (Pattern.followed_by_any, Pattern.followed_by)
]


@pytest.mark.parametrize(
    ("versions", "first", "then", "count"),
    [
        (LEFT_OUT, "ab", "de", 1),
        (REMEMBERED, "aab", "bc", 2),
        (REMEMBERED, "aab", "-" * 9 + "b", 2),
        (BRANCHED, "aab", "bc", 4),
        (BRANCHED, "aab", "-" * 9 + "b", 4),
        (BRANCHED[1:] * 2, "aab", "ac", 2),
    ],
)
def test_runs_taken_over_from_a_version_that_branched_are_reported_as_matchers_report_them(
    versions: list[Pattern], first: str, then: str, count: int
) -> None:
    old, new = (
        PatternProcessor(
            id="r", version=version, pattern=pattern, key=("k",), keep_matches=version > 1
        )
        for version, pattern in enumerate(versions, 1)
    )
    old_set, _ = RuleSet().apply_update([old])
    new_set, _ = old_set.apply_update([new])

    def seen(*, followed: bool) -> list[Any]:
        engine = Engine(KeyedState("runs"))
        found = []
        for window, (rules, names) in enumerate(((old_set, first), (new_set, then))):
            engine.set_rules(rules, window)
            (active,) = engine.active.values()
            assert window == 0 or active.compiled.linear_pattern is not None
            if not followed:
                active.compiled = replace(active.compiled, linear_pattern=None)
            numbers = pa.array(range(window * len(first), window * len(first) + len(names)))
            columns = [pa.array(list(names)), pa.array([1] * len(names)), numbers, numbers]
            batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
            rows = OrderedRows(batch, numbers, pa.array([window] * len(names)), numbers, 0)
            found += [reported(each) for each in engine.process(rows)]
            engine.keys.save()
        return [*found, str(engine.run_states("r"))]

    by_matchers = seen(followed=False)

    assert seen(followed=True) == by_matchers
    assert len(by_matchers) == count + 1
