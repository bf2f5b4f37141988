from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from streambroker_core.cep import (
    ConditionError,
    Pattern,
    PatternArgumentError,
    PatternError,
    PatternUnsupportedError,
    RunError,
    Skip,
    compile_pattern,
)
from streambroker_core.cep.nfa.condition_bits import ConditionBits, RunView
from streambroker_core.cep.nfa.matcher import Matcher, PatternMatch
from streambroker_core.cep.pattern.durations import format_micros, to_microseconds
from streambroker_core.cep.pattern.match_buffer import Event, list_chain
from streambroker_core.cep.pattern.run_limits import RunLimits


def a() -> Pattern:
    return Pattern.begin("a").where('n == "a"')


def ab() -> Pattern:
    return a().followed_by("b").where('n == "b"')


def matcher(pattern: Pattern, **limits: Any) -> Matcher:
    automaton = compile_pattern(pattern)
    return Matcher(automaton, ConditionBits(automaton), RunLimits(**limits))


def feed(given: Pattern | Matcher, text: str, **fields: Any) -> list[PatternMatch]:
    """Give a letter a microsecond, and the matches of all."""
    one = given if isinstance(given, Matcher) else matcher(given)
    found: list[PatternMatch] = []
    for seq, letter in enumerate(text):
        row = {"n": letter, "v": seq, **{name: values[seq] for name, values in fields.items()}}
        found += one.process(Event(seq, seq, row, clock=100 + seq))[0]
    return found


def places(matches: list[PatternMatch]) -> list[str]:
    return [
        " ".join(f"{s}{''.join(str(e.seq) for e in events)}" for s, events in each.events.items())
        for each in matches
    ]


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: a().one_or_more().one_or_more(),
     "Invalid pattern at stage `a`: a quantifier is set twice; set only one."),
    (lambda: a().optional().optional(),
     "Invalid pattern at stage `a`: optional is set twice; once is enough."),
    (lambda: a().one_or_more().greedy().followed_by("b").optional(),
     "Invalid pattern at stage `b`: an optional stage follows a greedy one; remove one of them."),
    (lambda: a().consecutive(),
     "Invalid pattern at stage `a`: consecutive is for stages that are taken several times; write"
     " one_or_more(), times(n) or times_or_more(n) before it."),
    (lambda: a().greedy(),
     "Invalid pattern at stage `a`: greedy is for stages that are taken several times; write"
     " one_or_more(), times(n) or times_or_more(n) before it."),
    (lambda: a().times(2).consecutive().allow_combinations(),
     "Invalid pattern at stage `a`: the inner contiguity is set twice; choose one."),
    (lambda: a().times(2).allow_combinations().greedy(),
     "Invalid pattern at stage `a`: greedy and allow_combinations exclude each other; remove"
     " one."),
    (lambda: a().times(2).greedy().allow_combinations(),
     "Invalid pattern at stage `a`: greedy and allow_combinations exclude each other; remove"
     " one."),
    (lambda: a().times(2).until("v > 1"),
     "Invalid pattern at stage `a`: until is for loops; write one_or_more() or times_or_more(n)"
     " before it."),
    (lambda: a().one_or_more().until("v > 1").until("v > 2"),
     "Invalid pattern at stage `a`: until is set twice; join the two with `||`."),
    (lambda: a().not_next("x").one_or_more(),
     "Invalid pattern at stage `x`: a quantifier is not for negated stages; leave it out."),
    (lambda: a().not_followed_by("x").optional(),
     "Invalid pattern at stage `x`: optional is not for negated stages; leave it out."),
    (lambda: a().followed_by("a"),
     "Invalid pattern at stage `a`: the name is used twice; each stage needs its own name."),
    (lambda: Pattern.begin(ab()).next("b"),
     "Invalid pattern at stage `b`: the name is used twice; each stage needs its own name."),
    (lambda: Pattern.begin("x:y"),
     "Invalid pattern: 'x:y' cannot be a stage's name; a name is not blank and has no `:`."),
    (lambda: Pattern.begin(ab()).where("v > 1"),
     "Invalid pattern: where is not for groups; write the condition on a stage in the group."),
    (lambda: Pattern.begin(ab()).one_or_more().greedy(),
     "Invalid pattern at stage `(a b)`: greedy is not for groups; make a stage in the group"
     " greedy."),
    (lambda: compile_pattern(a().not_followed_by("x").where("v > 1")),
     "Invalid pattern at stage `x`: not_followed_by is the last stage and there is no window; set"
     " with within() the time in which no such event may arrive."),
    (lambda: compile_pattern(ab().within("5s", "previous_and_current").within("2s")),
     "Invalid pattern at stage `b`: the window from the previous event, 5s, is longer than the"
     " window of the whole match, 2s; make it shorter, or leave it out."),
    (lambda: compile_pattern(a().times(2, gap="9s").within("5s")),
     "Invalid pattern at stage `a`: the gap, 9s, is longer than the window of the whole match, 5s;"
     " make it shorter, or leave it out."),
    (lambda: compile_pattern(ab().skipping(Skip(strategy="skip_to_last", stage="c"))),
     "Invalid pattern at stage `c`: skip_to_last names a stage that does not exist; name one of"
     " `a`, `b`."),
    (lambda: compile_pattern(
        Pattern.begin(ab()).next("c").skipping(Skip(strategy="skip_to_last", stage="a"))),
     "Invalid pattern at stage `a`: skip_to_last names a stage in a group; name one of `c`."),
    (lambda: compile_pattern(a().where("v > last(c.v)")),
     "Invalid pattern at stage `a`: `last(c.v)` refers to a stage that does not exist; the stages"
     " are `a`."),
]  # fmt: skip


