"""Passes rows to the runs of a rule, key by key."""

from __future__ import annotations

from collections.abc import Callable

from streambroker_core.cep.engine.active_rule import ActiveRule, RuleResult, new_result
from streambroker_core.cep.engine.condition_masks import Hits
from streambroker_core.cep.engine.key_store import KeyStore, decode_key
from streambroker_core.cep.engine.row_view import (
    GapRows,
    KeyCodes,
    OrderedRows,
    RowView,
    SelectedRows,
)
from streambroker_core.cep.nfa.linear_matcher import LinearMatcher, may_exceed
from streambroker_core.cep.nfa.matcher import Matcher, Run
from streambroker_core.cep.nfa.snapshot import RuleVersionKey
from streambroker_core.cep.pattern.match_buffer import Event


class RowProcessor:
    """Processes the rows of one bucket; `clock` returns nanoseconds, for metrics only."""

    def __init__(self, keys: KeyStore, clock: Callable[[], int]) -> None:
        self._keys, self._clock = keys, clock

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

    def _process_hits(
        self, active: ActiveRule, view: RowView, hits: Hits, results: list[RuleResult]
    ) -> None:
        rows, matchers, chosen = view.rows, dict[int, Matcher | None](), view.select(hits.rows)
        chosen.keys.load(chosen.codes)
        if self._process_linear(active, rows, chosen, hits.bits, results):
            return
        rows.load_columns(chosen, active.compiled.condition_bits)
        name, keys = active.name, dict[int, bytes]()
        for index, seq, time, code, bits in zip(*chosen[1:5], hits.bits, strict=True):
            if code not in matchers:
                keys[code] = chosen.keys.key_at(code)
                matchers[code] = self._matchers_at(chosen.keys, code).get(name)
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
        rows.load_columns(chosen, active.compiled.condition_bits)
        for code, low, high in gaps.iter_keys():
            key_bytes = chosen.keys.key_at(code)
            matcher = self._matchers_at(chosen.keys, code).get(active.name)
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
            matcher = self._matchers_at(keys, code).get(name)
            if matcher is not None:
                before[code] = matcher.runs
                if not pattern.can_follow(matcher.runs):
                    return False
        if may_exceed(active.rule.limits.runs, chosen.codes, before):
            return False

        def event(row: int) -> Event:
            return rows.event_at(chosen.indices[row], chosen.seqs[row], chosen.times[row])

        nodes, metrics = rows.nodes_of(active.automaton.stages), active.metrics
        linear_matcher = LinearMatcher(pattern, before, nodes)
        linear_matcher.process(chosen.codes, chosen.seqs, chosen.times, bits)
        metrics.matches += linear_matcher.matches
        metrics.timeouts += linear_matcher.timeouts
        for row, code, outcome in linear_matcher.iter_ended(event, timed=active.reports_timeouts):
            key = decode_key(keys.key_at(code))
            results.append(new_result(RuleResult, (*name, key, outcome, chosen.seqs[row])))
        for code, runs in linear_matcher.iter_changed(event):
            matchers = self._matchers_at(keys, code)
            metrics.alive += len(runs) - len(before.get(code, ()))
            if runs:
                matcher = matchers.get(name) or matchers.setdefault(name, active.matcher())
                matcher.set_runs(runs)
            else:
                matchers.pop(name, None)
        return True

    def _matchers_at(self, keys: KeyCodes, code: int) -> dict[RuleVersionKey, Matcher]:
        """Return the matchers of a key number; the caller may change them."""
        matchers = keys.matchers.get(code)
        if matchers is None:
            matchers = keys.matchers[code] = self._keys.matchers_for(keys.key_at(code))
        return matchers

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
            matcher = self._keys.matchers_for(key_bytes)[active.name] = active.matcher()
        alive, dropped, metrics = len(matcher.runs), matcher.dropped, active.metrics
        matches, timeouts = matcher.process(event, bits)
        metrics.alive += len(matcher.runs) - alive
        metrics.dropped += matcher.dropped - dropped
        if matches or timeouts:
            active.append_results(key_bytes, matches, timeouts, event.seq, results)
        if not matcher.is_empty:
            return matcher
        del self._keys.matchers_for(key_bytes)[active.name]
        return None
