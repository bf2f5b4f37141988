"""Runs of one pattern for one key: events in, matches and timed-out partial matches out.

Rule 1: time goes on before each event. Rule 2: a run sees only events behind the one it began
with. Rule 3: results come in the order of runs, runs in the order of their first events.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from streambroker_core.cep.nfa.condition_bits import ConditionBits
from streambroker_core.cep.nfa.nfa import FINAL, Decision, Nfa, RunStep
from streambroker_core.cep.pattern.errors import RunError
from streambroker_core.cep.pattern.match_buffer import Event, RunNode, list_chain
from streambroker_core.cep.pattern.pattern import Skip

NEVER = 2**64


class Run(NamedTuple):
    """A partial match, or one that is complete and waits for its turn.

    Attributes:
        state: where it is.
        node: the last event it took; through it all others.
        start: place of its first event in the order of the key.
        began: time of its first event.
        due: when its time is over; `NEVER` for not at all.
    """

    state: int
    node: RunNode
    start: int
    began: int
    due: int


_new_run = tuple.__new__
"""Makes a run without the call that a named tuple makes of its own."""


class PatternMatch:
    """A complete match.

    Attributes:
        node: the last event that it took; through it all others.
        names: of the stages, by their numbers.
        time: of its last event or, where a last stage is negated, when its window ended.
        noticed: the time at which that was known: of an event, or the watermark.
    """

    __slots__ = ("names", "node", "noticed", "time")

    def __init__(self, node: RunNode, names: tuple[str, ...], time: int, noticed: int) -> None:
        self.node, self.names = node, names
        self.time, self.noticed = time, noticed

    @property
    def events(self) -> dict[str, list[Event]]:
        """By stage, in the order of the pattern; stages that took nothing are left out."""
        return events_by_stage(self.node, self.names)


class Timeout:
    """A partial match whose time is over.

    Attributes:
        node, names: as of `PatternMatch`.
        time: when it was over.
        waited: what it waited for.
    """

    __slots__ = ("names", "node", "time", "waited")

    def __init__(self, node: RunNode, names: tuple[str, ...], time: int, waited: str) -> None:
        self.node, self.names = node, names
        self.time, self.waited = time, waited

    @property
    def events(self) -> dict[str, list[Event]]:
        """By stage, as of `PatternMatch`."""
        return events_by_stage(self.node, self.names)


def events_by_stage(node: RunNode, names: tuple[str, ...]) -> dict[str, list[Event]]:
    """Return what a run has taken, by stage.

    Args:
        node: its last node.
        names: of the stages, by their numbers.
    """
    taken: dict[int, list[Event]] = {}
    last: RunNode | None = node
    while last is not None:
        known = taken.get(last.stage)
        if known is None:
            taken[last.stage] = [last.event]
        else:
            known.append(last.event)
        last = last.previous
    found = {}
    for stage in sorted(taken):
        events = taken[stage]
        if len(events) > 1:
            events.reverse()
        found[names[stage]] = events
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """How much one key may keep of one rule.

    Attributes:
        runs: partial matches and matches that wait; None for any number.
        policy: what goes beyond: ``drop_oldest`` gives up those that began first, ``refuse`` begins
            no new ones, ``fail`` stops the rule.
        unchecked_runs: how many runs need no look at them.
    """

    runs: int | None = 10_000
    policy: str = "drop_oldest"
    unchecked_runs: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        unlimited = self.runs is None or self.policy == "refuse"
        object.__setattr__(self, "unchecked_runs", NEVER if unlimited else self.runs)


_DEFAULT_LIMITS = RunLimits()


class Matcher:
    """The runs of one key.

    Args:
        automaton: of the pattern.
        condition_bits: says what holds of events.
        limits: how many runs it may have.

    Attributes:
        runs: partial matches, in the order in which they are asked; the run that has not begun is
            not among them.
        held: matches that wait for earlier runs, which is only so with a skip strategy.
        due: when time next ends a run.
        dropped: runs given up because of the limits.
        changed: whether runs are others than at first.
        unchecked_runs: how many runs need no look at the limits.
    """

    __slots__ = (
        "automaton",
        "changed",
        "condition_bits",
        "dropped",
        "due",
        "held",
        "limits",
        "runs",
        "unchecked_runs",
    )  # fmt: skip

    def __init__(
        self, automaton: Nfa, condition_bits: ConditionBits, limits: RunLimits = _DEFAULT_LIMITS
    ) -> None:
        self.automaton, self.condition_bits, self.limits = automaton, condition_bits, limits
        self.runs: list[Run] = []
        self.held: list[Run] = []
        self.due = NEVER
        self.dropped = 0
        self.changed = False
        self.unchecked_runs = limits.unchecked_runs

    def process(
        self, event: Event, bits: int | None = None
    ) -> tuple[list[PatternMatch], list[Timeout]]:
        """Take the next event of the key.

        Args:
            event: behind all events before, in order and so in time.
            bits: which local conditions hold; None to ask them.

        Raises:
            RunError: a function raised, a skip has no target, or the limit says to fail. What the
                runs are then is not promised; the rule has to be given up.
        """
        matches, timeouts = ([], []) if event.time < self.due else self.advance(event.time)
        truths, automaton = self.condition_bits, self.automaton
        if bits is None:
            bits = truths.evaluate_local(event)
        runs: list[Run] = []
        found: list[Run] = []
        same = True
        asked, made = automaton.needed_bits, automaton.decisions
        open_ = truths.run_bits & bits  # of the others the event alone has decided
        for run in self.runs:
            state, own = run.state, bits
            ask = asked[state]
            if ask & open_:
                own = truths.evaluate_run(bits, ask, event, run.node)
            decision = made[state].get(own & ask) or automaton.decide(state, own)
            if decision.is_unchanged:
                runs.append(run)
            else:
                same = False
                self._continue_run(run, event, decision, runs, found)
        state, own = automaton.start, bits
        ask = asked[state]
        if ask & open_:
            own = truths.evaluate_run(bits, ask, event, None)
        decision = made[state].get(own & ask) or automaton.decide(state, own)
        if (decision.steps and self._begin_runs(event, decision, runs, found)) or not same:
            self.changed = True
            self.runs = runs if len(runs) <= self.unchecked_runs else self._apply_limits(runs)
        if found or self.held:
            matches += self._release(found, event.time)
        return matches, timeouts

    def advance(self, now: int) -> tuple[list[PatternMatch], list[Timeout]]:
        """Let time go on: what it ends becomes a match or a timed-out partial match.

        Raises:
            RunError: a skip has no target.
        """
        if now < self.due:
            return [], []
        states = self.automaton.states
        self.changed = True
        over: list[Run] = []
        left: list[Run] = []
        due = NEVER
        for run in self.runs:
            if run.due <= now:
                over.append(run)
            else:
                left.append(run)
                due = min(due, run.due)
        self.runs, self.due = left, due
        pending = [run for run in over if states[run.state].kind == "pending"]
        timeouts = [
            Timeout(run.node, self.automaton.stages, run.due, states[run.state].waits_for)
            for run in over
            if states[run.state].kind != "pending" and not self._is_duplicate(run)
        ]
        return self._release(pending, now), timeouts

    def _is_duplicate(self, run: Run) -> bool:
        """Tell whether another run with the same past goes on, as this one is only its twin."""
        window = self.automaton.window
        in_whole = bool(window) and run.due == run.began + window
        return self.automaton.states[run.state].is_duplicate and not in_whole

    def _continue_run(
        self, run: Run, event: Event, decision: Decision, runs: list[Run], completed: list[Run]
    ) -> None:
        for step in decision.steps:
            if step.gap and event.time - run.node.event.time >= step.gap:
                continue
            if step.takes_event:
                node = RunNode(event, step.stage, run.node)
                self._take_event(step, node, run.start, run.began, decision, runs, completed)
            elif step.is_match:
                completed.append(run)
            elif not decision.is_stopped:
                runs.append(self.make_run(step.target, run.node, run.start, run.began))

    def _begin_runs(
        self, event: Event, decision: Decision, runs: list[Run], completed: list[Run]
    ) -> bool:
        """Begin runs with an event; return whether any, or a match, began."""
        began = False
        for step in decision.steps:
            if step.takes_event:
                if self._is_full(len(runs)):
                    self.dropped += 1
                    continue
                began = True
                node = RunNode(event, step.stage, None)
                self._take_event(step, node, event.seq, event.time, decision, runs, completed)
        return began

    def _take_event(
        self,
        step: RunStep,
        node: RunNode,
        start: int,
        began: int,
        decision: Decision,
        runs: list[Run],
        completed: list[Run],
    ) -> None:
        if step.target != FINAL and not decision.is_stopped:
            runs.append(self.make_run(step.target, node, start, began))
        if step.is_match:
            completed.append(_new_run(Run, (FINAL, node, start, began, NEVER)))

    def make_run(self, state: int, node: RunNode, start: int, began: int) -> Run:
        """Return a run in a state, with the time at which it is over."""
        window, longest = self.automaton.window, self.automaton.time_limits[state]
        due = began + window if window else NEVER
        if longest:
            due = min(due, node.event.time + longest)
        if due < self.due:
            self.due = due
        return _new_run(Run, (state, node, start, began, due))

    def set_runs(self, runs: list[Run]) -> None:
        """Have other runs, in the order in which they are asked."""
        self.runs, self.changed = runs, True
        self.due = min((run.due for run in runs), default=NEVER)

    def _is_full(self, runs: int) -> bool:
        limit = self.limits
        return limit.policy == "refuse" and limit.runs is not None and runs >= limit.runs

    def _apply_limits(self, runs: list[Run]) -> list[Run]:
        most = self.unchecked_runs
        if self.limits.policy == "fail":
            raise RunError(
                "its limits", f"one key has {len(runs)} runs, at most {most} are allowed"
            )
        self.dropped += len(runs) - most
        return sorted(runs, key=lambda run: run.start)[-most:]

    def _release(self, completed: list[Run], now: int) -> list[PatternMatch]:
        skip = self.automaton.pattern.skip
        if skip.strategy == "no_skip":
            return [self._to_match(run, now) for run in completed] if completed else []
        self.held = sorted([*self.held, *completed], key=lambda run: run.start)
        matches: list[PatternMatch] = []
        while self.held:
            earliest = self.held[0]
            if any(run.start < earliest.start for run in self.runs):
                break
            del self.held[0]
            matches.append(self._to_match(earliest, now))
            pruned = self._prune_filter(skip, earliest)
            self.runs = [run for run in self.runs if not pruned(run)]
            self.held = [run for run in self.held if not pruned(run)]
        return matches

    def _prune_filter(self, skip: Skip, match: Run) -> Callable[[Run], bool]:
        """Return what a match ends: itself has been told already."""
        if skip.strategy == "skip_to_next":
            return lambda run: run.start == match.start
        if skip.strategy == "skip_past_last":
            last = match.node.event.seq
            return lambda run: run.start <= last
        target = self._skip_target(skip, match)
        return lambda run: target is not None and run.start < target

    def _skip_target(self, skip: Skip, match: Run) -> int | None:
        names = self.automaton.stages
        taken = [
            node.event.seq for node in list_chain(match.node) if names[node.stage] == skip.stage
        ]
        if not taken:
            if skip.throw_on_miss:
                raise RunError(skip.strategy, f"stage `{skip.stage}` took no event of the match")
            return None
        target = taken[0 if skip.strategy == "skip_to_first" else -1]
        if target == match.start and skip.throw_on_miss:
            raise RunError(
                skip.strategy,
                f"stage `{skip.stage}` took the match's own first event, so the skip would not end",
            )
        return target

    def _to_match(self, run: Run, now: int) -> PatternMatch:
        if run.state == FINAL:
            return PatternMatch(run.node, self.automaton.stages, run.node.event.time, now)
        pending = self.automaton.states[run.state].kind == "pending"
        time = run.due if pending else now
        return PatternMatch(run.node, self.automaton.stages, time, now)