@pytest.mark.parametrize(("make", "message"), REFUSED, ids=range(len(REFUSED)))
def test_a_pattern_that_contradicts_itself_is_refused_and_says_where(
    make: Callable[[], Any], message: str
) -> None:
    with pytest.raises(PatternError) as caught:
        make()

    assert str(caught.value) == message


@pytest.mark.parametrize(
    "make",
    [
        lambda: a().times(0),
        lambda: a().times(-1, 2),
        lambda: a().times(3, 2),
        lambda: a().times_or_more(0),
        lambda: a().times(1001),
        lambda: a().times(True),
        lambda: a().within(-1),
        lambda: a().within("5 parsecs"),
        lambda: a().within("5s", "last"),  # type: ignore[arg-type]
        lambda: a().where(" "),
        lambda: a().where(5),  # type: ignore[arg-type]
        lambda: Skip(strategy="skip_to_first"),
        lambda: Skip(strategy="skip_to_next", stage="a"),
        lambda: Skip(strategy="all"),  # type: ignore[arg-type]
    ],
)
def test_an_argument_that_cannot_be_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(PatternArgumentError):
        make()


@pytest.mark.parametrize("call", [Pattern.not_next, Pattern.not_followed_by])
def test_a_negated_stage_behind_an_optional_one_is_not_supported(call: Any) -> None:
    with pytest.raises(PatternUnsupportedError, match="write two patterns"):
        call(a().optional(), "x")


CONDITIONS = [
    ("price >", 8, "found the end of the text, expected a name or a value"),
    ("sum(a) > 1", 1, "found `sum(a)`, expected `sum(stage.field)`; write a stage whose name is not"
     ' a word in quotes, as in `count("a b")`'),
    ("count(a.price) > 1", 1, "found `count(a.price)`, expected `count(stage)`"),
    ("v > timestamp(a)", 5, "found `timestamp(a)`, expected `timestamp()`"),
    ("sum(a.v) sum(a.v)", 10, "found `sum(a.v)`, expected an operator"),
    ("\n  total(v) > 1", 8, "found `(`, expected an operator"),
    ("__t0 > 1", 1, "found `__t`, expected a name that does not begin so"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "column", "message"), CONDITIONS)
def test_a_condition_that_cannot_be_read_says_where_and_what(
    text: str, column: int, message: str
) -> None:
    with pytest.raises(ConditionError) as caught:
        Pattern.begin("a").where(text)

    assert caught.value.position["column"] == column
    assert caught.value.code == "ConditionInvalid"
    line = caught.value.position["line"]
    assert str(caught.value).startswith(
        f"Invalid condition at line {line}, column {column}: {message}"
    )


TERMS = [
    ("sum(a.v) == 1", "aab", "a01"),
    ("count(a) == 2", "aaab", "a01"),
    ("avg(a.v) == 0.5", "aab", "a01"),
    ("max(a.v) - min(a.v) == 2", "aaab", "a012"),
    ("first(a.v) == 1 && last(a.v) == 2", "aaab", "a12"),
    ("previous(v) == 2 && count(a) == 1", "aaab", "a2"),
    ("timestamp() == 2 && count(a) == 2", "aab", "a01"),
    ("processing_time() == 102 && count(a) == 2", "aab", "a01"),
    ('count("a") == 2 && sum( a . v ) == 3', "aaab", "a12"),
    ('contains(last(a.n), "a") && count(a) == 2', "aab", "a01"),
]


@pytest.mark.parametrize(("text", "events", "taken"), TERMS)
def test_a_condition_sees_what_its_run_has_taken(text: str, events: str, taken: str) -> None:
    pattern = a().one_or_more().followed_by("b").where(f'n == "b" && {text}')

    assert places(feed(pattern, events))[:1] == [f"{taken} b{len(events) - 1}"]


