"""Rules at work in one bucket: rows in; matches, time-outs and errors out.

A rule sees the rows that are released while it is in the set, whenever they arrived, and of those
only the ones that fulfil some condition of it; where that matters, also whether others were between
them. Where exporters sent only the rows that the rules of then needed, a rule that needs others
sees rows from the window on from which all that it needs were sent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.cep.engine.condition_masks import Conditions, Hits, MaskMaker, row_by_row
from streambroker_core.cep.engine.key_store import KeyStore, place_of, values_of
from streambroker_core.cep.engine.row_view import Chosen, Gaps, Rows, View
from streambroker_core.cep.engine.trace import Standing, standings
from streambroker_core.cep.nfa.compiled import Compiled, compiled
from streambroker_core.cep.nfa.linear_matcher import Follower, may_exceed
from streambroker_core.cep.nfa.matcher import NEVER, Match, Matcher, Run, Timeout
from streambroker_core.cep.nfa.nfa import Automaton
from streambroker_core.cep.nfa.snapshot import RuleKey
from streambroker_core.cep.pattern.errors import RunError
from streambroker_core.cep.pattern.key_selectors import Selector
from streambroker_core.cep.pattern.match_buffer import Event, Node
from streambroker_core.cep.pattern.rule import PatternProcessor
from streambroker_core.cep.rules.rule_set import RuleSet
from streambroker_core.control.operators.keyed_state import KeyedState

Key: TypeAlias = "tuple[Any, ...]"
BY_TIME = -1
"""What led to a result was time, not a row."""
_MANY = 16
"""From so many rules of one key on, what they ask of rows is read for all rows at once."""


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


_new_result = tuple.__new__
"""As `Run` is made."""


@dataclass(slots=True)
class Metrics:
    """What a rule has done in this bucket since the object was made; see `RuleFigures`.

    ``alive`` goes on from what the object was given.
    """

    tested: int = 0
    matches: int = 0
    timeouts: int = 0
    dropped: int = 0
    alive: int = 0
    nanoseconds: int = 0


@dataclass(slots=True, kw_only=True)
class Active:
    """A rule in force.

    Attributes:
        made: the rule, made ready.
        name: its id and version.
        since: the window from which on it is in the set.
        sees: the first window whose rows it sees.
        until: time from which on the next version holds; `NEVER` for none.
        timed: its timed-out partial matches are told; they are counted anyway.
        plain: whether an event can begin a run depends on the event alone.
        begins: by the bits of an event, whether it can begin a run; as far as it was asked.
    """

    made: Compiled
    since: int
    sees: int = 0
    until: int = NEVER
    timed: bool = True
    name: RuleKey = field(init=False)
    plain: bool = field(init=False)
    begins: dict[int, bool] = field(default_factory=dict)
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        automaton = self.automaton
        self.name = self.made.rule.id, self.made.rule.version
        self.plain = not automaton.asked[automaton.start] & self.made.truths.run_bits

    @property
    def rule(self) -> PatternProcessor:
        """The rule."""
        return self.made.rule

    @property
    def automaton(self) -> Automaton:
        """The automaton of its pattern."""
        return self.made.automaton

    def matcher(self) -> Matcher:
        """Return a matcher without runs."""
        return Matcher(self.made.automaton, self.made.truths, self.made.rule.limits)

    def can_begin(self, bits: int) -> bool:
        """Tell whether an event of which these conditions hold may begin a run."""
        begins = self.begins.get(bits)
        if begins is None:
            automaton = self.made.automaton
            begins = not self.plain or bool(automaton.decide(automaton.start, bits).steps)
            self.begins[bits] = begins
        return begins

    def sight(self, rows: Rows) -> pa.BooleanArray | None:
        """Return which rows are of its time and were sent for it; None for all."""
        masks = []
        if self.sees and rows.batch.num_rows and pc.min(rows.arrived).as_py() < self.sees:
            masks.append(pc.greater_equal(rows.arrived, self.sees))
        if self.rule.starts is not None:
            masks.append(pc.greater_equal(rows.times, self.rule.starts))
        if self.until != NEVER:
            masks.append(pc.less(rows.times, self.until))
        return reduce(pc.and_, masks) if masks else None


class Engine:
    """The rules of one bucket, their runs, and what rows and time do to them.

    Args:
        state: keeps the runs by key.
        key: the stream's key columns; none for one key for all.
        maker: makes masks of conditions.
        clock: nanoseconds, for figures alone; it does not have to go on.
        timed: says whether the timed-out partial matches of a rule are told; None for all.

    Attributes:
        active: the rules in force, by id and version.
        failed: rules that stopped and are off here until the set says so for all.
    """

    def __init__(
        self,
        state: KeyedState,
        *,
        key: Selector = (),
        maker: MaskMaker = row_by_row,
        clock: Callable[[], int] = int,
        timed: Callable[[PatternProcessor], bool] | None = None,
    ) -> None:
        self._key, self._maker, self._clock, self._timed = key, maker, clock, timed
        self.active: dict[RuleKey, Active] = {}
        self.failed: list[RuleKey] = []
        self.keys = KeyStore(state, self._new)
        self._conditions: dict[Selector, tuple[pa.Schema, Conditions]] = {}

    def _new(self, name: RuleKey) -> Matcher | None:
        active = self.active.get(name)
        return None if active is None else active.matcher()

    def set_rules(
        self,
        rules: RuleSet,
        window: int,
        *,
        since: Mapping[RuleKey, int] | None = None,
        sees: Callable[[Active], int] | None = None,
    ) -> None:
        """Put a set of rules in force.

        Rules with the id and version of a rule in force go on with its runs. Runs of others are
        freed, or handed over to a new version that asks for them.

        Args:
            rules: the set.
            window: this window, from which on those are in the set that were not.
            since: windows from which on rules were in the set already; for a restored bucket.
            sees: returns the first window whose rows a rule sees that is new to the engine; None
                for all rows.
        """
        before, self.active = self.active, {}
        for rule in rules:
            known = before.get((rule.id, rule.version))
            if known is None:
                name = rule.id, rule.version
                known = Active(
                    made=compiled(rule),
                    since=(since or {}).get(name, window),
                    timed=self._timed is None or self._timed(rule),
                )
                known.sees = 0 if sees is None else sees(known)
            until = rules.until(rule)
            known.until = NEVER if until is None else until
            self.active[known.name] = known
        self._conditions.clear()
        gone = {name for name in before if name not in self.active}
        if gone:
            heirs = self._heirs(before, gone)
            for old, new in heirs.items():
                self.active[new].metrics.alive += before[old].metrics.alive
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

    def process(self, rows: Rows, only: Selector | None = None) -> list[Result]:
        """Let rules see rows; results come in the order of the rows that led to them.

        Args:
            rows: the rows.
            only: the key whose rules see them, for copies made for that key; None for all rules.

        Raises:
            RunError: a rule failed that is to fail the query.
        """
        results: list[Result] = []
        for selector in {active.rule.key or self._key: None for active in self.active.values()}:
            if only not in (None, selector):
                continue
            rules = [a for a in self.active.values() if (a.rule.key or self._key) == selector]
            conditions = self._conditions_of(selector, rules, rows.batch.schema)
            whole, hits = View(rows, selector, many=len(rules) >= _MANY), conditions.of(rows.batch)
            for active in rules:
                view, found = whole, hits
                sight = active.sight(rows)
                if sight is not None:
                    view = View(rows.where(sight), selector)
                    found = conditions.of(view.rows.batch)
                try:
                    self._see(active, view, found.of(active.made), results)
                except RunError as error:
                    results.append(self.stop(active.rule, error, self._last(rows)))
        results.sort(key=_trigger)
        if results:
            rows.fill()
        return results

    @staticmethod
    def _last(rows: Rows) -> int:
        return int(rows.seqs[-1].as_py()) if len(rows.seqs) else BY_TIME

    def _conditions_of(
        self, selector: Selector, rules: list[Active], schema: pa.Schema
    ) -> Conditions:
        made = self._conditions.get(selector)
        if made is None or made[0] != schema:
            made = (schema, Conditions([one.made for one in rules], schema, self._maker))
            self._conditions[selector] = made
        return made[1]

    def stop(self, rule: PatternProcessor, error: RunError, row: int = BY_TIME) -> Result:
        """Turn a rule off that failed, and free its runs.

        Args:
            rule: the rule.
            error: why.
            row: number of the row that led to it, or `BY_TIME`.

        Raises:
            RunError: the rule is to fail the query.
        """
        if rule.on_error == "fail":
            raise RunError(f"rule `{rule.id}`, {error.where}", error.problem) from error
        name = rule.id, rule.version
        self.active.pop(name, None)
        self.failed.append(name)
        self.keys.forget({name}, {})
        return Result(*name, (), error, row)

    def _see(self, active: Active, view: View, hits: Hits, results: list[Result]) -> None:
        count, began = len(hits.bits), self._clock()
        active.metrics.tested += count
        if active.automaton.appetite == "gaps":
            self._see_gaps(active, view, hits, results)
        elif count:
            self._see_hits(active, view, hits, results)
        active.metrics.nanoseconds += self._clock() - began

    def _see_hits(self, active: Active, view: View, hits: Hits, results: list[Result]) -> None:
        """Let a rule see the rows that fulfil some condition of it."""
        rows, mine, chosen = view.rows, dict[int, Matcher | None](), view.at(hits.rows)
        chosen.keys.read(chosen.codes)
        if self._follow(active, rows, chosen, hits.bits, results):
            return
        rows.read(chosen, active.made.truths.fields, whole=active.made.truths.whole)
        name, keys = active.name, dict[int, bytes]()
        for place, seq, time, code, bits in zip(*chosen[1:5], hits.bits, strict=True):
            if code not in mine:
                keys[code] = chosen.keys.place(code)
                mine[code] = self.keys.of(keys[code]).get(name)
            matcher = mine[code]
            if matcher is None and not active.can_begin(bits):
                continue
            event = rows.event(place, seq, time)
            mine[code] = self._step(active, keys[code], matcher, event, bits, results)

    def _see_gaps(self, active: Active, view: View, hits: Hits, results: list[Result]) -> None:
        """Let a rule see also, where a key has runs, the first row of each gap between hits."""
        gaps, rows = Gaps(view, hits), view.rows
        chosen = gaps.chosen
        chosen.keys.read(chosen.codes)
        if self._follow(active, rows, chosen, gaps.bits, results):
            return
        rows.read(chosen, active.made.truths.fields, whole=active.made.truths.whole)
        for code, low, high in gaps.by_key():
            place = chosen.keys.place(code)
            matcher = self.keys.of(place).get(active.name)
            for at in range(low, high):
                bits = gaps.bits[at]
                if matcher is None and not (bits and active.can_begin(bits)):
                    continue
                event = rows.event(chosen.places[at], chosen.seqs[at], chosen.times[at])
                matcher = self._step(active, place, matcher, event, bits, results)

    def _follow(
        self,
        active: Active,
        rows: Rows,
        chosen: Chosen,
        bits: list[int],
        results: list[Result],
    ) -> bool:
        """Let a plain sequence see rows; tell whether it is one whose runs can be followed."""
        sequence, keys, name = active.made.sequence, chosen.keys, active.name
        if sequence is None:
            return False
        before: dict[int, list[Run]] = {}
        for code in dict.fromkeys(chosen.codes):
            matcher = self.keys.of(keys.place(code)).get(name)
            if matcher is not None:
                before[code] = matcher.runs
                if not sequence.has(matcher.runs):
                    return False
        if may_exceed(active.rule.limits.runs, chosen.codes, before):
            return False

        def event(row: int) -> Event:
            return rows.event(chosen.places[row], chosen.seqs[row], chosen.times[row])

        follower, metrics = Follower(sequence, before), active.metrics
        follower.see(chosen.codes, chosen.seqs, chosen.times, bits)
        metrics.matches += follower.matches
        metrics.timeouts += follower.timeouts
        for row, code, outcome in follower.ended(event, timed=active.timed):
            key = values_of(keys.place(code))
            results.append(_new_result(Result, (*name, key, outcome, chosen.seqs[row])))
        for code, runs in follower.changed(event):
            matchers = self.keys.of(keys.place(code))
            metrics.alive += len(runs) - len(before.get(code, ()))
            if runs:
                matchers.setdefault(name, active.matcher()).put(runs)
            else:
                matchers.pop(name, None)
        return True

    def _step(
        self,
        active: Active,
        place: bytes,
        matcher: Matcher | None,
        event: Event,
        bits: int,
        results: list[Result],
    ) -> Matcher | None:
        """Give a key's matcher an event; return the matcher if it has runs then."""
        if matcher is None:
            matcher = self.keys.of(place)[active.name] = active.matcher()
        alive, dropped, metrics = len(matcher.runs), matcher.dropped, active.metrics
        matches, timeouts = matcher.process(event, bits)
        metrics.alive += len(matcher.runs) - alive
        metrics.dropped += matcher.dropped - dropped
        if matches or timeouts:
            self._tell(active, place, matches, timeouts, event.seq, results)
        if matcher.runs or matcher.held:
            return matcher
        del self.keys.of(place)[active.name]
        return None

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

    def standings(self, rule: str) -> dict[Key, list[Standing]]:
        """Return where the runs of a rule stand, by the values of their keys.

        Args:
            rule: its id; all its versions are looked at.
        """
        found: dict[Key, list[Standing]] = {}
        names = [name for name in self.active if name[0] == rule]
        for place in self.keys.places():
            for name in names:
                matcher = self.keys.of(place).get(name)
                if matcher is not None:
                    found.setdefault(values_of(place), []).extend(standings(matcher))
        return found

    def advance(self, time: int) -> list[Result]:
        """Tell what time has ended, and free what a later version has replaced by then.

        Partial matches are handed over first, so that time ends them for the version that has them.

        Raises:
            RunError: a rule failed that is to fail the query.
        """
        results: list[Result] = []
        for at in self.handovers(time):
            results += self.hand_over(at)
        results += self._pass(time, self.active)
        return results

    def first_replaced(self) -> int | None:
        """Return when a later version next replaces one that has runs; None for never."""
        ending = [active for active in self.active.values() if active.until != NEVER]
        return min((active.until for active in ending if active.metrics.alive), default=None)

    def handovers(self, time: int) -> list[int]:
        """Return the times up to this one at which a version takes over from the one before it."""
        ending = [active for active in self.active.values() if active.until <= time]
        return sorted({active.until for active in ending if self._next(active) is not None})

    def hand_over(self, time: int) -> list[Result]:
        """End the versions that others replace by a time, and no other; as of `advance`."""
        return self._pass(time, {n for n, active in self.active.items() if active.until <= time})

    def _next(self, old: Active) -> RuleKey | None:
        """Return the scheduled version that takes over the partial matches of the one before it."""
        for new in self.active.values():
            follows = new.rule.id == old.rule.id and new.rule.starts == old.until
            if follows and new.rule.keep_matches and same_shape(old.automaton, new.automaton):
                return new.name
        return None

    def _pass(self, time: int, names: Collection[RuleKey]) -> list[Result]:
        results: list[Result] = []
        for place in self.keys.due(time):
            for name in [name for name in self.keys.of(place) if name in names]:
                matcher, active = self.keys.of(place).get(name), self.active.get(name)
                if matcher is not None and active is not None and matcher.due <= time:
                    self._expire(active, place, matcher, min(time, active.until), results)
        over = sorted(name for name, active in self.active.items() if active.until <= time)
        heirs = {name: self._next(self.active[name]) for name in over}
        for name in over:
            old, heir = self.active.pop(name), heirs[name]
            if heir is not None:
                self.active[heir].metrics.alive += old.metrics.alive
        if over:
            self._conditions.clear()
            self.keys.forget(over, {old: new for old, new in heirs.items() if new is not None})
        return results

    def _expire(
        self, active: Active, place: bytes, matcher: Matcher, time: int, results: list[Result]
    ) -> None:
        alive, began = len(matcher.runs), self._clock()
        try:
            matches, timeouts = matcher.advance(time)
        except RunError as error:
            results.append(self.stop(active.rule, error))
            return
        active.metrics.alive += len(matcher.runs) - alive
        active.metrics.nanoseconds += self._clock() - began
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
        (name, version), key, metrics = active.name, values_of(place), active.metrics
        if len(timeouts) > 1:
            told: dict[tuple[int, ...], Timeout] = {}
            for timeout in timeouts:
                told.setdefault(_mark(timeout), timeout)
            timeouts = list(told.values())
        metrics.timeouts += len(timeouts)
        metrics.matches += len(matches)
        outcomes: list[Match | Timeout] = [*timeouts, *matches] if active.timed else [*matches]
        results += [_new_result(Result, (name, version, key, one, trigger)) for one in outcomes]


def _trigger(result: Result) -> int:
    return result.trigger


def _mark(timeout: Timeout) -> tuple[int, ...]:
    """Return what partial matches have in common that are told once."""
    mark = [timeout.time]
    node: Node | None = timeout.node
    while node is not None:
        mark += (node.stage, node.event.seq)
        node = node.before
    return tuple(mark)


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
