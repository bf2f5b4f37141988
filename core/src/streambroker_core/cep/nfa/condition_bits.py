"""Which conditions of an automaton hold of an event, as bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from streambroker_core.cep.nfa.nfa import Nfa
from streambroker_core.cep.pattern.conditions import (
    All,
    Condition,
    FunctionCondition,
    Some,
    TextCondition,
    is_local,
    list_fields,
    local_part,
    remaining_condition,
)
from streambroker_core.cep.pattern.errors import RunError
from streambroker_core.cep.pattern.match_buffer import (
    Event,
    RunNode,
    TermEvaluator,
    list_chain,
    make_evaluator,
)
from streambroker_core.expression import tree
from streambroker_core.expression.arithmetic import COMPARE

_NUMBERS = (int, float)


class RunView:
    """What a function may ask of the run whose next event is tested.

    Attributes:
        timestamp: of the event, in microseconds.
        processing_time: the pinned clock, in microseconds.
    """

    __slots__ = ("_node", "_stages", "processing_time", "timestamp")

    def __init__(self, stages: tuple[str, ...], node: RunNode | None, event: Event) -> None:
        self._stages, self._node = stages, node
        self.timestamp, self.processing_time = event.time, event.clock

    def events(self, stage: str) -> list[Mapping[str, Any]]:
        """Return the rows that the run has taken for a stage, in order."""
        return [
            node.event.row for node in list_chain(self._node) if self._stages[node.stage] == stage
        ]


class _EventFields:
    """The fields of an event, and terms of a run as if they were fields."""

    __slots__ = ("_event", "_node", "_terms")

    def __init__(
        self, terms: Mapping[str, TermEvaluator], event: Event, node: RunNode | None
    ) -> None:
        self._terms, self._event, self._node = terms, event, node

    def get(self, name: str) -> Any:
        """Return a field, or the answer to a term."""
        ask = self._terms.get(name)
        return self._event.get(name) if ask is None else ask(self._node, self._event)


ConditionTest: TypeAlias = "Callable[[Event, RunNode | None], bool]"


def _compile_term_comparison(
    node: tree.Node | None, terms: Mapping[str, TermEvaluator]
) -> ConditionTest | None:
    """Return the commonest test, `sum(a.price) < 500` for one, without the calls of others."""
    if not (
        isinstance(node, tree.Comparison)
        and isinstance(node.left, tree.Name)
        and isinstance(node.right, tree.Integer | tree.Float)
    ):
        return None
    ask, operation, number = terms.get(node.left.name), COMPARE[node.op], node.right.value
    if ask is None:
        return None

    def test(event: Event, last: RunNode | None) -> bool:
        found = ask(last, event)
        return type(found) in _NUMBERS and operation(found, number)

    return test


class ConditionBits:
    """Decides the conditions of one automaton; one object serves all keys.

    A condition that asks about the past is decided in two steps: what it demands of the event
    alone, and what is left of it.

    Attributes:
        local_parts: what each condition demands of the event alone; None for nothing.
        local_bits: those of conditions that demand no more than that.
        run_bits: the others.
        needed_fields: what is asked of events beside that.
        needs_whole_rows: a function asks for whole rows.
    """

    def __init__(self, automaton: Nfa) -> None:
        self._stages = automaton.stages
        self.conditions = automaton.conditions
        self.local_parts = tuple(local_part(each) for each in self.conditions)
        self.local_bits = sum(
            1 << place for place, each in enumerate(self.conditions) if is_local(each)
        )
        self.run_bits = (1 << len(self.conditions)) - 1 & ~self.local_bits
        names: dict[str | None, set[int]] = {None: set()}
        for place, name in enumerate(automaton.stages):
            names.setdefault(name, set()).add(place)
        self._numbers = {name: frozenset(places) for name, places in names.items()}
        rests = [
            remaining_condition(each) if self.run_bits >> place & 1 else None
            for place, each in enumerate(self.conditions)
        ]
        self._tests = [None if each is None else self._compile_test(each) for each in rests]
        asked = [list_fields(each) for each in rests if each is not None]
        self.needs_whole_rows = None in asked
        self.needed_fields = frozenset[str]().union(*(each for each in asked if each is not None))

    def evaluate_local(self, event: Event) -> int:
        """Return the bits of conditions, as far as they depend on the event alone."""
        bits = 0
        for place, part in enumerate(self.local_parts):
            if part is None or part.test(event) is True:  # type: ignore[arg-type]
                bits |= 1 << place
        return bits

    def evaluate_run(self, bits: int, needed_bits: int, event: Event, node: RunNode | None) -> int:
        """Return the bits for one run.

        Args:
            bits: those of `local`.
            needed_bits: those that matter; others may be anything.
            event: the event.
            node: the last event the run took.

        Raises:
            RunError: a function raised.
        """
        open_ = needed_bits & self.run_bits & bits
        while open_:
            bit = open_ & -open_
            open_ ^= bit
            test = self._tests[bit.bit_length() - 1]
            if test is not None and not test(event, node):
                bits ^= bit
        return bits

    def _compile_test(self, condition: Condition) -> ConditionTest:
        match condition:
            case TextCondition():
                return self._compile_text(condition)
            case All():
                parts = [self._compile_test(item) for item in condition.items]
                return lambda event, node: all(part(event, node) for part in parts)
            case Some():
                parts = [self._compile_test(item) for item in condition.items]
                return lambda event, node: any(part(event, node) for part in parts)
            case FunctionCondition():
                return lambda event, node: self._call_function(condition, event, node)

    def _compile_text(self, condition: TextCondition) -> ConditionTest:
        terms = {
            name: make_evaluator(term, self._numbers[term.stage]) for name, term in condition.terms
        }
        quick = _compile_term_comparison(condition.expression.tree, terms)
        if quick is not None:
            return quick
        decide: Callable[[Any], bool | None] = condition.expression.test
        return lambda event, node: decide(_EventFields(terms, event, node)) is True

    def _call_function(
        self, condition: FunctionCondition, event: Event, node: RunNode | None
    ) -> bool:
        try:
            return condition.function(event.row, RunView(self._stages, node, event)) is True
        except Exception as error:
            raise RunError(
                f"condition `{condition}`", f"it raised {type(error).__name__}: {error}"
            ) from error
