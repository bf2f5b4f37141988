"""Patterns: the shape of a match, as a chain of stages written from left to right.

>>> shape = Pattern.begin("a").where("price > 10").followed_by("b").one_or_more().within("10s")
>>> [stage.name for stage in shape.stages()]
['a', 'b']

A pattern is immutable: each call returns a new one. A call raises an error as soon as it makes the
pattern invalid; `compile_pattern` detects the remaining errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, NoReturn, TypeAlias

from streambroker_core.cep.pattern.conditions import (
    Condition,
    ConditionInput,
    combine_and,
    combine_or,
    to_condition,
)
from streambroker_core.cep.pattern.durations import Duration, format_micros, to_microseconds
from streambroker_core.cep.pattern.errors import (
    PatternArgumentError,
    PatternError,
    PatternUnsupportedError,
)
from streambroker_core.expression import Expression, tree

Contiguity: TypeAlias = Literal[
    "begin", "next", "followed_by", "followed_by_any", "not_next", "not_followed_by"
]
Inner: TypeAlias = Literal["relaxed", "strict", "combinations"]
SkipStrategy: TypeAlias = Literal[
    "no_skip", "skip_to_next", "skip_past_last", "skip_to_first", "skip_to_last"
]
NEGATED = ("not_next", "not_followed_by")
SKIPS: tuple[SkipStrategy, ...] = (
    "no_skip", "skip_to_next", "skip_past_last", "skip_to_first", "skip_to_last",
)  # fmt: skip
_MAX_COPIES = 1_000
"""Maximum number of copies of a stage; each is a state of the automaton."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantifier:
    """How often a stage is taken.

    Attributes:
        kind: ``one``; ``times`` from ``low`` to ``high``; ``at_least`` ``low``.
        low: minimum number of events, unless the stage is left out.
        high: maximum number of events; None for no limit.
        inner: contiguity between the events of the stage.
        has_inner: `inner` was set, and cannot be set again.
        optional: the stage may be left out.
        greedy: later stages take no event that the stage could take.
        gap: longest time from the previous event to each event of the stage, exclusive, in
            microseconds; 0 for no limit. For the first event it counts from the event of the stage
            before, unless the stage is optional.
        gap_between: like `gap`, but without a limit for the first event of the stage.
    """

    kind: Literal["one", "times", "at_least"] = "one"
    low: int = 1
    high: int | None = 1
    inner: Inner = "relaxed"
    has_inner: bool = field(default=False, compare=False)
    optional: bool = False
    greedy: bool = False
    gap: int = 0
    gap_between: int = 0

    @property
    def first_gap(self) -> int:
        """Longest time from the event of the stage before to the first event; 0 for no limit."""
        return 0 if self.optional else self.gap

    @property
    def inner_gap(self) -> int:
        """Longest time from one event of the stage to the next; 0 for no limit."""
        return self.gap or self.gap_between


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternStage:
    """One stage of a pattern.

    Attributes:
        name: unique in the whole pattern.
        contiguity: how it joins the element before it.
        condition: events that it takes; None for every event.
        quantifier: how often it is taken.
        until: condition that ends a loop; None for never.
        within: longest time of a whole match, exclusive, in microseconds; None if not set here.
        within_previous: longest time since the previous event, exclusive, in microseconds; None for
            no limit.
    """

    name: str
    contiguity: Contiguity
    condition: Condition | None = None
    quantifier: Quantifier = field(default_factory=Quantifier)
    until: Condition | None = None
    within: int | None = None
    within_previous: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A pattern in the place of a stage; fields are as in `PatternStage`.

    Attributes:
        elements: the first has contiguity ``begin`` and joins with the contiguity of the group.
        alternatives: chains that may be taken in place of `elements`, which is preferred to them;
            each is preferred to those after it.
    """

    elements: tuple[Element, ...]
    contiguity: Contiguity
    alternatives: tuple[tuple[Element, ...], ...] = ()
    quantifier: Quantifier = field(default_factory=Quantifier)
    until: Condition | None = None
    within: int | None = None
    within_previous: int | None = None

    @property
    def branches(self) -> tuple[tuple[Element, ...], ...]:
        """All chains that it may take, the preferred one first."""
        return self.elements, *self.alternatives


Element: TypeAlias = "PatternStage | Group"


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """Which runs and matches are discarded when a match is found.

    Attributes:
        strategy: ``no_skip``: none; ``skip_to_next``: those that start with the same event;
            ``skip_past_last``: those that start up to the match's last event; ``skip_to_first`` and
            ``skip_to_last``: those that start before the first or last event of ``stage``.
        stage: stage for ``skip_to_first`` and ``skip_to_last``.
        throw_on_miss: fail the rule if the stage took no event, or if its event is the first of
            the match; otherwise that match skips nothing.
    """

    strategy: SkipStrategy = "no_skip"
    stage: str | None = None
    throw_on_miss: bool = False

    def __post_init__(self) -> None:
        if self.strategy not in SKIPS:
            raise PatternArgumentError(
                f"`{self.strategy}` is not a skip strategy", remedy=f"use one of {', '.join(SKIPS)}"
            )
        if self.strategy.startswith(("skip_to_first", "skip_to_last")) != (self.stage is not None):
            raise PatternArgumentError(
                f"{self.strategy} {'takes no' if self.stage else 'needs a'} stage",
                remedy="set a stage with skip_to_first and skip_to_last, and only there",
            )


@dataclass(frozen=True, slots=True)
class Pattern:
    """A chain of stages; starts with `Pattern.begin`.

    Attributes:
        elements: stages and groups, in order.
        skip: which runs and matches a match discards.
    """

    elements: tuple[Element, ...]
    skip: Skip = field(default_factory=Skip)

    @staticmethod
    def begin(first: str | Pattern, *, skip: Skip | None = None) -> Pattern:
        """Start a pattern with a stage, or with a pattern as a group."""
        return Pattern((), skip or Skip())._add(first, "begin")

    @staticmethod
    def either(*branches: Pattern) -> Pattern:
        """Return a pattern of alternatives, in order of preference; a match takes one of them.

        Two alternatives may have stages of one name. A skip strategy keeps the preferred match.

        Raises:
            PatternArgumentError: there are fewer than two.
        """
        if len(branches) < 2:
            raise PatternArgumentError(
                f"either has {len(branches)} alternatives", remedy="give two patterns or more"
            )
        first, *others = (branch.elements for branch in branches)
        return Pattern((Group(elements=first, contiguity="begin", alternatives=tuple(others)),))

    def next(self, stage: str | Pattern) -> Pattern:
        """Add a stage that takes the very next event."""
        return self._add(stage, "next")

    def followed_by(self, stage: str | Pattern) -> Pattern:
        """Add a stage that takes the next event that matches."""
        return self._add(stage, "followed_by")

    def followed_by_any(self, stage: str | Pattern) -> Pattern:
        """Add a stage that takes any later event that matches, each in its own match."""
        return self._add(stage, "followed_by_any")

    def not_next(self, stage: str) -> Pattern:
        """Require that the very next event does not match."""
        return self._add(stage, "not_next")

    def not_followed_by(self, stage: str) -> Pattern:
        """Require that no event matches until the next stage or, at the end, until time is over."""
        return self._add(stage, "not_followed_by")

    def where(self, given: ConditionInput) -> Pattern:
        """Restrict the last stage to events that also fulfil a condition.

        Args:
            given: a text in the language of conditions, a Spark ``Column``, SQL as
                ``streambroker.sql`` marks it, or a function of the row and the run.

        Raises:
            ConditionError: the text is not a condition.
            PatternError: a condition of Spark has no equal here.
        """
        stage = self._last_stage("where")
        joined = combine_and(stage.condition, to_condition(given, stage.name))
        return self._replace_last(replace(stage, condition=joined))

    def or_(self, given: ConditionInput) -> Pattern:
        """Let the last stage also take events that fulfil this condition.

        A stage without a condition takes only these events.
        """
        stage = self._last_stage("or_")
        if stage.condition is None:
            return self._replace_last(replace(stage, condition=to_condition(given, stage.name)))
        joined = combine_or(stage.condition, to_condition(given, stage.name))
        return self._replace_last(replace(stage, condition=joined))

    def subtype(self, name: str, *, column: str = "type") -> Pattern:
        """Restrict the last stage to events with this type, as given by a column."""
        stage = self._last_stage("subtype")
        typed = tree.Comparison("==", tree.Name(column), tree.Text(name))
        from streambroker_core.cep.pattern.conditions import TextCondition

        joined = combine_and(stage.condition, TextCondition(Expression(kind="filter", tree=typed)))
        return self._replace_last(replace(stage, condition=joined))

    def until(self, given: ConditionInput) -> Pattern:
        """End the loop of the last stage at an event that fulfils a condition."""
        last = self.elements[-1]
        if last.until is not None:
            raise self._make_error("until is set twice", "join the two with `||`")
        if last.quantifier.kind != "at_least":
            raise self._make_error(
                "until is for loops", "write one_or_more() or times_or_more(n) before it"
            )
        return self._replace_last(replace(last, until=to_condition(given, element_name(last))))

    def one_or_more(self, *, gap: Duration = 0, gap_between: Duration = 0) -> Pattern:
        """Take the last stage one or more times; gaps as in `times`."""
        return self._with_count("at_least", 1, None, gap, gap_between)

    def times_or_more(self, low: int, *, gap: Duration = 0, gap_between: Duration = 0) -> Pattern:
        """Take the last stage at least `low` times; gaps as in `times`."""
        return self._with_count("at_least", low, None, gap, gap_between)

    def times(
        self,
        low: int,
        high: int | None = None,
        *,
        gap: Duration = 0,
        gap_between: Duration = 0,
    ) -> Pattern:
        """Take the last stage a number of times; a range from 0 makes it optional.

        Args:
            low: minimum; without ``high`` the exact number.
            high: maximum.
            gap: longest time from the previous event to each event of the stage, exclusive. For the
                first event it counts from the event of the stage before, unless the stage is
                optional.
            gap_between: longest time from one event of the stage to the next, exclusive.
        """
        if high is not None and low == 0 and high > 0:
            pattern = self._with_count("times", 1, high, gap, gap_between)
            return pattern if pattern._last_quantifier().optional else pattern.optional()
        return self._with_count("times", low, low if high is None else high, gap, gap_between)

    def optional(self) -> Pattern:
        """Allow a match to leave out the last stage."""
        self._check_not_negated("optional")
        if self._last_quantifier().optional:
            raise self._make_error("optional is set twice", "once is enough")
        if len(self.elements) > 1 and self.elements[-2].quantifier.greedy:
            raise self._make_error("an optional stage follows a greedy one", "remove one of them")
        return self._with_quantifier(replace(self._last_quantifier(), optional=True))

    def consecutive(self) -> Pattern:
        """Allow no other events between the events of the last stage."""
        return self._with_inner("consecutive", "strict")

    def allow_combinations(self) -> Pattern:
        """Allow a match to leave out matching events between those of the last stage."""
        return self._with_inner("allow_combinations", "combinations")

    def greedy(self) -> Pattern:
        """Reserve for the last stage every event that it could take."""
        quantifier = self._last_quantifier()
        self._check_not_negated("greedy")
        if isinstance(self.elements[-1], Group):
            raise self._make_error("greedy is not for groups", "make a stage in the group greedy")
        if quantifier.kind == "one":
            raise self._make_error(
                "greedy is for stages that are taken several times", _COUNT_FIRST
            )
        if quantifier.inner == "combinations":
            raise self._make_error("greedy and allow_combinations exclude each other", "remove one")
        return self._with_quantifier(replace(quantifier, greedy=True))

    def within(
        self,
        time: Duration,
        of: Literal["first_and_last", "previous_and_current"] = "first_and_last",
    ) -> Pattern:
        """Limit the time of a match, exclusive.

        Args:
            time: 0 for no limit. For the whole match, the shortest of all limits counts.
            of: ``first_and_last``: from the first event of the match to its last, on any stage.
                ``previous_and_current``: from the previous event to that of the last stage. It is
                ignored on a stage that is taken several times; use ``gap`` there.
        """
        last = self.elements[-1]
        limit = to_microseconds(time, stage=element_name(last))
        if of not in ("first_and_last", "previous_and_current"):
            raise PatternArgumentError(
                f"{of!r} is not a kind of window", remedy="first_and_last or previous_and_current"
            )
        is_whole_match = of == "first_and_last"
        known = last.within if is_whole_match else last.within_previous
        if known is not None and known != limit:
            raise self._make_error(
                f"within is set twice, as {format_micros(known)} and as {format_micros(limit)}",
                "keep one",
            )
        if is_whole_match:
            return self._replace_last(replace(last, within=limit))
        return self._replace_last(replace(last, within_previous=limit or None))

    def skipping(self, skip: Skip) -> Pattern:
        """Return the pattern with another skip strategy."""
        return replace(self, skip=skip)

    def stages(self) -> Iterator[PatternStage]:
        """Yield all stages in the order of the pattern, including those of groups."""
        return _iter_stages(self.elements)

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse an unknown method; of a Java spelling the message has the one in use."""
        spelled = re.sub("(?<=[a-z])[A-Z]", lambda letter: f"_{letter[0].lower()}", name)
        spelled = {"or": "or_"}.get(spelled, spelled)
        hint = f"; write {spelled}" if spelled != name and hasattr(Pattern, spelled) else ""
        raise AttributeError(f"a pattern has no {name}{hint}.", name=name, obj=self)

    # ---- builders: return the new pattern or raise ----

    def _add(self, added: str | Pattern, contiguity: Contiguity) -> Pattern:
        if self.elements and contiguity in NEGATED and self._last_quantifier().optional:
            raise PatternUnsupportedError(
                f"{contiguity} follows an optional stage",
                stage=added if isinstance(added, str) else None,
                remedy="write two patterns, with and without the stage",
            )
        element: Element
        if isinstance(added, Pattern):
            if contiguity in NEGATED:
                raise PatternUnsupportedError(f"{contiguity} takes a stage, not a group")
            element = _to_group(added, contiguity)
            new = {stage.name for stage in added.stages()}
        else:
            element, new = PatternStage(name=_check_name(added), contiguity=contiguity), {added}
        duplicates = new & {stage.name for stage in self.stages()}
        if duplicates:
            raise PatternError(
                "the name is used twice",
                stage=min(duplicates),
                remedy="each stage needs its own name",
            )
        return replace(self, elements=(*self.elements, element))

    def _last_quantifier(self) -> Quantifier:
        return self.elements[-1].quantifier

    def _last_stage(self, call: str) -> PatternStage:
        last = self.elements[-1]
        if isinstance(last, Group):
            raise PatternError(
                f"{call} is not for groups", remedy="write the condition on a stage in the group"
            )
        return last

    def _with_count(
        self,
        kind: Literal["times", "at_least"],
        low: int,
        high: int | None,
        gap: Duration,
        gap_between: Duration,
    ) -> Pattern:
        self._check_not_negated("a quantifier")
        before, last = self._last_quantifier(), self.elements[-1]
        if before.kind != "one":
            raise self._make_error("a quantifier is set twice", "set only one")
        invalid = type(low) is not int or (high is not None and type(high) is not int)
        if invalid or low < 1 or (high is not None and high < low) or (high or low) > _MAX_COPIES:
            raise PatternArgumentError(
                f"{low} to {'any number' if high is None else high} times is not a number of times",
                stage=element_name(last),
                remedy=f"give whole numbers from 1 to {_MAX_COPIES}, the lower one first",
            )
        limit, between = (
            to_microseconds(one, stage=element_name(last)) for one in (gap, gap_between)
        )
        if limit and between:
            raise self._make_error("gap and gap_between exclude each other", "remove one of them")
        counted = replace(before, kind=kind, low=low, high=high, gap=limit, gap_between=between)
        return self._with_quantifier(counted)

    def _with_inner(self, call: str, inner: Inner) -> Pattern:
        quantifier = self._last_quantifier()
        if quantifier.kind == "one":
            raise self._make_error(
                f"{call} is for stages that are taken several times", _COUNT_FIRST
            )
        if quantifier.has_inner:
            raise self._make_error("the inner contiguity is set twice", "choose one")
        if quantifier.greedy and inner == "combinations":
            raise self._make_error("greedy and allow_combinations exclude each other", "remove one")
        return self._with_quantifier(replace(quantifier, inner=inner, has_inner=True))

    def _check_not_negated(self, call: str) -> None:
        if self.elements[-1].contiguity in NEGATED:
            raise self._make_error(f"{call} is not for negated stages", "leave it out")

    def _with_quantifier(self, quantifier: Quantifier) -> Pattern:
        return self._replace_last(replace(self.elements[-1], quantifier=quantifier))

    def _replace_last(self, element: Element) -> Pattern:
        return replace(self, elements=(*self.elements[:-1], element))

    def _make_error(self, problem: str, remedy: str) -> PatternError:
        return PatternError(problem, stage=element_name(self.elements[-1]), remedy=remedy)


