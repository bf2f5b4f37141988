"""The automaton of a pattern: states, edges, and what an event does to a run in a state.

Edges TAKE an event, IGNORE it, or PROCEED to another state with the same event. What holds of an
event is a number with a bit for each condition; what a state does with such a number is worked out
once and looked up afterwards.
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
"""The states of a match, and of a run that a negated stage ends."""


class Guard(NamedTuple):
    """Bits that must all be there, and bits of which none may be."""

    need: int = 0
    deny: int = 0

    def holds(self, bits: int) -> bool:
        """Tell whether it holds of an event."""
        return bits & self.need == self.need and not bits & self.deny

    def combine(self, other: Guard) -> Guard | None:
        """Return both in one; None if they contradict each other."""
        need, deny = self.need | other.need, self.deny | other.deny
        return None if need & deny else Guard(need, deny)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A way out of a state.

    Attributes:
        action: what becomes of the event.
        target: the state behind it.
        guard: when it is open.
        blocked_by: it is closed whenever one of these holds.
        stage: number of the stage that takes the event.
        gap: longest time since the event taken before, exclusive; 0 for no limit. On the way past
            a state it is that of every edge behind.
    """

    action: EdgeAction
    target: int
    guard: Guard = field(default_factory=Guard)
    blocked_by: tuple[Guard, ...] = ()
    stage: int = -1
    gap: int = 0

    def is_open(self, bits: int) -> bool:
        """Tell whether an event may go this way."""
        return self.guard.holds(bits) and not any(bar.holds(bits) for bar in self.blocked_by)


@dataclass(slots=True)
class NfaState:
    """A state; built by the compiler, fixed afterwards.

    Attributes:
        kind: ``pending`` is a match once its time has passed.
        waits_for: what it waits for, for people.
        is_duplicate: it repeats what another run waits for, so its end is not told.
        gap: of a pending state: time since the event before, after which it is a match; 0 for none.
        edges: the ways out, in the order in which their runs follow each other.
    """

    kind: Literal["normal", "final", "stop", "pending"]
    waits_for: str = ""
    is_duplicate: bool = False
    gap: int = 0
    edges: list[Edge] = field(default_factory=list)


class RunStep(NamedTuple):
    """What an event does to a run: one of its continuations.

    Attributes:
        takes_event: it takes the event; else it goes on without.
        target: the state it is in then.
        stage: number of the stage that takes the event.
        gap: only if so little time has passed since the event before; 0 for always.
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
        steps: its continuations, in order.
        is_stopped: a negated stage has seen its event: only matches survive.
        is_unchanged: the run just stays where it is.
    """

    steps: tuple[RunStep, ...]
    is_stopped: bool
    is_unchanged: bool


