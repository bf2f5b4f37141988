"""Complex event processing: patterns over events, and rules that can change while a job runs.

>>> shape = Pattern.begin("a").where("price > 10").followed_by("b").where("price > last(a.price)")
>>> compile_pattern(shape.within("10s")).stages
('a', 'b')
"""

from streambroker_core.cep.nfa.compiler import compile_pattern
from streambroker_core.cep.pattern.errors import (
    ConditionError,
    PatternArgumentError,
    PatternError,
    PatternUnsupportedError,
    RuleError,
    RunError,
)
from streambroker_core.cep.pattern.pattern import Pattern, Skip

__all__ = [
    "ConditionError",
    "Pattern",
    "PatternArgumentError",
    "PatternError",
    "PatternUnsupportedError",
    "RuleError",
    "RunError",
    "Skip",
    "compile_pattern",
]
