from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streambroker_core.cep import Pattern, Skip, compile_pattern
from streambroker_core.cep.engine.trace import dry_run, list_run_states
from streambroker_core.cep.nfa.condition_bits import ConditionBits
from streambroker_core.cep.nfa.matcher import Matcher, PatternMatch
from streambroker_core.cep.nfa.snapshot import read, write
from streambroker_core.cep.pattern.match_buffer import Event, list_chain
from streambroker_core.cep.pattern.run_limits import RunLimits
from streambroker_core.control.operators.operator import StateError
from support.patterns.examples import END, automaton_of, inputs, pairs, patterns

RULE = ("r", 1)


@settings(max_examples=100)
@given(
    pattern=patterns(),
    events=inputs(),
    strategy=st.sampled_from(("no_skip", "skip_to_next", "skip_past_last")),
    cut=st.integers(0, 6),
)
def test_runs_go_on_from_bytes_as_if_nothing_had_been(
    pattern: Pattern, events: list[tuple[str, int]], strategy: Any, cut: int
) -> None:
    automaton = automaton_of(pattern.skipping(Skip(strategy=strategy)))
    if automaton is None:
        return
    truths = ConditionBits(automaton)

    def new(rule: Any = RULE) -> Matcher:
        return Matcher(automaton, truths, RunLimits(runs=None))

    plain, stored = new(), new()
    for seq, (name, time) in enumerate(events):
        event = Event(seq, time, {"n": name})
        if seq == cut:
            blob = write({RULE: stored})
            stored = new() if blob is None else read(blob, new).matchers[RULE]
            assert blob == write({RULE: plain})
        one, two = plain.process(event), stored.process(event)
        assert timed(one[0]) == timed(two[0])
        assert [each.time for each in one[1]] == [each.time for each in two[1]]

    assert timed(plain.advance(END)[0]) == timed(stored.advance(END)[0])


def timed(matches: list[PatternMatch]) -> list[Any]:
    return [(pairs(match), match.time) for match in matches]


def loaded(text: str) -> Matcher:
    pattern = Pattern.begin("a").where('n == "a"').one_or_more().followed_by("b").where('n == "b"')
    automaton = compile_pattern(pattern.within("100us"))
    matcher = Matcher(automaton, ConditionBits(automaton))
    for seq, name in enumerate(text):
        matcher.process(Event(seq, seq, {"n": name, "payload": "x" * 100}))
    return matcher


def test_an_event_that_many_runs_hold_is_written_once() -> None:
    matcher = loaded("a" * 10)
    blob = write({RULE: matcher})

    assert blob is not None
    assert len(matcher.runs) > 50
    assert blob.count(b"x" * 100) == 10
    assert len(blob) < 10 * 120 + len(matcher.runs) * 12


def test_events_come_back_with_all_that_they_had() -> None:
    pattern = Pattern.begin("a").where('n == "a"').one_or_more().followed_by("b").where('n == "b"')
    automaton = compile_pattern(pattern)
    matcher = Matcher(automaton, ConditionBits(automaton))
    given: list[tuple[int, int, dict[str, Any], int]] = [
        (3, -7, {"n": "a", "more": [1, None], "much": Decimal("1.50")}, 90),
        (5, 2**60, {"n": "a", "more": None, "much": datetime(2013, 1, 1, tzinfo=UTC)}, 91),
        (9, 2**60 + 1, {"n": "a", "more": [], "much": float("inf")}, 91),
    ]
    for event in given:
        matcher.process(Event(*event))
    blob = write({RULE: matcher})
    assert blob is not None

    runs = read(blob, lambda rule: Matcher(automaton, ConditionBits(automaton))).matchers[RULE].runs

    found = {node.event.seq: node.event for run in runs for node in list_chain(run.node)}
    assert [(e.seq, e.time, e.row, e.clock) for e in found.values()] == given
    assert [(run.state, run.start, run.began) for run in runs] == [
        (run.state, run.start, run.began) for run in matcher.runs
    ]


def test_a_key_without_runs_has_no_bytes() -> None:
    assert write({RULE: loaded("xxx")}) is None


def test_runs_of_a_rule_that_is_gone_are_left_out() -> None:
    blob = write({RULE: loaded("a")})
    assert blob is not None

    assert read(blob, lambda rule: None) == ({}, [], [RULE])


