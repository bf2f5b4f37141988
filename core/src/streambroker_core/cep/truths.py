"""Which conditions of an automaton hold of an event, as bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streambroker_core.cep.automaton import Automaton
from streambroker_core.cep.conditions import All, Call, Condition, Some, Text, is_local
from streambroker_core.cep.history import Event, Node, Term, ask, chain
from streambroker_core.cep.refusals import RunError


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

    __slots__ = ("_event", "_node", "_numbers", "_terms")

    def __init__(
        self,
        terms: Mapping[str, Term],
        numbers: Mapping[str | None, frozenset[int]],
        event: Event,
        node: Node | None,
    ) -> None:
        self._terms, self._numbers = terms, numbers
        self._event, self._node = event, node

    def get(self, name: str) -> Any:
        """Return a field, or the answer to a term."""
        term = self._terms.get(name)
        if term is None:
            return self._event.row.get(name)
        return ask(term, self._node, self._numbers[term.stage], self._event)


class Truths:
    """Decides the conditions of one automaton; one object serves all keys."""

    def __init__(self, automaton: Automaton) -> None:
        self._stages = automaton.stages
        self.conditions = automaton.conditions
        self.local_bits = sum(
            1 << place for place, each in enumerate(self.conditions) if is_local(each)
        )
        self.run_bits = (1 << len(self.conditions)) - 1 & ~self.local_bits
        self._terms = [dict(_texts(each)) for each in self.conditions]
        names: dict[str | None, set[int]] = {None: set()}
        for place, name in enumerate(automaton.stages):
            names.setdefault(name, set()).add(place)
        self._numbers = {name: frozenset(places) for name, places in names.items()}

    def local(self, event: Event) -> int:
        """Return the bits of all conditions that depend on the event alone."""
        bits = 0
        for place, each in enumerate(self.conditions):
            if self.local_bits >> place & 1 and self._holds(each, place, event, None):
                bits |= 1 << place
        return bits | self.run_bits

    def of_run(self, bits: int, asked: int, event: Event, node: Node | None) -> int:
        """Return the bits for one run.

        Args:
            bits: those of `local`, or fewer: a bit of `run_bits` that is missing is false anyway.
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
            place = bit.bit_length() - 1
            if not self._holds(self.conditions[place], place, event, node):
                bits ^= bit
        return bits

    def _holds(self, given: Condition, place: int, event: Event, node: Node | None) -> bool:
        match given:
            case Text():
                fields = _Fields(self._terms[place], self._numbers, event, node)
                return given.expression.test(fields) is True  # type: ignore[arg-type]
            case All():
                return all(self._holds(item, place, event, node) for item in given.items)
            case Some():
                return any(self._holds(item, place, event, node) for item in given.items)
            case Call():
                return self._called(given, event, node)

    def _called(self, given: Call, event: Event, node: Node | None) -> bool:
        try:
            return given.function(event.row, RunView(self._stages, node, event)) is True
        except Exception as error:
            raise RunError(
                f"condition `{given}`", f"it raised {type(error).__name__}: {error}"
            ) from error


def _texts(given: Condition) -> list[tuple[str, Term]]:
    match given:
        case Text():
            return list(given.terms)
        case All() | Some():
            return [pair for item in given.items for pair in _texts(item)]
        case _:
            return []
