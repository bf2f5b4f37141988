"""Compiler from a pattern to its automaton (NFA).

The compiler builds a chain of stages from its end. Each stage receives a function that builds the
state after it. Two arguments of that function select the state: the negated stages that are still
active, and the guards of a preceding greedy stage. Equal arguments return the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from streambroker_core.cep.nfa.nfa import FINAL, STOP, Edge, Guard, Nfa, NfaState
from streambroker_core.cep.pattern.conditions import Condition, list_terms
from streambroker_core.cep.pattern.conditions import format_term as name_of_term
from streambroker_core.cep.pattern.durations import format_micros
from streambroker_core.cep.pattern.errors import PatternError, PatternUnsupportedError
from streambroker_core.cep.pattern.pattern import (
    NEGATED,
    Element,
    Group,
    Pattern,
    PatternStage,
    element_name,
)

NegationBits: TypeAlias = "tuple[int, ...]"
"""Condition bits of the negated stages that are active until a run takes its next event."""
GreedyGuards: TypeAlias = "tuple[Guard, ...]"
"""Guards of a preceding greedy stage; each blocks the events that the stage could take."""
GreedyBranches: TypeAlias = "tuple[tuple[GreedyGuards, Guard], ...]"
"""Greedy guards for the stages after a greedy stage, each with the guard under which they apply."""
NextStateBuilder: TypeAlias = "Callable[[NegationBits, GreedyGuards], int]"
"""Builds the first state of what follows and returns its number."""
ElementBuilder: TypeAlias = "Callable[[_Entry, NegationBits, GreedyGuards], int]"
"""Builds the first state of an element and returns its number."""


MAX_DEPTH, _CALLS_PER_STAGE = 800, 5
"""Maximum recursion depth of the compiler, below Python's limit of 1,000, and calls per stage."""


def compile_pattern(pattern: Pattern) -> Nfa:
    """Compile a pattern to its automaton.

    Raises:
        PatternError: the pattern contradicts itself; the error names the stage.
    """
    if _depth(pattern.elements) > MAX_DEPTH:
        raise PatternUnsupportedError(
            f"the pattern has more than {MAX_DEPTH // _CALLS_PER_STAGE} stages, or takes them too"
            f" often",
            remedy="write fewer stages, counting those of a repeated group each time, or two rules",
        )
    window = compute_window(pattern)
    _check_pattern(pattern, window)
    return _NfaCompiler(pattern).build(window)


def _depth(elements: tuple[Element, ...]) -> int:
    """Return the recursion depth that compiling the elements needs."""
    depth = 0
    for element in elements:
        often = element.quantifier.high or element.quantifier.low
        if isinstance(element, Group):
            depth += _CALLS_PER_STAGE + often * (2 + max(map(_depth, element.branches)))
        else:
            depth += _CALLS_PER_STAGE + often - 1
    return depth


def compute_window(pattern: Pattern) -> int:
    """Return the shortest window of a whole match, in microseconds; 0 for no limit."""
    windows = [each.within for each in _iter_elements(pattern.elements) if each.within is not None]
    return min(windows, default=0)


def _iter_elements(elements: tuple[Element, ...]) -> Iterator[Element]:
    for element in elements:
        yield element
        for branch in element.branches if isinstance(element, Group) else ():
            yield from _iter_elements(branch)


def _prefers_alternatives(pattern: Pattern) -> bool:
    """Return whether of several matches with one first event the preferred one is kept.

    A negated end is excluded: time decides such matches, in the order of their ends.
    """
    groups = [each for each in _iter_elements(pattern.elements) if isinstance(each, Group)]
    return (
        pattern.skip.strategy != "no_skip"
        and any(group.alternatives for group in groups)
        and not _ends_negated(pattern.elements)
    )


def _ends_negated(elements: tuple[Element, ...]) -> bool:
    last = elements[-1]
    if isinstance(last, Group):
        return any(map(_ends_negated, last.branches))
    return last.contiguity in NEGATED


def _can_wait(elements: tuple[Element, ...]) -> bool:
    """Return whether a run may need a second event."""
    first = elements[0]
    inner = isinstance(first, Group) and any(map(_can_wait, first.branches))
    return len(elements) > 1 or inner or first.quantifier.kind != "one"