def test_only_a_key_whose_matches_are_numbered_keeps_their_number_in_the_newer_form() -> None:
    automaton = compile_pattern(Pattern.begin("a").where('n == "a"').next("b").where('n == "b"'))
    truths = ConditionBits(automaton)

    def new(rule: Any = RULE) -> Matcher:
        return Matcher(automaton, truths, numbered=True)

    matcher, plain = new(), Matcher(automaton, truths)
    for seq, name in enumerate("abab"):
        matcher.process(Event(seq, seq, {"n": name}))
        plain.process(Event(seq, seq, {"n": name}))
    blob = write({RULE: matcher})

    assert (matcher.runs, write({RULE: plain})) == ([], None)
    assert blob == b'[2,[],[],[],[["r",1,[],[],2]]]'
    matcher = read(blob, new).matchers[RULE]
    matcher.process(Event(4, 4, {"n": "a"}))
    first, _ = matcher.process(Event(5, 5, {"n": "b"}))
    assert [match.number for match in first] == [3]
    fresh = new()
    fresh.process(Event(0, 0, {"n": "a"}))
    assert (write({RULE: fresh}) or b"").startswith(b"[1,")


def test_a_match_that_waits_has_the_time_of_the_event_that_completed_it() -> None:
    pattern = (
        Pattern.begin(Pattern.begin("a").where('n == "a"')).times(2).optional()
        .next("d").where('n == "d"').not_next("b").where('n == "b"')
    )  # fmt: skip
    automaton = compile_pattern(pattern.within(1).skipping(Skip(strategy="skip_to_next")))
    truths = ConditionBits(automaton)
    matcher = Matcher(automaton, truths)
    for seq, name in enumerate("adc"):
        assert matcher.process(Event(seq, 10 * seq, {"n": name})) == ([], [])
    blob = write({RULE: matcher})
    assert blob is not None

    restored = read(blob, lambda rule: Matcher(automaton, truths)).matchers[RULE]
    old = read(b"[1" + blob[2:].replace(b",0,[20]]", b"]"), lambda rule: Matcher(automaton, truths))

    assert blob.startswith(b"[3,")
    for each, time in ((matcher, 20), (restored, 20), (old.matchers[RULE], 10)):
        (match,), _ = each.advance(END)
        assert ([event.seq for event in match.events["d"]], match.time) == ([1], time)


@pytest.mark.compatibility(
    "runs of patterns",
    "a newer form is refused by name",
)
def test_bytes_of_a_newer_release_or_damaged_ones_are_refused() -> None:
    blob = write({RULE: loaded("aa")})
    assert blob is not None

    with pytest.raises(StateError, match="form 5, of a newer release"):
        read(b"[5" + blob[2:], lambda rule: loaded(""))
    for size in range(1, len(blob)):
        with pytest.raises(StateError, match="damaged"):
            read(blob[:size], lambda rule: loaded(""))
    with pytest.raises(StateError, match="damaged: more than one value"):
        read(blob + b" ", lambda rule: loaded(""))


def test_explain_says_where_each_run_stands() -> None:
    assert [str(each) for each in list_run_states(loaded("ax"))] == [
        'taken: a 1; waits for more `a` (`a`: n == "a")',
        'taken: a 1; waits for `b` (`b`: n == "b")',
    ]
    assert {each.ends_at for each in list_run_states(loaded("ax"))} == {100}


def test_a_dry_run_says_what_each_event_did_and_what_is_left() -> None:
    pattern = Pattern.begin("a").where('n == "a"').next("b").where('n == "b"')
    rows = [{"t": t, "n": n, "k": k} for t, n, k in ((3, "b", 1), (1, "a", 1), (2, "a", 2),
                                                     (4, "x", 2), (5, "a", 1))]  # fmt: skip

    run = dry_run(pattern, rows, time="t", key=("k",))

    assert [(key, pairs(match)) for key, match in run.matches] == [((1,), (("a", 0), ("b", 2)))]
    assert [(seen.key[0], seen.began, seen.took, seen.ended) for seen in run.seen] == [
        (1, True, (0,), ()),
        (2, True, (1,), ()),
        (1, False, (0,), ()),
        (2, False, (), (1,)),
        (1, True, (4,), ()),
    ]
    assert [seen.holds for seen in run.seen][:3] == [('n == "a"',), ('n == "a"',), ('n == "b"',)]
    assert run.most_runs == 1
    assert [str(each) for each in run.left[(1,)]] == ['taken: a 1; waits for `b` (`b`: n == "b")']


def test_a_match_that_waits_for_an_earlier_run_goes_on_waiting_from_bytes() -> None:
    pattern = (
        Pattern.begin("x", skip=Skip(strategy="skip_past_last")).where('n == "a" || n == "b"')
        .followed_by("y").where('n == "c" && last(x.n) == "b"').within("9us")
    )  # fmt: skip
    automaton = compile_pattern(pattern)
    matcher = Matcher(automaton, ConditionBits(automaton))
    for seq, name in enumerate("abc"):
        matcher.process(Event(seq, seq, {"n": name}))
    blob = write({RULE: matcher})
    assert blob is not None

    again = read(blob, lambda rule: Matcher(automaton, ConditionBits(automaton))).matchers[RULE]

    assert [pairs(match) for match in again.advance(9)[0]] == [(("x", 1), ("y", 2))]
