"""All matches of a pattern by trying every sub-sequence of the events.

A pattern is written out as *words*: every way to repeat and leave out its stages, as a list of
*slots*. A match is a word with one event for each slot, in order. What may lie between two of them
is said by the slot that comes next. There is no automaton here: no states, no runs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from hypothesis import reject

from streambroker_core.cep.pattern.pattern import NEGATED, Element, Group, Pattern, PatternStage

Past: TypeAlias = "tuple[tuple[str, int], ...]"
"""What a partial match has taken: stages and the numbers of events."""
MOST_TRIED = 100_000
"""Events that are tried for slots, about a second. A few patterns with groups take many minutes."""


@dataclass(frozen=True, slots=True)
class Before:
    """What lies between two slots.

    Attributes:
        nots: may not come at all, from not_followed_by.
        gates: may not be the very next event, from not_next.
        kept: what a greedy stage before keeps for itself, and its stop condition.
    """

    nots: tuple[Any, ...] = ()
    gates: tuple[Any, ...] = ()
    kept: tuple[Any, Any] | None = None


@dataclass(frozen=True, slots=True)
class Slot:
    """One event of a word; conditions are those of the pattern."""

    stage: PatternStage
    contiguity: str
    before: Before
    take_until: tuple[Any, ...]
    pass_until: tuple[Any, ...]
    gap: int
    direct: bool
    """The stage cannot take more: what follows is waited for at once."""
    stops: tuple[Any, ...] = ()
    """As the very next event these end everything, though the slot does not ask for them."""
    kept: tuple[Any, Any] | None = None
    """But not those that the greedy stage keeps for itself."""


Word: TypeAlias = "tuple[tuple[Slot, ...], Before]"


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a pattern the rest of a word begins.

    Attributes:
        contiguity: of the next slot to the one before.
        before: what lies between them.
        until: the stop conditions of the groups around.
        stops: as the very next event these end everything.
        most: how many slots the rest may have.
    """

    contiguity: str
    before: Before
    until: tuple[Any, ...]
    stops: tuple[Any, ...]
    most: int

    def inside(self, element: PatternStage | Group) -> tuple[Any, ...]:
        """Return the stop conditions that hold inside of an element."""
        return self.until if element.until is None else (*self.until, element.until)


def words(pattern: Pattern, most: int) -> Iterator[Word]:
    """Yield every word of at most so many slots, and what lies behind its last.

    A word is preferred to those after it: the left alternative, to take what is optional, to leave
    what is repeated.
    """
    return _chain(pattern.elements, Place("begin", Before(), (), (), most))


def _chain(elements: tuple[Element, ...], at: Place) -> Iterator[Word]:
    if not elements:
        yield (), at.before
        return
    first, rest = elements[0], elements[1:]
    behind = rest[0].contiguity if rest else ""
    for slots, after in _element(first, rest, at):
        left = () if slots else at.stops
        for more, end in _chain(rest, Place(behind, after, at.until, left, at.most - len(slots))):
            yield slots + more, end


def _element(element: Element, rest: tuple[Element, ...], at: Place) -> Iterator[Word]:
    before = at.before
    if isinstance(element, PatternStage) and element.contiguity == "not_followed_by":
        yield (), replace(before, nots=(*before.nots, element.condition))
    elif isinstance(element, PatternStage) and element.contiguity == "not_next":
        yield (), replace(before, gates=(*before.gates, element.condition))
    elif isinstance(element, PatternStage):
        yield from _stage(element, rest, at)
    else:
        yield from _group(element, rest, at)


def _whole(elements: tuple[Element, ...]) -> int:
    """Return how many slots a run takes at least that leaves out nothing."""
    found = 0
    for element in elements:
        if isinstance(element, Group):
            found += element.quantifier.low * max(map(_whole, element.branches))
        elif element.contiguity not in NEGATED:
            found += element.quantifier.low
    return found


def _negated(rest: tuple[Element, ...], kind: str) -> tuple[Any, ...]:
    found = []
    for element in rest:
        if element.contiguity != kind or not isinstance(element, PatternStage):
            break
        found.append(element.condition)
    return tuple(found)


