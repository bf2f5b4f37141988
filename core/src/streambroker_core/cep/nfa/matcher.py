"""Matcher of one pattern for one key: events in, matches and timed-out partial matches out.

- Time advances to the time of an event before the event is processed.
- A run sees only events after its first event.
- Results are in the order of runs, and runs in the order of their first events.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from streambroker_core.cep.nfa.condition_bits import ConditionBits
from streambroker_core.cep.nfa.nfa import FINAL, Decision, Nfa, RunStep
from streambroker_core.cep.pattern.errors import RunError
from streambroker_core.cep.pattern.match_buffer import Event, RunNode, list_chain
from streambroker_core.cep.pattern.pattern import Skip
from streambroker_core.cep.pattern.run_limits import NEVER, RunLimits


class Run(NamedTuple):
    """A partial match, or a complete match that waits for earlier runs.

    Attributes:
        state: number of its state.
        node: node of the last event it took, linked to all earlier ones.
        start: sequence number of its first event.
        began: time of its first event.
        due: time at which it ends; `NEVER` for no end. Of a complete match that waits: the time of
            the match, if no event that it took decides that.
    """

    state: int
    node: RunNode
    start: int
    began: int
    due: int


_new_run = tuple.__new__
"""Creates a run without the extra call of a named tuple's constructor."""


class PatternMatch:
    """A complete match.

    Attributes:
        node: node of the last event it took, linked to all earlier ones.
        names: stage names by stage number.
        time: time of its last event. If its last stage is negated: the end of its window, or for
            not_next the time of the next event.
        noticed: time at which the match became known: that of an event, or the watermark.
        number: number in its key, from 1, if the rule numbers its matches; else None.
    """

    __slots__ = ("names", "node", "noticed", "number", "time")

    def __init__(
        self,
        node: RunNode,
        names: tuple[str, ...],
        time: int,
        noticed: int,
        number: int | None = None,
    ) -> None:
        self.node, self.names = node, names
        self.time, self.noticed, self.number = time, noticed, number

    @property
    def events(self) -> dict[str, list[Event]]:
        """Events by stage, in the order of the pattern, without empty stages."""
        return events_by_stage(self.node, self.names)


class Timeout:
    """A partial match that timed out at `time`; `waited` describes what it waited for."""

    __slots__ = ("names", "node", "time", "waited")

    def __init__(self, node: RunNode, names: tuple[str, ...], time: int, waited: str) -> None:
        self.node, self.names = node, names
        self.time, self.waited = time, waited

    @property
    def events(self) -> dict[str, list[Event]]:
        """Events by stage, as in `PatternMatch`."""
        return events_by_stage(self.node, self.names)


def events_by_stage(node: RunNode, names: tuple[str, ...]) -> dict[str, list[Event]]:
    """Return the events that a run took, by stage; `node` is its last node."""
    taken: dict[int, list[Event]] = {}
    last: RunNode | None = node
    while last is not None:
        stage_events = taken.get(last.stage)
        if stage_events is None:
            taken[last.stage] = [last.event]
        else:
            stage_events.append(last.event)
        last = last.previous
    result = {}
    for stage in sorted(taken):
        events = taken[stage]
        if len(events) > 1:
            events.reverse()
        result[names[stage]] = events
    return result


_DEFAULT_LIMITS = RunLimits()