@dataclass(slots=True, kw_only=True)
class Nfa:
    """A compiled pattern.

    Attributes:
        pattern: what it was compiled from.
        stages: names of the stages by their numbers.
        conditions: by their bits.
        states: all states; 0 is a match, 1 the end by a negated stage.
        start: where every run begins.
        window: time of a match, exclusive, in microseconds; 0 for no limit.
        event_need: which events it has to see: those that match some condition; also whether
            others stood between them; or all.
        warnings: what is allowed and hardly meant.
    """

    pattern: Pattern
    stages: tuple[str, ...]
    conditions: tuple[Condition, ...]
    states: tuple[NfaState, ...]
    start: int
    window: int
    warnings: tuple[str, ...] = ()
    event_need: EventNeed = "all"
    needed_bits: list[int] = field(default_factory=list)
    """By state: the bits that what it does depends on."""
    time_limits: list[int] = field(default_factory=list)
    """By state: the time after the event before at which it is over; 0 for never."""
    decisions: list[dict[int, Decision]] = field(default_factory=list)
    """By state and the bits that it depends on: the decisions that were worked out."""

    def __post_init__(self) -> None:
        reached = [self.closure(number) for number in range(len(self.states))]
        self.needed_bits = [self._guard_bits(states) for states in reached]
        self.time_limits = [
            self._time_limit(number, reached[number]) for number in range(len(reached))
        ]
        self.decisions = [{} for _ in self.states]
        self.event_need = self._compute_event_need()

    def decide(self, state: int, bits: int) -> Decision:
        """Return what an event, of which these conditions hold, does to a run."""
        bits &= self.needed_bits[state]
        decision = self.decisions[state].get(bits)
        if decision is None:
            decision = self.decisions[state][bits] = self._decide(state, bits)
        return decision

    def can_be_empty(self) -> bool:
        """Tell whether every stage may be left out; an empty match is never told."""
        return FINAL in self.closure(self.start)

    def shortest_timeout(self) -> int:
        """Return the shortest time after which time may end a run; 0 for never."""
        times = [self.window, *(self.time_limits[state] for state in self._resting_states())]
        return min((time for time in times if time), default=0)

    def closure(self, state: int) -> list[int]:
        """Return a state and all that are reached by proceeding, whatever the event."""
        seen, waiting = {state: None}, [state]
        while waiting:
            for edge in self.states[waiting.pop()].edges:
                if edge.action == "proceed" and edge.target not in seen:
                    seen[edge.target] = None
                    waiting.append(edge.target)
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
        """Yield the edges that are reached by proceeding, with the least gap on the way there.

        Args:
            state: where to begin.
            bits: only edges that are open with these conditions; None for all.
        """
        seen, waiting = {(state, 0)}, [(state, 0)]
        while waiting:
            current, gap = waiting.pop()
            for edge in self.states[current].edges:
                if bits is not None and not edge.is_open(bits):
                    continue
                yield edge, gap
                behind = (edge.target, _shorter(gap, edge.gap))
                if edge.action == "proceed" and behind not in seen:
                    seen.add(behind)
                    waiting.append(behind)

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
        restless = [state for state in self._resting_states() if not self._is_idle(state)]
        after = [step.target for state in restless for step in self._decide(state, 0).steps]
        if not all(target <= STOP or self._is_idle(target) for target in after):
            return "all"
        return "gaps" if restless else "matching"

    def _is_idle(self, state: int) -> bool:
        """Tell whether an event that matches nothing leaves a run able to do what it could do."""
        decision = self._decide(state, 0)
        if decision.is_stopped or not decision.steps or any(one.is_match for one in decision.steps):
            return False
        able = [ability for step in decision.steps for ability in self._enabled_edges(step.target)]
        return set(self._enabled_edges(state)) == set(able)

    def _enabled_edges(self, state: int) -> list[tuple[object, ...]]:
        """Return what a run in a state may come to do with some next event, or without any."""
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
        for edge, gap in self._reachable_edges(state, bits):
            if edge.action == "proceed":
                stopped = stopped or edge.target == STOP
            else:
                steps.append(self._step(edge, _shorter(gap, edge.gap), bits))
        same = not stopped and steps == [RunStep(False, state)]
        return Decision(tuple(steps), stopped, same)

    def _step(self, edge: Edge, gap: int, bits: int) -> RunStep:
        if edge.action == "ignore":
            return RunStep(False, edge.target, gap=gap, is_match=edge.target == FINAL)
        match = edge.target == FINAL or self._reaches_match(edge.target, bits)
        return RunStep(True, edge.target, edge.stage, gap, match)

    def _reaches_match(self, state: int, bits: int) -> bool:
        """Tell whether a match is reached from a state by proceeding with the event just taken."""
        seen, waiting = {state}, [state]
        while waiting:
            for edge in self.states[waiting.pop()].edges:
                if edge.action != "proceed" or edge.target in seen or not edge.is_open(bits):
                    continue
                if edge.target == FINAL:
                    return True
                seen.add(edge.target)
                waiting.append(edge.target)
        return False


def _shorter(gap: int, other: int) -> int:
    """Return the shorter of two times, of which 0 is none."""
    return min(gap, other) if gap and other else gap or other