def _stage(stage: PatternStage, rest: tuple[Element, ...], at: Place) -> Iterator[Word]:
    quantifier = stage.quantifier
    greedy = quantifier.greedy and quantifier.low != quantifier.high
    after = Before(kept=(stage.condition, stage.until) if greedy else None)
    own = at.inside(stage)
    single = quantifier.kind == "one"
    looped = Before(nots=_negated(rest, "not_followed_by"))
    slots: tuple[Slot, ...] = ()
    for count in range(1, min(quantifier.high or at.most, at.most) + 1):
        direct = count == quantifier.high
        if count == 1:
            gap = (stage.within_previous or 0) if single else quantifier.first_gap
            slot = Slot(stage, at.contiguity, at.before, own, at.until, gap, direct, at.stops)
        else:
            gates = _negated(rest, "not_next") if count > quantifier.low else ()
            slot = Slot(
                stage,
                quantifier.inner,
                looped,
                own,
                own,
                quantifier.inner_gap,
                direct,
                gates,
                after.kept,
            )
        slots = (*slots, slot)
        if count >= quantifier.low:
            yield slots, after
    if quantifier.optional:
        yield (), replace(at.before, kept=after.kept or at.before.kept)


def _group(group: Group, rest: tuple[Element, ...], at: Place) -> Iterator[Word]:
    inside = replace(at, until=at.inside(group))
    low, high = group.quantifier.low, group.quantifier.high
    yield from _rounds(group, rest, inside, (), 1, high or max(low, at.most))
    if group.quantifier.optional:
        yield (), at.before


def _rounds(
    group: Group,
    rest: tuple[Element, ...],
    at: Place,
    so_far: tuple[Slot, ...],
    count: int,
    last: int,
) -> Iterator[Word]:
    """Yield the words of a group from one of its rounds on; each begins with what was so far."""
    low, high = group.quantifier.low, group.quantifier.high
    for slots, after in itertools.chain(*(_chain(branch, at) for branch in group.branches)):
        word = (*so_far, *slots), after
        if count >= low:
            yield word if count == high else _undecided(word)
        if count < last and len(slots) <= at.most:
            again = Place(
                group.quantifier.inner,
                replace(after, nots=(*after.nots, *_negated(rest, "not_followed_by"))),
                at.until,
                _negated(rest, "not_next") if count >= low else (),
                at.most - len(slots),
            )
            yield from _rounds(group, rest, again, word[0], count + 1, last)


def _undecided(word: Word) -> Word:
    """Return a word after which the group could go on."""
    slots, end = word
    return (*slots[:-1], *(replace(slot, direct=False) for slot in slots[-1:])), end


