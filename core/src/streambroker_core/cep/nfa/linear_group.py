"""Groups of rules whose linear patterns differ only in conditions, so they can share runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from streambroker_core.cep.nfa.compiled import CompiledRule
from streambroker_core.cep.nfa.linear_matcher import RowPlan
from streambroker_core.cep.nfa.snapshot import MAX_RULE_SETS, Rules

_MAX_PLANS, _MAX_GROUPS = 10_000, 20_000
_GROUPS: dict[tuple[int, ...], LinearGroup] = {}


class LinearGroup:
    """Rules with the same stages, window and limits; a mask of them has a bit per rule.

    Attributes:
        names: ids and versions of the rules; the place of a rule is the number of its bit.
        numbers: the number of each rule's bit.
        pattern: that of the first rule.
        texts: their distinct conditions; the bits of a row follow this order.
    """

    def __init__(self, rules: Sequence[CompiledRule]) -> None:
        self._rules = tuple(rules)  # kept alive: the key of the cache has their ids
        patterns = [each.linear_pattern for each in rules]
        self._patterns = [pattern for pattern in patterns if pattern is not None]
        self.pattern = self._patterns[0]
        self.names = tuple((each.rule.id, each.rule.version) for each in rules)
        self.numbers = {name: number for number, name in enumerate(self.names)}
        self.texts = tuple(dict.fromkeys(text for each in rules for text in each.condition_texts))
        places = {text: place for place, text in enumerate(self.texts)}
        self._places = [[places[text] for text in each.condition_texts] for each in rules]
        self._rules_with = [0] * len(self.texts)
        for number, own_places in enumerate(self._places):
            for place in own_places:
                self._rules_with[place] |= 1 << number
        self._plans: dict[int, RowPlan] = {}
        self._masks: dict[Rules, int | None] = {}

    def plan_for(self, bits: int) -> RowPlan:
        """Return what a row does to the runs of each rule that sees it."""
        if len(self.names) == 1:
            return self.pattern.plan_for(bits)
        plan = self._plans.get(bits)
        if plan is None:
            if len(self._plans) >= _MAX_PLANS:
                self._plans.clear()
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
            if len(self._masks) >= MAX_RULE_SETS:
                self._masks.clear()
            found = [self.numbers[name] for name in rules if name in self.numbers]
            whole = len(found) in (0, len(rules))
            self._masks[rules] = sum(1 << number for number in found) if whole else None
        return self._masks[rules]

    @lru_cache(maxsize=MAX_RULE_SETS)  # noqa: B019 - a group lasts for the process
    def members(self, rules: int) -> tuple[int, ...]:
        """Return the numbers of the rules in a mask, in order."""
        return tuple(_bit_numbers(rules))

    @lru_cache(maxsize=MAX_RULE_SETS)  # noqa: B019
    def rules_in(self, rules: int) -> Rules:
        """Return the ids and versions of the rules in a mask."""
        return frozenset(self.names[number] for number in self.members(rules))


def _bit_numbers(mask: int) -> Iterator[int]:
    """Yield the numbers of the bits that are set, in order."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def linear_group(rules: Sequence[CompiledRule]) -> LinearGroup:
    """Return the group of rules with equal `CompiledRule.sharing`; it is cached."""
    key = tuple(map(id, rules))
    group = _GROUPS.get(key)
    if group is None:
        if len(_GROUPS) >= _MAX_GROUPS:
            _GROUPS.clear()
        group = _GROUPS[key] = LinearGroup(rules)
    return group
