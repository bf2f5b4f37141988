"""Evaluation of an automaton's conditions for an event, as bits."""

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
from streambroker_core.expression.evaluate import Row

_NUMBERS = (int, float)


class RunView:
    """View of a run for condition functions, while its next event is tested.

    Both times are in microseconds: that of the event, and the pinned clock.
    """

    __slots__ = ("_node", "_stages", "processing_time", "timestamp")

    def __init__(self, stages: tuple[str, ...], node: RunNode | None, event: Event) -> None:
        self._stages, self._node = stages, node
        self.timestamp, self.processing_time = event.time, event.clock

    def events(self, stage: str) -> list[Row]:
        """Return the rows that the run took for a stage, in order."""
        return [
            node.event.row for node in list_chain(self._node) if self._stages[node.stage] == stage
        ]


class _EventFields:
    __slots__ = ("_event", "_node", "_terms")

    def __init__(
        self, terms: Mapping[str, TermEvaluator], event: Event, node: RunNode | None
    ) -> None:
        self._terms, self._event, self._node = terms, event, node

    def get(self, name: str) -> Any:
        evaluate = self._terms.get(name)
        return self._event.get(name) if evaluate is None else evaluate(self._node, self._event)


ConditionTest: TypeAlias = "Callable[[Event, RunNode | None], bool]"


def _compile_term_comparison(
    node: tree.Node | None, terms: Mapping[str, TermEvaluator]
) -> ConditionTest | None:
    """Return a fast test for the most common form, such as `sum(a.price) < 500`; else None."""
    if not (
        isinstance(node, tree.Comparison)
        and isinstance(node.left, tree.Name)
        and isinstance(node.right, tree.Integer | tree.Float)
    ):
        return None
    evaluate, operation, number = terms.get(node.left.name), COMPARE[node.op], node.right.value
    if evaluate is None:
        return None

    def test(event: Event, last: RunNode | None) -> bool:
        value = evaluate(last, event)
        return type(value) in _NUMBERS and operation(value, number)

    return test


class ConditionBits:
    """Evaluates the conditions of one automaton; one object serves all keys.

    A condition on the past is evaluated in two steps: first its local part, which depends on the
    event alone, then the remaining condition.

    Attributes:
        local_parts: local part of each condition; None without one.
        local_bits, run_bits: bits of the conditions without and with a part on the past.
        needed_fields: event fields that the remaining conditions read.
        needs_whole_rows: a function needs whole rows.
    """

    def __init__(self, automaton: Nfa) -> None:
        self._stages = automaton.stages
        self.conditions = automaton.conditions
        self.local_parts = tuple(local_part(each) for each in self.conditions)
        self.local_bits = sum(
            1 << index for index, each in enumerate(self.conditions) if is_local(each)
        )
        self.run_bits = (1 << len(self.conditions)) - 1 & ~self.local_bits
        names: dict[str | None, set[int]] = {None: set()}
        for index, name in enumerate(automaton.stages):
            names.setdefault(name, set()).add(index)
        self._numbers = {name: frozenset(numbers) for name, numbers in names.items()}
        remaining = [
            remaining_condition(each) if self.run_bits >> index & 1 else None
            for index, each in enumerate(self.conditions)
        ]
        self._tests = [None if each is None else self._compile_test(each) for each in remaining]
        field_sets = [list_fields(each) for each in remaining if each is not None]
        self.needs_whole_rows = None in field_sets
        self.needed_fields = frozenset[str]().union(
            *(each for each in field_sets if each is not None)
        )

    def evaluate_local(self, event: Event) -> int:
        """Return the condition bits as far as the event alone decides them."""
        bits = 0
        for index, part in enumerate(self.local_parts):
            if part is None or part.test(event) is True:  # type: ignore[arg-type]
                bits |= 1 << index
        return bits

    def evaluate_run(self, bits: int, needed_bits: int, event: Event, node: RunNode | None) -> int:
        """Return the condition bits for one run.

        `node` is its last node; None before its first event. `bits` is the result of
        `evaluate_local`. Bits outside `needed_bits` are undefined.

        Raises:
            RunError: a function raised.
        """
        undecided = needed_bits & self.run_bits & bits
        while undecided:
            bit = undecided & -undecided
            undecided ^= bit
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
        fast = _compile_term_comparison(condition.expression.tree, terms)
        if fast is not None:
            return fast
        test: Callable[[Any], bool | None] = condition.expression.test
        return lambda event, node: test(_EventFields(terms, event, node)) is True

    def _call_function(
        self, condition: FunctionCondition, event: Event, node: RunNode | None
    ) -> bool:
        try:
            return condition.function(event.row, RunView(self._stages, node, event)) is True
        except Exception as error:
            raise RunError(
                f"condition `{condition}`", f"it raised {type(error).__name__}: {error}"
            ) from error
