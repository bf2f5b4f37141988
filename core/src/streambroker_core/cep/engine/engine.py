"""Rule engine of one bucket: rows in; matches, time-outs and errors out.

- A rule sees rows that are released while it is in the set, regardless of when they arrived.
- Of these it sees only rows that fulfil one of its conditions. If its pattern needs it, it also
  sees whether other rows lie between them.
- Exporters may send only the rows that the rules of that time need. A new rule sees rows only from
  the first window for which all the rows that it needs were sent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import asdict

import pyarrow as pa

from streambroker_core.cep.engine.active_rule import BY_TIME, ActiveRule, Key, Metrics, RuleResult
from streambroker_core.cep.engine.condition_masks import (
    BatchHits,
    ConditionMasks,
    MaskMaker,
    row_by_row,
)
from streambroker_core.cep.engine.key_store import KeyStore, decode_key, encode_key
from streambroker_core.cep.engine.metrics import RuleMetrics
from streambroker_core.cep.engine.row_processor import RowProcessor
from streambroker_core.cep.engine.row_view import OrderedRows, RowView
from streambroker_core.cep.engine.trace import RunState, list_run_states
from streambroker_core.cep.nfa.compiled import compile_rule
from streambroker_core.cep.nfa.matcher import Matcher
from streambroker_core.cep.nfa.snapshot import RuleVersionKey
from streambroker_core.cep.pattern.errors import RunError
from streambroker_core.cep.pattern.key_selectors import Selector
from streambroker_core.cep.pattern.rule import PatternProcessor
from streambroker_core.cep.pattern.run_limits import NEVER
from streambroker_core.cep.rules.rule_set import RuleSet
from streambroker_core.control.operators.keyed_state import KeyedState

_MANY_SELECTIONS = 16
"""From so many selections of rows on, numbers, times and keys of all rows are read at once."""


class Engine:
    """Rules of one bucket and their runs.

    Args:
        key: key columns of the stream; empty for a single key.
        clock: returns nanoseconds, for metrics only; it need not advance.
        reports_timeouts: returns whether the timed-out partial matches of a rule are reported; None
            to report all.
        sets_aside: a rule that fails on an event goes on; only its partial matches of that key end.

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
        sets_aside: bool = False,
    ) -> None:
        self._key, self._maker, self._clock = key, maker, clock
        self._reports_timeouts, self._sets_aside = reports_timeouts, sets_aside
        self.active: dict[RuleVersionKey, ActiveRule] = {}
        self.failed: list[RuleVersionKey] = []
        self.keys = KeyStore(state, self._make_matcher, lambda name: name in self.active)
        self._rows = RowProcessor(self.keys, clock, sets_aside=sets_aside)
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
        removed = [active for name, active in before.items() if name not in self.active]
        new_versions = [active for name, active in self.active.items() if name not in before]

        def successor(old: ActiveRule) -> ActiveRule | None:
            return next((new for new in reversed(new_versions) if new.can_take_over(old)), None)

        self._release(removed, successor)

    def _release(
        self, removed: list[ActiveRule], successor: Callable[[ActiveRule], ActiveRule | None]
    ) -> None:
        """Free the runs of removed versions, or hand them over to their successors."""
        self._conditions.clear()
        self.keys.rules_changed()
        if not removed:
            return
        pairs = [(old, successor(old)) for old in removed]
        for old, new in pairs:
            self.active.pop(old.name, None)
            if new is not None:
                new.metrics.alive += old.metrics.alive
        successors = {old.name: new.name for old, new in pairs if new is not None}
        self.keys.forget({old.name for old in removed}, successors)

    def process(self, rows: OrderedRows, only_selector: Selector | None = None) -> list[RuleResult]:
        """Process rows; results are in the order of the rows that triggered them, then of rules.

        With `only_selector` only the rules with this key see them, as the rows are copies for it.

        Raises:
            RunError: a rule failed whose policy is to fail the query.
        """
        results: list[RuleResult] = []
        places = {name: place for place, name in enumerate(self.active)}
        for selector in {active.rule.key or self._key: None for active in self.active.values()}:
            if only_selector not in (None, selector):
                continue
            rules = [a for a in self.active.values() if (a.rule.key or self._key) == selector]
            conditions = self._conditions_of(selector, rules, rows.batch.schema)
            masks = {active.name: active.visible_rows(rows) for active in rules}
            groups = _list_groups([active for active in rules if masks[active.name] is None])
            view = RowView(rows, selector, read_all=len(groups) >= _MANY_SELECTIONS)
            hits = conditions.evaluate(rows.batch)
            for group in groups:
                if len(group) == 1 or not self._rows.process_group(group, view, hits, results):
                    for active in group:
                        self._process(active, view, hits, results)
            for active in rules:
                mask = masks[active.name]
                if mask is not None:
                    part = RowView(rows.filter(mask), selector)
                    self._process(active, part, conditions.evaluate(part.rows.batch), results)
        results.sort(key=lambda result: (result.trigger, places[result[:2]]))
        if results:
            rows.load_events()
        return results

    def _process(
        self, active: ActiveRule, view: RowView, hits: BatchHits, results: list[RuleResult]
    ) -> None:
        try:
            self._rows.process(active, view, hits.hits_for(active.compiled), results)
        except RunError as error:
            results.append(self.disable_rule(active.rule, error, self._last_seq(view.rows)))

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

    def rule_metrics(self, alive: Mapping[RuleVersionKey, int] | None) -> tuple[RuleMetrics, ...]:
        """Return the metrics of rules with activity since `alive` runs, or of all rules."""
        return tuple(
            RuleMetrics(rule=name[0], version=name[1], since=active.since, **asdict(active.metrics))
            for name, active in sorted(self.active.items())
            if alive is None or active.metrics != Metrics(alive=alive.get(name, 0))
        )

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

    def _successor(self, old: ActiveRule) -> ActiveRule | None:
        """Return the scheduled version that takes over the runs of `old`, or None."""
        for new in self.active.values():
            if new.rule.starts == old.until and new.can_take_over(old):
                return new
        return None

    def _advance(self, time: int, names: Collection[RuleVersionKey]) -> list[RuleResult]:
        results: list[RuleResult] = []
        for key_bytes in self.keys.due_keys(time):
            self._expire_shared(key_bytes, time, names, results)
            for name in [name for name in self.keys.runs_of(key_bytes).matchers if name in names]:
                matcher = self.keys.runs_of(key_bytes).matchers.get(name)
                active = self.active.get(name)
                if matcher is not None and active is not None and matcher.due <= time:
                    self._expire(active, key_bytes, matcher, min(time, active.until), results)
        replaced = [self.active[name] for name in sorted(self.active)]
        replaced = [active for active in replaced if active.until <= time]
        if replaced:
            self._release(replaced, self._successor)
        return results

    def _expire(
        self,
        active: ActiveRule,
        key_bytes: bytes,
        matcher: Matcher,
        time: int,
        results: list[RuleResult],
    ) -> None:
        began = self._clock()
        try:
            active.advance(key_bytes, matcher, time, BY_TIME, results, sets_aside=self._sets_aside)
        except RunError as error:
            results.append(self.disable_rule(active.rule, error))
            return
        active.metrics.nanoseconds += self._clock() - began
        if matcher.is_empty:
            self.keys.runs_of(key_bytes).matchers.pop(active.name, None)

    def _expire_shared(
        self,
        key_bytes: bytes,
        time: int,
        names: Collection[RuleVersionKey],
        results: list[RuleResult],
    ) -> None:
        """Expire the shared runs of a key; rules that are replaced by then get their own first."""
        found = self.keys.runs_of(key_bytes)
        for shared in [each for each in found.shared if each.due <= time]:
            rules = [self.active[name] for name in sorted(shared.rules)]
            if any(one.until <= time or one.name not in names for one in rules):
                self.keys.separate(found, shared)
                continue
            matcher = rules[0].matcher()
            matcher.set_runs(shared.runs)
            _, timeouts = matcher.advance(time)
            found.replace(shared, shared._replace(runs=matcher.runs, due=matcher.due))
            for active in rules:
                active.metrics.alive -= len(timeouts)
                active.append_results(key_bytes, [], timeouts, BY_TIME, results)


def _list_groups(rules: list[ActiveRule]) -> list[list[ActiveRule]]:
    """Return rules that can share runs together, and each other one by itself."""
    groups: dict[Hashable, list[ActiveRule]] = {}
    for active in rules:
        groups.setdefault(active.compiled.sharing or active.name, []).append(active)
    return list(groups.values())
