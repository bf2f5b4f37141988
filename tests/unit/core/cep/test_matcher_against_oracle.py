from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any

import pytest
from hypothesis import example, given, note, settings
from hypothesis import strategies as st

from streambroker_core.cep import Pattern, Skip
from support.patterns.examples import (
    automaton_of,
    inputs,
    oracle_of,
    over,
    patterns,
    remembering,
    run,
    strict,
)
from support.patterns.oracle import lets_through, preferred, words


def check_all(pattern: Pattern, events: list[tuple[str, int]]) -> None:
    automaton = automaton_of(pattern)
    if automaton is None:
        return
    note(f"{pattern}")

    got = Counter(run(automaton, events))

    assert got == Counter(oracle_of(pattern, automaton, events).matches())


@given(pattern=patterns(), events=inputs())
@settings(max_examples=150)
def test_the_matches_are_those_of_all_sub_sequences(
    pattern: Pattern, events: list[tuple[str, int]]
) -> None:
    check_all(pattern, events)


@pytest.mark.long
@given(pattern=patterns(), events=inputs())
@settings(max_examples=20_000)
def test_the_matches_are_those_of_all_sub_sequences_at_length(
    pattern: Pattern, events: list[tuple[str, int]]
) -> None:
    check_all(pattern, events)


skips = st.sampled_from(("skip_to_next", "skip_past_last", "skip_to_first", "skip_to_last"))


def check_skips(pattern: Pattern, strategy: Any, events: list[tuple[str, int]], place: int) -> None:
    tops = [e.name for e in pattern.elements if hasattr(e, "name")]
    if strategy.startswith(("skip_to_first", "skip_to_last")):
        if not tops:
            return
        skip = Skip(strategy=strategy, stage=tops[place % len(tops)])
    else:
        skip = Skip(strategy=strategy)
    pattern = pattern.skipping(skip)
    automaton = automaton_of(pattern)
    if automaton is None or automaton.is_ordered:
        return
    note(f"{pattern}")
    oracle = oracle_of(pattern, automaton, events)
    living = [oracle.living(now) for now in range(len(events))] + [oracle.endless()]

    got = [match for match, _ in run(automaton, events)]

    assert lets_through(pattern, oracle.matches(), living, got)


@example(  # the run of the very first event waits for another "d", so the match behind it waits too
    pattern=Pattern.begin(
        Pattern.begin("s00")
        .where('n == "d"')
        .times(1, 2)
        .allow_combinations()
        .optional()
        .next("s01")
        .where('n == "a"')
    )
    .optional()
    .next("s1")
    .where('n == "a"')
    .optional()
    .within(0),
    strategy="skip_to_next",
    events=[("d", 0), ("b", 0), ("a", 0), ("b", 0)],
    place=0,
)
@given(pattern=patterns(), strategy=skips, events=inputs(), place=st.integers(0, 3))
@settings(max_examples=100)
def test_skips_give_up_what_they_say(
    pattern: Pattern, strategy: Any, events: list[tuple[str, int]], place: int
) -> None:
    check_skips(pattern, strategy, events, place)


@pytest.mark.long
@given(pattern=patterns(), strategy=skips, events=inputs(), place=st.integers(0, 3))
@settings(max_examples=10_000)
def test_skips_give_up_what_they_say_at_length(
    pattern: Pattern, strategy: Any, events: list[tuple[str, int]], place: int
) -> None:
    check_skips(pattern, strategy, events, place)


def check_preferred(pattern: Pattern, strategy: Any, events: list[tuple[str, int]]) -> None:
    pattern = pattern.skipping(Skip(strategy=strategy))
    automaton = automaton_of(pattern)
    if automaton is None or not automaton.is_ordered:
        return
    if len(list(islice(words(pattern, len(events)), 2_001))) > 2_000:
        return  # the oracle would take minutes
    note(f"{pattern}")
    oracle = oracle_of(pattern, automaton, events)

    got = [match for match, _ in run(automaton, [*events, ("", events[-1][1])])]

    assert got == preferred(pattern, oracle.matches(), len(events))


whole = st.sampled_from(("skip_to_next", "skip_past_last"))


@given(pattern=strict(), strategy=whole, events=inputs())
@settings(max_examples=60)
def test_of_alternatives_the_left_one_is_kept_wherever_it_leads_to_a_match(
    pattern: Pattern, strategy: Any, events: list[tuple[str, int]]
) -> None:
    check_preferred(pattern, strategy, events)


@pytest.mark.long
@given(pattern=strict(), strategy=whole, events=inputs())
@settings(max_examples=10_000)
def test_of_alternatives_the_left_one_is_kept_wherever_it_leads_to_a_match_at_length(
    pattern: Pattern, strategy: Any, events: list[tuple[str, int]]
) -> None:
    check_preferred(pattern, strategy, events)


@given(pattern=remembering(), events=inputs())
@settings(max_examples=100)
def test_conditions_on_the_past_see_what_was_taken_and_nothing_else(
    pattern: Pattern, events: list[tuple[str, int]]
) -> None:
    check_all(pattern, events)


@pytest.mark.long
@given(pattern=remembering(), events=inputs())
@settings(max_examples=10_000)
def test_conditions_on_the_past_see_what_was_taken_and_nothing_else_at_length(
    pattern: Pattern, events: list[tuple[str, int]]
) -> None:
    check_all(pattern, events)


def check_timeouts(pattern: Pattern, events: list[tuple[str, int]]) -> None:
    automaton = automaton_of(pattern)
    if automaton is None or any(automaton.time_limits):
        return
    note(f"{pattern}")

    reported = over(automaton, events)

    assert len(reported) == len(set(reported))
    assert set(reported) == oracle_of(pattern, automaton, events).timeouts()


NEVER_TAKEN = 'n == "c"'


@example(  # what no event can follow ends with the next one, though that one matches nothing
    pattern=Pattern.begin("s0")
    .where(NEVER_TAKEN)
    .next("s1")
    .where(NEVER_TAKEN)
    .one_or_more()
    .until(NEVER_TAKEN)
    .within(3),
    events=[("c", 0), ("a", 0)],
)
@given(pattern=st.one_of(patterns(), remembering()), events=inputs())
@settings(max_examples=100)
def test_what_times_out_is_what_could_still_have_become_a_match(
    pattern: Pattern, events: list[tuple[str, int]]
) -> None:
    check_timeouts(pattern, events)


@pytest.mark.long
@given(pattern=st.one_of(patterns(), remembering()), events=inputs())
@settings(max_examples=10_000)
def test_what_times_out_is_what_could_still_have_become_a_match_at_length(
    pattern: Pattern, events: list[tuple[str, int]]
) -> None:
    check_timeouts(pattern, events)
