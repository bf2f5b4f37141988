"""Explain why a pattern has not matched: the state of each run, and the effect of each event."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from streambroker_core.cep.engine.key_store import decode_key, encode_key
from streambroker_core.cep.nfa.compiler import compile_pattern
from streambroker_core.cep.nfa.condition_bits import ConditionBits
from streambroker_core.cep.nfa.matcher import Matcher, PatternMatch, Run, Timeout, events_by_stage
from streambroker_core.cep.nfa.nfa import FINAL, STOP
from streambroker_core.cep.pattern.key_selectors import compute_key
from streambroker_core.cep.pattern.match_buffer import Event, RunNode
from streambroker_core.cep.pattern.pattern import Pattern
from streambroker_core.cep.pattern.run_limits import NEVER, RunLimits
from streambroker_core.expression.evaluate import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """State of a run.

    Attributes:
        taken: events it has taken, by stage.
        waits: what it waits for now.
        conditions: conditions of the stages that may follow, by stage name.
        ends_at: time at which it ends, in microseconds; None for never.
        held: it is a match that waits for earlier or preferred runs.
    """

    taken: dict[str, list[Event]]
    waits: str
    conditions: dict[str, str]
    ends_at: int | None
    held: bool = False

    def __str__(self) -> str:
        taken = ", ".join(f"{stage} {len(events)}" for stage, events in self.taken.items())
        if self.held:
            return f"matched ({taken}), waits for runs that began earlier, or are preferred"
        wanted = " or ".join(f"`{name}`: {text}" for name, text in self.conditions.items())
        return f"taken: {taken}; waits for {self.waits}{f' ({wanted})' if wanted else ''}"


def list_run_states(matcher: Matcher) -> list[RunState]:
    """Return the states of the runs of a key, in the order of their first events."""
    states = [_describe_run(matcher, run, held=run.state == FINAL) for run in matcher.runs]
    return states + [_describe_run(matcher, run, held=True) for run in matcher.held]


def _describe_run(matcher: Matcher, run: Run, *, held: bool) -> RunState:
    automaton = matcher.automaton
    conditions: dict[str, str] = {}
    for state in automaton.closure(run.state):
        for edge in automaton.states[state].edges:
            if edge.action == "take" and edge.target != STOP:
                name = automaton.stages[edge.stage]
                needed = [c for n, c in enumerate(automaton.conditions) if edge.guard.need >> n & 1]
                conditions[name] = " && ".join(map(str, needed)) or "any event"
    return RunState(
        taken=events_by_stage(run.node, automaton.stages),
        waits="" if held else automaton.states[run.state].waits_for,
        conditions={} if held else conditions,
        ends_at=None if run.due == NEVER else run.due,
        held=held,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceEvent:
    """Effect of one event in a dry run.

    Attributes:
        holds: conditions that hold; conditions on the past are included if their local part holds.
        began: a run began with it.
        took: runs that took it, as sequence numbers of their first events.
        ended: runs that ended at it without a match, as in `took`.
        matches: matches that it completed.
    """

    event: Event
    key: tuple[Any, ...]
    holds: tuple[str, ...]
    began: bool
    took: tuple[int, ...]
    ended: tuple[int, ...]
    matches: tuple[PatternMatch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """Result of a dry run: matches and time-outs with their keys.

    Attributes:
        seen: effect of each event, in order.
        most_runs: maximum number of simultaneous runs in one key.
        left: states of the remaining runs, by key.
    """

    matches: list[tuple[tuple[Any, ...], PatternMatch]]
    timeouts: list[tuple[tuple[Any, ...], Timeout]]
    seen: list[TraceEvent]
    most_runs: int
    left: dict[tuple[Any, ...], list[RunState]]


def dry_run(
    pattern: Pattern,
    rows: Iterable[Row],
    *,
    time: str | Callable[[Row], int],
    key: tuple[str, ...] = (),
    limits: RunLimits | None = None,
) -> DryRun:
    """Run a pattern over stored events, which may be in any order.

    `time` is the column with the event time in microseconds, or a function that returns it for a
    row. `key` has columns or expressions.

    Raises:
        PatternError: the pattern cannot be compiled.
        RunError: a function raised, or a skip has no target.
    """
    automaton = compile_pattern(pattern)
    conditions, matchers = ConditionBits(automaton), dict[bytes, Matcher]()
    out = DryRun(matches=[], timeouts=[], seen=[], most_runs=0, left={})
    most = 0
    for seq, row in enumerate(sorted(rows, key=lambda row: _event_time(row, time))):
        key_bytes = encode_key(key, compute_key(key, row))
        matcher = matchers.get(key_bytes)
        if matcher is None:
            matcher = matchers[key_bytes] = Matcher(automaton, conditions, limits or RunLimits())
        event = Event(seq, _event_time(row, time), row)
        trace, timeouts = _trace_event(matcher, event, decode_key(key_bytes))
        out.seen.append(trace)
        out.matches.extend((trace.key, match) for match in trace.matches)
        out.timeouts.extend((trace.key, each) for each in timeouts)
        most = max(most, len(matcher.runs))
    remaining = {
        decode_key(key_bytes): list_run_states(each) for key_bytes, each in matchers.items()
    }
    return DryRun(
        matches=out.matches,
        timeouts=out.timeouts,
        seen=out.seen,
        most_runs=most,
        left={key: each for key, each in remaining.items() if each},
    )


def _trace_event(
    matcher: Matcher, event: Event, key: tuple[Any, ...]
) -> tuple[TraceEvent, list[Timeout]]:
    before = {_identity(run) for run in matcher.runs}
    bits = matcher.condition_bits.evaluate_local(event)
    matches, timeouts = matcher.process(event, bits)
    timed_out = {_first_seq(each) for each in timeouts}
    after = matcher.runs
    took = {run.start for run in after if run.node.event is event}
    took |= {_first_seq(match) for match in matches if _last_seq(match) == event.seq}
    alive = {run.start for run in after} | {_first_seq(match) for match in matches}
    conditions = matcher.automaton.conditions
    return (
        TraceEvent(
            event=event,
            key=key,
            holds=tuple(str(c) for n, c in enumerate(conditions) if bits >> n & 1),
            began=event.seq in took,
            took=tuple(sorted(took)),
            ended=tuple(sorted({start for start, _ in before} - alive - timed_out)),
            matches=tuple(matches),
        ),
        timeouts,
    )


def _identity(run: Run) -> tuple[int, RunNode]:
    return run.start, run.node


def _first_seq(outcome: PatternMatch | Timeout) -> int:
    return min(event.seq for events in outcome.events.values() for event in events)


def _last_seq(outcome: PatternMatch) -> int:
    return max(event.seq for events in outcome.events.values() for event in events)


def _event_time(row: Row, column: str | Callable[[Row], int]) -> int:
    if not isinstance(column, str):
        return column(row)
    time = row[column]
    if type(time) is not int:
        raise TypeError(f"column {column} has {time!r}: give event times in microseconds")
    return time
