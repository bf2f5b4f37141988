"""Groups of rules whose linear patterns differ only in conditions, so they can share runs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from streambroker_core.cep.nfa.compiled import CompiledRule
from streambroker_core.cep.nfa.linear_matcher import RowPlan
from streambroker_core.cep.nfa.snapshot import Rules

_MAX_PLANS, _MAX_GROUPS = 10_000, 256
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
        steps: dict[int, tuple[int, int]] = {}
        rule = 1
        for pattern, places in zip(self._patterns, self._places, strict=True):
            own = sum((bits >> place & 1) << index for index, place in enumerate(places))
            if own:
                plan = pattern.plan_for(own)
                seen_by |= rule
                begins |= rule * plan.begins
                for stage, advances, ends in plan.steps:
                    advancing, ending = steps.get(stage, (0, 0))
                    steps[stage] = advancing | rule * advances, ending | rule * ends
            rule <<= 1
        latest_first = sorted(steps, reverse=True)
        return RowPlan(seen_by, begins, tuple((stage, *steps[stage]) for stage in latest_first))

    def mask_of(self, rules: Rules) -> int | None:
        """Return the mask of some rules; None if only a part of them is in the group."""
        if rules not in self._masks:
            if len(self._masks) >= _MAX_PLANS:
                self._masks.clear()
            found = [self.numbers[name] for name in rules if name in self.numbers]
            whole = len(found) in (0, len(rules))
            self._masks[rules] = sum(1 << number for number in found) if whole else None
        return self._masks[rules]

    @lru_cache(maxsize=_MAX_PLANS)  # noqa: B019 - a group lasts for the process
    def members(self, rules: int) -> tuple[int, ...]:
        """Return the numbers of the rules in a mask, in order."""
        return tuple(number for number, bit in enumerate(f"{rules:b}"[::-1]) if bit == "1")

    @lru_cache(maxsize=_MAX_PLANS)  # noqa: B019
    def rules_in(self, rules: int) -> Rules:
        """Return the ids and versions of the rules in a mask."""
        return frozenset(self.names[number] for number in self.members(rules))


def linear_group(rules: Sequence[CompiledRule]) -> LinearGroup:
    """Return the group of rules with equal `CompiledRule.sharing`; it is cached."""
    key = tuple(map(id, rules))
    group = _GROUPS.get(key)
    if group is None:
        if len(_GROUPS) >= _MAX_GROUPS:
            _GROUPS.clear()
        group = _GROUPS[key] = LinearGroup(rules)
    return group