class Matcher:
    """Runs of one pattern in one key.

    Attributes:
        runs: partial matches, in the order in which they are processed. If the automaton is
            ordered, complete matches are among them, each behind the runs that it waits for.
        held: other complete matches that wait for earlier runs; only with a skip strategy.
        due: no run ends by time before this.
        dropped: number of runs dropped because of the limits.
        changed: the runs differ from those at the start.
        released: number of matches so far, if they are numbered; else None.
    """

    __slots__ = (
        "automaton",
        "changed",
        "condition_bits",
        "dropped",
        "due",
        "held",
        "limits",
        "released",
        "runs",
        "unchecked_runs",
    )  # fmt: skip

    def __init__(
        self,
        automaton: Nfa,
        condition_bits: ConditionBits,
        limits: RunLimits = _DEFAULT_LIMITS,
        *,
        numbered: bool = False,
    ) -> None:
        self.automaton, self.condition_bits, self.limits = automaton, condition_bits, limits
        self.runs: list[Run] = []
        self.held: list[Run] = []
        self.due = NEVER
        self.dropped = 0
        self.changed = False
        self.unchecked_runs = limits.unchecked_runs
        self.released = 0 if numbered else None

    @property
    def is_empty(self) -> bool:
        """Whether it has nothing to keep: no runs, and no number of matches."""
        return not (self.runs or self.held or self.released)

    @property
    def waiting(self) -> list[Run]:
        """Complete matches that wait for other runs."""
        if self.automaton.is_ordered:
            return [run for run in self.runs if run.state == FINAL]
        return self.held

    def process(
        self, event: Event, bits: int | None = None
    ) -> tuple[list[PatternMatch], list[Timeout]]:
        """Process the next event of the key, by sequence number and time.

        `bits` has the local conditions that hold; None to evaluate them here.

        Raises:
            RunError: a function raised, a skip has no target, or a limit with policy ``fail`` is
                exceeded. The runs are then undefined; the caller must drop the rule.
        """
        matches, timeouts = ([], []) if event.time < self.due else self.advance(event.time)
        conditions, automaton = self.condition_bits, self.automaton
        if bits is None:
            bits = conditions.evaluate_local(event)
        runs: list[Run] = []
        completed: list[Run] = runs if automaton.is_ordered else []
        unchanged = True
        needed_bits, decisions = automaton.needed_bits, automaton.decisions
        undecided = conditions.run_bits & bits  # the event alone decides the others
        for run in self.runs:
            state, run_bits = run.state, bits
            needed = needed_bits[state]
            if needed & undecided:
                run_bits = conditions.evaluate_run(bits, needed, event, run.node)
            decision = decisions[state].get(run_bits & needed) or automaton.decide(state, run_bits)
            if decision.is_unchanged:
                runs.append(run)
            else:
                unchanged = False
                self._continue_run(run, event, decision, runs, completed)
        state, run_bits = automaton.start, bits
        needed = needed_bits[state]
        if needed & undecided:
            run_bits = conditions.evaluate_run(bits, needed, event, None)
        decision = decisions[state].get(run_bits & needed) or automaton.decide(state, run_bits)
        if (decision.steps and self._begin_runs(event, decision, runs, completed)) or not unchanged:
            self.changed = True
            self.runs = runs if len(runs) <= self.unchecked_runs else self._apply_limits(runs)
        if automaton.is_ordered:
            matches += self._release_preferred(event.time)
        elif completed or self.held:
            matches += self._release(completed, event.time)
        return matches, timeouts

    def advance(self, now: int) -> tuple[list[PatternMatch], list[Timeout]]:
        """Advance time: due runs become matches or timed-out partial matches.

        Raises:
            RunError: a skip has no target.
        """
        if now < self.due:
            return [], []
        states = self.automaton.states
        self.changed = True
        expired: list[Run] = []
        remaining: list[Run] = []
        due = NEVER
        for run in self.runs:
            if run.due <= now:
                expired.append(run)
            else:
                remaining.append(run)
                due = min(due, run.due)
        self.runs, self.due = remaining, due
        pending = [run for run in expired if states[run.state].kind == "pending"]
        timeouts = [
            Timeout(run.node, self.automaton.stages, run.due, states[run.state].waits_for)
            for run in expired
            if states[run.state].kind != "pending" and not self._is_duplicate(run)
        ]
        try:
            if self.automaton.is_ordered:
                return self._release_preferred(now), timeouts
            return self._release(pending, now), timeouts
        except RunError as error:
            error.timeouts = timeouts
            raise

    def end(self, now: int) -> list[PatternMatch]:
        """End the partial matches; return the complete ones, which need not wait any more."""
        self.runs, self.due, self.changed = self.waiting, NEVER, True
        if self.automaton.is_ordered:
            return self._release_preferred(now, strict=False)
        self.runs = []
        return self._release([], now, strict=False)

    def _is_duplicate(self, run: Run) -> bool:
        """Return whether the run only duplicates another run that continues with the same past."""
        window = self.automaton.window
        ends_with_window = bool(window) and run.due == run.began + window
        return self.automaton.states[run.state].is_duplicate and not ends_with_window

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
                completed.append(run._replace(due=event.time))
            elif not decision.is_stopped:
                runs.append(self.make_run(step.target, run.node, run.start, run.began))

    def _begin_runs(
        self, event: Event, decision: Decision, runs: list[Run], completed: list[Run]
    ) -> bool:
        """Begin runs with an event; return whether one began or matched."""
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
        """Return a run in a state, and lower `due` to its end."""
        window, longest = self.automaton.window, self.automaton.time_limits[state]
        due = began + window if window else NEVER
        if longest:
            due = min(due, node.event.time + longest)
        if due < self.due:
            self.due = due
        return _new_run(Run, (state, node, start, began, due))

    def set_runs(self, runs: list[Run]) -> None:
        """Replace the runs; they are in processing order."""
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

    def _release(
        self, completed: list[Run], now: int, *, strict: bool = True
    ) -> list[PatternMatch]:
        """Release the complete matches that wait for no run; each discards others.

        If not `strict`, a skip without a target discards nothing.
        """
        skip = self.automaton.pattern.skip
        if skip.strategy == "no_skip":
            return [self._to_match(run, now) for run in completed] if completed else []
        self.held = sorted([*self.held, *completed], key=lambda run: run.start)
        matches: list[PatternMatch] = []
        while self.held:
            earliest = self.held[0]
            if any(run.start < earliest.start for run in self.runs):
                break
            pruned = self._prune_filter(skip, earliest, matches, strict=strict)
            del self.held[0]
            matches.append(self._to_match(earliest, now))
            self.runs = [run for run in self.runs if not pruned(run)]
            self.held = [run for run in self.held if not pruned(run)]
        return matches

    def _release_preferred(self, now: int, *, strict: bool = True) -> list[PatternMatch]:
        """Release the complete matches in front of all runs; each discards less preferred runs."""
        matches: list[PatternMatch] = []
        while self.runs and self.runs[0].state == FINAL:
            best, self.changed = self.runs[0], True
            pruned = self._prune_filter(self.automaton.pattern.skip, best, matches, strict=strict)
            matches.append(self._to_match(best, now))
            self.runs = [run for run in self.runs if run.start != best.start and not pruned(run)]
        return matches

    def _prune_filter(
        self, skip: Skip, match: Run, before: list[PatternMatch], *, strict: bool
    ) -> Callable[[Run], bool]:
        """Return a predicate for the runs that a match discards; `before` were released before."""
        if skip.strategy == "skip_to_next":
            return lambda run: run.start == match.start
        if skip.strategy == "skip_past_last":
            last = match.node.event.seq
            return lambda run: run.start <= last
        try:
            target = self._skip_target(skip, match, strict=strict and skip.throw_on_miss)
        except RunError as error:
            error.matches = before
            raise
        return lambda run: target is not None and run.start < target

    def _skip_target(self, skip: Skip, match: Run, *, strict: bool) -> int | None:
        names = self.automaton.stages
        taken = [
            node.event.seq for node in list_chain(match.node) if names[node.stage] == skip.stage
        ]
        if not taken:
            if strict:
                raise RunError(skip.strategy, f"stage `{skip.stage}` took no event of the match")
            return None
        target = taken[0 if skip.strategy == "skip_to_first" else -1]
        if target == match.start and strict:
            raise RunError(
                skip.strategy,
                f"stage `{skip.stage}` took the match's own first event, so the skip would not end",
            )
        return target

    def _to_match(self, run: Run, now: int) -> PatternMatch:
        if self.released is not None:
            self.released, self.changed = self.released + 1, True
        time = run.node.event.time if run.state == FINAL else run.due
        return PatternMatch(run.node, self.automaton.stages, time, now, self.released)
