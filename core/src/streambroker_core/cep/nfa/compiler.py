"""From a pattern to its automaton.

A chain of stages is built from its end: each stage is given a function that makes the state of what
follows. That function is told which negated stages hold until then, and which events a greedy stage
before keeps for itself; the same question gets the same state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from streambroker_core.cep.nfa.nfa import FINAL, STOP, Automaton, Edge, Guard, State
from streambroker_core.cep.pattern.conditions import Condition, terms_of
from streambroker_core.cep.pattern.conditions import name_of as name_of_term
from streambroker_core.cep.pattern.durations import text_of
from streambroker_core.cep.pattern.errors import PatternError, PatternUnsupportedError
from streambroker_core.cep.pattern.pattern import NEGATED, Element, Group, Pattern, Stage, name_of

Nots: TypeAlias = "tuple[int, ...]"
"""Bits of the negated stages that hold until the next event is taken."""
Bars: TypeAlias = "tuple[Guard, ...]"
"""Events that a greedy stage before keeps for itself."""
Ways: TypeAlias = "tuple[tuple[Bars, Guard], ...]"
"""What a greedy stage keeps from what follows it, each with when that is so."""
Follow: TypeAlias = "Callable[[Nots, Bars], int]"
"""Makes the first state of what follows."""
Maker: TypeAlias = "Callable[[_Entry, Nots, Bars], int]"
"""Makes the first state of an element."""


MAX_DEPTH, _OF_STAGE = 800, 5
"""Calls within calls of a pattern, which Python limits to 1,000, and those of a stage."""


def compile_pattern(pattern: Pattern) -> Automaton:
    """Return the automaton of a pattern.

    Raises:
        PatternError: the pattern contradicts itself; says at which stage.
    """
    if _depth(pattern.elements) > MAX_DEPTH:
        raise PatternUnsupportedError(
            f"the pattern has more than {MAX_DEPTH // _OF_STAGE} stages, or takes them too often",
            remedy="write fewer stages, counting those of a repeated group each time, or two rules",
        )
    window = window_of(pattern)
    _check(pattern, window)
    return _Compiler(pattern).automaton(window)


def _depth(elements: tuple[Element, ...]) -> int:
    """Return how deep the calls are that compile elements."""
    depth = 0
    for element in elements:
        often = element.quantifier.high or element.quantifier.low
        if isinstance(element, Group):
            depth += _OF_STAGE + often * (2 + _depth(element.elements))
        else:
            depth += _OF_STAGE + often - 1
    return depth


def window_of(pattern: Pattern) -> int:
    """Return the time of a whole match, the least of all that are given; 0 for no limit."""
    given: list[int] = []
    waiting: list[Element] = list(pattern.elements)
    while waiting:
        element = waiting.pop()
        if element.within is not None:
            given.append(element.within)
        if isinstance(element, Group):
            waiting += element.elements
    return min(given, default=0)


def _check(pattern: Pattern, window: int) -> None:
    names = {stage.name for stage in pattern.stages()}
    for stage in pattern.stages():
        _check_stage(stage, window, names)
    skip = pattern.skip
    targets = {element.name for element in pattern.elements if isinstance(element, Stage)}
    if skip.stage is not None and skip.stage not in targets:
        inside = skip.stage in names
        raise PatternError(
            f"{skip.strategy} names a stage {'in a group' if inside else 'that is not there'}",
            stage=skip.stage,
            remedy=f"name one of {', '.join(f'`{name}`' for name in sorted(targets))}",
        )
    last = pattern.elements[-1]
    if last.contiguity == "not_followed_by" and not window and not last.within_previous:
        raise PatternError(
            "not_followed_by is the last stage and there is no window",
            stage=name_of(last),
            remedy="say with within() until when no such event may come",
        )


def _check_stage(stage: Stage, window: int, names: set[str]) -> None:
    limits = {
        "window from the event before": stage.within_previous,
        "gap": stage.quantifier.inner_gap,
    }
    for what, limit in limits.items():
        if limit and window and limit > window:
            raise PatternError(
                f"the {what}, {text_of(limit)}, is longer than the window of the whole match,"
                f" {text_of(window)}",
                stage=stage.name,
                remedy="make it shorter, or leave it out",
            )
    for term in (*terms_of(stage.condition), *terms_of(stage.until)):
        if term.stage is not None and term.stage not in names:
            raise PatternError(
                f"`{name_of_term(term)}` asks for a stage that is not there",
                stage=stage.name,
                remedy=f"the stages are {', '.join(f'`{name}`' for name in sorted(names))}",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """How a stage is entered.

    Attributes:
        contiguity: from the stage or, for the head of a group, from the group.
        beside: states to which it proceeds without having taken an event, and when.
        until: bits of the stop conditions of the groups around.
    """

    contiguity: str
    beside: tuple[tuple[int, Guard], ...] = ()
    until: tuple[int, ...] = ()


@dataclass(slots=True)
class _Compiler:
    pattern: Pattern
    states: list[State] = field(default_factory=lambda: [State("final"), State("stop")])
    bits: dict[Condition, int] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def automaton(self, window: int) -> Automaton:
        self.names = [stage.name for stage in self.pattern.stages()]
        self._warn(window)
        first = self._chain(self.pattern.elements, lambda nots, bars: FINAL, (), (), last=True)
        start = first(_Entry(contiguity="begin"), (), ())
        return Automaton(
            pattern=self.pattern,
            stages=tuple(self.names),
            conditions=tuple(self.bits),
            states=tuple(self.states),
            start=start,
            window=window,
            warnings=tuple(self.warnings),
        )

    def _warn(self, window: int) -> None:
        if not window:
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
                f"windows of the whole match differ; the least counts: {text_of(window)}"
            )
        first = self.pattern.elements[0]
        if first.within_previous and first.quantifier.kind == "one":
            self.warnings.append(
                f"stage `{name_of(first)}` is the first, and no event is before it, so its window"
                " from the event before is ignored; give it to the next stage"
            )
        self._warn_of_greedy()
        for stage in self.pattern.stages():
            if not stage.within_previous:
                continue
            if stage.quantifier.kind != "one":
                self.warnings.append(
                    f"stage `{stage.name}` is taken several times, so its window from the event"
                    " before is ignored; give the quantifier a gap"
                )
            if stage.contiguity == "not_followed_by" and stage != self.pattern.elements[-1]:
                self.warnings.append(
                    f"stage `{stage.name}` ends with the event that the next stage takes, so its"
                    " window from the event before is ignored; give it to that stage"
                )

    def _warn_of_greedy(self) -> None:
        """Warn of greedy stages that are greedy to no effect."""
        for stage in self.pattern.stages():
            quantifier = stage.quantifier
            if quantifier.greedy and quantifier.low == quantifier.high:
                why = f"is taken exactly {quantifier.low} times"
            elif quantifier.greedy and stage == self.pattern.elements[-1]:
                why = "is the last, and no stage follows"
            else:
                continue
            self.warnings.append(f"stage `{stage.name}` {why}, so greedy has no effect")

    # Conditions as bits.

    def _bit(self, condition: Condition) -> int:
        return self.bits.setdefault(condition, 1 << len(self.bits))

    def _own(self, element: Element) -> tuple[int, ...]:
        """Return the bit of an element's own stop condition, if it has one."""
        return () if element.until is None else (self._bit(element.until),)

    def _takes(self, stage: Stage, until: tuple[int, ...]) -> Guard:
        need = 0 if stage.condition is None else self._bit(stage.condition)
        return Guard(need, sum(set(until)))

    def _keeps(self, stage: Stage, until: tuple[int, ...]) -> Ways:
        """Return what a stage keeps from what follows it."""
        quantifier = stage.quantifier
        if not quantifier.greedy or quantifier.low == quantifier.high:
            return (((), Guard()),)
        take = self._takes(stage, until)
        if stage.until is None:
            return (((take,), Guard()),)
        bit = self._bit(stage.until)
        return (((), Guard(bit)), ((Guard(take.need),), Guard(0, bit)))

    def _ignores(self, stage: Stage, contiguity: str, until: tuple[int, ...]) -> Guard | None:
        """Return when a stage lets an event pass; None for never."""
        denied = sum(set(until))
        if contiguity in ("followed_by_any", "combinations"):
            return Guard(0, denied)
        if contiguity in ("followed_by", "relaxed") and stage.condition is not None:
            return Guard(0, denied | self._bit(stage.condition))
        return None

    # States.

    def _state(self, waits: str, *, twin: bool = False) -> int:
        self.states.append(State("normal", waits, twin))
        return len(self.states) - 1

    def _add(self, state: int, edge: Edge, bars: Bars = ()) -> None:
        if not edge.guard.need & edge.guard.deny:
            self.states[state].edges.append(replace(edge, barred=(*edge.barred, *bars)))

    def _stops(self, state: int, nots: Nots, bars: Bars = ()) -> None:
        for bit in nots:
            self._add(state, Edge(action="proceed", target=STOP, guard=Guard(bit)), bars)

    def _chain(
        self,
        elements: tuple[Element, ...],
        tail: Follow,
        until: tuple[int, ...],
        behind: Nots,
        *,
        last: bool,
    ) -> Maker:
        """Return the function that makes the first state of a chain.

        Args:
            elements: the chain.
            tail: makes the state of what follows it.
            until: bits of the stop conditions of the groups around it.
            behind: bits of the not_followed_by stages right behind it.
            last: nothing follows it.
        """
        after: Follow = tail
        for index in reversed(range(len(elements))):
            element = elements[index]
            is_last = last and index == len(elements) - 1
            maker = self._maker(element, after, behind, is_last=is_last)
            after = _remembered(_plainly(maker, element.contiguity, until))
            is_not = isinstance(element, Stage) and element.contiguity == "not_followed_by"
            behind = (*behind, self._seen(element).need) if is_not else ()  # type: ignore[arg-type]
        return maker

    def _maker(self, element: Element, after: Follow, behind: Nots, *, is_last: bool) -> Maker:
        if isinstance(element, Group):
            return lambda entry, nots, bars: _GroupLoop(self, element, after, behind, entry).first(
                nots, bars
            )
        if element.contiguity in NEGATED:
            return lambda entry, nots, bars: self._negation(
                element, after, nots, bars, is_last=is_last
            )
        return lambda entry, nots, bars: _Loop(self, element, after, behind, entry).first(
            nots, bars
        )

    def _seen(self, stage: Stage) -> Guard:
        return Guard(0 if stage.condition is None else self._bit(stage.condition))

    def _negation(
        self, stage: Stage, after: Follow, nots: Nots, bars: Bars, *, is_last: bool
    ) -> int:
        seen = self._seen(stage)
        if stage.contiguity == "not_followed_by":
            if not is_last:
                return after((*nots, seen.need), bars)
            return self._pending(stage, seen, nots, bars)
        state = self._state(f"no `{stage.name}` next")
        target = after(nots, ())
        if stage.condition is not None:
            action: Edge = Edge(
                action="ignore" if target == FINAL else "proceed",
                target=target,
                guard=Guard(0, seen.need),
                gap=stage.within_previous or 0,
            )
            self._add(state, action, bars)
        self._add(state, Edge(action="proceed", target=STOP, guard=seen), bars)
        self._stops(state, nots, bars)
        return state

    def _pending(self, stage: Stage, seen: Guard, nots: Nots, bars: Bars) -> int:
        state = self._state(f"no `{stage.name}` until the window ends")
        self.states[state].kind = "pending"
        self.states[state].gap = stage.within_previous or 0
        if stage.condition is not None:
            self._add(state, Edge(action="ignore", target=state, guard=Guard(0, seen.need)), bars)
        self._stops(state, (seen.need, *nots), bars)
        return state