def _check_pattern(pattern: Pattern, window: int) -> None:
    names = {stage.name for stage in pattern.stages()}
    for stage in pattern.stages():
        _check_stage(stage, window, names)
    skip = pattern.skip
    targets = {element.name for element in pattern.elements if isinstance(element, PatternStage)}
    if skip.stage is not None and skip.stage not in targets:
        inside = skip.stage in names
        raise PatternError(
            f"{skip.strategy} names a stage {'in a group' if inside else 'that does not exist'}",
            stage=skip.stage,
            remedy=f"name one of {', '.join(f'`{name}`' for name in sorted(targets))}"
            if targets
            else "use skip_past_last or skip_to_next",
        )
    last = pattern.elements[-1]
    if last.contiguity == "not_followed_by" and not window and not last.within_previous:
        raise PatternError(
            "not_followed_by is the last stage and there is no window",
            stage=element_name(last),
            remedy="set with within() the time in which no such event may arrive",
        )


def _check_stage(stage: PatternStage, window: int, names: set[str]) -> None:
    limits = {
        "window from the previous event": stage.within_previous,
        "gap": stage.quantifier.inner_gap,
    }
    for what, limit in limits.items():
        if limit and window and limit > window:
            raise PatternError(
                f"the {what}, {format_micros(limit)}, is longer than the window of the whole"
                f" match, {format_micros(window)}",
                stage=stage.name,
                remedy="make it shorter, or leave it out",
            )
    for term in (*list_terms(stage.condition), *list_terms(stage.until)):
        if term.stage is not None and term.stage not in names:
            raise PatternError(
                f"`{name_of_term(term)}` refers to a stage that does not exist",
                stage=stage.name,
                remedy=f"the stages are {', '.join(f'`{name}`' for name in sorted(names))}",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """How a run enters a stage.

    Attributes:
        contiguity: contiguity of the stage; for the first stage of a group, that of the group.
        bypasses: states to which it proceeds without taking an event, each with its guard.
        until_bits: bits of the stop conditions of the enclosing groups.
    """

    contiguity: str
    bypasses: tuple[tuple[int, Guard], ...] = ()
    until_bits: tuple[int, ...] = ()


@dataclass(slots=True)
class _NfaCompiler:
    pattern: Pattern
    states: list[NfaState] = field(default_factory=lambda: [NfaState("final"), NfaState("stop")])
    bits: dict[Condition, int] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    is_ordered: bool = False
    warnings: list[str] = field(default_factory=list)

    def build(self, window: int) -> Nfa:
        self.names = list(dict.fromkeys(stage.name for stage in self.pattern.stages()))
        self.is_ordered = _prefers_alternatives(self.pattern)
        self._warn(window)
        first = self._chain_builder(
            self.pattern.elements, lambda nots, bars: FINAL, (), (), last=True
        )
        start = first(_Entry(contiguity="begin"), (), ())
        return Nfa(
            pattern=self.pattern,
            stages=tuple(self.names),
            conditions=tuple(self.bits),
            states=tuple(self.states),
            start=start,
            window=window,
            warnings=tuple(dict.fromkeys(self.warnings)),
            is_ordered=self.is_ordered,
        )

    def _warn(self, window: int) -> None:
        if not window and _can_wait(self.pattern.elements):
            self.warnings.append(
                "no window: runs that wait for an event that never comes are kept until a limit"
            )
            if self.pattern.skip.strategy != "no_skip":
                self.warnings.append(
                    "no window and a skip strategy: a match waits for every earlier run to end"
                )
        windows = {each.within for each in self.pattern.elements if each.within is not None}
        if len(windows) > 1:
            self.warnings.append(
                "the window of the whole match is set more than once with different lengths; the"
                f" shortest applies: {format_micros(window)}"
            )
        first = self.pattern.elements[0]
        if first.within_previous and first.quantifier.kind == "one":
            self.warnings.append(
                f"stage `{element_name(first)}` is the first, so no event precedes it and its"
                " window from the previous event is ignored; set it on the next stage"
            )
        self._warn_of_greedy()
        for stage in self.pattern.stages():
            if not stage.within_previous:
                continue
            if stage.quantifier.kind != "one":
                self.warnings.append(
                    f"stage `{stage.name}` is taken several times, so its window from the"
                    " previous event is ignored; give the quantifier a gap"
                )
            if stage.contiguity == "not_followed_by" and stage != self.pattern.elements[-1]:
                self.warnings.append(
                    f"stage `{stage.name}` ends with the event that the next stage takes, so its"
                    " window from the previous event is ignored; set it on that stage"
                )

    def _warn_of_greedy(self) -> None:
        for stage in self.pattern.stages():
            quantifier = stage.quantifier
            if quantifier.greedy and quantifier.low == quantifier.high:
                reason = f"is taken exactly {quantifier.low} times"
            elif quantifier.greedy and stage == self.pattern.elements[-1]:
                reason = "is the last, and no stage follows"
            else:
                continue
            self.warnings.append(f"stage `{stage.name}` {reason}, so greedy has no effect")

    # ---- condition bits ----

    def _condition_bit(self, condition: Condition) -> int:
        return self.bits.setdefault(condition, 1 << len(self.bits))

    def _stop_bits(self, element: Element) -> tuple[int, ...]:
        return () if element.until is None else (self._condition_bit(element.until),)

    def _take_guard(self, stage: PatternStage, until: tuple[int, ...]) -> Guard:
        need = 0 if stage.condition is None else self._condition_bit(stage.condition)
        return Guard(need, sum(set(until)))

    def _greedy_branches(self, stage: PatternStage, until: tuple[int, ...]) -> GreedyBranches:
        """Return the events that a stage withholds from the stages after it."""
        quantifier = stage.quantifier
        if not quantifier.greedy or quantifier.low == quantifier.high:
            return (((), Guard()),)
        take = self._take_guard(stage, until)
        if stage.until is None:
            return (((take,), Guard()),)
        bit = self._condition_bit(stage.until)
        return (((), Guard(bit)), ((Guard(take.need),), Guard(0, bit)))

    def _ignore_guard(
        self, stage: PatternStage, contiguity: str, until: tuple[int, ...]
    ) -> Guard | None:
        """Return the guard under which a stage ignores an event, or None if it never does."""
        denied = sum(set(until))
        if contiguity in ("followed_by_any", "combinations"):
            return Guard(0, denied)
        if contiguity in ("followed_by", "relaxed") and stage.condition is not None:
            return Guard(0, denied | self._condition_bit(stage.condition))
        return None

    # ---- states ----

    def _add_state(self, waits_for: str, *, is_duplicate: bool = False) -> int:
        self.states.append(NfaState("normal", waits_for, is_duplicate))
        return len(self.states) - 1

    def _add_edge(self, state: int, edge: Edge, greedy_guards: GreedyGuards = ()) -> None:
        if not edge.guard.need & edge.guard.deny:
            self.states[state].edges.append(
                replace(edge, blocked_by=(*edge.blocked_by, *greedy_guards))
            )

    def _add_stop_edges(
        self, state: int, negations: NegationBits, greedy_guards: GreedyGuards = ()
    ) -> None:
        for bit in negations:
            self._add_edge(
                state, Edge(action="proceed", target=STOP, guard=Guard(bit)), greedy_guards
            )

    def _chain_builder(
        self,
        elements: tuple[Element, ...],
        tail: NextStateBuilder,
        until: tuple[int, ...],
        following_negations: NegationBits,
        *,
        last: bool,
    ) -> ElementBuilder:
        """Return the function that builds the first state of a chain.

        `tail` builds the state after the chain. `until` has the bits of the stop conditions of the
        enclosing groups, `following_negations` those of the not_followed_by stages after the chain.
        """
        build_next: NextStateBuilder = tail
        for index in reversed(range(len(elements))):
            element = elements[index]
            is_last = last and index == len(elements) - 1
            builder = self._element_builder(
                element, build_next, following_negations, is_last=is_last
            )
            build_next = _memoize(_bind_entry(builder, element.contiguity, until))
            is_not = isinstance(element, PatternStage) and element.contiguity == "not_followed_by"
            following_negations = (
                (*following_negations, self._match_guard(element).need)  # type: ignore[arg-type]
                if is_not
                else ()
            )
        return builder

    def _element_builder(
        self,
        element: Element,
        build_next: NextStateBuilder,
        following_negations: NegationBits,
        *,
        is_last: bool,
    ) -> ElementBuilder:
        if isinstance(element, Group):
            return lambda entry, nots, bars: _GroupLoop(
                self, element, build_next, following_negations, entry
            ).build_first(nots, bars)
        if element.contiguity in NEGATED:
            return lambda entry, nots, bars: self._build_negation(
                element, build_next, nots, bars, is_last=is_last
            )
        return lambda entry, nots, bars: _Loop(
            self, element, build_next, following_negations, entry
        ).build_first(nots, bars)

    def _match_guard(self, stage: PatternStage) -> Guard:
        return Guard(0 if stage.condition is None else self._condition_bit(stage.condition))

    def _build_negation(
        self,
        stage: PatternStage,
        build_next: NextStateBuilder,
        negations: NegationBits,
        greedy_guards: GreedyGuards,
        *,
        is_last: bool,
    ) -> int:
        match_guard = self._match_guard(stage)
        if stage.contiguity == "not_followed_by":
            if not is_last:
                return build_next((*negations, match_guard.need), greedy_guards)
            return self._build_pending(stage, match_guard, negations, greedy_guards)
        state = self._add_state(f"no `{stage.name}` next")
        target = build_next(negations, ())
        if stage.condition is not None:
            edge: Edge = Edge(
                action="ignore" if target == FINAL else "proceed",
                target=target,
                guard=Guard(0, match_guard.need),
                gap=stage.within_previous or 0,
            )
            self._add_edge(state, edge, greedy_guards)
        self._add_edge(state, Edge(action="proceed", target=STOP, guard=match_guard), greedy_guards)
        self._add_stop_edges(state, negations, greedy_guards)
        return state

    def _build_pending(
        self,
        stage: PatternStage,
        match_guard: Guard,
        negations: NegationBits,
        greedy_guards: GreedyGuards,
    ) -> int:
        state = self._add_state(f"no `{stage.name}` until the window ends")
        self.states[state].kind = "pending"
        self.states[state].gap = stage.within_previous or 0
        if stage.condition is not None:
            self._add_edge(
                state,
                Edge(action="ignore", target=state, guard=Guard(0, match_guard.need)),
                greedy_guards,
            )
        self._add_stop_edges(state, (match_guard.need, *negations), greedy_guards)
        return state


def _bind_entry(
    builder: ElementBuilder, contiguity: str, until: tuple[int, ...]
) -> NextStateBuilder:
    return lambda nots, bars: builder(_Entry(contiguity=contiguity, until_bits=until), nots, bars)


def _memoize(builder: NextStateBuilder) -> NextStateBuilder:
    states: dict[tuple[NegationBits, GreedyGuards], int] = {}

    def again(nots: NegationBits, bars: GreedyGuards) -> int:
        key = (tuple(sorted(set(nots))), bars)
        if key not in states:
            states[key] = builder(*key)
        return states[key]

    return again


class _Loop:
    """States of one stage: one for each number of events that the stage may have taken."""

    def __init__(
        self,
        compiler: _NfaCompiler,
        stage: PatternStage,
        build_next: NextStateBuilder,
        loop_negations: NegationBits,
        entry: _Entry,
    ) -> None:
        self._compiler, self._stage, self._build_next = compiler, stage, build_next
        self._entry, self._loop_negations = entry, loop_negations
        self._number = compiler.names.index(stage.name)
        own = self._stop_bits = compiler._stop_bits(stage)
        self._take_guard = compiler._take_guard(stage, (*own, *entry.until_bits))
        self._greedy_branches = compiler._greedy_branches(stage, (*own, *entry.until_bits))

    def build_first(self, negations: NegationBits, greedy_guards: GreedyGuards) -> int:
        """Build the state that waits for the first event."""
        stage, quantifier = self._stage, self._stage.quantifier
        taken = self._build_repeated(1)
        state = self._compiler._add_state(f"`{stage.name}`")
        gap = stage.within_previous or 0 if quantifier.kind == "one" else quantifier.first_gap
        self._add_take_edge(state, taken, gap, greedy_guards)
        if quantifier.optional:
            self._add_leave_edges(state, negations, greedy_guards)
        for target, guard in self._entry.bypasses:
            self._compiler._add_edge(
                state, Edge(action="proceed", target=target, guard=guard), greedy_guards
            )
        ignore_guard = self._compiler._ignore_guard(
            stage, self._entry.contiguity, self._entry.until_bits
        )
        needs_duplicate = quantifier.optional or bool(self._entry.bypasses)
        self._add_wait_edges(
            state,
            taken,
            gap,
            ignore_guard,
            negations,
            greedy_guards,
            with_duplicate=needs_duplicate,
        )
        return state

    def _build_repeated(self, count: int) -> int:
        quantifier, high = self._stage.quantifier, self._stage.quantifier.high
        if high is not None and count >= high:
            return self._build_next((), self._greedy_branches[0][0])
        state = self._compiler._add_state(f"more `{self._stage.name}`")
        endless = high is None and count >= quantifier.low
        taken = state if endless else self._build_repeated(count + 1)
        can_leave = count >= quantifier.low
        if can_leave:
            self._add_leave_edges(state, (), ())
        self._add_take_edge(state, taken, quantifier.inner_gap, ())
        until = (*self._stop_bits, *self._entry.until_bits)
        ignore_guard = self._compiler._ignore_guard(self._stage, quantifier.inner, until)
        self._add_wait_edges(
            state,
            taken,
            quantifier.inner_gap,
            ignore_guard,
            self._loop_negations,
            (),
            with_duplicate=can_leave,
        )
        return state

    def _add_leave_edges(
        self, state: int, negations: NegationBits, greedy_guards: GreedyGuards
    ) -> None:
        for kept, guard in self._greedy_branches:
            target = self._build_next(negations, kept)
            self._compiler._add_edge(
                state, Edge(action="proceed", target=target, guard=guard), greedy_guards
            )

    def _add_take_edge(
        self, state: int, target: int, gap: int, greedy_guards: GreedyGuards
    ) -> None:
        edge = Edge(
            action="take", target=target, guard=self._take_guard, stage=self._number, gap=gap
        )
        self._compiler._add_edge(state, edge, greedy_guards)

    def _add_wait_edges(
        self,
        state: int,
        taken_state: int,
        gap: int,
        ignore_guard: Guard | None,
        negations: NegationBits,
        greedy_guards: GreedyGuards,
        *,
        with_duplicate: bool,
    ) -> None:
        """Add edges that ignore events.

        With `with_duplicate` an ignored event leads to a duplicate state without the leaving edges.
        A run therefore leaves the stage only once.
        """
        self._compiler._add_stop_edges(state, negations, greedy_guards)
        if ignore_guard is None:
            return
        waiting_state = state
        if with_duplicate:
            waiting_state = self._compiler._add_state(
                self._compiler.states[state].waits_for, is_duplicate=True
            )
            self._add_take_edge(waiting_state, taken_state, gap, greedy_guards)
            self._compiler._add_edge(
                waiting_state,
                Edge(action="ignore", target=waiting_state, guard=ignore_guard),
                greedy_guards,
            )
            self._compiler._add_stop_edges(waiting_state, negations, greedy_guards)
        self._compiler._add_edge(
            state, Edge(action="ignore", target=waiting_state, guard=ignore_guard), greedy_guards
        )


class _GroupLoop:
    """States of a group: one chain per round; the last of an endless loop leads back to itself.

    Alternatives are chains next to each other, behind a state that leads to each of them.
    """

    def __init__(
        self,
        compiler: _NfaCompiler,
        group: Group,
        build_next: NextStateBuilder,
        loop_negations: NegationBits,
        entry: _Entry,
    ) -> None:
        self._compiler, self._group, self._build_next = compiler, group, build_next
        self._entry, self._loop_negations = entry, loop_negations
        self._until = (*compiler._stop_bits(group), *entry.until_bits)

    def build_first(self, negations: NegationBits, greedy_guards: GreedyGuards) -> int:
        bypasses = self._entry.bypasses
        if self._group.quantifier.optional:
            bypasses = (*bypasses, *self._bypasses(negations))
        return self._build_round(0, self._entry.contiguity, bypasses, negations, greedy_guards)

    def _bypasses(self, negations: NegationBits) -> list[tuple[int, Guard]]:
        """Return the states after the group; a greedy last stage of the group keeps its events.

        A stage that is last in one of several alternatives keeps none.
        """
        until, last = self._until, self._group
        while not last.alternatives and isinstance(last.elements[-1], Group):
            last = last.elements[-1]
            until = (*self._compiler._stop_bits(last), *until)
        stage = last.elements[-1]
        if last.alternatives or isinstance(stage, Group):
            return [(self._build_next(negations, ()), Guard())]
        own = self._compiler._stop_bits(stage)
        branches = self._compiler._greedy_branches(stage, (*own, *until))
        return [(self._build_next(negations, kept), guard) for kept, guard in branches]

    def _build_round(
        self,
        done: int,
        contiguity: str,
        bypasses: tuple[tuple[int, Guard], ...],
        negations: NegationBits,
        greedy_guards: GreedyGuards,
    ) -> int:
        tail = _memoize(lambda carried, kept: self._build_done(done + 1, carried, kept))
        return self._build_branches(tail, contiguity, bypasses, negations, greedy_guards)

    def _build_branches(
        self,
        tail: NextStateBuilder,
        contiguity: str,
        bypasses: tuple[tuple[int, Guard], ...],
        negations: NegationBits,
        greedy_guards: GreedyGuards,
    ) -> int:
        heads = [
            self._compiler._chain_builder(
                branch, tail, self._until, self._loop_negations, last=False
            )
            for branch in self._group.branches
        ]
        entry = _Entry(contiguity=contiguity, bypasses=bypasses, until_bits=self._until)
        if len(heads) == 1:
            return heads[0](entry, negations, greedy_guards)
        state = self._compiler._add_state(f"`{element_name(self._group)}`")
        entry = replace(entry, bypasses=())
        targets = [(head(entry, negations, greedy_guards), Guard()) for head in heads]
        for target, guard in (*targets, *bypasses):
            edge = Edge(action="proceed", target=target, guard=guard)
            self._compiler._add_edge(state, edge, greedy_guards)
        return state

    def _build_done(self, done: int, negations: NegationBits, greedy_guards: GreedyGuards) -> int:
        quantifier = self._group.quantifier
        if quantifier.high is not None and done >= quantifier.high:
            return self._build_next(negations, greedy_guards)
        active_negations = (*negations, *self._loop_negations)
        if quantifier.high is None and done >= quantifier.low:
            return self._build_endless(done, negations, greedy_guards)
        again, bypasses = None, tuple[tuple[int, Guard], ...]()
        if done >= quantifier.low:
            again = self._add_again_state() if self._compiler.is_ordered else None
            bypasses = self._build_leave(again, negations, greedy_guards)
        first = self._build_round(done, quantifier.inner, bypasses, active_negations, greedy_guards)
        if again is None:
            return first
        self._compiler._add_edge(again, Edge(action="proceed", target=first))
        return again

    def _add_again_state(self) -> int:
        return self._compiler._add_state(f"`{element_name(self._group)}` again")

    def _build_leave(
        self, again: int | None, negations: NegationBits, greedy_guards: GreedyGuards
    ) -> tuple[tuple[int, Guard], ...]:
        """Return the states after the group, to which its next round has to lead.

        If order is preference, `again` leads there, because to leave is preferred to another round.
        """
        target = self._build_next(negations, greedy_guards)
        if again is None or not self._compiler.is_ordered:
            return ((target, Guard()),)
        self._compiler._add_edge(again, Edge(action="proceed", target=target))
        return ()

    def _build_endless(
        self, done: int, negations: NegationBits, greedy_guards: GreedyGuards
    ) -> int:
        """Build the state from which a run repeats or leaves the group."""
        state = self._add_again_state()
        states = {(tuple(sorted(set(negations))), greedy_guards): state}

        def tail(carried: NegationBits, kept: GreedyGuards) -> int:
            key = (tuple(sorted(set(carried))), kept)
            if key not in states:
                states[key] = self._add_again_state()
                lead(states[key], *key)
            return states[key]

        def lead(again: int, carried: NegationBits, kept: GreedyGuards) -> None:
            bypasses = self._build_leave(again, carried, kept)
            active = (*carried, *self._loop_negations)
            inner = self._group.quantifier.inner
            first = self._build_branches(tail, inner, bypasses, active, kept)
            self._compiler._add_edge(again, Edge(action="proceed", target=first))

        lead(state, negations, greedy_guards)
        return state
