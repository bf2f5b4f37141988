"""Patterns over events of a few letters, drawn at random, and what matchers make of them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from streambroker_core.cep import Pattern, PatternError, compile_pattern
from streambroker_core.cep.engine.engine import Engine
from streambroker_core.cep.engine.row_view import OrderedRows
from streambroker_core.cep.nfa.condition_bits import ConditionBits
from streambroker_core.cep.nfa.matcher import Matcher, PatternMatch, Timeout
from streambroker_core.cep.nfa.nfa import Nfa
from streambroker_core.cep.pattern.conditions import to_condition
from streambroker_core.cep.pattern.match_buffer import Event, Term
from streambroker_core.cep.pattern.pattern import NEGATED, PatternStage
from streambroker_core.cep.pattern.rule import PatternProcessor
from streambroker_core.cep.pattern.run_limits import RunLimits
from streambroker_core.cep.rules.rule_set import RuleSet
from streambroker_core.control.operators.keyed_state import KeyedState
from support.patterns.oracle import Oracle, Past

LETTERS = "abcd"
END = 2**62
Pairs = tuple[tuple[str, int], ...]


def one_of(letters: str) -> str:
    return " || ".join(f'n == "{letter}"' for letter in letters)


letters = st.sets(st.sampled_from(LETTERS), min_size=1, max_size=2).map(
    lambda s: "".join(sorted(s))
)


several = st.sets(st.sampled_from(LETTERS), min_size=2, max_size=3).map(
    lambda s: "".join(sorted(s))
)


@st.composite
def quantified(draw: Any, pattern: Pattern, *, group: bool) -> Pattern:
    kind = draw(st.sampled_from(("one", "one", "times", "range", "more")))
    gap = draw(st.sampled_from((0, 0, 0, 2, 3))) if not group else 0
    gaps: dict[str, Any] = {draw(st.sampled_from(("gap", "gap_between"))): f"{gap}us"}
    if kind == "times":
        pattern = pattern.times(draw(st.integers(1, 2)), **gaps)
    elif kind == "range":
        low = draw(st.integers(1, 2))
        pattern = pattern.times(low, low + draw(st.integers(1, 2)), **gaps)
    elif kind == "more":
        pattern = pattern.times_or_more(draw(st.integers(1, 2)), **gaps)
    if kind != "one":
        inner = draw(st.sampled_from(("relaxed", "strict", "combinations")))
        if inner != "relaxed":
            pattern = pattern.consecutive() if inner == "strict" else pattern.allow_combinations()
        if not group and inner != "combinations" and draw(st.booleans()):
            pattern = pattern.greedy()
    if kind == "more" and draw(st.integers(0, 2)) == 0:
        pattern = pattern.until(one_of(draw(letters)))
    if draw(st.integers(0, 3)) == 0:
        with suppress(PatternError):
            pattern = pattern.optional()
    return pattern


@st.composite
def alike(draw: Any) -> list[Pattern]:
    """Draw patterns that differ in nothing but the letters of their stages."""
    stages, window = draw(st.integers(2, 3)), draw(st.sampled_from((0, 2, 4, 9)))
    negated = draw(st.booleans())

    def pattern() -> Pattern:
        made = Pattern.begin("s0").where(one_of(draw(letters)))
        for place in range(1, stages):
            if negated and place == 1:
                made = made.not_followed_by("x").where(one_of(draw(letters)))
            made = made.followed_by(f"s{place}").where(one_of(draw(letters)))
        return made.within(f"{window}us")

    return [pattern() for _ in range(draw(st.integers(2, 6)))]


@st.composite
def groups(draw: Any, name: str) -> Pattern:
    pattern = Pattern.begin(f"{name}0").where(one_of(draw(letters)))
    pattern = draw(quantified(pattern, group=False))
    if draw(st.integers(0, 3)) == 0:
        with suppress(PatternError):
            pattern = pattern.not_followed_by(f"{name}x").where(one_of(draw(letters)))
    join = draw(st.sampled_from((Pattern.next, Pattern.followed_by, Pattern.followed_by_any)))
    return join(pattern, f"{name}1").where(one_of(draw(letters)))  # type: ignore[no-any-return]


@st.composite
def alternatives(draw: Any, name: str) -> Pattern:
    """Return two or three alternatives, whose stages have the same names."""
    single = letters.map(lambda some: Pattern.begin(f"{name}0").where(one_of(some)))
    some = draw(st.lists(st.one_of(single, groups(name)), min_size=2, max_size=3))
    return Pattern.either(*some)


@st.composite
def strict(draw: Any, name: str = "s", depth: int = 1) -> Pattern:
    """Return a pattern of SQL's kind: events follow each other, and nothing is negated."""
    pattern: Pattern | None = None
    for place in range(draw(st.integers(1, 2 + depth))):
        own = f"{name}{place}"
        kinds = ("stage", "loop", "greedy", "either", "either") if depth else ("stage",)
        kind = draw(st.sampled_from(kinds))
        added: str | Pattern = own
        if kind == "either":
            inner = strict(f"{own}.", depth - 1)
            added = Pattern.either(*draw(st.lists(inner, min_size=2, max_size=3)))
        pattern = Pattern.begin(added) if pattern is None else pattern.next(added)
        if kind != "either":
            pattern = pattern.where(one_of(draw(several)))
        if kind == "greedy":
            pattern = pattern.one_or_more().consecutive().greedy()
            pattern = pattern.next(f"{own}after").where(one_of(draw(several)))
        elif kind == "loop" or draw(st.booleans()):
            low = draw(st.integers(1, 2))
            high = draw(st.sampled_from((low, low + 1, None)))
            pattern = pattern.times_or_more(low) if high is None else pattern.times(low, high)
            pattern = pattern.consecutive()
        elif draw(st.booleans()):
            pattern = pattern.optional()
    assert pattern is not None
    return pattern


