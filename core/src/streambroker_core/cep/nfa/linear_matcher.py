"""Matcher for linear patterns: patterns whose runs never branch.

In a linear pattern the event alone decides whether a run advances, stays or ends. A run is only
the stage it waits for and the rows it took. Events are built only for the rows of reported or
saved runs. `Matcher` handles every pattern, but takes three times as long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
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


class RowPlan(NamedTuple):
    """What a row does to the runs of rules; each mask of rules has a bit per rule.

    Attributes:
        seen_by: rules that see the row, so it times out their runs.
        begins: rules in which it begins a run.
        steps: index of a stage, rules whose runs that wait for it advance, and rules whose runs
            end; the latest stage first.
    """

    seen_by: int
    begins: int
    steps: tuple[tuple[int, int, int], ...]


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
        plans: cache by condition bits of a row: what it does to the only rule.
    """

    automaton: Nfa
    stages: tuple[LinearState, ...]
    stage_by_state: dict[int, int] = field(init=False)
    plans: dict[int, RowPlan] = field(default_factory=dict)

    def __post_init__(self) -> None:
        waits = {stage.state: number for number, stage in enumerate(self.stages)}
        object.__setattr__(self, "stage_by_state", waits)

    @property
    def shape(self) -> tuple[Hashable, ...]:
        """All but the conditions: stages, states with what they wait for, and window."""
        states = self.automaton.states
        waits = (
            (stage.state, stage.number, states[stage.state].waits_for) for stage in self.stages
        )
        return self.automaton.stages, self.automaton.window, *waits

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

    def plan_for(self, bits: int) -> RowPlan:
        """Return what a row with these condition bits does to the runs of the pattern."""
        plan = self.plans.get(bits)
        if plan is None:
            values = [
                (index, each, bits & each.needed_bits) for index, each in enumerate(self.stages)
            ]
            changes = [
                (index, int(own in each.take_values), int(own not in each.take_values))
                for index, each, own in values
                if own not in each.stay_values
            ]
            steps = tuple(change for change in reversed(changes) if change[0])
            plan = self.plans[bits] = RowPlan(1, len(changes) - len(steps), steps)
        return plan


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
    """A run that matched or timed out: row that ended it, number of its key, and its rules."""

    row: int
    code: int
    outcome: PatternMatch | Timeout
    rules: int


class _Part:
    """Runs of one key that some rules have in common.

    Attributes:
        rules: mask of the rules.
        waiting: runs by the stage they wait for. An event advances all runs of a stage together, so
            earlier runs are at later stages, and first within a stage.
        due: no run times out before this time.
    """

    __slots__ = ("due", "rules", "waiting")

    def __init__(self, rules: int, waiting: list[list[LinearRun]], due: int) -> None:
        self.rules, self.waiting, self.due = rules, waiting, due


class _KeyParts:
    """Runs of one key.

    Attributes:
        parts: runs by rules; each rule is in one part at most.
        due: no run times out before this time.
        changed: the runs differ from those at the start.
    """

    __slots__ = ("changed", "due", "parts")

    def __init__(self) -> None:
        self.parts: list[_Part] = []
        self.due = NEVER
        self.changed = False

    def split(self, part: _Part, rules: int) -> _Part:
        """Move some rules of a part to a part of their own, and return it."""
        part.rules ^= rules
        other = _Part(rules, [list(runs) for runs in part.waiting], part.due)
        self.parts.append(other)
        return other


