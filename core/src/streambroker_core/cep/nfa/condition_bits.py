"""Which conditions of an automaton hold of an event, as bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from streambroker_core.cep.nfa.nfa import Automaton
from streambroker_core.cep.pattern.conditions import (
    All,
    Call,
    Condition,
    Some,
    Text,
    fields_of,
    is_local,
    local_part,
    rest_of,
)
from streambroker_core.cep.pattern.errors import RunError
from streambroker_core.cep.pattern.match_buffer import Ask, Event, Node, asker, chain
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

    def __init__(self, stages: tuple[str, ...], node: Node | None, event: Event) -> None:
        self._stages, self._node = stages, node
        self.timestamp, self.processing_time = event.time, event.clock

    def events(self, stage: str) -> list[Mapping[str, Any]]:
        """Return the rows that the run has taken for a stage, in order."""
        return [node.event.row for node in chain(self._node) if self._stages[node.stage] == stage]


class _Fields:
    """The fields of an event, and terms of a run as if they were fields."""

    __slots__ = ("_event", "_node", "_terms")

    def __init__(self, terms: Mapping[str, Ask], event: Event, node: Node | None) -> None:
        self._terms, self._event, self._node = terms, event, node

    def get(self, name: str) -> Any:
        """Return a field, or the answer to a term."""
        ask = self._terms.get(name)
        return self._event.get(name) if ask is None else ask(self._node, self._event)


Test: TypeAlias = "Callable[[Event, Node | None], bool]"


def _term_and_number(node: tree.Node | None, terms: Mapping[str, Ask]) -> Test | None:
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

    def test(event: Event, last: Node | None) -> bool:
        found = ask(last, event)
        return type(found) in _NUMBERS and operation(found, number)

    return test


class Truths:
    """Decides the conditions of one automaton; one object serves all keys.

    A condition that asks about the past is decided in two steps: what it demands of the event
    alone, and what is left of it.

    Attributes:
        parts: what each condition demands of the event alone; None for nothing.
        local_bits: those of conditions that demand no more than that.
        run_bits: the others.
        fields: what is asked of events beside that.
        whole: a function asks for whole rows.
    """

    def __init__(self, automaton: Automaton) -> None:
        self._stages = automaton.stages
        self.conditions = automaton.conditions
        self.parts = tuple(local_part(each) for each in self.conditions)
        self.local_bits = sum(
            1 << place for place, each in enumerate(self.conditions) if is_local(each)
        )
        self.run_bits = (1 << len(self.conditions)) - 1 & ~self.local_bits
        names: dict[str | None, set[int]] = {None: set()}
        for place, name in enumerate(automaton.stages):
            names.setdefault(name, set()).add(place)
        self._numbers = {name: frozenset(places) for name, places in names.items()}
        rests = [
            rest_of(each) if self.run_bits >> place & 1 else None
            for place, each in enumerate(self.conditions)
        ]
        self._tests = [None if each is None else self._test(each) for each in rests]
        asked = [fields_of(each) for each in rests if each is not None]
        self.whole = None in asked
        self.fields = frozenset[str]().union(*(each for each in asked if each is not None))

    def local(self, event: Event) -> int:
        """Return the bits of conditions, as far as they depend on the event alone."""
        bits = 0
        for place, part in enumerate(self.parts):
            if part is None or part.test(event) is True:  # type: ignore[arg-type]
                bits |= 1 << place
        return bits

    def of_run(self, bits: int, asked: int, event: Event, node: Node | None) -> int:
        """Return the bits for one run.

        Args:
            bits: those of `local`.
            asked: those that matter; others may be anything.
            event: the event.
            node: the last event the run took.

        Raises:
            RunError: a function raised.
        """
        open_ = asked & self.run_bits & bits
        while open_:
            bit = open_ & -open_
            open_ ^= bit
            test = self._tests[bit.bit_length() - 1]
            if test is not None and not test(event, node):
                bits ^= bit
        return bits

    def _test(self, given: Condition) -> Test:
        match given:
            case Text():
                return self._text(given)
            case All():
                parts = [self._test(item) for item in given.items]
                return lambda event, node: all(part(event, node) for part in parts)
            case Some():
                parts = [self._test(item) for item in given.items]
                return lambda event, node: any(part(event, node) for part in parts)
            case Call():
                return lambda event, node: self._called(given, event, node)

    def _text(self, given: Text) -> Test:
        terms = {name: asker(term, self._numbers[term.stage]) for name, term in given.terms}
        quick = _term_and_number(given.expression.tree, terms)
        if quick is not None:
            return quick
        decide: Callable[[Any], bool | None] = given.expression.test
        return lambda event, node: decide(_Fields(terms, event, node)) is True

    def _called(self, given: Call, event: Event, node: Node | None) -> bool:
        try:
            return given.function(event.row, RunView(self._stages, node, event)) is True
        except Exception as error:
            raise RunError(
                f"condition `{given}`", f"it raised {type(error).__name__}: {error}"
            ) from error