@st.composite
def patterns(draw: Any) -> Pattern:
    size = draw(st.integers(1, 3))
    pattern: Pattern | None = None
    for place in range(size):
        name = f"s{place}"
        group = draw(st.integers(0, 4)) == 0
        inner = groups(name) if draw(st.booleans()) else alternatives(name)
        if pattern is None:
            pattern = Pattern.begin(draw(inner) if group else name)
        else:
            negation = draw(st.sampled_from((None, None, None, "not_next", "not_followed_by")))
            if negation is not None:
                with suppress(PatternError):
                    pattern = getattr(pattern, negation)(f"x{place}").where(one_of(draw(letters)))
            group = group and not pattern.elements[-1].quantifier.greedy
            join = draw(st.sampled_from(("next", "followed_by", "followed_by_any")))
            pattern = getattr(pattern, join)(draw(inner) if group else name)
        assert pattern is not None
        if not group:
            pattern = pattern.where(one_of(draw(letters)))
        after_not = len(pattern.elements) > 1 and pattern.elements[-2].contiguity == "not_next"
        pattern = draw(quantified(pattern, group=group))
        if after_not and pattern.elements[-1].quantifier.optional:
            pattern = Pattern(pattern.elements[:-1], pattern.skip)
            pattern = pattern.followed_by(name).where(one_of(draw(letters)))
        if not group and draw(st.integers(0, 5)) == 0:
            pattern = pattern.within(f"{draw(st.integers(1, 4))}us", "previous_and_current")
    assert pattern is not None
    whole: Pattern = draw(ended(pattern))
    return whole


@st.composite
def remembering(draw: Any) -> Pattern:
    """Return a pattern some of whose stages ask what was taken before."""
    pattern: Pattern = draw(patterns())
    elements = list(pattern.elements)
    names = [one.name for one in elements if isinstance(one, PatternStage)]
    for place, element in enumerate(elements):
        if isinstance(element, PatternStage) and names and draw(st.booleans()):
            stage = draw(st.sampled_from(names))
            function = draw(st.sampled_from(("sum", "count", "min", "max", "first", "last", "avg")))
            term = f"{function}({stage})" if function == "count" else f"{function}({stage}.v)"
            nth = (
                f"{draw(st.sampled_from(('first', 'last')))}({stage}.v, {draw(st.integers(1, 2))})"
            )
            tested = term.replace(")", ", tested)")
            term = draw(st.sampled_from((term, "previous(v)", nth, tested)))
            word = draw(st.sampled_from(("<", ">=", "==", "!=")))
            text = f"{term} {word} {draw(st.integers(0, 4))}"
            text = draw(st.sampled_from((text, f"!({text})", f"{text} + v")))
            known = str(element.condition)
            elements[place] = replace(element, condition=to_condition(f"({known}) && {text}"))
    return Pattern(tuple(elements), pattern.skip)


