"""What a run has taken: a chain of nodes that runs with a common past share.

A run that branches hands its chain to all its branches, so an event is kept once however many
runs hold it, and goes with the last of them. What conditions ask of the past, sums for instance,
is kept in the nodes, so asking again costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from streambroker_core.properties import INT64_MAX, INT64_MIN

Row: TypeAlias = "Mapping[str, Any]"
Fold: TypeAlias = "Callable[[Any, Any], Any]"
_NOTHING = object()
"""No event of the stage was taken yet."""


class Event:
    """One event of a key.

    Attributes:
        seq: its place in the order of the key's events.
        time: event time, or the pinned clock in processing time, in microseconds.
        row: its fields.
        clock: the processing time in microseconds.
    """

    __slots__ = ("clock", "row", "seq", "time")

    def __init__(self, seq: int, time: int, row: Row, clock: int = 0) -> None:
        self.seq = seq
        self.time = time
        self.row = row
        self.clock = clock

    def __repr__(self) -> str:
        return f"Event({self.seq}, {self.time}, {dict(self.row)})"


class Node:
    """An event that a run took, for which stage, and what it took before."""

    __slots__ = ("before", "event", "memo", "stage")

    def __init__(self, event: Event, stage: int, before: Node | None) -> None:
        self.event = event
        self.stage = stage
        self.before = before
        self.memo: dict[Term, Any] = {}


@dataclass(frozen=True, slots=True)
class Term:
    """A question about the past of a run.

    Attributes:
        function: count, sum, avg, min, max, first, last, previous, timestamp, processing_time.
        stage: the stage asked about; None for previous and the times.
        field: the field asked for; None for count and the times.
    """

    function: str
    stage: str | None = None
    field: str | None = None


def chain(node: Node | None) -> list[Node]:
    """Return the nodes from the first event taken to the last."""
    nodes: list[Node] = []
    while node is not None:
        nodes.append(node)
        node = node.before
    nodes.reverse()
    return nodes


def ask(term: Term, node: Node | None, stages: frozenset[int], event: Event) -> Any:
    """Return the answer to a term; None for unknown.

    Args:
        term: the question.
        node: the last node of the run; None before it has begun.
        stages: the numbers of the term's stage.
        event: the event that is being tested.
    """
    if term.function == "timestamp":
        return event.time
    if term.function == "processing_time":
        return event.clock
    if term.function == "previous":
        return None if node is None else node.event.row.get(term.field)  # type: ignore[arg-type]
    if term.function == "avg":
        total = _folded(Term("sum", term.stage, term.field), node, stages)
        count = _folded(Term("values", term.stage, term.field), node, stages)
        return total / count if count and total is not None else None
    answer = _folded(term, node, stages)
    return None if answer is _NOTHING else answer


def _folded(term: Term, node: Node | None, stages: frozenset[int]) -> Any:
    """Fold over the events of a stage, from the last node on that knows the answer."""
    waiting: list[Node] = []
    step, value = _FOLDS[term.function]
    while node is not None:
        if term in node.memo:
            value = node.memo[term]
            break
        waiting.append(node)
        node = node.before
    for each in reversed(waiting):
        if each.stage in stages:
            value = step(value, None if term.field is None else each.event.row.get(term.field))
        each.memo[term] = value
    return value


def _add(total: Any, value: Any) -> Any:
    if value is None or total is None:
        return total
    if type(value) not in (int, float):
        return None
    added = total + value
    return None if type(added) is int and not INT64_MIN <= added <= INT64_MAX else added


def _least(least: Any, value: Any) -> Any:
    if value is None or not _comparable(least, value):
        return least
    return value if least is None or value < least else least


def _greatest(greatest: Any, value: Any) -> Any:
    if value is None or not _comparable(greatest, value):
        return greatest
    return value if greatest is None or value > greatest else greatest


def _comparable(one: Any, other: Any) -> bool:
    if type(other) not in (int, float, str):
        return False
    return one is None or isinstance(one, str) == isinstance(other, str)


_FOLDS: dict[str, tuple[Fold, Any]] = {
    "count": (lambda count, value: count + 1, 0),
    "values": (lambda count, value: count + (value is not None), 0),
    "sum": (_add, 0),
    "min": (_least, None),
    "max": (_greatest, None),
    "last": (lambda last, value: value, None),
    "first": (lambda first, value: value if first is _NOTHING else first, _NOTHING),
}