def test_terms_of_a_stage_that_took_nothing_are_unknown_but_sums_and_counts() -> None:
    pattern = a().optional().followed_by("b")

    for text, answer in (
        ("last(a.v) == 0", False), ("!(last(a.v) == 0)", False), ("has(last(a.v))", False),
        ("sum(a.v) == 0", True), ("count(a) == 0", True), ("avg(a.v) == 0", False),
        ("has(previous(v))", False),
    ):  # fmt: skip
        assert bool(feed(pattern.where(text), "b")) == answer, text


def test_a_term_compared_with_a_number_follows_the_types_of_the_language() -> None:
    for value, text, answer in (
        ("x", "last(a.other) == 1", False), ("x", "last(a.other) != 1", False),
        (True, "last(a.other) == 1", False), (True, "last(a.other) != 1", False),
        (None, "last(a.other) != 1", False), (1.0, "last(a.other) == 1", True),
        (2, "last(a.other) >= 1.5", True), (float("nan"), "last(a.other) != 1", True),
    ):  # fmt: skip
        pattern = a().followed_by("b").where(text)
        found = feed(pattern, "ab", other=[value, 0])
        assert bool(found) == answer, (value, text)
        swapped = a().followed_by("b").where(f"!(!({text}))")
        assert bool(feed(swapped, "ab", other=[value, 0])) == answer, (value, text)


def test_a_sum_beyond_int64_is_unknown() -> None:
    pattern = a().times(2).followed_by("b").where("sum(a.big) > 0")

    assert feed(pattern, "aab", big=[1, 2, 0])
    assert not feed(pattern, "aab", big=[2**63 - 1, 2, 0])


def test_conditions_join_from_left_to_right() -> None:
    pattern = Pattern.begin("a").where('n == "a"').or_('n == "b"').where("v > 0").subtype("x")
    (stage,) = pattern.stages()

    assert str(stage.condition) == '(n == "a" || n == "b") && v > 0 && type == "x"'


def test_a_function_is_given_the_row_and_the_run() -> None:
    seen = []

    def bigger(row: Any, run: RunView) -> bool:
        seen.append((row["v"], [each["v"] for each in run.events("a")], run.timestamp))
        return len(run.events("a")) == 2

    pattern = a().one_or_more().followed_by("b").where('n == "b"').where(bigger)

    assert places(feed(pattern, "aab")) == ["a01 b2"]
    assert (2, [0, 1], 2) in seen


def test_functions_and_texts_can_be_joined() -> None:
    pattern = a().where(lambda row, run: row["v"] > 0).or_('n == "c"')

    assert places(feed(pattern, "aac")) == ["a1", "a2"]


def test_a_function_that_raises_stops_the_rule_and_is_named() -> None:
    def wrong(row: Any, run: Any) -> bool:
        raise KeyError("price")

    with pytest.raises(RunError) as caught:
        feed(a().where(wrong), "a")

    assert str(caught.value) == (
        "The rule stopped at condition `function wrong`: it raised KeyError: 'price'."
    )


def test_what_is_not_true_is_false() -> None:
    assert not feed(a().where(lambda row, run: 1), "a")  # type: ignore[arg-type, return-value]
    assert not feed(a().where("missing == 1"), "a")


@pytest.mark.parametrize(
    ("given", "expected"),
    [("10s", 10_000_000), (1.5, 1_500_000), (timedelta(minutes=2), 120_000_000), ("7us", 7),
     ("1.5ms", 1500), (0, 0)],
)  # fmt: skip
def test_durations(given: Any, expected: int) -> None:
    assert to_microseconds(given) == expected
    assert to_microseconds(format_micros(expected)) == expected


def test_the_least_window_counts_and_0_is_none() -> None:
    assert compile_pattern(a().within(10).next("b").within(5)).window == 5_000_000
    assert compile_pattern(a().within(10).next("b").within(0)).window == 0


def test_what_is_hardly_meant_is_warned_of() -> None:
    held = compile_pattern(ab().skipping(Skip(strategy="skip_past_last")))
    ignored = compile_pattern(a().times(2).within(5, "previous_and_current"))

    assert any("waits for every earlier run" in each for each in held.warnings)
    assert any("give the quantifier a gap" in each for each in ignored.warnings)
    between = a().not_followed_by("x").within(5, "previous_and_current").followed_by("b")
    assert any("set it on that stage" in each for each in compile_pattern(between).warnings)
    last = a().not_followed_by("x").within(5, "previous_and_current")
    assert not any("set it on that stage" in each for each in compile_pattern(last).warnings)
    assert compile_pattern(ab().within(5)).warnings == ()


def test_only_a_pattern_whose_runs_can_wait_is_warned_that_it_has_no_window() -> None:
    one, group = Pattern.begin("a"), Pattern.begin("a").times(2)

    assert compile_pattern(one.skipping(Skip(strategy="skip_past_last"))).warnings == ()
    assert compile_pattern(Pattern.begin(one)).warnings == ()
    for waiting in (ab(), one.one_or_more(), group, Pattern.begin(group), Pattern.begin(ab())):
        assert any("no window" in each for each in compile_pattern(waiting).warnings)


