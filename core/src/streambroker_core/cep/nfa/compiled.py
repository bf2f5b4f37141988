"""Compiled rules and their cache, which lasts for the process."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from streambroker_core.cep.nfa.compiler import compile_pattern
from streambroker_core.cep.nfa.condition_bits import ConditionBits
from streambroker_core.cep.nfa.linear_group import LinearGroup, LinearRule
from streambroker_core.cep.nfa.linear_matcher import LinearPattern, compile_linear
from streambroker_core.cep.nfa.nfa import Nfa
from streambroker_core.cep.pattern.rule import PatternProcessor

_MAX_CACHED = 20_000
_CACHE: dict[int, CompiledRule] = {}
_MAX_GROUPED = 10_000
"""Number of rules in the cached groups."""
_GROUPS: dict[tuple[int, ...], tuple[LinearGroup, tuple[CompiledRule, ...]]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledRule:
    """A rule with its automaton and evaluators.

    `condition_texts` has the text of each condition's local part; None without one.
    `linear_pattern` is None if runs of the pattern may branch, or matches are numbered. Rules with
    equal `sharing` can have runs in common; it is None if the rule shares none. `alone` is the
    group of this rule only.
    """

    rule: PatternProcessor
    automaton: Nfa
    condition_bits: ConditionBits
    condition_texts: tuple[str | None, ...]
    linear_pattern: LinearPattern | None = None
    sharing: tuple[Hashable, ...] | None = field(init=False)
    alone: LinearGroup | None = field(init=False)

    def __post_init__(self) -> None:
        sharing, pattern = None, self.linear_pattern
        if (
            pattern is not None
            and self.automaton.event_need == "matching"
            and None not in self.condition_texts
        ):
            sharing = (*pattern.shape, self.rule.limits)
        object.__setattr__(self, "sharing", sharing)
        alone = None if pattern is None else LinearGroup([self._linear_rule(pattern)])
        object.__setattr__(self, "alone", alone)

    def _linear_rule(self, pattern: LinearPattern) -> LinearRule:
        return LinearRule((self.rule.id, self.rule.version), pattern, self.condition_texts)

    @staticmethod
    def group(rules: Sequence[CompiledRule]) -> LinearGroup:
        """Return the group of rules with equal `sharing`; the groups used last are cached."""
        key = tuple(map(id, rules))
        entry = _GROUPS.pop(key, None)
        if entry is None:
            patterns = [(each, each.linear_pattern) for each in rules]
            group = LinearGroup([one._linear_rule(each) for one, each in patterns if each])
            entry = group, tuple(rules)  # kept alive: the key has their ids
            while _GROUPS and sum(map(len, _GROUPS)) + len(rules) > _MAX_GROUPED:
                del _GROUPS[next(iter(_GROUPS))]
        _GROUPS[key] = entry
        return entry[0]


def compile_rule(rule: PatternProcessor) -> CompiledRule:
    """Compile a rule; calls with the same object return the same result while it is cached.

    Raises:
        PatternError: the pattern contradicts itself.
    """
    compiled = _CACHE.get(id(rule))
    if compiled is None or compiled.rule is not rule:
        if len(_CACHE) >= _MAX_CACHED:
            _CACHE.clear()
        automaton = compile_pattern(rule.pattern)
        condition_bits = ConditionBits(automaton)
        texts = tuple(None if part is None else str(part) for part in condition_bits.local_parts)
        linear_pattern = None if rule.numbered else compile_linear(automaton, condition_bits)
        compiled = CompiledRule(
            rule=rule,
            automaton=automaton,
            condition_bits=condition_bits,
            condition_texts=texts,
            linear_pattern=linear_pattern,
        )
        _CACHE[id(rule)] = compiled
    return compiled


def shortest_timeout(rules: Iterable[PatternProcessor]) -> int:
    """Return the shortest time, in microseconds, after which time may end a run; 0 for never."""
    times = (compile_rule(rule).automaton.shortest_timeout() for rule in rules)
    return min((time for time in times if time), default=0)
