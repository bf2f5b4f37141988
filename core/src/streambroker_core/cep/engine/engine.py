"""Rule engine of one bucket: rows in; matches, time-outs and errors out.

- A rule sees rows that are released while it is in the set, regardless of when they arrived.
- Of these it sees only rows that fulfil one of its conditions. If its pattern needs it, it also
  sees whether other rows lie between them.
- Exporters may send only the rows that the rules of that time need. A new rule sees rows only from
  the first window for which all the rows that it needs were sent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.cep.engine.condition_masks import ConditionMasks, Hits, MaskMaker, row_by_row
from streambroker_core.cep.engine.key_store import KeyStore, decode_key, encode_key
from streambroker_core.cep.engine.row_view import GapRows, OrderedRows, RowView, SelectedRows
from streambroker_core.cep.engine.trace import RunState, list_run_states
from streambroker_core.cep.nfa.compiled import CompiledRule, compile_rule
from streambroker_core.cep.nfa.linear_matcher import LinearMatcher, may_exceed
from streambroker_core.cep.nfa.matcher import Matcher, PatternMatch, Run, Timeout
from streambroker_core.cep.nfa.nfa import Nfa
from streambroker_core.cep.nfa.snapshot import RuleVersionKey
from streambroker_core.cep.pattern.errors import RunError
from streambroker_core.cep.pattern.key_selectors import Selector
from streambroker_core.cep.pattern.match_buffer import Event, RunNode
from streambroker_core.cep.pattern.rule import PatternProcessor
from streambroker_core.cep.pattern.run_limits import NEVER
from streambroker_core.cep.rules.rule_set import RuleSet
from streambroker_core.control.operators.keyed_state import KeyedState

Key: TypeAlias = "tuple[Any, ...]"
BY_TIME = -1
"""Trigger of a result that time caused, not a row."""
_MANY_RULES = 16
"""From this many rules per key on, numbers, times and keys of all rows are read at once."""


class RuleResult(NamedTuple):
    """A match or timed-out partial match of a rule, or the error that stopped the rule.

    `trigger` is the sequence number of the row that caused it, or `BY_TIME`.
    """

    rule: str
    version: int
    key: Key
    outcome: PatternMatch | Timeout | RunError
    trigger: int


_new_result = tuple.__new__
"""Creates a result as `matcher` creates runs."""


@dataclass(slots=True)
class Metrics:
    """Counters of a rule in this bucket, from 0; ``alive`` continues a restored number of runs."""

    tested: int = 0
    matches: int = 0
    timeouts: int = 0
    dropped: int = 0
    alive: int = 0
    nanoseconds: int = 0


@dataclass(slots=True, kw_only=True)
class ActiveRule:
    """A rule in force.

    Attributes:
        name: id and version of the rule.
        since: first window in which the rule is in the set.
        visible_from: first window whose rows the rule sees.
        until: time at which the next version replaces it; `NEVER` for none.
        reports_timeouts: report its timed-out partial matches; they are counted in any case.
        starts_locally: the event alone decides whether a run begins.
        begins_by_bits: cache by condition bits of an event: whether a run can begin.
    """

    compiled: CompiledRule
    since: int
    visible_from: int = 0
    until: int = NEVER
    reports_timeouts: bool = True
    name: RuleVersionKey = field(init=False)
    starts_locally: bool = field(init=False)
    begins_by_bits: dict[int, bool] = field(default_factory=dict)
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        automaton = self.automaton
        self.name = self.compiled.rule.id, self.compiled.rule.version
        self.starts_locally = (
            not automaton.needed_bits[automaton.start] & self.compiled.condition_bits.run_bits
        )

    @property
    def rule(self) -> PatternProcessor:
        """The rule."""
        return self.compiled.rule

    @property
    def automaton(self) -> Nfa:
        """Automaton of its pattern."""
        return self.compiled.automaton

    def matcher(self) -> Matcher:
        """Return a new matcher without runs."""
        return Matcher(
            self.compiled.automaton, self.compiled.condition_bits, self.compiled.rule.limits
        )

    def can_begin(self, bits: int) -> bool:
        """Return whether an event with these condition bits may begin a run."""
        begins = self.begins_by_bits.get(bits)
        if begins is None:
            automaton = self.compiled.automaton
            begins = not self.starts_locally or bool(automaton.decide(automaton.start, bits).steps)
            self.begins_by_bits[bits] = begins
        return begins

    def visible_rows(self, rows: OrderedRows) -> pa.BooleanArray | None:
        """Return a mask of the rows within the rule's time and visible windows; None for all."""
        masks = []
        if (
            self.visible_from
            and rows.batch.num_rows
            and pc.min(rows.arrival_windows).as_py() < self.visible_from
        ):
            masks.append(pc.greater_equal(rows.arrival_windows, self.visible_from))
        if self.rule.starts is not None:
            masks.append(pc.greater_equal(rows.times, self.rule.starts))
        if self.until != NEVER:
            masks.append(pc.less(rows.times, self.until))
        return reduce(pc.and_, masks) if masks else None