@st.composite
def ended(draw: Any, pattern: Pattern) -> Pattern:
    window = draw(st.sampled_from((0, 0, 3, 5, 8)))
    last = draw(st.sampled_from((None, None, None, "not_next", "not_followed_by")))
    if last is not None and (last == "not_next" or window):
        with suppress(PatternError):
            pattern = getattr(pattern, last)("xlast").where(one_of(draw(letters)))
    return pattern.within(f"{window}us")


@st.composite
def inputs(draw: Any) -> list[tuple[str, int]]:
    names = draw(st.text(LETTERS, min_size=1, max_size=6))
    steps = draw(st.lists(st.integers(0, 2), min_size=len(names), max_size=len(names)))
    times = [sum(steps[: place + 1]) for place in range(len(names))]
    return list(zip(names, times, strict=True))


def automaton_of(pattern: Pattern) -> Nfa | None:
    """Return the automaton; None where there is none, or where the oracle has no opinion."""
    positive = [each for each in pattern.elements if each.contiguity not in NEGATED]
    for before, element in pairwise(positive):
        if before.quantifier.greedy and element.quantifier.optional:
            return None
    try:
        return compile_pattern(pattern)
    except PatternError:
        return None


def run(automaton: Nfa, events: list[tuple[str, int]]) -> list[tuple[Pairs, int]]:
    matcher = Matcher(automaton, ConditionBits(automaton), RunLimits(runs=None))
    found: list[tuple[Pairs, int]] = []
    for seq, (name, time) in enumerate(events):
        matches, _ = matcher.process(Event(seq, time, {"n": name, "v": seq}))
        found += [(pairs(match), seq) for match in matches]
    matches, _ = matcher.advance(END)
    return found + [(pairs(match), len(events)) for match in matches]


def answer(term: Term, past: Past, tested: int) -> Any:
    """Return what a term asks of the past, by going through all of it; ``v`` is the number."""
    values = [number for stage, number in past if stage == term.stage]
    values += [tested] * term.tested
    if term.function == "previous":
        return past[-1][1] if past else None
    some: dict[str, Any] = {
        "min": min(values, default=None),
        "max": max(values, default=None),
        "first": next(iter(values[term.offset :]), None),
        "last": next(iter(values[::-1][term.offset :]), None),
        "avg": sum(values) / len(values) if values else None,
        "sum": sum(values),
        "count": len(values),
    }
    return some[term.function]


def over(automaton: Nfa, events: list[tuple[str, int]]) -> list[tuple[Pairs, int]]:
    """Return the timed-out partial matches that a rule's matcher tells, and their times."""
    rule = PatternProcessor(id="r", version=1, pattern=automaton.pattern)
    rules, _ = RuleSet().apply_update([rule])
    engine = Engine(KeyedState("runs"))
    engine.set_rules(rules, 0)
    schema = pa.schema([("n", pa.string()), ("v", pa.int64()), ("t", pa.int64())])
    given = [{"n": name, "v": seq, "t": time} for seq, (name, time) in enumerate(events)]
    batch = pa.RecordBatch.from_pylist(given, schema)
    numbers = batch.column("v")
    rows = OrderedRows(batch, batch.column("t"), pa.repeat(pa.scalar(0), len(given)), numbers, 0)
    results = [*engine.process(rows), *engine.advance(END)]
    timeouts = [each.outcome for each in results if isinstance(each.outcome, Timeout)]
    return [(pairs(one), one.time) for one in timeouts]


def pairs(match: PatternMatch | Timeout) -> Pairs:
    taken = [(stage, event.seq) for stage, events in match.events.items() for event in events]
    return tuple(sorted(taken, key=lambda pair: pair[1]))


def oracle_of(pattern: Pattern, automaton: Nfa, events: list[tuple[str, int]]) -> Oracle:
    def holds(condition: Any, number: int, past: Past) -> bool:
        if number >= len(events):
            return False
        terms = {name: answer(term, past, number) for name, term in condition.terms}
        return bool(condition.expression.matches({"n": events[number][0], "v": number, **terms}))

    return Oracle(pattern, holds, [time for _, time in events], automaton.window)