class LinearMatcher:
    """Follows the runs of rules whose linear patterns differ in nothing but conditions.

    Rules with equal runs in a key share them until a row treats them differently.

    Args:
        pattern: that of one of the rules.
        plan_for: returns what a row does, by its condition bits.
        before: all existing runs by key number, each list with the mask of its rules.
        nodes: nodes by sequence number of the event, stage, and identity of the previous node.
            Rules with the same stages share them, so state has a chain of events once.
    """

    def __init__(
        self,
        pattern: LinearPattern,
        plan_for: Callable[[int], RowPlan],
        before: Mapping[int, Iterable[tuple[int, Iterable[Run]]]],
        nodes: dict[tuple[int, ...], RunNode],
    ) -> None:
        self._pattern, self._window = pattern, pattern.automaton.window
        self._plan_for, self._nodes = plan_for, nodes
        self._keys: dict[int, _KeyParts] = {}
        self._ended: list[tuple[int, int, int, list[LinearRun], int]] = []
        for code, parts in before.items():
            key = self._keys[code] = _KeyParts()
            for rules, runs in parts:
                part = _Part(rules, [[] for _ in pattern.stages], NEVER)
                for run in runs:
                    part.waiting[pattern.stage_by_state[run.state]].append(
                        (run.start, run.began, run.node)
                    )
                    part.due = min(part.due, run.due)
                key.parts.append(part)
                key.due = min(key.due, part.due)

    def process(self, codes: list[int], seqs: list[int], times: list[int], bits: list[int]) -> None:
        """Process rows; those of one key are in order of sequence and time.

        The lists have one item per row: key number, sequence number, time in microseconds, and bits
        of the conditions that hold.
        """
        keys = self._keys
        plans = {each: self._plan_for(each) for each in set(bits)}
        for row, code, time, row_bits in zip(range(len(codes)), codes, times, bits, strict=True):
            seen_by, begins, steps = plans[row_bits]
            key = keys.get(code)
            if key is None:
                if not begins:
                    continue
                key = keys[code] = _KeyParts()
            elif time >= key.due:
                self._expire(row, code, key, time, seen_by)
            for stage, advancing, ending in steps:
                for part in key.parts:  # what a split appends has moved already
                    if part.waiting[stage]:
                        if rules := part.rules & ending:
                            self._end(key, part, stage, rules)
                        self._advance(row, code, key, part, stage, part.rules & advancing)
            if begins:
                self._begin((seqs[row], time, (row, None)), key, begins)

    def _end(self, key: _KeyParts, part: _Part, stage: int, rules: int) -> None:
        """End the runs of rules that wait for a stage."""
        key.changed = True
        ended = part if rules == part.rules else key.split(part, rules)
        ended.waiting[stage] = []

    def _advance(
        self, row: int, code: int, key: _KeyParts, part: _Part, stage: int, rules: int
    ) -> None:
        """Let the runs of rules that wait for a stage take a row."""
        if not rules:
            return
        key.changed = True
        waiting = (part if rules == part.rules else key.split(part, rules)).waiting
        runs, waiting[stage] = waiting[stage], []
        if stage + 1 < len(waiting):
            waiting[stage + 1] += [(start, began, (row, path)) for start, began, path in runs]
            return
        self._ended.append((row, code, rules, runs, _MATCH))

    def _begin(self, run: LinearRun, key: _KeyParts, rules: int) -> None:
        key.changed = True
        due = run[1] + self._window if self._window else NEVER
        if due < key.due:
            key.due = due
        for part in key.parts:
            if common := part.rules & rules:
                joined = part if common == part.rules else key.split(part, common)
                joined.waiting[1].append(run)
                if due < joined.due:
                    joined.due = due
                rules ^= common
        if rules:
            waiting: list[list[LinearRun]] = [[] for _ in self._pattern.stages]
            waiting[1].append(run)
            key.parts.append(_Part(rules, waiting, due))

    def _expire(self, row: int, code: int, key: _KeyParts, time: int, seen_by: int) -> None:
        """Time out the runs of the rules that see a row."""
        for each in key.parts:
            rules = each.rules & seen_by
            if each.due > time or not rules:
                continue
            part = each if rules == each.rules else key.split(each, rules)
            part.due = NEVER
            for stage in range(len(part.waiting) - 1, 0, -1):
                runs, part.waiting[stage] = part.waiting[stage], []
                over = []
                for run in runs:
                    due = run[1] + self._window
                    if due <= time:
                        over.append(run)
                    else:
                        part.waiting[stage].append(run)
                        part.due = min(part.due, due)
                if over:
                    key.changed = True
                    self._ended.append((row, code, rules, over, stage))
        key.due = min(part.due for part in key.parts)

    def count_ended(self) -> tuple[Counter[int], Counter[int]]:
        """Return the numbers of matches and of time-outs, by the mask of their rules."""
        matches, timeouts = Counter[int](), Counter[int]()
        for _, _, rules, runs, stage in self._ended:
            (matches if stage == _MATCH else timeouts)[rules] += len(runs)
        return matches, timeouts

    def iter_ended(self, event: Callable[[int], Event], *, timed: int) -> Iterator[EndedRun]:
        """Yield matches, and time-outs of the rules in `timed`, in the order of rows."""
        stages, automaton = self._pattern.stages, self._pattern.automaton
        names, states, last = automaton.stages, automaton.states, stages[-1].number
        for row, code, rules, runs, stage in self._ended:
            for _, began, path in runs:
                if stage == _MATCH:
                    taken = event(row)
                    node = RunNode(taken, last, self._build_node(path, len(stages) - 2, event))
                    match = PatternMatch(node, names, taken.time, taken.time)
                    yield EndedRun(row, code, match, rules)
                elif rules & timed:
                    node = self._build_node(path, stage - 1, event)
                    timeout = Timeout(
                        node, names, began + self._window, states[stages[stage].state].waits_for
                    )
                    yield EndedRun(row, code, timeout, rules & timed)

    def iter_changed(
        self, event: Callable[[int], Event]
    ) -> Iterator[tuple[int, list[tuple[int, list[Run]]]]]:
        """Yield the number of each key whose runs changed, with all its runs by rules."""
        for code, key in self._keys.items():
            if not key.changed:
                continue
            yield (
                code,
                [(part.rules, list(self._iter_runs(part, event))) for part in _merge(key.parts)],
            )

    def _iter_runs(self, part: _Part, event: Callable[[int], Event]) -> Iterator[Run]:
        for number in range(len(part.waiting) - 1, 0, -1):
            state = self._pattern.stages[number].state
            for start, began, path in part.waiting[number]:
                due = began + self._window if self._window else NEVER
                yield Run(state, self._build_node(path, number - 1, event), start, began, due)

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


def _merge(parts: list[_Part]) -> list[_Part]:
    """Return the parts that have runs; those with equal runs are one."""
    found = [part for part in parts if any(part.waiting)]
    if len(found) < 2:
        return found
    merged: dict[tuple[tuple[LinearRun, ...], ...], _Part] = {}
    for part in found:
        same = merged.setdefault(tuple(map(tuple, part.waiting)), part)
        same.rules |= part.rules
    return list(merged.values())


def may_exceed(max_runs: int | None, codes: list[int], alive: int) -> bool:
    """Return whether a key could exceed its maximum number of runs.

    Each row of `codes` may begin a run; `alive` is the number of runs that a key has at most.
    """
    if max_runs is None or len(codes) + alive <= max_runs:
        return False
    return max(Counter(codes).values(), default=0) + alive > max_runs
