"""Groups of rules whose linear patterns differ only in conditions, so they can share runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from streambroker_core.cep.nfa.linear_matcher import LinearPattern, RowPlan
from streambroker_core.cep.nfa.snapshot import MAX_RULE_SETS, Rules, RuleVersionKey

_MAX_PLANS = 10_000


class LinearRule(NamedTuple):
    """A rule of a group: id and version, pattern, and the text of each condition."""

    name: RuleVersionKey
    pattern: LinearPattern
    texts: tuple[str | None, ...]


class LinearGroup:
    """Rules with the same stages, window and limits; a mask of them has a bit per rule.

    Attributes:
        names: ids and versions of the rules; the place of a rule is the number of its bit.
        numbers: the number of each rule's bit.
        pattern: that of the first rule.
        texts: their distinct conditions; the bits of a row follow this order.
    """

    def __init__(self, rules: Sequence[LinearRule]) -> None:
        self._patterns = [each.pattern for each in rules]
        self.pattern = self._patterns[0]
        self.names = tuple(each.name for each in rules)
        self.numbers = {name: number for number, name in enumerate(self.names)}
        self.texts = tuple(dict.fromkeys(text for each in rules for text in each.texts))
        places = {text: place for place, text in enumerate(self.texts)}
        self._places = [[places[text] for text in each.texts] for each in rules]
        self._rules_with = [0] * len(self.texts)
        for number, own_places in enumerate(self._places):
            for place in own_places:
                self._rules_with[place] |= 1 << number
        self._plans: dict[int, RowPlan] = {}
        self._masks: dict[Rules, int | None] = {}
        self._members: dict[int, tuple[int, ...]] = {}
        self._rules: dict[int, Rules] = {}

    def plan_for(self, bits: int) -> RowPlan:
        """Return what a row does to the runs of each rule that sees it."""
        if len(self.names) == 1:
            return self.pattern.plan_for(bits)
        plan = self._plans.get(bits)
        if plan is None:
            _make_room(self._plans, _MAX_PLANS)
            plan = self._plans[bits] = self._combine(bits)
        return plan

    def _combine(self, bits: int) -> RowPlan:
        seen_by = begins = 0
        for place in _bit_numbers(bits):
            seen_by |= self._rules_with[place]
        steps: dict[int, tuple[int, int]] = {}
        for number in _bit_numbers(seen_by):
            rule, places = 1 << number, self._places[number]
            own = sum((bits >> place & 1) << index for index, place in enumerate(places))
            plan = self._patterns[number].plan_for(own)
            begins |= rule * plan.begins
            for stage, advances, ends in plan.steps:
                advancing, ending = steps.get(stage, (0, 0))
                steps[stage] = advancing | rule * advances, ending | rule * ends
        latest_first = sorted(steps, reverse=True)
        return RowPlan(seen_by, begins, tuple((stage, *steps[stage]) for stage in latest_first))

    def mask_of(self, rules: Rules) -> int | None:
        """Return the mask of some rules; None if only a part of them is in the group."""
        if rules not in self._masks:
            found = [self.numbers[name] for name in rules if name in self.numbers]
            whole = len(found) in (0, len(rules))
            _make_room(self._masks, MAX_RULE_SETS)
            self._masks[rules] = sum(1 << number for number in found) if whole else None
        return self._masks[rules]

    def members(self, rules: int) -> tuple[int, ...]:
        """Return the numbers of the rules in a mask, in order."""
        members = self._members.get(rules)
        if members is None:
            _make_room(self._members, MAX_RULE_SETS)
            members = self._members[rules] = tuple(_bit_numbers(rules))
        return members

    def rules_in(self, rules: int) -> Rules:
        """Return the ids and versions of the rules in a mask."""
        found = self._rules.get(rules)
        if found is None:
            _make_room(self._rules, MAX_RULE_SETS)
            names = (self.names[number] for number in self.members(rules))
            found = self._rules[rules] = frozenset(names)
        return found


def _make_room(cache: dict[Any, Any], limit: int) -> None:
    """Clear a cache that has reached its limit."""
    if len(cache) >= limit:
        cache.clear()


def _bit_numbers(mask: int) -> Iterator[int]:
    """Yield the numbers of the bits that are set, in order."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