def test_a_skip_without_its_stage_fails_only_where_asked() -> None:
    pattern = a().optional().next("b").where('n == "b"')

    def skip(**fields: Any) -> Pattern:
        return pattern.skipping(Skip(strategy="skip_to_first", stage="a", **fields))

    assert places(feed(skip(), "b")) == ["b0"]
    with pytest.raises(RunError, match="stage `a` took no event of the match"):
        feed(skip(throw_on_miss=True), "b")
    with pytest.raises(RunError, match="the match's own first event, so the skip would not end"):
        feed(skip(throw_on_miss=True), "ab")


def test_limits_drop_the_oldest_runs_refuse_new_ones_or_fail() -> None:
    oldest, refusing = matcher(ab(), runs=2), matcher(ab(), runs=2, policy="refuse")

    assert places(feed(oldest, "aaab")) == ["a1 b3", "a2 b3"]
    assert places(feed(refusing, "aaab")) == ["a0 b3", "a1 b3"]
    assert (oldest.dropped, refusing.dropped) == (1, 1)
    with pytest.raises(RunError, match="one key has 3 runs, at most 2 are allowed"):
        feed(matcher(ab(), runs=2, policy="fail"), "aaa")


def test_runs_with_a_common_past_share_it() -> None:
    one = matcher(a().one_or_more().allow_combinations().followed_by("b").where('n == "b"'))
    feed(one, "aaa")

    nodes = {id(node) for run in one.runs for node in list_chain(run.node)}
    assert len(one.runs) > 7
    assert len(nodes) == 7  # one for each non-empty sub-sequence of three


def test_an_event_that_nothing_can_use_any_more_is_not_kept() -> None:
    one = matcher(ab().next("c").where('n == "c"'))

    feed(one, "abx")

    assert one.runs == []


def test_timed_out_runs_say_what_they_waited_for() -> None:
    one = matcher(ab().within("5us"))
    one.process(Event(0, 0, {"n": "a"}))

    assert one.advance(4) == ([], [])
    _, (timeout,) = one.advance(5)

    assert (timeout.time, timeout.waited) == (5, "`b`")
    assert one.runs == []


@pytest.mark.parametrize("start", [0, -5])
def test_times_that_are_not_positive_time_out_too(start: int) -> None:
    one = matcher(ab().within("5us", "previous_and_current"))
    one.process(Event(0, start, {"n": "a"}))

    _, (timeout,) = one.advance(start + 5)

    assert timeout.time == start + 5


def test_a_negated_end_is_a_match_when_its_window_ends_and_says_both_times() -> None:
    one = matcher(a().not_followed_by("b").where('n == "b"').within("5us"))
    one.process(Event(0, 1, {"n": "a"}))

    (match,), _ = one.advance(9)

    assert (match.time, match.noticed) == (6, 9)


def held() -> Matcher:
    """Return a matcher in which a run that began later has matched first."""
    pattern = (
        Pattern.begin("x", skip=Skip(strategy="skip_past_last")).where('n == "a" || n == "b"')
        .followed_by("y").where('n == "d" || (n == "c" && last(x.n) == "b")').within("9us")
    )  # fmt: skip
    one = matcher(pattern)
    assert feed(one, "abc") == []
    return one


def test_a_match_waits_for_runs_that_began_earlier_and_goes_if_they_give_it_up() -> None:
    matches, _ = held().process(Event(3, 3, {"n": "d"}))

    assert places(matches) == ["x0 y3"]


def test_a_match_that_waits_comes_when_the_time_of_the_earlier_run_is_over() -> None:
    matches, timeouts = held().advance(9)

    assert places(matches) == ["x1 y2"]
    assert len(timeouts) == 1


def test_a_gap_that_is_over_ends_taking_and_not_what_may_follow() -> None:
    one = matcher(a().one_or_more(gap="3us").followed_by("b").where('n == "b"'))
    found: list[PatternMatch] = []
    for seq, (time, name) in enumerate([(0, "a"), (2, "a"), (5, "a"), (9, "b")]):
        found += one.process(Event(seq, time, {"n": name}))[0]

    assert sorted(places(found)) == ["a0 b3", "a01 b3", "a1 b3", "a2 b3"]


@pytest.mark.parametrize("inner", [lambda p: p, Pattern.allow_combinations])
def test_a_loop_cannot_pass_over_what_ends_it(inner: Callable[[Pattern], Pattern]) -> None:
    pattern = inner(a().one_or_more()).until('n == "x"').followed_by("b").where('n == "b"')

    assert sorted(places(feed(pattern, "axab"))) == ["a0 b3", "a2 b3"]