@dataclass
class Oracle:
    """The matches of a pattern in a list of events.

    Attributes:
        holds: tells whether a condition holds of an event, by its number and what was taken before.
        times: the events' times, not going down.
        window: of the whole match, exclusive; 0 for none.

    An example of hypothesis that takes too long is rejected.
    """

    pattern: Pattern
    holds: Callable[[Any, int, Past], bool]
    times: list[int]
    window: int
    _past: Past = ()
    _tried: int = 0

    def matches(self) -> list[tuple[tuple[tuple[str, int], ...], int]]:
        """Return each match as (stage, event) pairs and the event at which it is known.

        Matches that are known only when time is over have the number of events as theirs.
        """
        found = []
        for slots, end in words(self.pattern, len(self.times)):
            if slots:
                for taken in self._taken(slots, end, ()):
                    at = self._known(slots, end, taken)
                    if at is not None:
                        pairs = zip(slots, taken, strict=True)
                        found.append((tuple((slot.stage.name, i) for slot, i in pairs), at))
        return found

    def living(self, now: int) -> set[int]:
        """Return the first events of all partial matches that may go on behind an event."""
        return self._living(now, self.times[now])

    def endless(self) -> set[int]:
        """Return the first events of all partial matches that are left when all time is over."""
        return self._living(len(self.times) - 1, math.inf)

    def _living(self, now: int, time: float) -> set[int]:
        return {past[0][1] for past, _ in self._partials(now, time)}

    def timeouts(self) -> set[tuple[Past, int]]:
        """Return each partial match that the window of the whole match ends, and when.

        It waits for an event then, perhaps for one more of a loop, or for any after which a
        not_next is over; what waits for the end of a not_followed_by alone is a match.
        """
        found = set()
        for first, time in enumerate(self.times if self.window else ()):
            due = time + self.window
            now = max(i for i, each in enumerate(self.times) if each < due)
            found |= {
                (past, due)
                for past, follows in self._partials(now, self.times[now])
                if past[0][1] == first and follows
            }
        return found

    def _partials(self, now: int, time: float) -> set[tuple[Past, bool]]:
        """Return what those have taken that may go on behind an event, and whether by an event."""
        found: set[tuple[Past, bool]] = set()
        for slots, end in words(self.pattern, len(self.times) + _whole(self.pattern.elements)):
            if not slots:
                continue
            for size in range(1, len(slots) + 1):
                follow = slots[size] if size < len(slots) else None
                if follow is None and not self._pends():
                    continue
                for taken in self._taken(slots[:size], None, (), now):
                    if taken[-1] <= now and self._open(slots, follow, end, taken, now, time):
                        follows = follow is not None or bool(end.gates)
                        found.add((_past(slots, taken), follows))
        return found

    def _pends(self) -> bool:
        return self.pattern.elements[-1].contiguity in NEGATED

    def _open(
        self,
        slots: tuple[Slot, ...],
        follow: Slot | None,
        end: Before,
        taken: tuple[int, ...],
        now: int,
        time: float,
    ) -> bool:
        """Tell whether what was taken can wait for what follows until behind ``now``."""
        last = taken[-1]
        self._past = _past(slots, taken)
        if self.window and time - self.times[taken[0]] >= self.window:
            return False
        if follow is None:
            return self._waits(end, last, now, time)
        if follow.gap and time - self.times[last] >= follow.gap:
            return False
        return all(self._passes(follow, last, g) for g in range(last + 1, now + 1))

    def _waits(self, end: Before, last: int, now: int, time: float) -> bool:
        """Tell whether a negated end is still open."""
        if end.gates:
            return now == last
        limit = self._limit()
        if limit and time - self.times[last] >= limit:
            return False
        return all(self._quiet(end, last, g) for g in range(last + 1, now + 1))

    def _limit(self) -> int:
        return self.pattern.elements[-1].within_previous or 0

    def _taken(
        self,
        slots: tuple[Slot, ...],
        end: Before | None,
        so_far: tuple[int, ...],
        most: int | None = None,
    ) -> Iterator[tuple[int, ...]]:
        if len(so_far) == len(slots):
            yield so_far
            return
        slot = slots[len(so_far)]
        final = len(so_far) + 1 == len(slots) and end is not None and not self._pends()
        begin = so_far[-1] + 1 if so_far else 0
        for q in range(begin, len(self.times) if most is None else most + 1):
            before = so_far[-1] if so_far else q - 1
            self._past = _past(slots, so_far)
            if self._fits(slot, so_far, before, q, final=final):
                yield from self._taken(slots, end, (*so_far, q), most)

    def _fits(
        self, slot: Slot, so_far: tuple[int, ...], before: int, q: int, *, final: bool
    ) -> bool:
        self._tried += 1
        if self._tried > MOST_TRIED:
            reject()
        if not self._true(slot.stage.condition, q) or self._any(slot.take_until, q):
            return False
        if so_far:
            since_first = self.times[q] - self.times[so_far[0]]
            if self.window and since_first >= self.window:
                return False
            if slot.gap and self.times[q] - self.times[before] >= slot.gap:
                return False
            if not all(self._passes(slot, before, g) for g in range(before + 1, q)):
                return False
            if q == before + 1 and self._any(slot.before.gates, q):
                return False
            ends = self._any(slot.before.nots, q) or self._stopped(slot, before, q)
            if ends and not final:
                return False
        return not self._kept(slot.before, before, q)

    def _passes(self, slot: Slot, before: int, g: int) -> bool:
        """Tell whether an event may lie before that of a slot."""
        if slot.contiguity in ("next", "strict", "begin"):
            return False
        relaxed = slot.contiguity in ("followed_by", "relaxed")
        if (relaxed and self._true(slot.stage.condition, g)) or self._any(slot.pass_until, g):
            return False
        first = g == before + 1
        if (first and self._any(slot.before.gates, g)) or self._stopped(slot, before, g):
            return False
        return self._quiet(slot.before, before, g)

    def _stopped(self, slot: Slot, before: int, g: int) -> bool:
        kept = Before(kept=slot.kept)
        return g == before + 1 and self._any(slot.stops, g) and not self._kept(kept, before, g)

    def _quiet(self, between: Before, before: int, g: int) -> bool:
        return not self._any(between.nots, g) and not self._kept(between, before, g)

    def _kept(self, between: Before, before: int, g: int) -> bool:
        """Tell whether a greedy stage before keeps an event, which its stop condition prevents."""
        if between.kept is None:
            return False
        condition, until = between.kept
        if until is not None and self.holds(until, before + 1, self._past):
            return False
        if between.gates and g != before + 1:
            return False
        return self._true(condition, g)

    def _known(self, slots: tuple[Slot, ...], end: Before, taken: tuple[int, ...]) -> int | None:
        """Return the event at which a match is known; None if it is none in the end."""
        last = taken[-1]
        self._past = _past(slots, taken)
        if not self._pends():
            return last
        if end.gates:
            after = last + 1
            if after >= len(self.times) or self._any(end.gates, after):
                return None
            if self.window and self.times[after] - self.times[taken[0]] >= self.window:
                return None
            return None if self._kept(end, last, after) else after
        due = self.times[taken[0]] + self.window if self.window else None
        if self._limit():
            own = self.times[last] + self._limit()
            due = own if due is None else min(due, own)
        assert due is not None
        quiet = [g for g in range(last + 1, len(self.times)) if self.times[g] < due]
        if not slots[-1].direct and not quiet:
            return None  # nothing has shown yet that the loop is over
        if not all(self._quiet(end, last, g) for g in quiet):
            return None
        return last + 1 + len(quiet)

    def _any(self, conditions: tuple[Any, ...], i: int) -> bool:
        return any(self._true(condition, i) for condition in conditions)

    def _true(self, condition: Any, i: int) -> bool:
        return condition is None or self.holds(condition, i, self._past)


