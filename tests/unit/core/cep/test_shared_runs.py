"""Rules that differ only in conditions share runs, with the results that each has alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streambroker_core.cep import Pattern
from streambroker_core.cep.engine.active_rule import RuleResult
from streambroker_core.cep.engine.engine import Engine
from streambroker_core.cep.engine.key_store import KeyRuns, encode_key
from streambroker_core.cep.engine.row_view import OrderedRows
from streambroker_core.cep.nfa.matcher import PatternMatch
from streambroker_core.cep.pattern.rule import PatternProcessor
from streambroker_core.cep.pattern.run_limits import RunLimits
from streambroker_core.cep.rules.rule_set import RuleSet
from streambroker_core.control.operators.keyed_state import KeyedState
from support.patterns.examples import END, LETTERS, alike, pairs

SCHEMA = pa.schema([("n", pa.string()), ("k", pa.int64()), ("seq", pa.int64()), ("t", pa.int64())])


class Life:
    """An engine and its rules in the hands of an operator; `shared` allows rules to share runs."""

    def __init__(self, patterns: list[Pattern], *, shared: bool) -> None:
        self.patterns, self.shared = patterns, shared
        self.time = self.seq = self.window = 0
        self.state, self.rules = KeyedState("runs"), RuleSet()
        self.engine = Engine(self.state, key=("k",))
        self.update([self.rule(f"r{n}", 1, pattern) for n, pattern in enumerate(patterns)])

    @staticmethod
    def rule(name: str, version: int, pattern: Pattern, **more: Any) -> PatternProcessor:
        return PatternProcessor(id=name, version=version, pattern=pattern, **more)

    def update(self, wanted: list[PatternProcessor]) -> None:
        self.rules, _ = self.rules.apply_update(wanted)
        self.window += 1
        self._put()

    def _put(self) -> None:
        self.engine.set_rules(self.rules, self.window)
        if not self.shared:
            for active in self.engine.active.values():
                active.compiled = replace(active.compiled, linear_pattern=None)

    def rows(self, *given_: tuple[str, int, int]) -> list[Any]:
        """Process rows, each a letter, a key and the time since the row before."""
        batch: list[dict[str, Any]] = []
        for name, key, later in given_:
            self.time += later
            batch.append({"n": name, "k": key, "seq": self.seq, "t": self.time})
            self.seq += 1
        found: list[Any] = []
        for at in self.engine.handover_times(self.time):
            earlier = [row for row in batch if row["t"] < at]
            found += self._process(earlier) + ordered(self.engine.hand_over(at))
            batch = batch[len(earlier) :]
        return found + self._process(batch)

    def _process(self, batch: list[dict[str, Any]]) -> list[Any]:
        columns = pa.RecordBatch.from_pylist(batch, SCHEMA)
        windows = pa.repeat(pa.scalar(self.window), len(batch))
        rows = OrderedRows(columns, columns["t"], windows, columns["seq"], 0)
        return [reported(each) for each in self.engine.process(rows)]

    def advance(self, later: int) -> list[Any]:
        self.time += later
        found = self.engine.advance(self.time)
        self.rules = self.rules.without_expired(self.time)
        return ordered(found)

    def step(self, kind: str, *more: Any) -> list[Any]:
        match kind:
            case "rows":
                return self.rows(*more)
            case "advance":
                return self.advance(*more)
            case "remove":
                self.update([rule for rule in self.rules if rule.id != f"r{more[0]}"])
            case "replace":
                name, pattern, keep, later = f"r{more[0]}", *more[1:]
                now = [rule for rule in self.rules if rule.id == name]
                version = now[-1].version + 1 if now else 1
                at = None if later is None or not now else self.time + later
                new = self.rule(
                    name,
                    version,
                    self.patterns[pattern % len(self.patterns)],
                    keep_matches=keep,
                    scheduled=at,
                )
                others = [rule for rule in self.rules if at is not None or rule.id != name]
                self.update([*others, new])
            case "switch":
                name = f"r{more[0]}"
                off = [one for one in self.rules.disabled if one[0] == name]
                on = [rule for rule in self.rules if rule.id == name]
                if off:
                    self.rules = self.rules.with_enabled(name)
                elif on:
                    self.rules = self.rules.with_disabled(name, on[0].version)
                self.window += 1
                self._put()
            case "save":
                self.engine.keys.save()
            case "restart":
                self.engine.keys.save()
                self.engine = Engine(self.state, key=("k",))
                self._put()
        return []

    def at(self, key: int) -> KeyRuns:
        return self.engine.keys.runs_of(encode_key(("k",), (key,)))


def reported(result: RuleResult) -> tuple[Any, ...]:
    out = result.outcome
    assert not isinstance(out, Exception)
    known = out.noticed if isinstance(out, PatternMatch) else out.waited
    return (*result[:3], type(out).__name__, pairs(out), out.time, known, result.trigger)


def ordered(results: list[RuleResult]) -> list[Any]:
    """Return what time caused by rule and key, as no order of these is promised."""
    return sorted(map(reported, results), key=lambda each: each[:3])


some_rows = st.lists(
    st.tuples(st.sampled_from(LETTERS), st.integers(0, 1), st.integers(1, 2)),
    min_size=1,
    max_size=8,
)
steps = st.one_of(
    some_rows.map(lambda rows: ("rows", *rows)),
    some_rows.map(lambda rows: ("rows", *rows)),
    st.tuples(st.just("advance"), st.integers(1, 4)),
    st.tuples(st.just("remove"), st.integers(0, 5)),
    st.tuples(
        st.just("replace"),
        st.integers(0, 5),
        st.integers(0, 5),
        st.booleans(),
        st.none() | st.integers(1, 4),
    ),
    st.tuples(st.just("switch"), st.integers(0, 5)),
    st.just(("save",)),
    st.just(("restart",)),
)


def check(patterns: list[Pattern], given_: list[tuple[Any, ...]]) -> None:
    lives = [Life(patterns, shared=shared) for shared in (True, False)]
    for step in given_:
        shared, alone = (life.step(*step) for life in lives)
        assert shared == alone, step
    states = [[str(life.engine.run_states(f"r{n}")) for n in range(6)] for life in lives]
    assert states[0] == states[1]
    shared, alone = (life.advance(END) for life in lives)
    assert shared == alone


@settings(max_examples=150)
@given(patterns=alike(), given_=st.lists(steps, min_size=1, max_size=8))
def test_rules_that_share_runs_have_the_results_that_each_has_alone(
    patterns: list[Pattern], given_: list[tuple[Any, ...]]
) -> None:
    check(patterns, given_)


@pytest.mark.long
@settings(max_examples=5_000)
@given(patterns=alike(), given_=st.lists(steps, min_size=1, max_size=12))
def test_rules_that_share_runs_have_the_results_that_each_has_alone_at_length(
    patterns: list[Pattern], given_: list[tuple[Any, ...]]
) -> None:
    check(patterns, given_)


def three() -> list[Pattern]:
    """Return patterns that begin alike, and go on with b, c or d."""
    begun = Pattern.begin("x").where('n == "a"')
    return [begun.followed_by("y").where(f'n == "{one}"').within("9us") for one in "bcd"]


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("later", [None, 4])
def test_a_rule_that_is_replaced_leaves_the_others_and_its_successor_what_is_theirs(
    restarted: bool, keep: bool, later: int | None
) -> None:
    begun = ("rows", ("a", 1, 1), ("a", 2, 1))
    between = [("restart",)] if restarted else []

    for end in (("advance", 20), ("rows", ("c", 1, 5), ("b", 1, 1), ("d", 2, 1))):
        check(three(), [begun, *between, ("replace", 0, 1, keep, later), *between, end])


def test_a_removed_rule_has_no_runs_in_keys_that_are_read_before_and_after() -> None:
    check(
        three(),
        [
            ("rows", ("a", 1, 1), ("a", 2, 1), ("a", 3, 1)),
            ("restart",),
            ("rows", ("b", 1, 1)),
            ("restart",),
            ("rows", ("a", 2, 1)),
            ("remove", 1),
            ("rows", ("c", 2, 1), ("c", 3, 1)),
        ],
    )


@pytest.mark.parametrize("kind", ["switch", "replace"])
def test_a_rule_that_comes_back_keeps_its_new_runs(kind: str) -> None:
    gone = ("switch", 1) if kind == "switch" else ("remove", 1)
    back = ("switch", 1) if kind == "switch" else ("replace", 1, 1, False, None)

    check(
        three(),
        [
            ("rows", ("a", 1, 1)),
            ("save",),
            gone,
            ("save",),
            back,
            ("save",),
            ("rows", ("a", 3, 1)),
            ("save",),
            ("rows", ("c", 3, 1)),
        ],
    )


def of(*numbers: int) -> frozenset[tuple[str, int]]:
    return frozenset((f"r{number}", 1) for number in numbers)


def test_runs_are_shared_until_a_row_tells_their_rules_apart_and_again_when_they_are_equal() -> (
    None
):
    life = Life(three(), shared=True)

    life.rows(("a", 1, 1), ("a", 1, 1))
    begun = [(each.rules, len(each.runs)) for each in life.at(1).shared]
    life.step("restart")
    restored = [(each.rules, len(each.runs)) for each in life.at(1).shared]
    matches = life.rows(("b", 1, 1))
    apart = [(each.rules, len(each.runs)) for each in life.at(1).shared]
    life.rows(("a", 1, 1))
    with_new = [(each.rules, len(each.runs)) for each in life.at(1).shared]
    alone = {name: len(each.runs) for name, each in life.at(1).matchers.items()}
    life.rows(("c", 1, 1), ("d", 1, 1), ("b", 1, 1), ("a", 1, 1))

    assert begun == restored == [(of(0, 1, 2), 2)]
    assert [each[:2] for each in matches] == [("r0", 1), ("r0", 1)]
    assert apart == [(of(1, 2), 2)]
    assert (with_new, alone) == ([(of(1, 2), 3)], {("r0", 1): 1})
    assert [(each.rules, len(each.runs)) for each in life.at(1).shared] == [(of(0, 1, 2), 1)]
    assert life.at(1).matchers == {}


def test_the_counters_of_each_rule_are_its_own() -> None:
    life = Life(three(), shared=True)
    life.rows(("a", 1, 1), ("a", 2, 1), ("b", 1, 1), ("c", 3, 1))
    life.advance(8)

    found = {one.rule: one for one in life.engine.rule_metrics(None)}

    assert {name: one.tested for name, one in found.items()} == {"r0": 3, "r1": 3, "r2": 2}
    assert {name: one.matches for name, one in found.items()} == {"r0": 1, "r1": 0, "r2": 0}
    assert {name: one.timeouts for name, one in found.items()} == {"r0": 1, "r1": 2, "r2": 2}
    assert {name: one.alive for name, one in found.items()} == {"r0": 0, "r1": 0, "r2": 0}


def test_rules_with_other_limits_or_windows_share_no_runs() -> None:
    life = Life(three(), shared=True)
    begun = Pattern.begin("x").where('n == "a"').followed_by("y").where('n == "b"')
    others = [
        life.rule("r3", 1, begun.within("8us")),
        life.rule("r4", 1, begun.within("9us"), limits=RunLimits(runs=5)),
        life.rule("r5", 1, begun.within("9us"), numbered=True),
    ]
    life.update([*life.rules, *others])

    life.rows(("a", 1, 1))

    assert [each.rules for each in life.at(1).shared] == [of(0, 1, 2)]
    assert set(life.at(1).matchers) == of(3, 4, 5)


def test_reading_the_state_of_runs_leaves_them_shared() -> None:
    life = Life(three(), shared=True)
    life.rows(("a", 1, 1))

    states = life.engine.explain("r1", (1,))

    assert [each.conditions for each in states] == [{"y": 'n == "c"'}]
    assert [each.rules for each in life.at(1).shared] == [of(0, 1, 2)]
