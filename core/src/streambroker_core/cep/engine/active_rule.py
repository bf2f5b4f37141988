"""A rule in force: its counters, its results, and the versions that it takes over."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.cep.engine.key_store import decode_key
from streambroker_core.cep.engine.row_view import OrderedRows
from streambroker_core.cep.nfa.compiled import CompiledRule
from streambroker_core.cep.nfa.matcher import Matcher, PatternMatch, Timeout
from streambroker_core.cep.nfa.nfa import Nfa
from streambroker_core.cep.nfa.snapshot import RuleVersionKey
from streambroker_core.cep.pattern.errors import RunError
from streambroker_core.cep.pattern.match_buffer import RunNode
from streambroker_core.cep.pattern.rule import PatternProcessor
from streambroker_core.cep.pattern.run_limits import NEVER

Key: TypeAlias = "tuple[Any, ...]"
BY_TIME = -1
"""Trigger of a result that time caused, not a row."""


class RuleResult(NamedTuple):
    """A match or timed-out partial match of a rule, or the error that stopped the rule.

    `trigger` is the sequence number of the row that caused it, or `BY_TIME`.
    """

    rule: str
    version: int
    key: Key
    outcome: PatternMatch | Timeout | RunError
    trigger: int


new_result = tuple.__new__
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
            self.compiled.automaton,
            self.compiled.condition_bits,
            self.compiled.rule.limits,
            numbered=self.rule.numbered,
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
        if not rows.batch.num_rows:
            return None
        if self.visible_from and pc.min(rows.arrival_windows).as_py() < self.visible_from:
            masks.append(pc.greater_equal(rows.arrival_windows, self.visible_from))
        starts, until = self.rule.starts, self.until
        if starts is not None and pc.min(rows.times).as_py() < starts:
            masks.append(pc.greater_equal(rows.times, starts))
        if until != NEVER and pc.max(rows.times).as_py() >= until:
            masks.append(pc.less(rows.times, until))
        return reduce(pc.and_, masks) if masks else None

    def can_take_over(self, old: ActiveRule) -> bool:
        """Return whether this version of the same rule can continue the runs of `old`."""
        return (
            self.rule.id == old.rule.id
            and self.rule.keep_matches
            and self.rule.numbered == old.rule.numbered
            and _shape(self.automaton) == _shape(old.automaton)
        )

    def advance(
        self,
        key_bytes: bytes,
        matcher: Matcher,
        time: int,
        trigger: int,
        results: list[RuleResult],
        *,
        sets_aside: bool,
    ) -> None:
        """Advance the time of a key, and append the results.

        Raises:
            RunError: the rule failed, and is not to go on.
        """
        alive = len(matcher.runs)
        try:
            matches, timeouts = matcher.advance(time)
        except RunError as error:
            if not sets_aside:
                raise
            error.time = time
            self.set_aside(key_bytes, matcher, error, trigger, results)
        else:
            self.append_results(key_bytes, matches, timeouts, trigger, results)
        self.metrics.alive += len(matcher.runs) - alive

    def set_aside(
        self,
        key_bytes: bytes,
        matcher: Matcher,
        error: RunError,
        trigger: int,
        results: list[RuleResult],
    ) -> None:
        """End the partial matches of a key, and append the complete ones and the error."""
        error.key = decode_key(key_bytes)
        ended = matcher.end(NEVER if error.time is None else error.time)
        matches, timeouts = [*error.matches, *ended], [*error.timeouts]
        self.append_results(key_bytes, matches, timeouts, trigger, results)
        results.append(RuleResult(*self.name, error.key, error, trigger))

    def append_results(
        self,
        key_bytes: bytes,
        matches: list[PatternMatch],
        timeouts: list[Timeout],
        trigger: int,
        results: list[RuleResult],
    ) -> None:
        """Append results; partial matches with equal events and end time are reported once."""
        (name, version), key, metrics = self.name, decode_key(key_bytes), self.metrics
        if len(timeouts) > 1:
            unique: dict[tuple[int, ...], Timeout] = {}
            for timeout in timeouts:
                unique.setdefault(_timeout_identity(timeout), timeout)
            timeouts = list(unique.values())
        metrics.timeouts += len(timeouts)
        metrics.matches += len(matches)
        outcomes: list[PatternMatch | Timeout] = (
            [*timeouts, *matches] if self.reports_timeouts else [*matches]
        )
        results += [new_result(RuleResult, (name, version, key, one, trigger)) for one in outcomes]


def _timeout_identity(timeout: Timeout) -> tuple[int, ...]:
    """Return the end time and events of a time-out; time-outs that share them are reported once."""
    identity = [timeout.time]
    node: RunNode | None = timeout.node
    while node is not None:
        identity += (node.stage, node.event.seq)
        node = node.previous
    return tuple(identity)


def _shape(automaton: Nfa) -> object:
    """Return all of an automaton but its conditions."""
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
