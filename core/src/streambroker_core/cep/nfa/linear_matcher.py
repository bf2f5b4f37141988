"""Plain sequences: patterns whose runs never branch, so that rows are enough to follow them.

In a plain sequence an event lets a run go on, lets it stay, or ends it, and of the event alone is
decided which. A run is then where it waits and which rows it took; events are made of the rows of
those that came to something. A `Matcher` does the same with any pattern, and takes thrice as long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from streambroker_core.cep.nfa.condition_bits import ConditionBits
from streambroker_core.cep.nfa.matcher import NEVER, PatternMatch, Run, Timeout
from streambroker_core.cep.nfa.nfa import FINAL, Nfa, RunStep
from streambroker_core.cep.pattern.match_buffer import Event, RunNode

_MAX_BITS = 6
_MATCH = -1
"""Stands for the stage that a run waits for, once it waits for none."""

RunPath: TypeAlias = "RunNode | tuple[int, RunPath | None]"
"""What a run took: the row of its last event and the path before; a node for what it had before."""
LinearRun: TypeAlias = "tuple[int, int, RunPath]"
"""A run: place and time of its first event, and its path."""


class Transition(NamedTuple):
    """What an event does to the runs that wait for a stage.

    Attributes:
        stage: which of the sequence; behind its number in the sequence they go on.
        advances: they go on; else they end.
    """

    stage: int
    advances: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearState:
    """The state in which a run waits for a stage.

    Attributes:
        state: its number.
        number: of the stage.
        needed_bits: the bits that decide.
        take_values: values of these bits with which a run goes on.
        stay_values: values with which it stays; with any other it ends.
    """

    state: int
    number: int
    needed_bits: int
    take_values: frozenset[int]
    stay_values: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearPattern:
    """The stages of a pattern whose runs never branch.

    Attributes:
        automaton: of the pattern.
        stages: in order; a run begins with an event of the first.
        stage_by_state: by state, which stage a run waits for in it.
        transitions: by the bits of an event what it does to runs, those that have come furthest
            first; as far as it was asked.
    """

    automaton: Nfa
    stages: tuple[LinearState, ...]
    stage_by_state: dict[int, int] = field(init=False)
    transitions: dict[int, tuple[Transition, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        waits = {stage.state: number for number, stage in enumerate(self.stages)}
        object.__setattr__(self, "stage_by_state", waits)

    def can_follow(self, runs: Iterable[Run]) -> bool:
        """Tell whether runs may be of this sequence: those that began first have come furthest.

        Runs that were taken over from another version can be otherwise.
        """
        furthest = len(self.stages)
        for run in runs:
            stage = self.stage_by_state.get(run.state, furthest + 1)
            if stage > furthest:
                return False
            furthest = stage
        return True

    def transitions_for(self, bits: int) -> tuple[Transition, ...]:
        """Return what an event does to runs; that it begins one is the last thing."""
        found = self.transitions.get(bits)
        if found is None:
            asked = [
                (place, each, bits & each.needed_bits) for place, each in enumerate(self.stages)
            ]
            found = self.transitions[bits] = tuple(
                Transition(place, own in each.take_values)
                for place, each, own in reversed(asked)
                if own not in each.stay_values
            )
        return found


def compile_linear(automaton: Nfa, condition_bits: ConditionBits) -> LinearPattern | None:
    """Return a pattern as a plain sequence; None if it is none."""
    if automaton.pattern.skip.strategy != "no_skip" or automaton.event_need == "all":
        return None
    stages: list[LinearState] = []
    state, seen = automaton.start, {FINAL}
    while state not in seen:
        seen.add(state)
        found = _compile_state(automaton, condition_bits, state)
        if found is None:
            return None
        stage, state = found
        stages.append(stage)
    if state != FINAL or len(stages) < 2:
        return None
    return LinearPattern(automaton=automaton, stages=tuple(stages))


def _compile_state(
    automaton: Nfa, condition_bits: ConditionBits, number: int
) -> tuple[LinearState, int] | None:
    """Return what a state does with events, and the state behind it; None if that is not plain."""
    state, asked = automaton.states[number], automaton.needed_bits[number]
    if state.kind != "normal" or asked & condition_bits.run_bits or asked.bit_count() > _MAX_BITS:
        return None
    first = number == automaton.start
    take, stay, ways = list[int](), list[int](), set[RunStep]()
    for bits in _submasks(asked):
        decision = automaton.decide(number, bits)
        steps = [step for step in decision.steps if step.takes_event or not first]
        if decision.is_stopped:
            steps = [step for step in steps if step.is_match]
        if decision.is_unchanged or (first and not steps):
            stay.append(bits)
        elif len(steps) == 1 and steps[0].takes_event:
            take.append(bits)
            ways.add(steps[0])
        elif steps:
            return None
    if len(ways) != 1:
        return None
    way = ways.pop()
    if way.gap or way.is_match != (way.target == FINAL):
        return None
    stage = LinearState(
        state=number,
        number=way.stage,
        needed_bits=asked,
        take_values=frozenset(take),
        stay_values=frozenset(stay),
    )
    return stage, way.target


def _submasks(bits: int) -> list[int]:
    """Return all numbers that have some of these bits and no others."""
    found, part = [0], bits
    while part:
        found.append(part)
        part = part - 1 & bits
    return found


class EndedRun(NamedTuple):
    """A run that is a match, or whose time is over.

    Attributes:
        row: which row led to it.
        code: number of its key.
        outcome: what it is.
    """

    row: int
    code: int
    outcome: PatternMatch | Timeout


class _KeyRuns:
    """The runs of a key.

    Attributes:
        waiting: by stage, those that wait for it. An event lets all that wait for one go on, so
            those that began first have come furthest, and stand first among equals.
        due: when time next ends one.
        changed: whether they are others than at first.
    """

    __slots__ = ("changed", "due", "waiting")

    def __init__(self, stages: int) -> None:
        self.waiting: list[list[LinearRun]] = [[] for _ in range(stages)]
        self.due = NEVER
        self.changed = False


class LinearMatcher:
    """Follows the runs of a plain sequence through rows.

    Args:
        pattern: the stages.
        before: the runs of keys that have some, by the numbers of the keys; it has them all.

    Attributes:
        matches: how many there were.
        timeouts: how many runs were given up because their time was over.
    """

    def __init__(self, pattern: LinearPattern, before: Mapping[int, Iterable[Run]]) -> None:
        self._pattern, self._window = pattern, pattern.automaton.window
        self._keys: dict[int, _KeyRuns] = {}
        self._ended: list[tuple[int, int, LinearRun, int]] = []
        self.timeouts = 0
        for code, runs in before.items():
            key = self._keys[code] = _KeyRuns(len(pattern.stages))
            for run in runs:
                key.waiting[pattern.stage_by_state[run.state]].append(
                    (run.start, run.began, run.node)
                )
                key.due = min(key.due, run.due)

    @property
    def matches(self) -> int:
        """How many there were."""
        return len(self._ended) - self.timeouts

    def process(self, codes: list[int], seqs: list[int], times: list[int], bits: list[int]) -> None:
        """See rows, those of a key in order and so in time.

        Args:
            codes: numbers of their keys.
            seqs: their numbers.
            times: their times.
            bits: what holds of each.
        """
        keys, window, stages = self._keys, self._window, len(self._pattern.stages)
        moves = {each: self._pattern.transitions_for(each) for each in set(bits)}
        begins = {each for each, found in moves.items() if found and found[-1].stage == 0}
        for row, code, time, held in zip(range(len(codes)), codes, times, bits, strict=True):
            key = keys.get(code)
            if key is None:
                if held not in begins:
                    continue
                key = keys[code] = _KeyRuns(stages)
            elif time >= key.due:
                self._expire(row, code, key, time)
            for stage, takes in moves[held]:
                if stage:
                    self._advance_runs(row, code, key, stage, takes)
                    continue
                key.changed = True
                key.waiting[1].append((seqs[row], time, (row, None)))
                if window and time + window < key.due:
                    key.due = time + window

    def _advance_runs(self, row: int, code: int, key: _KeyRuns, stage: int, advances: bool) -> None:
        """Let the runs of a key that wait for a stage go on with a row, or end."""
        runs = key.waiting[stage]
        if not runs:
            return
        key.changed = True
        key.waiting[stage] = []
        if not advances:
            return
        if stage + 1 == len(key.waiting):
            self._ended += [(row, code, run, _MATCH) for run in runs]
        else:
            key.waiting[stage + 1] += [(start, began, (row, path)) for start, began, path in runs]

    def _expire(self, row: int, code: int, key: _KeyRuns, time: int) -> None:
        """Give up the runs of a key whose time is over."""
        key.due = NEVER
        for stage in range(len(key.waiting) - 1, 0, -1):
            left: list[LinearRun] = []
            for run in key.waiting[stage]:
                due = run[1] + self._window
                if due <= time:
                    key.changed = True
                    self.timeouts += 1
                    self._ended.append((row, code, run, stage))
                else:
                    left.append(run)
                    key.due = min(key.due, due)
            key.waiting[stage] = left

    def iter_ended(self, event: Callable[[int], Event], *, timed: bool) -> Iterator[EndedRun]:
        """Yield matches and time-outs in the order of rows; of one row as a `Matcher` tells them.

        Args:
            event: returns a row as an event.
            timed: time-outs are among them.
        """
        stages, automaton = self._pattern.stages, self._pattern.automaton
        names, states, last = automaton.stages, automaton.states, stages[-1].number
        for row, code, (_, began, path), stage in self._ended:
            if stage == _MATCH:
                taken = event(row)
                node = RunNode(taken, last, self._build_node(path, len(stages) - 2, event))
                yield EndedRun(row, code, PatternMatch(node, names, taken.time, taken.time))
            elif timed:
                node = self._build_node(path, stage - 1, event)
                waits = states[stages[stage].state].waits_for
                yield EndedRun(row, code, Timeout(node, names, began + self._window, waits))

    def iter_changed(self, event: Callable[[int], Event]) -> Iterator[tuple[int, list[Run]]]:
        """Yield the runs of keys that have others than before, with the numbers of the keys.

        Args:
            event: returns a row as an event.
        """
        for code, key in self._keys.items():
            if key.changed:
                yield code, list(self._iter_runs(key, event))

    def _iter_runs(self, key: _KeyRuns, event: Callable[[int], Event]) -> Iterator[Run]:
        for number in range(len(key.waiting) - 1, 0, -1):
            state = self._pattern.stages[number].state
            for start, began, path in key.waiting[number]:
                due = began + self._window if self._window else NEVER
                yield Run(state, self._build_node(path, number - 1, event), start, began, due)

    def _build_node(self, path: RunPath, last: int, event: Callable[[int], Event]) -> RunNode:
        """Return what was taken, the last of it for a stage."""
        rows: list[int] = []
        before: RunPath | None = path
        while isinstance(before, tuple):
            rows.append(before[0])
            before = before[1]
        node, stage = before, last - len(rows)
        for row in reversed(rows):
            stage += 1
            node = RunNode(event(row), self._pattern.stages[stage].number, node)
        assert node is not None  # noqa: S101 - a run has taken an event
        return node


def may_exceed(max_runs: int | None, codes: list[int], before: Mapping[int, Sized]) -> bool:
    """Tell whether a key could come to have more runs than it may.

    Args:
        max_runs: how many it may have; None for any number.
        codes: numbers of the keys of rows, each of which may begin a run.
        before: the runs of keys that have some.
    """
    alive = max(map(len, before.values()), default=0)
    if max_runs is None or len(codes) + alive <= max_runs:
        return False
    return max(Counter(codes).values(), default=0) + alive > max_runs
