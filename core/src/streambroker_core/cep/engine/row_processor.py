"""Passes rows to the runs of rules, key by key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from streambroker_core.cep.engine.active_rule import ActiveRule, RuleResult, new_result
from streambroker_core.cep.engine.condition_masks import BatchHits, Hits
from streambroker_core.cep.engine.key_store import KeyRuns, KeyStore, decode_key
from streambroker_core.cep.engine.row_view import (
    GapRows,
    KeyCodes,
    OrderedRows,
    RowView,
    SelectedRows,
)
from streambroker_core.cep.nfa.compiled import CompiledRule
from streambroker_core.cep.nfa.linear_group import LinearGroup
from streambroker_core.cep.nfa.linear_matcher import LinearMatcher, may_exceed
from streambroker_core.cep.nfa.matcher import Matcher, Run
from streambroker_core.cep.pattern.errors import RunError
from streambroker_core.cep.pattern.match_buffer import Event


class RowProcessor:
    """Processes the rows of one bucket; `clock` returns nanoseconds, for metrics only.

    With `sets_aside`, an event on which a rule fails is a result, and ends the partial matches of
    its key.
    """

    def __init__(self, keys: KeyStore, clock: Callable[[], int], *, sets_aside: bool) -> None:
        self._keys, self._clock, self._sets_aside = keys, clock, sets_aside

    def process(
        self, active: ActiveRule, view: RowView, hits: Hits, results: list[RuleResult]
    ) -> None:
        """Process the hits of a rule, and append its results."""
        count, began = len(hits.bits), self._clock()
        active.metrics.tested += count
        if active.automaton.event_need == "gaps":
            self._process_gaps(active, view, hits, results)
        elif count:
            self._process_hits(active, view, hits, results)
        active.metrics.nanoseconds += self._clock() - began

    def process_group(
        self, rules: list[ActiveRule], view: RowView, hits: BatchHits, results: list[RuleResult]
    ) -> bool:
        """Process the hits of rules with equal `CompiledRule.sharing` at once.

        Returns False, with no row processed, if runs or limits prevent it.
        """
        group, began = CompiledRule.group([active.compiled for active in rules]), self._clock()
        found = hits.hits_of(group.texts)
        if not found.bits:
            return True
        chosen = view.select(found.rows)
        chosen.keys.load(chosen.codes)
        if not self._process_linear(rules, group, view.rows, chosen, found.bits, results):
            return False
        tested = Counter[int]()
        for bits, count in Counter(found.bits).items():
            tested[group.plan_for(bits).seen_by] += count
        for number, count in _by_rule(group, tested):
            rules[number].metrics.tested += count
        spent = (self._clock() - began) // len(rules)
        for active in rules:
            active.metrics.nanoseconds += spent
        return True

    def _process_hits(
        self, active: ActiveRule, view: RowView, hits: Hits, results: list[RuleResult]
    ) -> None:
        rows, matchers, chosen = view.rows, dict[int, Matcher | None](), view.select(hits.rows)
        chosen.keys.load(chosen.codes)
        if self._process_alone(active, rows, chosen, hits.bits, results):
            return
        rows.load_columns(chosen, active.compiled.condition_bits)
        name, keys = active.name, dict[int, bytes]()
        for index, seq, time, code, bits in zip(*chosen[1:5], hits.bits, strict=True):
            if code not in matchers:
                keys[code] = chosen.keys.key_at(code)
                matchers[code] = self._keys.matcher_of(self._runs_at(chosen.keys, code), name)
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
        if self._process_alone(active, rows, chosen, gaps.bits, results):
            return
        rows.load_columns(chosen, active.compiled.condition_bits)
        for code, low, high in gaps.iter_keys():
            key_bytes = chosen.keys.key_at(code)
            matcher = self._keys.matcher_of(self._runs_at(chosen.keys, code), active.name)
            for at in range(low, high):
                bits = gaps.bits[at]
                if matcher is None and not (bits and active.can_begin(bits)):
                    continue
                event = rows.event_at(chosen.indices[at], chosen.seqs[at], chosen.times[at])
                matcher = self._step(active, key_bytes, matcher, event, bits, results)

    def _process_alone(
        self,
        active: ActiveRule,
        rows: OrderedRows,
        chosen: SelectedRows,
        bits: list[int],
        results: list[RuleResult],
    ) -> bool:
        """Process rows of one rule with a `LinearMatcher`, if possible."""
        group = active.compiled.alone
        if group is None:
            return False
        return self._process_linear([active], group, rows, chosen, bits, results)

    def _process_linear(
        self,
        rules: list[ActiveRule],
        group: LinearGroup,
        rows: OrderedRows,
        chosen: SelectedRows,
        bits: list[int],
        results: list[RuleResult],
    ) -> bool:
        """Process rows with a `LinearMatcher`; return False if runs or limits prevent it."""
        keys, before = chosen.keys, self._take_runs(group, chosen, rules[0].rule.limits.runs)
        if before is None:
            return False

        def event(row: int) -> Event:
            return rows.event_at(chosen.indices[row], chosen.seqs[row], chosen.times[row])

        nodes = rows.nodes_of(group.pattern.automaton.stages)
        matcher = LinearMatcher(group.pattern, group.plan_for, before, nodes)
        matcher.process(chosen.codes, chosen.seqs, chosen.times, bits)
        timed = sum(1 << number for number, one in enumerate(rules) if one.reports_timeouts)
        for row, code, outcome, ended_rules in matcher.iter_ended(event, timed=timed):
            key, seq = decode_key(keys.key_at(code)), chosen.seqs[row]
            results += (
                new_result(RuleResult, (*group.names[number], key, outcome, seq))
                for number in group.members(ended_rules)
            )
        alive = self._put_changed(matcher, group, keys, before, event)
        matches, timeouts = matcher.count_ended()
        for number, count in _by_rule(group, matches):
            rules[number].metrics.matches += count
        for number, count in _by_rule(group, timeouts):
            rules[number].metrics.timeouts += count
        for number, count in _by_rule(group, alive):
            rules[number].metrics.alive += count
        return True

    def _take_runs(
        self, group: LinearGroup, chosen: SelectedRows, max_runs: int | None
    ) -> dict[int, list[tuple[int, list[Run]]]] | None:
        """Return the runs of a group by key number, or None if they need a `Matcher`."""
        before: dict[int, list[tuple[int, list[Run]]]] = {}
        for code in dict.fromkeys(chosen.codes):
            parts = self._keys.take(self._runs_at(chosen.keys, code), group)
            if parts:
                before[code] = parts
        lists = [runs for parts in before.values() for _, runs in parts]
        if not all(map(group.pattern.can_follow, lists)):
            return None
        alive = max(map(len, lists), default=0)
        return None if may_exceed(max_runs, chosen.codes, alive) else before

    def _put_changed(
        self,
        matcher: LinearMatcher,
        group: LinearGroup,
        keys: KeyCodes,
        before: dict[int, list[tuple[int, list[Run]]]],
        event: Callable[[int], Event],
    ) -> Counter[int]:
        """Replace the runs of changed keys; return how many more there are, by mask of rules."""
        alive = Counter[int]()
        for code, parts in matcher.iter_changed(event):
            earlier = before.get(code, [])
            if parts or earlier:
                self._keys.put(self._runs_at(keys, code), group, parts)
            for mask, runs in parts:
                alive[mask] += len(runs)
            for mask, runs in earlier:
                alive[mask] -= len(runs)
        return alive

    def _runs_at(self, keys: KeyCodes, code: int) -> KeyRuns:
        """Return the runs of a key number; the caller may change them."""
        found = keys.runs.get(code)
        if found is None:
            found = keys.runs[code] = self._keys.runs_of(keys.key_at(code))
        return found

    def _step(
        self,
        active: ActiveRule,
        key_bytes: bytes,
        matcher: Matcher | None,
        event: Event,
        bits: int,
        results: list[RuleResult],
    ) -> Matcher | None:
        """Process an event of a key; return its matcher, or None if it is empty."""
        if matcher is None:
            matcher = self._keys.runs_of(key_bytes).matchers[active.name] = active.matcher()
        if self._sets_aside and event.time >= matcher.due:  # results of time do not fail with it
            active.advance(key_bytes, matcher, event.time, event.seq, results, sets_aside=True)
        alive, dropped, metrics = len(matcher.runs), matcher.dropped, active.metrics
        try:
            matches, timeouts = matcher.process(event, bits)
        except RunError as error:
            error.row, error.time = event.row, event.time
            if not self._sets_aside:
                raise
            active.set_aside(key_bytes, matcher, error, event.seq, results)
            matches, timeouts = [], []
        metrics.alive += len(matcher.runs) - alive
        metrics.dropped += matcher.dropped - dropped
        if matches or timeouts:
            active.append_results(key_bytes, matches, timeouts, event.seq, results)
        if not matcher.is_empty:
            return matcher
        del self._keys.runs_of(key_bytes).matchers[active.name]
        return None


def _by_rule(group: LinearGroup, counts: Counter[int]) -> Iterator[tuple[int, int]]:
    """Yield the number of each rule in a mask, with the count of the mask."""
    for mask, count in counts.items():
        for number in group.members(mask):
            yield number, count