def _plainly(maker: Maker, contiguity: str, until: tuple[int, ...]) -> Follow:
    return lambda nots, bars: maker(_Entry(contiguity=contiguity, until=until), nots, bars)


def _remembered(follow: Follow) -> Follow:
    made: dict[tuple[Nots, Bars], int] = {}

    def again(nots: Nots, bars: Bars) -> int:
        key = (tuple(sorted(set(nots))), bars)
        if key not in made:
            made[key] = follow(*key)
        return made[key]

    return again


class _Loop:
    """The states of one stage: one for each number of events that it may have taken."""

    def __init__(
        self, compiler: _Compiler, stage: Stage, after: Follow, looped: Nots, entry: _Entry
    ) -> None:
        self._make, self._stage, self._after = compiler, stage, after
        self._entry, self._looped = entry, looped
        self._number = compiler.names.index(stage.name)
        own = self._own = compiler._own(stage)
        self._take = compiler._takes(stage, (*own, *entry.until))
        self._kept = compiler._keeps(stage, (*own, *entry.until))

    def first(self, nots: Nots, bars: Bars) -> int:
        """Make the state that waits for the first event; everything behind it first."""
        stage, quantifier = self._stage, self._stage.quantifier
        taken = self._repeated(1)
        state = self._make._state(f"`{stage.name}`")
        gap = stage.within_previous or 0 if quantifier.kind == "one" else quantifier.first_gap
        self._takes(state, taken, gap, bars)
        if quantifier.optional:
            self._leave(state, nots, bars)
        for target, guard in self._entry.beside:
            self._make._add(state, Edge(action="proceed", target=target, guard=guard), bars)
        passing = self._make._ignores(stage, self._entry.contiguity, self._entry.until)
        twin = quantifier.optional or bool(self._entry.beside)
        self._wait(state, taken, gap, passing, nots, bars, twin=twin)
        return state

    def _repeated(self, count: int) -> int:
        """Make the state of a run that has taken this many events of the stage."""
        quantifier, high = self._stage.quantifier, self._stage.quantifier.high
        if high is not None and count >= high:
            return self._after((), self._kept[0][0])
        state = self._make._state(f"more `{self._stage.name}`")
        endless = high is None and count >= quantifier.low
        taken = state if endless else self._repeated(count + 1)
        leaving = count >= quantifier.low
        if leaving:
            self._leave(state, (), ())
        self._takes(state, taken, quantifier.inner_gap, ())
        until = (*self._own, *self._entry.until)
        passing = self._make._ignores(self._stage, quantifier.inner, until)
        self._wait(state, taken, quantifier.inner_gap, passing, self._looped, (), twin=leaving)
        return state

    def _leave(self, state: int, nots: Nots, bars: Bars) -> None:
        for kept, guard in self._kept:
            target = self._after(nots, kept)
            self._make._add(state, Edge(action="proceed", target=target, guard=guard), bars)

    def _takes(self, state: int, target: int, gap: int, bars: Bars) -> None:
        edge = Edge(action="take", target=target, guard=self._take, stage=self._number, gap=gap)
        self._make._add(state, edge, bars)

    def _wait(
        self,
        state: int,
        taken: int,
        gap: int,
        passing: Guard | None,
        nots: Nots,
        bars: Bars,
        *,
        twin: bool,
    ) -> None:
        """Let events pass: in the state itself or, so that leaving is tried once, in a twin."""
        self._make._stops(state, nots, bars)
        if passing is None:
            return
        other = state
        if twin:
            other = self._make._state(self._make.states[state].waits, twin=True)
            self._takes(other, taken, gap, bars)
            self._make._add(other, Edge(action="ignore", target=other, guard=passing), bars)
            self._make._stops(other, nots, bars)
        self._make._add(state, Edge(action="ignore", target=other, guard=passing), bars)


