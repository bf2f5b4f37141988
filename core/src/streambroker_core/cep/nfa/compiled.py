"""Rules made ready to run; what is made once for a rule is kept while the process needs it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from streambroker_core.cep.nfa.compiler import compile_pattern
from streambroker_core.cep.nfa.condition_bits import ConditionBits
from streambroker_core.cep.nfa.linear_matcher import LinearPattern, compile_linear
from streambroker_core.cep.nfa.nfa import Nfa
from streambroker_core.cep.pattern.rule import PatternProcessor

_MAX_CACHED = 20_000
_CACHE: dict[int, CompiledRule] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledRule:
    """A rule and what was made of it.

    Attributes:
        rule: the rule.
        automaton: of its pattern.
        condition_bits: decides its conditions.
        condition_texts: what each condition demands of the event alone, as text; None for nothing.
        linear_pattern: the pattern, if it is a plain sequence.
    """

    rule: PatternProcessor
    automaton: Nfa
    condition_bits: ConditionBits
    condition_texts: tuple[str | None, ...]
    linear_pattern: LinearPattern | None = None


def compile_rule(rule: PatternProcessor) -> CompiledRule:
    """Return a rule made ready; for one object the same each time.

    Raises:
        PatternError: its pattern contradicts itself.
    """
    made = _CACHE.get(id(rule))
    if made is None or made.rule is not rule:
        if len(_CACHE) >= _MAX_CACHED:
            _CACHE.clear()
        automaton = compile_pattern(rule.pattern)
        truths = ConditionBits(automaton)
        texts = tuple(None if part is None else str(part) for part in truths.local_parts)
        sequence = compile_linear(automaton, truths)
        made = CompiledRule(
            rule=rule,
            automaton=automaton,
            condition_bits=truths,
            condition_texts=texts,
            linear_pattern=sequence,
        )
        _CACHE[id(rule)] = made
    return made


def shortest_timeout(rules: Iterable[PatternProcessor]) -> int:
    """Return the shortest time after which time may end a run of a rule; 0 for never.

    Args:
        rules: the rules; their times are in microseconds.
    """
    times = (compile_rule(rule).automaton.shortest_timeout() for rule in rules)
    return min((time for time in times if time), default=0)
