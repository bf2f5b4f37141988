"""Matcher for linear patterns: patterns whose runs never branch.

In a linear pattern the event alone decides whether a run advances, stays or ends. A run is only
the stage it waits for and the rows it took. Events are built only for the rows of reported or
saved runs. `Matcher` handles every pattern, but takes three times as long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from streambroker_core.cep.nfa.condition_bits import ConditionBits
from streambroker_core.cep.nfa.matcher import PatternMatch, Run, Timeout
from streambroker_core.cep.nfa.nfa import FINAL, Nfa, RunStep
from streambroker_core.cep.pattern.match_buffer import Event, RunNode
from streambroker_core.cep.pattern.run_limits import NEVER

_MAX_BITS = 6
_MATCH = -1
"""In place of the stage that a run waits for: the run is a complete match."""

RunPath: TypeAlias = "RunNode | tuple[int, RunPath | None]"
"""Rows that a run took, newest first; a node for the events of earlier batches."""
LinearRun: TypeAlias = "tuple[int, int, RunPath]"
"""A run: sequence number and time of its first event, and its path."""


class Transition(NamedTuple):
    """What an event does to the runs that wait for a stage: they advance, or else end.

    `stage` is an index in the pattern; 0 begins a run.
    """

    stage: int
    advances: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearState:
    """State in which a run waits for a stage.

    Attributes:
        state, number: numbers of the state and the stage in the automaton.
        needed_bits: condition bits that decide.
        take_values: values of these bits with which a run advances.
        stay_values: values with which it stays; any other value ends it.
    """

    state: int
    number: int
    needed_bits: int
    take_values: frozenset[int]
    stay_values: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearPattern:
    """A pattern whose runs never branch; an event of the first stage begins a run.

    Attributes:
        stage_by_state: index of the stage that a run waits for, by state.
        transitions: cache by condition bits of an event: its transitions, latest stage first.
    """

    automaton: Nfa
    stages: tuple[LinearState, ...]
    stage_by_state: dict[int, int] = field(init=False)
    transitions: dict[int, tuple[Transition, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        waits = {stage.state: number for number, stage in enumerate(self.stages)}
        object.__setattr__(self, "stage_by_state", waits)

    def can_follow(self, runs: Iterable[Run]) -> bool:
        """Return whether the runs fit this pattern: earlier runs have advanced at least as far.

        Runs from another version may violate this.
        """
        furthest = len(self.stages)
        for run in runs:
            stage = self.stage_by_state.get(run.state, furthest + 1)
            if stage > furthest:
                return False
            furthest = stage
        return True

    def transitions_for(self, bits: int) -> tuple[Transition, ...]:
        """Return the transitions of an event; the one that begins a run is the last."""
        transitions = self.transitions.get(bits)
        if transitions is None:
            values = [
                (index, each, bits & each.needed_bits) for index, each in enumerate(self.stages)
            ]
            transitions = self.transitions[bits] = tuple(
                Transition(index, own in each.take_values)
                for index, each, own in reversed(values)
                if own not in each.stay_values
            )
        return transitions


def compile_linear(automaton: Nfa, condition_bits: ConditionBits) -> LinearPattern | None:
    """Return the pattern as a linear pattern, or None if its runs may branch."""
    if automaton.pattern.skip.strategy != "no_skip" or automaton.event_need == "all":
        return None
    stages: list[LinearState] = []
    state, seen = automaton.start, {FINAL}
    while state not in seen:
        seen.add(state)
        compiled = _compile_state(automaton, condition_bits, state)
        if compiled is None:
            return None
        stage, state = compiled
        stages.append(stage)
    if state != FINAL or len(stages) < 2:
        return None
    return LinearPattern(automaton=automaton, stages=tuple(stages))


def _compile_state(
    automaton: Nfa, condition_bits: ConditionBits, number: int
) -> tuple[LinearState, int] | None:
    """Return a linear state and the number of its next state, or None if its runs may branch."""
    state, needed = automaton.states[number], automaton.needed_bits[number]
    if state.kind != "normal" or needed & condition_bits.run_bits or needed.bit_count() > _MAX_BITS:
        return None
    first = number == automaton.start
    take, stay, take_steps = list[int](), list[int](), set[RunStep]()
    for bits in _submasks(needed):
        decision = automaton.decide(number, bits)
        steps = [step for step in decision.steps if step.takes_event or not first]
        if decision.is_stopped:
            steps = [step for step in steps if step.is_match]
        if decision.is_unchanged or (first and not steps):
            stay.append(bits)
        elif len(steps) == 1 and steps[0].takes_event:
            take.append(bits)
            take_steps.add(steps[0])
        elif steps:
            return None
    if len(take_steps) != 1:
        return None
    take_step = take_steps.pop()
    if take_step.gap or take_step.is_match != (take_step.target == FINAL):
        return None
    stage = LinearState(
        state=number,
        number=take_step.stage,
        needed_bits=needed,
        take_values=frozenset(take),
        stay_values=frozenset(stay),
    )
    return stage, take_step.target


def _submasks(bits: int) -> list[int]:
    masks, mask = [0], bits
    while mask:
        masks.append(mask)
        mask = mask - 1 & bits
    return masks


class EndedRun(NamedTuple):
    """A run that matched or timed out, with the row that ended it and the number of its key."""

    row: int
    code: int
    outcome: PatternMatch | Timeout


class _KeyRuns:
    """Runs of one key.

    Attributes:
        waiting: runs by the stage they wait for. An event advances all runs of a stage together, so
            earlier runs are at later stages, and first within a stage.
        due: no run times out before this time.
        changed: the runs differ from those at the start.
    """

    __slots__ = ("changed", "due", "waiting")

    def __init__(self, stages: int) -> None:
        self.waiting: list[list[LinearRun]] = [[] for _ in range(stages)]
        self.due = NEVER
        self.changed = False


class LinearMatcher:
    """Follows the runs of a linear pattern.

    Args:
        before: all existing runs, by key number.
        nodes: nodes by sequence number of the event, stage, and identity of the previous node.
            Rules with the same stages share them, so state has a chain of events once.
    """

    def __init__(
        self,
        pattern: LinearPattern,
        before: Mapping[int, Iterable[Run]],
        nodes: dict[tuple[int, ...], RunNode],
    ) -> None:
        self._pattern, self._window = pattern, pattern.automaton.window
        self._keys: dict[int, _KeyRuns] = {}
        self._nodes = nodes
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
        """Number of matches."""
        return len(self._ended) - self.timeouts

    def process(self, codes: list[int], seqs: list[int], times: list[int], bits: list[int]) -> None:
        """Process rows; those of one key are in order of sequence and time.

        The lists have one item per row: key number, sequence number, time in microseconds, and bits
        of the conditions that hold.
        """
        keys, window, stages = self._keys, self._window, len(self._pattern.stages)
        transitions = {each: self._pattern.transitions_for(each) for each in set(bits)}
        begins = {each for each, steps in transitions.items() if steps and steps[-1].stage == 0}
        for row, code, time, row_bits in zip(range(len(codes)), codes, times, bits, strict=True):
            key = keys.get(code)
            if key is None:
                if row_bits not in begins:
                    continue
                key = keys[code] = _KeyRuns(stages)
            elif time >= key.due:
                self._expire(row, code, key, time)
            for stage, advances in transitions[row_bits]:
                if stage:
                    self._advance_runs(row, code, key, stage, advances)
                    continue
                key.changed = True
                key.waiting[1].append((seqs[row], time, (row, None)))
                if window and time + window < key.due:
                    key.due = time + window

    def _advance_runs(self, row: int, code: int, key: _KeyRuns, stage: int, advances: bool) -> None:
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
        key.due = NEVER
        for stage in range(len(key.waiting) - 1, 0, -1):
            remaining: list[LinearRun] = []
            for run in key.waiting[stage]:
                due = run[1] + self._window
                if due <= time:
                    key.changed = True
                    self.timeouts += 1
                    self._ended.append((row, code, run, stage))
                else:
                    remaining.append(run)
                    key.due = min(key.due, due)
            key.waiting[stage] = remaining

    def iter_ended(self, event: Callable[[int], Event], *, timed: bool) -> Iterator[EndedRun]:
        """Yield matches and, if `timed`, time-outs in the order of rows, then of `Matcher`."""
        stages, automaton = self._pattern.stages, self._pattern.automaton
        names, states, last = automaton.stages, automaton.states, stages[-1].number
        for row, code, (_, began, path), stage in self._ended:
            if stage == _MATCH:
                taken = event(row)
                node = RunNode(taken, last, self._build_node(path, len(stages) - 2, event))
                yield EndedRun(row, code, PatternMatch(node, names, taken.time, taken.time))
            elif timed:
                node = self._build_node(path, stage - 1, event)
                waits_for = states[stages[stage].state].waits_for
                yield EndedRun(row, code, Timeout(node, names, began + self._window, waits_for))

    def iter_changed(self, event: Callable[[int], Event]) -> Iterator[tuple[int, list[Run]]]:
        """Yield the number and runs of each key whose runs changed."""
        for code, key in self._keys.items():
            if key.changed:
                yield code, list(self._iter_runs(key, event))

    def _iter_runs(self, key: _KeyRuns, event: Callable[[int], Event]) -> Iterator[Run]:
        first = self._pattern.stages[0].number
        for number in range(len(key.waiting) - 1, 0, -1):
            state = self._pattern.stages[number].state
            for start, began, path in key.waiting[number]:
                due = began + self._window if self._window else NEVER
                is_new = number == 1 and isinstance(path, tuple)
                node = self._nodes.get((start, first, id(None))) if is_new else None
                if node is None:
                    node = self._build_node(path, number - 1, event)
                yield Run(state, node, start, began, due)

    def _build_node(self, path: RunPath, last: int, event: Callable[[int], Event]) -> RunNode:
        """Return a path as nodes; its last event was taken for stage `last`."""
        rows: list[int] = []
        before: RunPath | None = path
        while isinstance(before, tuple):
            rows.append(before[0])
            before = before[1]
        node, stage = before, last - len(rows)
        for row in reversed(rows):
            stage += 1
            taken, number = event(row), self._pattern.stages[stage].number
            identity = taken.seq, number, id(node)
            shared = self._nodes.get(identity)
            if shared is None:
                shared = self._nodes[identity] = RunNode(taken, number, node)
            node = shared
        assert node is not None  # noqa: S101 - a run has taken an event
        return node


def may_exceed(max_runs: int | None, codes: list[int], before: Mapping[int, Sized]) -> bool:
    """Return whether a key could exceed its maximum number of runs.

    Each row of `codes` may begin a run. `before` has the existing runs by key number.
    """
    alive = max(map(len, before.values()), default=0)
    if max_runs is None or len(codes) + alive <= max_runs:
        return False
    return max(Counter(codes).values(), default=0) + alive > max_runs
