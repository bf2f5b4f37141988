"""Rules at work in one bucket: rows in; matches, time-outs and errors out.

A rule sees rows from the window on in which it came into the set, and of those only the ones that
fulfil some condition of it; where that matters, also whether others stood between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from streambroker_core.cep.automaton import Automaton
from streambroker_core.cep.compiler import compile_pattern
from streambroker_core.cep.explain import Standing, standings
from streambroker_core.cep.history import Event
from streambroker_core.cep.keystore import KeyStore, place_of, values_of
from streambroker_core.cep.masks import Conditions, Hits, MaskMaker, row_by_row
from streambroker_core.cep.matcher import NEVER, Match, Matcher, Timeout
from streambroker_core.cep.processor import PatternProcessor
from streambroker_core.cep.refusals import RunError
from streambroker_core.cep.rules import RuleSet
from streambroker_core.cep.snapshot import RuleKey
from streambroker_core.cep.truths import Truths
from streambroker_core.cep.view import Rows, View
from streambroker_core.control.keyed import KeyedState

Key: TypeAlias = "tuple[Any, ...]"
BY_TIME = -1
"""What led to a result was time, not a row."""


class Result(NamedTuple):
    """A match or a timed-out partial match of a rule, or why the rule stopped.

    Attributes:
        rule: id of the rule.
        version: its version.
        key: values of the key's columns.
        outcome: what it is.
        trigger: number of the row that led to it, or `BY_TIME`.
    """

    rule: str
    version: int
    key: Key
    outcome: Match | Timeout | RunError
    trigger: int


@dataclass(slots=True)
class Metrics:
    """What a rule has done in this bucket since the object was made.

    Attributes:
        tested: events that its automaton has seen.
        matches: matches told.
        timeouts: timed-out partial matches told.
        dropped: runs given up because of its limits.
        alive: by how much the number of runs has changed.
    """

    tested: int = 0
    matches: int = 0
    timeouts: int = 0
    dropped: int = 0
    alive: int = 0


@dataclass(slots=True, kw_only=True)
class Active:
    """A rule in force.

    Attributes:
        since: the window from which on it is in the set.
        until: time from which on the next version holds; `NEVER` for none.
        plain: whether an event can begin a run depends on the event alone.
    """

    rule: PatternProcessor
    automaton: Automaton
    truths: Truths
    since: int
    until: int
    plain: bool
    metrics: Metrics = field(default_factory=Metrics)

    @property
    def name(self) -> RuleKey:
        """Id and version."""
        return self.rule.id, self.rule.version

    def matcher(self) -> Matcher:
        """Return a matcher without runs."""
        return Matcher(self.automaton, self.truths, self.rule.limits)

    def sees(self, rows: Rows, row: int) -> bool:
        """Tell whether a row is one of its time and of windows since it came."""
        scheduled = self.rule.scheduled
        return (
            (scheduled is None or rows.times[row] >= scheduled)
            and rows.times[row] < self.until
            and rows.arrived[row] >= self.since
        )


class Engine:
    """The rules of one bucket, their runs, and what rows and time do to them.

    Args:
        state: keeps the runs by key.
        key: the stream's key columns; none for one key for all.
        maker: makes masks of conditions.

    Attributes:
        active: the rules in force, by id and version.
        failed: rules that stopped and are off here until the set says so for all.
    """

    def __init__(
        self, state: KeyedState, *, key: tuple[str, ...] = (), maker: MaskMaker = row_by_row
    ) -> None:
        self._key, self._maker = key, maker
        self.active: dict[RuleKey, Active] = {}
        self.failed: list[RuleKey] = []
        self.keys = KeyStore(state, self._new)
        self._conditions: dict[tuple[str, ...], tuple[pa.Schema, Conditions]] = {}

    def _new(self, name: RuleKey) -> Matcher | None:
        active = self.active.get(name)
        return None if active is None else active.matcher()

    def set_rules(self, rules: RuleSet, since: Mapping[RuleKey, int], window: int) -> None:
        """Put a set of rules in force.

        Rules with the id and version of a rule in force go on with its runs. Runs of others are
        freed, or handed over to a new version that asks for them.

        Args:
            rules: the set.
            since: windows from which on rules were in the set already; for a restored bucket.
            window: this window, from which on the others are.
        """
        before, self.active = self.active, {}
        for rule in rules:
            known = before.get((rule.id, rule.version))
            if known is None:
                known = _active(rule, since.get((rule.id, rule.version), window))
            until = rules.until(rule)
            known.until = NEVER if until is None else until
            self.active[known.name] = known
        self._conditions.clear()
        gone = {name for name in before if name not in self.active}
        if gone:
            heirs = self._heirs(before, gone)
            for old, new in heirs.items():
                self.active[new].since = before[old].since
            self.keys.forget(gone, heirs)

    def _heirs(
        self, before: Mapping[RuleKey, Active], gone: set[RuleKey]
    ) -> dict[RuleKey, RuleKey]:
        """Return the new versions that take over the partial matches of those that are gone."""
        return {
            old: new.name
            for old in gone
            for new in self.active.values()
            if new.rule.id == old[0]
            and new.rule.keep_matches
            and new.name not in before
            and same_shape(before[old].automaton, new.automaton)
        }

    def process(self, rows: Rows, only: tuple[str, ...] | None = None) -> list[Result]:
        """Let rules see rows; results come in the order of the rows that led to them.

        Args:
            rows: the rows.
            only: the key whose rules see them, for copies made for that key; None for all rules.

        Raises:
            RunError: a rule failed that is to fail the query.
        """
        results: list[Result] = []
        for columns in {active.rule.key or self._key: None for active in self.active.values()}:
            if only not in (None, columns):
                continue
            rules = [a for a in self.active.values() if (a.rule.key or self._key) == columns]
            hits = self._conditions_of(columns, rules, rows.batch.schema).of(rows.batch)
            view = View(rows, columns)
            for active in rules:
                try:
                    self._see(active, view, hits.of(active.automaton), results)
                except RunError as error:
                    results.append(self._failure(active, error, rows.first + len(rows.times) - 1))
        results.sort(key=lambda result: result.trigger)
        return results

    def _conditions_of(
        self, columns: tuple[str, ...], rules: list[Active], schema: pa.Schema
    ) -> Conditions:
        made = self._conditions.get(columns)
        if made is None or made[0] != schema:
            automata = [active.automaton for active in rules]
            made = (schema, Conditions(automata, schema, self._maker))
            self._conditions[columns] = made
        return made[1]

    def _failure(self, active: Active, error: RunError, row: int) -> Result:
        if active.rule.on_error == "fail":
            raise RunError(f"rule `{active.rule.id}`, {error.where}", error.problem) from error
        self.active.pop(active.name, None)
        self.failed.append(active.name)
        self.keys.forget({active.name}, {})
        return Result(active.rule.id, active.rule.version, (), error, row)

    def _see(self, active: Active, view: View, hits: Hits, results: list[Result]) -> None:
        rows, bits = hits.rows, hits.bits
        timed = active.rule.scheduled is not None or active.until != NEVER
        if timed or min(view.rows.arrived, default=0) < active.since:
            chosen = [
                (row, bit)
                for row, bit in zip(rows, bits, strict=True)
                if active.sees(view.rows, row)
            ]
            rows, bits = [row for row, _ in chosen], [bit for _, bit in chosen]
        active.metrics.tested += len(rows)
        if active.automaton.appetite == "gaps":
            self._see_gaps(active, view, rows, bits, results)
            return
        events = view.rows.events(rows)
        for event, place, bit in zip(events, view.places(rows), bits, strict=True):
            self._step(active, place, event, bit, results)

    def _see_gaps(
        self, active: Active, view: View, rows: list[int], bits: list[int], results: list[Result]
    ) -> None:
        """Let a rule see rows and, where a key has runs, the first row of each gap between them."""
        order = view.order()
        indices = pa.array(rows, pa.int64())
        codes = order.codes.take(indices).to_pylist()
        at = order.place_in.take(indices).to_pylist()
        last: dict[int, int] = {}
        events = view.rows.events(rows)
        for event, bit, code, place_in in zip(events, bits, codes, at, strict=True):
            before = last.get(code, order.ends[code - 1] - 1 if code else -1)
            self._see_gap(active, view, code, before + 1, place_in, results)
            self._step(active, order.places[code], event, bit, results)
            last[code] = place_in
        for code, end in enumerate(order.ends):
            before = last.get(code, order.ends[code - 1] - 1 if code else -1)
            self._see_gap(active, view, code, before + 1, end, results)

    def _see_gap(
        self, active: Active, view: View, code: int, low: int, high: int, results: list[Result]
    ) -> None:
        if low >= high:
            return
        order = view.order()
        place = order.places[code]
        if active.name not in self.keys.of(place):
            return
        for at in range(low, high):
            row = order.rows[at].as_py()
            if active.sees(view.rows, row):
                (event,) = view.rows.events([row])
                self._step(active, place, event, 0, results)
                return

    def _step(
        self, active: Active, place: bytes, event: Event, bits: int, results: list[Result]
    ) -> None:
        matchers = self.keys.of(place)
        matcher = matchers.get(active.name)
        if matcher is None:
            automaton = active.automaton
            if active.plain and not automaton.decide(automaton.start, bits).steps:
                return
            matcher = matchers[active.name] = active.matcher()
        alive, dropped, metrics = len(matcher.runs), matcher.dropped, active.metrics
        matches, timeouts = matcher.process(event, bits)
        metrics.alive += len(matcher.runs) - alive
        metrics.dropped += matcher.dropped - dropped
        if matches or timeouts:
            self._tell(active, place, matches, timeouts, event.seq, results)
        if not matcher.runs and not matcher.held:
            del matchers[active.name]

    def explain(self, rule: str, key: Key) -> list[Standing]:
        """Return where the runs of a rule stand in a key, for those who ask why nothing matched.

        Args:
            rule: its id; all its versions are looked at.
            key: values of the rule's key columns, or of the stream's if it has none.
        """
        found: list[Standing] = []
        for active in self.active.values():
            if active.rule.id == rule:
                matchers = self.keys.of(place_of(active.rule.key or self._key, key))
                if active.name in matchers:
                    found += standings(matchers[active.name])
        return found

    def advance(self, time: int) -> list[Result]:
        """Tell what time has ended, and free what a later version has replaced by then.

        Raises:
            RunError: a rule failed that is to fail the query.
        """
        results: list[Result] = []
        for place in self.keys.due(time):
            for name in list(self.keys.of(place)):
                matcher, active = self.keys.of(place).get(name), self.active.get(name)
                if matcher is not None and active is not None and matcher.due <= time:
                    self._expire(active, place, matcher, min(time, active.until), results)
        over = {name for name, active in self.active.items() if active.until <= time}
        for name in over:
            del self.active[name]
        if over:
            self._conditions.clear()
            self.keys.forget(over, {})
        return results

    def _expire(
        self, active: Active, place: bytes, matcher: Matcher, time: int, results: list[Result]
    ) -> None:
        alive = len(matcher.runs)
        try:
            matches, timeouts = matcher.advance(time)
        except RunError as error:
            results.append(self._failure(active, error, BY_TIME))
            return
        active.metrics.alive += len(matcher.runs) - alive
        self._tell(active, place, matches, timeouts, BY_TIME, results)
        if not matcher.runs and not matcher.held:
            self.keys.of(place).pop(active.name, None)

    def _tell(
        self,
        active: Active,
        place: bytes,
        matches: list[Match],
        timeouts: list[Timeout],
        trigger: int,
        results: list[Result],
    ) -> None:
        """Add results; partial matches that differ in nothing but where they wait are told once."""
        (name, version), key = active.name, values_of(place)
        told: set[tuple[Any, ...]] = set()
        for timeout in timeouts:
            taken = timeout.events.items()
            mark = (timeout.time, *((stage, *(e.seq for e in each)) for stage, each in taken))
            if mark not in told:
                told.add(mark)
                results.append(Result(name, version, key, timeout, trigger))
        active.metrics.timeouts += len(told)
        active.metrics.matches += len(matches)
        results += [Result(name, version, key, match, trigger) for match in matches]


def _active(rule: PatternProcessor, since: int) -> Active:
    automaton = compile_pattern(rule.pattern)
    truths = Truths(automaton)
    plain = not automaton.asked[automaton.start] & truths.run_bits
    return Active(
        rule=rule, automaton=automaton, truths=truths, since=since, until=NEVER, plain=plain
    )


def same_shape(one: Automaton, other: Automaton) -> bool:
    """Tell whether two automata differ in nothing but their conditions."""

    def shape(automaton: Automaton) -> object:
        states = [
            (
                state.kind,
                state.twin,
                state.gap,
                [(edge.action, edge.target, edge.stage, edge.gap) for edge in state.edges],
            )
            for state in automaton.states
        ]
        return automaton.stages, automaton.start, automaton.window, states, automaton.pattern.skip

    return shape(one) == shape(other)
