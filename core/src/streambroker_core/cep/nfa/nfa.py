"""Automaton of a pattern (NFA): states, edges, and decisions for a run and an event.

An edge takes an event, ignores it, or proceeds to another state with the same event. The
conditions that hold for an event are an integer with one bit per condition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from streambroker_core.cep.pattern.conditions import Condition
from streambroker_core.cep.pattern.pattern import Pattern

EdgeAction: TypeAlias = Literal["take", "ignore", "proceed"]
EventNeed: TypeAlias = Literal["matching", "gaps", "all"]
FINAL, STOP = 0, 1
"""Numbers of the state of a match, and of the state of a run that a negated stage ends."""


class Guard(NamedTuple):
    """Condition bits that must all be set, and bits of which none may be set."""

    need: int = 0
    deny: int = 0

    def holds(self, bits: int) -> bool:
        """Return whether the guard holds for condition bits."""
        return bits & self.need == self.need and not bits & self.deny


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """An edge out of a state.

    Attributes:
        guard: condition under which the edge is open.
        blocked_by: the edge is closed if one of these guards holds.
        stage: number of the stage that takes the event.
        gap: longest time since the previously taken event, exclusive; 0 for no limit. The gap of a
            proceed edge applies to all edges after it.
    """

    action: EdgeAction
    target: int
    guard: Guard = field(default_factory=Guard)
    blocked_by: tuple[Guard, ...] = ()
    stage: int = -1
    gap: int = 0

    def is_open(self, bits: int) -> bool:
        """Return whether the edge is open for condition bits."""
        return self.guard.holds(bits) and not any(bar.holds(bits) for bar in self.blocked_by)


@dataclass(slots=True)
class NfaState:
    """A state; the compiler builds it, and it is fixed afterwards.

    Attributes:
        kind: ``pending`` is a match once its time has passed.
        waits_for: human-readable description of what it waits for.
        is_duplicate: it repeats what another run waits for, so its end is not reported.
        gap: for a pending state, time since the previous event after which it matches; 0 for none.
        edges: outgoing edges; their order is the order of the resulting runs.
    """

    kind: Literal["normal", "final", "stop", "pending"]
    waits_for: str = ""
    is_duplicate: bool = False
    gap: int = 0
    edges: list[Edge] = field(default_factory=list)


class RunStep(NamedTuple):
    """One continuation of a run after an event.

    Attributes:
        takes_event: the run takes the event for `stage`.
        target: number of its next state.
        gap: the step applies only within this time since the previous event, exclusive; 0: always.
        is_match: the run is (also) a match with this event.
    """

    takes_event: bool
    target: int
    stage: int = -1
    gap: int = 0
    is_match: bool = False


class Decision(NamedTuple):
    """What an event does to a run in a state.

    Attributes:
        steps: continuations of the run, in order.
        is_stopped: a negated stage matched: only steps that are matches apply.
        is_unchanged: the run only stays in its state.
    """

    steps: tuple[RunStep, ...]
    is_stopped: bool
    is_unchanged: bool


@dataclass(slots=True, kw_only=True)
class Nfa:
    """A compiled pattern.

    Attributes:
        stages: stage names by number.
        conditions: conditions in the order of their bits.
        states: all states; 0 is a match, 1 the end by a negated stage.
        start: number of the state in which every run begins.
        window: time limit of a match, exclusive, in microseconds; 0 for no limit.
        event_need: ``matching``: it needs only events that fulfil a condition; ``gaps``: also
            whether others lie between them; ``all``: every event.
        warnings: constructs that are allowed but probably not intended.
        is_ordered: the order of edges is that of preference: of the matches with one first event
            only the preferred one counts, and it waits for runs that are preferred to it.
    """

    pattern: Pattern
    stages: tuple[str, ...]
    conditions: tuple[Condition, ...]
    states: tuple[NfaState, ...]
    start: int
    window: int
    warnings: tuple[str, ...] = ()
    is_ordered: bool = False
    event_need: EventNeed = "all"
    needed_bits: list[int] = field(default_factory=list)
    """By state: the condition bits on which its decisions depend."""
    time_limits: list[int] = field(default_factory=list)
    """By state: time since the previous event at which a run ends, in microseconds; 0 for never."""
    decisions: list[dict[int, Decision]] = field(default_factory=list)
    """By state and condition bits: cached decisions."""

    def __post_init__(self) -> None:
        reached = [self.closure(number) for number in range(len(self.states))]
        self.needed_bits = [self._guard_bits(states) for states in reached]
        self.time_limits = [
            self._time_limit(number, reached[number]) for number in range(len(reached))
        ]
        self.decisions = [{} for _ in self.states]
        if self.is_ordered:
            self.decisions[FINAL][0] = Decision((RunStep(False, FINAL),), False, is_unchanged=True)
        self.event_need = self._compute_event_need()

    def decide(self, state: int, bits: int) -> Decision:
        """Return the decision for a run in a state and the condition bits of an event."""
        bits &= self.needed_bits[state]
        decision = self.decisions[state].get(bits)
        if decision is None:
            decision = self.decisions[state][bits] = self._decide(state, bits)
        return decision

    def shortest_timeout(self) -> int:
        """Return the shortest time after which time may end a run; 0 for never."""
        times = [self.window, *(self.time_limits[state] for state in self._resting_states())]
        return min((time for time in times if time), default=0)

    def closure(self, state: int) -> list[int]:
        """Return a state and all states reachable by proceed edges, regardless of guards."""
        seen, stack = {state: None}, [state]
        while stack:
            for edge in self.states[stack.pop()].edges:
                if edge.action == "proceed" and edge.target not in seen:
                    seen[edge.target] = None
                    stack.append(edge.target)
        return list(seen)

    def _guard_bits(self, states: Iterable[int]) -> int:
        bits = 0
        for state in states:
            for edge in self.states[state].edges:
                bits |= edge.guard.need | edge.guard.deny
                for bar in edge.blocked_by:
                    bits |= bar.need | bar.deny
                if edge.action == "take":
                    bits |= self._proceeding_bits(edge.target)
        return bits

    def _proceeding_bits(self, state: int) -> int:
        bits = 0
        for each in self.closure(state):
            for edge in self.states[each].edges:
                if edge.action == "proceed":
                    bits |= edge.guard.need | edge.guard.deny
                    for bar in edge.blocked_by:
                        bits |= bar.need | bar.deny
        return bits

    def _time_limit(self, state: int, reached: list[int]) -> int:
        if self.states[state].kind == "pending":
            return self.states[state].gap
        if any(self.states[each].kind == "pending" for each in reached):
            return 0
        gaps = [
            _shorter(gap, edge.gap)
            for edge, gap in self._reachable_edges(state)
            if edge.action == "take" or (edge.action == "ignore" and edge.target == FINAL)
        ]
        return max(gaps) if gaps and all(gaps) else 0

    def _reachable_edges(self, state: int, bits: int | None = None) -> Iterator[tuple[Edge, int]]:
        """Yield the edges reachable by proceed edges, each with the shortest gap on the path to it.

        With `bits` only edges that are open with these bits are followed.
        """
        seen, stack = {(state, 0)}, [(state, 0)]
        while stack:
            current, gap = stack.pop()
            for edge in self.states[current].edges:
                if bits is not None and not edge.is_open(bits):
                    continue
                yield edge, gap
                following = (edge.target, _shorter(gap, edge.gap))
                if edge.action == "proceed" and following not in seen:
                    seen.add(following)
                    stack.append(following)

    def _preferred_edges(self, state: int, bits: int | None = None) -> Iterator[tuple[Edge, int]]:
        """Yield edges as `_reachable_edges`, the preferred first, up to the end of the pattern.

        A run that is in a state where it may end is a match, to which the other edges yield.
        """
        seen, stack = {(state, 0)}, [(edge, 0) for edge in reversed(self.states[state].edges)]
        while stack:
            edge, gap = stack.pop()
            if bits is not None and not edge.is_open(bits):
                continue
            if edge.action == "proceed" and edge.target == FINAL and state != self.start:
                return
            yield edge, gap
            following = (edge.target, _shorter(gap, edge.gap))
            if edge.action == "proceed" and following not in seen:
                seen.add(following)
                edges = reversed(self.states[edge.target].edges)
                stack += [(each, following[1]) for each in edges]

    def _resting_states(self) -> set[int]:
        """Return the states in which a run can be between two events."""
        return {
            edge.target
            for state in self.states
            for edge in state.edges
            if edge.action != "proceed" and edge.target > STOP
        }

    def _compute_event_need(self) -> EventNeed:
        for state in self.states:
            for edge in state.edges:
                if not edge.guard.need and (edge.action == "take" or edge.target == STOP):
                    return "all"
        active = [state for state in self._resting_states() if not self._is_idle(state)]
        targets = [step.target for state in active for step in self._decide(state, 0).steps]
        if not all(target <= STOP or self._is_idle(target) for target in targets):
            return "all"
        return "gaps" if active else "matching"

    def _is_idle(self, state: int) -> bool:
        """Return whether an event without matching conditions leaves a run's options unchanged."""
        decision = self._decide(state, 0)
        if decision.is_stopped or not decision.steps or any(one.is_match for one in decision.steps):
            return False
        enabled = [edge for step in decision.steps for edge in self._enabled_edges(step.target)]
        return set(self._enabled_edges(state)) == set(enabled)

    def _enabled_edges(self, state: int) -> list[tuple[object, ...]]:
        """Return what a run in a state may do with a later event or by time."""
        pending = self.states[state].kind == "pending"
        return [("pending", state)] * pending + [
            (edge.action, edge.target, edge.stage, edge.guard, edge.blocked_by, edge.gap)
            for each in self.closure(state)
            for edge in self.states[each].edges
            if edge.action == "take" or edge.target <= STOP
        ]

    def _decide(self, state: int, bits: int) -> Decision:
        steps: list[RunStep] = []
        stopped = False
        reachable = self._preferred_edges if self.is_ordered else self._reachable_edges
        for edge, gap in reachable(state, bits):
            if edge.action == "proceed":
                stopped = stopped or edge.target == STOP
            else:
                steps.append(self._step(edge, _shorter(gap, edge.gap), bits))
        unchanged = not stopped and steps == [RunStep(False, state)]
        return Decision(tuple(steps), stopped, unchanged)

    def _step(self, edge: Edge, gap: int, bits: int) -> RunStep:
        if edge.action == "ignore":
            return RunStep(False, edge.target, gap=gap, is_match=edge.target == FINAL)
        match = edge.target == FINAL or self._reaches_match(edge.target, bits)
        if match and self.is_ordered:  # what a run may take later must be preferred to its end
            later = any(each.action == "take" for each, _ in self._preferred_edges(edge.target))
            return RunStep(True, edge.target if later else FINAL, edge.stage, gap, match)
        return RunStep(True, edge.target, edge.stage, gap, match)

    def _reaches_match(self, state: int, bits: int) -> bool:
        """Return whether proceed edges lead from a state to a match with the event just taken."""
        seen, stack = {state}, [state]
        while stack:
            for edge in self.states[stack.pop()].edges:
                if edge.action != "proceed" or edge.target in seen or not edge.is_open(bits):
                    continue
                if edge.target == FINAL:
                    return True
                seen.add(edge.target)
                stack.append(edge.target)
        return False


def _shorter(gap: int, other: int) -> int:
    """Return the shorter of two gaps, where 0 is no limit."""
    return min(gap, other) if gap and other else gap or other