_COUNT_FIRST = "write one_or_more(), times(n) or times_or_more(n) before it"


def element_name(element: Element) -> str:
    """Return the name of a stage, or the names in a group in parentheses."""
    if isinstance(element, PatternStage):
        return element.name
    branches = (" ".join(map(element_name, branch)) for branch in element.branches)
    return f"({' | '.join(branches)})"


def _check_name(name: str) -> str:
    if not isinstance(name, str) or not name.strip() or ":" in name:
        raise PatternError(
            f"{name!r} cannot be a stage's name", remedy="a name is not blank and has no `:`"
        )
    return name


def _to_group(pattern: Pattern, contiguity: Contiguity) -> Group:
    """Return a pattern as a group; alternatives alone are already one."""
    group = Group(elements=pattern.elements, contiguity=contiguity)
    only = pattern.elements[0]
    if isinstance(only, Group) and only.alternatives:
        choice = replace(group, elements=only.elements, alternatives=only.alternatives)
        if pattern.elements == (replace(choice, contiguity="begin"),):
            return choice
    return group


def _iter_stages(elements: tuple[Element, ...]) -> Iterator[PatternStage]:
    for element in elements:
        if isinstance(element, Group):
            for branch in element.branches:
                yield from _iter_stages(branch)
        else:
            yield element
