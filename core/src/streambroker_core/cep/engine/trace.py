"""Why a pattern has not matched: where each run stands, and what each event did to which run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from streambroker_core.cep.engine.key_store import place_of, values_of
from streambroker_core.cep.nfa.compiler import compile_pattern
from streambroker_core.cep.nfa.condition_bits import Truths
from streambroker_core.cep.nfa.matcher import NEVER, Limits, Match, Matcher, Run, Timeout, events_of
from streambroker_core.cep.nfa.nfa import STOP
from streambroker_core.cep.pattern.key_selectors import key_of
from streambroker_core.cep.pattern.match_buffer import Event, Node, Row
from streambroker_core.cep.pattern.pattern import Pattern


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a run stands.

    Attributes:
        taken: the events it has taken, by stage.
        waits: what it waits for now.
        conditions: of the stages that may come next, by their names.
        ends_at: when its time is over, in microseconds; None for never.
        held: it is a match, and waits for runs that began earlier.
    """

    taken: dict[str, list[Event]]
    waits: str
    conditions: dict[str, str]
    ends_at: int | None
    held: bool = False

    def __str__(self) -> str:
        taken = ", ".join(f"{stage} {len(events)}" for stage, events in self.taken.items())
        if self.held:
            return f"matched ({taken}), waits for runs that began earlier"
        wanted = " or ".join(f"`{name}`: {text}" for name, text in self.conditions.items())
        return f"taken: {taken}; waits for {self.waits}{f' ({wanted})' if wanted else ''}"


def standings(matcher: Matcher) -> list[Standing]:
    """Return where the runs of a key stand, in the order of their first events."""
    found = [_standing(matcher, run, held=False) for run in matcher.runs]
    return found + [_standing(matcher, run, held=True) for run in matcher.held]


def _standing(matcher: Matcher, run: Run, *, held: bool) -> Standing:
    automaton = matcher.automaton
    conditions: dict[str, str] = {}
    for state in automaton.reach(run.state):
        for edge in automaton.states[state].edges:
            if edge.action == "take" and edge.target != STOP:
                name = automaton.stages[edge.stage]
                asked = [c for n, c in enumerate(automaton.conditions) if edge.guard.need >> n & 1]
                conditions[name] = " && ".join(map(str, asked)) or "any event"
    return Standing(
        taken=events_of(run.node, automaton.stages),
        waits="" if held else automaton.states[run.state].waits,
        conditions={} if held else conditions,
        ends_at=None if run.due == NEVER else run.due,
        held=held,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one event did in a dry run.

    Attributes:
        event: the event.
        key: values of its key.
        holds: the conditions that hold of it, those on the past only as far as the event decides.
        began: a run began with it.
        took: the runs, as places of their first events, that took it.
        ended: the runs that ended at it without a match.
        matches: the matches that it made.
    """

    event: Event
    key: tuple[Any, ...]
    holds: tuple[str, ...]
    began: bool
    took: tuple[int, ...]
    ended: tuple[int, ...]
    matches: tuple[Match, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """What a rule would have done.

    Attributes:
        matches: with the key of each.
        timeouts: with the key of each.
        seen: what each event did, in order.
        most_runs: the greatest number of runs that one key had at once.
        left: where runs stand in the end, by key.
    """

    matches: list[tuple[tuple[Any, ...], Match]]
    timeouts: list[tuple[tuple[Any, ...], Timeout]]
    seen: list[Seen]
    most_runs: int
    left: dict[tuple[Any, ...], list[Standing]]


def dry_run(
    pattern: Pattern,
    rows: Iterable[Row],
    *,
    time: str | Callable[[Row], int],
    key: tuple[str, ...] = (),
    limits: Limits | None = None,
) -> DryRun:
    """Return what a pattern would have made of stored events.

    Args:
        pattern: the pattern of a rule that is not live yet.
        rows: the events, in any order.
        time: the column with the event time in microseconds, or what gives it of a row.
        key: what the key is made of: columns or expressions.
        limits: what one key may keep.

    Raises:
        PatternError: the pattern cannot be compiled.
        RunError: a function raised, or a skip has no target.
    """
    automaton = compile_pattern(pattern)
    truths, matchers = Truths(automaton), dict[bytes, Matcher]()
    out = DryRun(matches=[], timeouts=[], seen=[], most_runs=0, left={})
    most = 0
    for seq, row in enumerate(sorted(rows, key=lambda row: _time_of(row, time))):
        place = place_of(key, key_of(key, row))
        matcher = matchers.get(place)
        if matcher is None:
            matcher = matchers[place] = Matcher(automaton, truths, limits or Limits())
        event = Event(seq, _time_of(row, time), row)
        seen, timeouts = _seen(matcher, event, values_of(place))
        out.seen.append(seen)
        out.matches.extend((seen.key, match) for match in seen.matches)
        out.timeouts.extend((seen.key, each) for each in timeouts)
        most = max(most, len(matcher.runs))
    left = {values_of(place): standings(each) for place, each in matchers.items()}
    return DryRun(
        matches=out.matches,
        timeouts=out.timeouts,
        seen=out.seen,
        most_runs=most,
        left={key: each for key, each in left.items() if each},
    )


def _seen(matcher: Matcher, event: Event, key: tuple[Any, ...]) -> tuple[Seen, list[Timeout]]:
    before = {_identity(run) for run in matcher.runs}
    bits = matcher.truths.local(event)
    matches, timeouts = matcher.process(event, bits)
    over = {_first(each) for each in timeouts}
    after = matcher.runs
    took = {run.start for run in after if run.node.event is event}
    took |= {_first(match) for match in matches if _last(match) == event.seq}
    alive = {run.start for run in after} | {_first(match) for match in matches}
    conditions = matcher.automaton.conditions
    return (
        Seen(
            event=event,
            key=key,
            holds=tuple(str(c) for n, c in enumerate(conditions) if bits >> n & 1),
            began=event.seq in took,
            took=tuple(sorted(took)),
            ended=tuple(sorted({start for start, _ in before} - alive - over)),
            matches=tuple(matches),
        ),
        timeouts,
    )


def _identity(run: Run) -> tuple[int, Node]:
    return run.start, run.node


def _first(found: Match | Timeout) -> int:
    return min(event.seq for events in found.events.values() for event in events)


def _last(found: Match) -> int:
    return max(event.seq for events in found.events.values() for event in events)


def _time_of(row: Row, column: str | Callable[[Row], int]) -> int:
    if not isinstance(column, str):
        return column(row)
    time = row[column]
    if type(time) is not int:
        raise TypeError(f"column {column} has {time!r}: give event times in microseconds")
    return time