def _past(slots: tuple[Slot, ...], taken: tuple[int, ...]) -> Past:
    return tuple((slot.stage.name, i) for slot, i in zip(slots, taken, strict=False))


Found: TypeAlias = "tuple[tuple[str, int], ...]"
"""A match: its stages and events, in order."""


def lets_through(
    pattern: Pattern, matches: list[tuple[Found, int]], living: list[set[int]], results: list[Found]
) -> bool:
    """Return whether a skip strategy may let exactly these matches through, in this order.

    Of matches with one first event that are known at one time any may come first.

    Args:
        pattern: with its strategy.
        matches: all matches, and the events at which they are known.
        living: by event, the first events of partial matches behind it; the last entry is for
            those that are left when all time is over.
        results: the matches that were let through.
    """
    held: list[Found] = []
    dead: set[int] = set()
    left = list(results)
    for now, partial in enumerate(living):
        held += [m for m, at in matches if at == now and m[0][1] not in dead]
        while held:
            earliest = min(m[0][1] for m in held)
            if any(start < earliest for start in partial - dead):
                break
            if not left or left[0] not in held or left[0][0][1] != earliest:
                return False
            released = left.pop(0)
            held.remove(released)
            dead |= _given_up(pattern, released)
            held = [m for m in held if m[0][1] not in dead]
    return not left


def preferred(pattern: Pattern, matches: list[tuple[Found, int]], events: int) -> list[Found]:
    """Return the matches that a skip strategy lets through if each first event has one at most.

    Args:
        pattern: with its strategy.
        matches: all matches, a preferred one before others with the same first event.
        events: how many events there are.
    """
    results: list[Found] = []
    dead: set[int] = set()
    for start in range(events):
        found = [match for match, _ in matches if match[0][1] == start]
        if found and start not in dead:
            results.append(found[0])
            dead |= _given_up(pattern, found[0])
    return results


def _given_up(pattern: Pattern, match: Found) -> set[int]:
    skip = pattern.skip
    first, last = match[0][1], match[-1][1]
    if skip.strategy == "skip_to_next":
        return {first}
    if skip.strategy == "skip_past_last":
        return set(range(last + 1))
    taken = [i for stage, i in match if stage == skip.stage]
    if not taken:
        return set()
    return set(range(taken[0] if skip.strategy == "skip_to_first" else taken[-1]))