class _GroupLoop:
    """The states of a group: a chain for each round, the last of a loop leading back to itself."""

    def __init__(
        self, compiler: _Compiler, group: Group, after: Follow, looped: Nots, entry: _Entry
    ) -> None:
        self._make, self._group, self._after = compiler, group, after
        self._entry, self._looped = entry, looped
        self._until = (*compiler._own(group), *entry.until)

    def first(self, nots: Nots, bars: Bars) -> int:
        """Make the state that waits for the first event of the first round."""
        beside = self._entry.beside
        if self._group.quantifier.optional:
            beside = (*beside, *self._left_out(nots))
        return self._round(0, self._entry.contiguity, beside, nots, bars)

    def _left_out(self, nots: Nots) -> list[tuple[int, Guard]]:
        """Return the states behind the group; a greedy stage at its end keeps its events."""
        until, last = self._until, self._group.elements[-1]
        while isinstance(last, Group):
            until = (*self._make._own(last), *until)
            last = last.elements[-1]
        keeps = self._make._keeps(last, (*self._make._own(last), *until))
        return [(self._after(nots, kept), guard) for kept, guard in keeps]

    def _round(
        self,
        done: int,
        contiguity: str,
        beside: tuple[tuple[int, Guard], ...],
        nots: Nots,
        bars: Bars,
    ) -> int:
        tail = _remembered(lambda carried, kept: self._done(done + 1, carried, kept))
        head = self._make._chain(self._group.elements, tail, self._until, self._looped, last=False)
        entry = _Entry(contiguity=contiguity, beside=beside, until=self._until)
        return head(entry, nots, bars)

    def _done(self, done: int, nots: Nots, bars: Bars) -> int:
        """Make the state of a run that has completed this many rounds."""
        quantifier = self._group.quantifier
        if quantifier.high is not None and done >= quantifier.high:
            return self._after(nots, bars)
        held = (*nots, *self._looped)
        if quantifier.high is None and done >= quantifier.low:
            return self._endless(done, nots, bars)
        leaving = done >= quantifier.low
        beside = ((self._after(nots, bars), Guard()),) if leaving else ()
        return self._round(done, quantifier.inner, beside, held, bars)

    def _endless(self, done: int, nots: Nots, bars: Bars) -> int:
        """Make the state from which the group is done again, or left."""
        state = self._make._state(f"`{name_of(self._group)}` again")
        made = {(tuple(sorted(set(nots))), bars): state}

        def tail(carried: Nots, kept: Bars) -> int:
            key = (tuple(sorted(set(carried))), kept)
            if key not in made:
                made[key] = self._make._state(f"`{name_of(self._group)}` again")
                lead(made[key], *key)
            return made[key]

        def lead(again: int, carried: Nots, kept: Bars) -> None:
            beside = ((self._after(carried, kept), Guard()),)
            head = self._make._chain(
                self._group.elements, tail, self._until, self._looped, last=False
            )
            inner = self._group.quantifier.inner
            entry = _Entry(contiguity=inner, beside=beside, until=self._until)
            first = head(entry, (*carried, *self._looped), kept)
            self._make._add(again, Edge(action="proceed", target=first))

        lead(state, nots, bars)
        return state
