"""Rules made ready to run; what is made once for a rule is kept while the process needs it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from streambroker_core.cep.nfa.compiler import compile_pattern
from streambroker_core.cep.nfa.condition_bits import Truths
from streambroker_core.cep.nfa.linear_matcher import PlainSequence, plain_sequence
from streambroker_core.cep.nfa.nfa import Automaton
from streambroker_core.cep.pattern.rule import PatternProcessor

_MOST = 20_000
_COMPILED: dict[int, Compiled] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A rule and what was made of it.

    Attributes:
        rule: the rule.
        automaton: of its pattern.
        truths: decides its conditions.
        texts: what each condition demands of the event alone, as text; None for nothing.
        sequence: the pattern, if it is a plain sequence.
    """

    rule: PatternProcessor
    automaton: Automaton
    truths: Truths
    texts: tuple[str | None, ...]
    sequence: PlainSequence | None = None


def compiled(rule: PatternProcessor) -> Compiled:
    """Return a rule made ready; for one object the same each time.

    Raises:
        PatternError: its pattern contradicts itself.
    """
    made = _COMPILED.get(id(rule))
    if made is None or made.rule is not rule:
        if len(_COMPILED) >= _MOST:
            _COMPILED.clear()
        automaton = compile_pattern(rule.pattern)
        truths = Truths(automaton)
        texts = tuple(None if part is None else str(part) for part in truths.parts)
        sequence = plain_sequence(automaton, truths)
        made = Compiled(
            rule=rule, automaton=automaton, truths=truths, texts=texts, sequence=sequence
        )
        _COMPILED[id(rule)] = made
    return made


def shortest_timeout(rules: Iterable[PatternProcessor]) -> int:
    """Return the shortest time after which time may end a run of a rule; 0 for never.

    Args:
        rules: the rules; their times are in microseconds.
    """
    times = (compiled(rule).automaton.shortest() for rule in rules)
    return min((time for time in times if time), default=0)