class Engine:
    """Rules of one bucket and their runs.

    Args:
        key: key columns of the stream; empty for a single key.
        clock: returns nanoseconds, for metrics only; it need not advance.
        reports_timeouts: returns whether the timed-out partial matches of a rule are reported; None
            to report all.

    Attributes:
        active: rules in force, by id and version.
        failed: rules that stopped, and are off in this bucket until the set disables them.
    """

    def __init__(
        self,
        state: KeyedState,
        *,
        key: Selector = (),
        maker: MaskMaker = row_by_row,
        clock: Callable[[], int] = int,
        reports_timeouts: Callable[[PatternProcessor], bool] | None = None,
    ) -> None:
        self._key, self._maker, self._clock, self._reports_timeouts = (
            key,
            maker,
            clock,
            reports_timeouts,
        )
        self.active: dict[RuleVersionKey, ActiveRule] = {}
        self.failed: list[RuleVersionKey] = []
        self.keys = KeyStore(state, self._make_matcher)
        self._conditions: dict[Selector, tuple[pa.Schema, ConditionMasks]] = {}

    def _make_matcher(self, name: RuleVersionKey) -> Matcher | None:
        active = self.active.get(name)
        return None if active is None else active.matcher()

    def set_rules(
        self,
        rules: RuleSet,
        window: int,
        *,
        since: Mapping[RuleVersionKey, int] | None = None,
        visible_from: Callable[[ActiveRule], int] | None = None,
    ) -> None:
        """Put a set of rules in force at window `window`.

        A rule with the id and version of a rule in force keeps its runs. Runs of removed rules are
        freed, or handed over to a new version that keeps matches.

        For a restored bucket, `since` has the first windows of its rules. `visible_from` returns
        the first window whose rows a new rule sees; None for all rows.
        """
        before, self.active = self.active, {}
        for rule in rules:
            active = before.get((rule.id, rule.version))
            if active is None:
                name = rule.id, rule.version
                active = ActiveRule(
                    compiled=compile_rule(rule),
                    since=(since or {}).get(name, window),
                    reports_timeouts=self._reports_timeouts is None or self._reports_timeouts(rule),
                )
                active.visible_from = 0 if visible_from is None else visible_from(active)
            until = rules.until(rule)
            active.until = NEVER if until is None else until
            self.active[active.name] = active
        self._conditions.clear()
        removed = {name for name in before if name not in self.active}
        if removed:
            successors = self._successors(before, removed)
            for old, new in successors.items():
                self.active[new].metrics.alive += before[old].metrics.alive
            self.keys.forget(removed, successors)

    def _successors(
        self, before: Mapping[RuleVersionKey, ActiveRule], removed: set[RuleVersionKey]
    ) -> dict[RuleVersionKey, RuleVersionKey]:
        """Return the new version, if any, that takes over the runs of each removed version."""
        return {
            old: new.name
            for old in removed
            for new in self.active.values()
            if new.rule.id == old[0]
            and new.rule.keep_matches
            and new.name not in before
            and is_same_shape(before[old].automaton, new.automaton)
        }

    def process(self, rows: OrderedRows, only_selector: Selector | None = None) -> list[RuleResult]:
        """Process rows; results are in the order of the rows that triggered them.

        With `only_selector` only the rules with this key see them, as the rows are copies for it.

        Raises:
            RunError: a rule failed whose policy is to fail the query.
        """
        results: list[RuleResult] = []
        for selector in {active.rule.key or self._key: None for active in self.active.values()}:
            if only_selector not in (None, selector):
                continue
            rules = [a for a in self.active.values() if (a.rule.key or self._key) == selector]
            conditions = self._conditions_of(selector, rules, rows.batch.schema)
            all_rows, hits = (
                RowView(rows, selector, read_all=len(rules) >= _MANY_RULES),
                conditions.evaluate(rows.batch),
            )
            for active in rules:
                view, rule_hits = all_rows, hits
                mask = active.visible_rows(rows)
                if mask is not None:
                    view = RowView(rows.filter(mask), selector)
                    rule_hits = conditions.evaluate(view.rows.batch)
                try:
                    self._process_rule(active, view, rule_hits.hits_for(active.compiled), results)
                except RunError as error:
                    results.append(self.disable_rule(active.rule, error, self._last_seq(rows)))
        results.sort(key=_trigger)
        if results:
            rows.load_events()
        return results

    @staticmethod
    def _last_seq(rows: OrderedRows) -> int:
        return int(rows.seqs[-1].as_py()) if len(rows.seqs) else BY_TIME

    def _conditions_of(
        self, selector: Selector, rules: list[ActiveRule], schema: pa.Schema
    ) -> ConditionMasks:
        cached = self._conditions.get(selector)
        if cached is None or cached[0] != schema:
            cached = (schema, ConditionMasks([one.compiled for one in rules], schema, self._maker))
            self._conditions[selector] = cached
        return cached[1]

    def disable_rule(
        self, rule: PatternProcessor, error: RunError, row: int = BY_TIME
    ) -> RuleResult:
        """Disable a rule that failed, and free its runs.

        `row` is the sequence number of the row that caused it, or `BY_TIME`.

        Raises:
            RunError: the rule's policy is to fail the query.
        """
        if rule.on_error == "fail":
            raise RunError(f"rule `{rule.id}`, {error.where}", error.problem) from error
        name = rule.id, rule.version
        self.active.pop(name, None)
        self.failed.append(name)
        self.keys.forget({name}, {})
        return RuleResult(*name, (), error, row)

    def _process_rule(
        self, active: ActiveRule, view: RowView, hits: Hits, results: list[RuleResult]
    ) -> None:
        count, began = len(hits.bits), self._clock()
        active.metrics.tested += count
        if active.automaton.event_need == "gaps":
            self._process_gaps(active, view, hits, results)
        elif count:
            self._process_hits(active, view, hits, results)
        active.metrics.nanoseconds += self._clock() - began

    def _process_hits(
        self, active: ActiveRule, view: RowView, hits: Hits, results: list[RuleResult]
    ) -> None:
        rows, matchers, chosen = view.rows, dict[int, Matcher | None](), view.select(hits.rows)
        chosen.keys.load(chosen.codes)
        if self._process_linear(active, rows, chosen, hits.bits, results):
            return
        rows.load_columns(
            chosen,
            active.compiled.condition_bits.needed_fields,
            whole=active.compiled.condition_bits.needs_whole_rows,
        )
        name, keys = active.name, dict[int, bytes]()
        for index, seq, time, code, bits in zip(*chosen[1:5], hits.bits, strict=True):
            if code not in matchers:
                keys[code] = chosen.keys.key_at(code)
                matchers[code] = self.keys.matchers_for(keys[code]).get(name)
            matcher = matchers[code]
            if matcher is None and not active.can_begin(bits):
                continue
            event = rows.event_at(index, seq, time)
            matchers[code] = self._step(active, keys[code], matcher, event, bits, results)

    def _process_gaps(
        self, active: ActiveRule, view: RowView, hits: Hits, results: list[RuleResult]
    ) -> None:
        """Process hits and, for keys with runs, the first row of each gap between hits."""
        gaps, rows = GapRows(view, hits), view.rows
        chosen = gaps.chosen
        chosen.keys.load(chosen.codes)
        if self._process_linear(active, rows, chosen, gaps.bits, results):
            return
        rows.load_columns(
            chosen,
            active.compiled.condition_bits.needed_fields,
            whole=active.compiled.condition_bits.needs_whole_rows,
        )
        for code, low, high in gaps.iter_keys():
            key_bytes = chosen.keys.key_at(code)
            matcher = self.keys.matchers_for(key_bytes).get(active.name)
            for at in range(low, high):
                bits = gaps.bits[at]
                if matcher is None and not (bits and active.can_begin(bits)):
                    continue
                event = rows.event_at(chosen.indices[at], chosen.seqs[at], chosen.times[at])
                matcher = self._step(active, key_bytes, matcher, event, bits, results)

    def _process_linear(
        self,
        active: ActiveRule,
        rows: OrderedRows,
        chosen: SelectedRows,
        bits: list[int],
        results: list[RuleResult],
    ) -> bool:
        """Process rows with a `LinearMatcher`; return False if pattern or runs prevent it."""
        pattern, keys, name = active.compiled.linear_pattern, chosen.keys, active.name
        if pattern is None:
            return False
        before: dict[int, list[Run]] = {}
        for code in dict.fromkeys(chosen.codes):
            matcher = self.keys.matchers_for(keys.key_at(code)).get(name)
            if matcher is not None:
                before[code] = matcher.runs
                if not pattern.can_follow(matcher.runs):
                    return False
        if may_exceed(active.rule.limits.runs, chosen.codes, before):
            return False

        def event(row: int) -> Event:
            return rows.event_at(chosen.indices[row], chosen.seqs[row], chosen.times[row])

        linear_matcher, metrics = LinearMatcher(pattern, before), active.metrics
        linear_matcher.process(chosen.codes, chosen.seqs, chosen.times, bits)
        metrics.matches += linear_matcher.matches
        metrics.timeouts += linear_matcher.timeouts
        for row, code, outcome in linear_matcher.iter_ended(event, timed=active.reports_timeouts):
            key = decode_key(keys.key_at(code))
            results.append(_new_result(RuleResult, (*name, key, outcome, chosen.seqs[row])))
        for code, runs in linear_matcher.iter_changed(event):
            matchers = self.keys.matchers_for(keys.key_at(code))
            metrics.alive += len(runs) - len(before.get(code, ()))
            if runs:
                matchers.setdefault(name, active.matcher()).set_runs(runs)
            else:
                matchers.pop(name, None)
        return True

    def _step(
        self,
        active: ActiveRule,
        key_bytes: bytes,
        matcher: Matcher | None,
        event: Event,
        bits: int,
        results: list[RuleResult],
    ) -> Matcher | None:
        """Process an event of a key; return its matcher, or None if no run is left."""
        if matcher is None:
            matcher = self.keys.matchers_for(key_bytes)[active.name] = active.matcher()
        alive, dropped, metrics = len(matcher.runs), matcher.dropped, active.metrics
        matches, timeouts = matcher.process(event, bits)
        metrics.alive += len(matcher.runs) - alive
        metrics.dropped += matcher.dropped - dropped
        if matches or timeouts:
            self._append_results(active, key_bytes, matches, timeouts, event.seq, results)
        if matcher.runs or matcher.held:
            return matcher
        del self.keys.matchers_for(key_bytes)[active.name]
        return None

    def explain(self, rule: str, key: Key) -> list[RunState]:
        """Return the state of the runs of all versions of a rule in a key.

        `key` has the values of the rule's key columns, or of the stream's if the rule has none.
        """
        states: list[RunState] = []
        for active in self.active.values():
            if active.rule.id == rule:
                matchers = self.keys.matchers_for(encode_key(active.rule.key or self._key, key))
                if active.name in matchers:
                    states += list_run_states(matchers[active.name])
        return states

    def run_states(self, rule: str) -> dict[Key, list[RunState]]:
        """Return the state of the runs of all versions of a rule, by key."""
        states: dict[Key, list[RunState]] = {}
        names = [name for name in self.active if name[0] == rule]
        for key_bytes in self.keys.list_keys():
            for name in names:
                matcher = self.keys.matchers_for(key_bytes).get(name)
                if matcher is not None:
                    states.setdefault(decode_key(key_bytes), []).extend(list_run_states(matcher))
        return states

    def advance(self, time: int) -> list[RuleResult]:
        """Return what time has ended, and remove the versions replaced by then.

        Partial matches are handed over first, so that time ends them for the version that has them.

        Raises:
            RunError: a rule failed whose policy is to fail the query.
        """
        results: list[RuleResult] = []
        for at in self.handover_times(time):
            results += self.hand_over(at)
        results += self._advance(time, self.active)
        return results

    def first_replaced(self) -> int | None:
        """Return when a later version next replaces one that has runs; None for never."""
        ending = [active for active in self.active.values() if active.until != NEVER]
        return min((active.until for active in ending if active.metrics.alive), default=None)

    def handover_times(self, time: int) -> list[int]:
        """Return the times up to `time` at which a version takes over runs of its predecessor."""
        ending = [active for active in self.active.values() if active.until <= time]
        return sorted({active.until for active in ending if self._successor(active) is not None})

    def hand_over(self, time: int) -> list[RuleResult]:
        """Advance only the versions that are replaced by `time`, and remove them; see `advance`."""
        return self._advance(time, {n for n, active in self.active.items() if active.until <= time})

    def _successor(self, old: ActiveRule) -> RuleVersionKey | None:
        """Return the scheduled version that takes over the runs of `old`, or None."""
        for new in self.active.values():
            follows = new.rule.id == old.rule.id and new.rule.starts == old.until
            if follows and new.rule.keep_matches and is_same_shape(old.automaton, new.automaton):
                return new.name
        return None

    def _advance(self, time: int, names: Collection[RuleVersionKey]) -> list[RuleResult]:
        results: list[RuleResult] = []
        for key_bytes in self.keys.due_keys(time):
            for name in [name for name in self.keys.matchers_for(key_bytes) if name in names]:
                matcher, active = self.keys.matchers_for(key_bytes).get(name), self.active.get(name)
                if matcher is not None and active is not None and matcher.due <= time:
                    self._expire(active, key_bytes, matcher, min(time, active.until), results)
        replaced = sorted(name for name, active in self.active.items() if active.until <= time)
        successors = {name: self._successor(self.active[name]) for name in replaced}
        for name in replaced:
            old, successor = self.active.pop(name), successors[name]
            if successor is not None:
                self.active[successor].metrics.alive += old.metrics.alive
        if replaced:
            self._conditions.clear()
            self.keys.forget(
                replaced, {old: new for old, new in successors.items() if new is not None}
            )
        return results

    def _expire(
        self,
        active: ActiveRule,
        key_bytes: bytes,
        matcher: Matcher,
        time: int,
        results: list[RuleResult],
    ) -> None:
        alive, began = len(matcher.runs), self._clock()
        try:
            matches, timeouts = matcher.advance(time)
        except RunError as error:
            results.append(self.disable_rule(active.rule, error))
            return
        active.metrics.alive += len(matcher.runs) - alive
        active.metrics.nanoseconds += self._clock() - began
        self._append_results(active, key_bytes, matches, timeouts, BY_TIME, results)
        if not matcher.runs and not matcher.held:
            self.keys.matchers_for(key_bytes).pop(active.name, None)

    def _append_results(
        self,
        active: ActiveRule,
        key_bytes: bytes,
        matches: list[PatternMatch],
        timeouts: list[Timeout],
        trigger: int,
        results: list[RuleResult],
    ) -> None:
        """Append results; partial matches with equal events and end time are reported once."""
        (name, version), key, metrics = active.name, decode_key(key_bytes), active.metrics
        if len(timeouts) > 1:
            unique: dict[tuple[int, ...], Timeout] = {}
            for timeout in timeouts:
                unique.setdefault(_timeout_identity(timeout), timeout)
            timeouts = list(unique.values())
        metrics.timeouts += len(timeouts)
        metrics.matches += len(matches)
        outcomes: list[PatternMatch | Timeout] = (
            [*timeouts, *matches] if active.reports_timeouts else [*matches]
        )
        results += [_new_result(RuleResult, (name, version, key, one, trigger)) for one in outcomes]


def _trigger(result: RuleResult) -> int:
    return result.trigger


def _timeout_identity(timeout: Timeout) -> tuple[int, ...]:
    """Return the end time and events of a time-out; time-outs that share them are reported once."""
    identity = [timeout.time]
    node: RunNode | None = timeout.node
    while node is not None:
        identity += (node.stage, node.event.seq)
        node = node.previous
    return tuple(identity)


def is_same_shape(left: Nfa, right: Nfa) -> bool:
    """Return whether two automata differ only in their conditions."""

    def shape(automaton: Nfa) -> object:
        states = [
            (
                state.kind,
                state.is_duplicate,
                state.gap,
                [(edge.action, edge.target, edge.stage, edge.gap) for edge in state.edges],
            )
            for state in automaton.states
        ]
        return automaton.stages, automaton.start, automaton.window, states, automaton.pattern.skip

    return shape(left) == shape(right)
