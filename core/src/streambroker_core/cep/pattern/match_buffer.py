"""Events that runs took, as linked nodes; runs with a common past share nodes.

A run that branches shares its chain with all branches. Each event is stored once, and is freed with
the last run that holds it. Nodes cache the values of terms such as sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

from streambroker_core.expression.evaluate import Row
from streambroker_core.model.properties import INT64_MAX, INT64_MIN

Fold: TypeAlias = "Callable[[Any, Any], Any]"
_NOTHING = object()
"""Marks that no event of the stage was taken yet."""


class FieldSource(Protocol):
    """Source of event fields that are not loaded yet."""

    def fields(self, rows: list[int]) -> list[Row]:
        """Return all fields of rows."""

    def value(self, name: str, row: int) -> Any:
        """Return a field of a row; None without it."""


class Event:
    """One event of a key; its fields are loaded on first use.

    Attributes:
        seq: sequence number in the order of the key's events.
        time: event time, or the pinned clock in processing time, in microseconds.
        clock: processing time in microseconds.
        text: cached JSON of its fields.
    """

    __slots__ = ("_row", "_source", "_source_row", "clock", "seq", "text", "time")

    def __init__(
        self,
        seq: int,
        time: int,
        row: Row | None,
        clock: int = 0,
        source: FieldSource | None = None,
        source_row: int = 0,
    ) -> None:
        """Create an event, with the fields in `row` or, if that is None, in a row of `source`."""
        self.seq = seq
        self.time = time
        self.clock = clock
        self.text: str | None = None
        self._row, self._source, self._source_row = row, source, source_row

    @property
    def row(self) -> Row:
        """All fields."""
        if self._row is None:
            load_fields([self])
        return self._row  # type: ignore[return-value]

    def get(self, name: str) -> Any:
        """Return a field; None without it."""
        if self._row is not None:
            return self._row.get(name)
        return self._source.value(name, self._source_row)  # type: ignore[union-attr]

    def __repr__(self) -> str:
        return f"Event({self.seq}, {self.time}, {dict(self.row)})"


def load_fields(events: Iterable[Event]) -> None:
    """Load the missing fields of events, one call per source."""
    missing: dict[int, list[Event]] = {}
    for event in events:
        if event._row is None:
            missing.setdefault(id(event._source), []).append(event)
    for source_events in missing.values():
        source = source_events[0]._source
        rows = source.fields([event._source_row for event in source_events])  # type: ignore[union-attr]
        for event, row in zip(source_events, rows, strict=True):
            event._row, event._source = row, None


class RunNode:
    """An event that a run took for a stage, linked to the node before it.

    Attributes:
        memo: cached values of terms by text; None without any.
        text: cached JSON of the events up to this node, without its end.
    """

    __slots__ = ("event", "memo", "previous", "stage", "text")

    def __init__(self, event: Event, stage: int, previous: RunNode | None) -> None:
        self.event = event
        self.stage = stage
        self.previous = previous
        self.memo: dict[str, Any] | None = None
        self.text: str | None = None


@dataclass(frozen=True, slots=True)
class Term:
    """Reference of a condition to the past of a run.

    Attributes:
        function: count, sum, avg, min, max, first, last, previous, timestamp, processing_time; part
            for a nested field of the tested event.
        stage: stage it refers to; None for previous, part and the times.
        field: field it reads, nested ones as a path with dots; None for count and the times.
        offset: how many events of the stage lie between the first or last one and the one it reads.
        tested: the tested event counts as the newest event of the stage.
    """

    function: str
    stage: str | None = None
    field: str | None = None
    offset: int = 0
    tested: bool = False


TermEvaluator: TypeAlias = "Callable[[RunNode | None, Event], Any]"
"""Evaluates a term for the last node of a run (None before it began) and the tested event."""


def list_chain(node: RunNode | None) -> list[RunNode]:
    """Return the nodes from the first event to the last."""
    nodes: list[RunNode] = []
    while node is not None:
        nodes.append(node)
        node = node.previous
    nodes.reverse()
    return nodes


def _get_nested(value: Any, path: list[str]) -> Any:
    """Return a nested field; None without it."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def make_evaluator(term: Term, stages: frozenset[int]) -> TermEvaluator:
    """Return the function that evaluates a term; it returns None for unknown.

    `stages` has the numbers of the term's stage.
    """
    if term.function == "timestamp":
        return lambda node, event: event.time
    if term.function == "processing_time":
        return lambda node, event: event.clock
    column, *path = (term.field or "").split(".")
    if term.function == "part":
        return lambda node, event: _get_nested(event.get(column), path)
    if term.function == "previous":
        return lambda node, event: (
            None if node is None else _get_nested(node.event.get(column), path)
        )
    if term.function == "avg":
        return _make_average(term, stages)
    if term.offset:
        return _make_nth(term, stages)
    fold = _make_fold(term, stages, *_FOLDS[term.function])

    def ask(node: RunNode | None, event: Event) -> Any:
        value = fold(node, event)
        return None if value is _NOTHING else value

    return ask


def _make_average(term: Term, stages: frozenset[int]) -> TermEvaluator:
    sum_of = _make_fold(replace(term, function="sum"), stages, *_FOLDS["sum"])
    count_of = _make_fold(replace(term, function="values"), stages, *_FOLDS["values"])

    def ask(node: RunNode | None, event: Event) -> Any:
        total, count = sum_of(node, event), count_of(node, event)
        return total / count if count and total is not None else None

    return ask


def _make_nth(term: Term, stages: frozenset[int]) -> TermEvaluator:
    """Return the function for an event at an offset; it folds the events up to the offset."""
    size, is_first = term.offset + 1, term.function == "first"

    def keep(values: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
        if not is_first:
            return (*values, value)[-size:]
        return values if len(values) == size else (*values, value)

    fold = _make_fold(term, stages, keep, ())

    def ask(node: RunNode | None, event: Event) -> Any:
        values = fold(node, event)
        return values[-1 if is_first else 0] if len(values) == size else None

    return ask


def _make_fold(term: Term, stages: frozenset[int], step: Fold, nothing: Any) -> TermEvaluator:
    """Return a function that folds over the events of a stage, starting at a cached value."""
    name, field = f"{term.function} {term.stage}.{term.field} {term.offset}", term.field
    column, *path = (field or "").split(".")

    def read(event: Event) -> Any:
        return None if field is None else _get_nested(event.get(column), path)

    def fold(node: RunNode | None, event: Event) -> Any:
        uncached: list[RunNode] = []
        value = nothing
        while node is not None:
            memo = node.memo
            if memo is not None and name in memo:
                value = memo[name]
                break
            uncached.append(node)
            node = node.previous
        for each in reversed(uncached):
            if each.stage in stages:
                value = step(value, read(each.event))
            if each.memo is None:
                each.memo = {}
            each.memo[name] = value
        return value

    return (lambda node, event: step(fold(node, event), read(event))) if term.tested else fold


def _add(total: Any, value: Any) -> Any:
    if value is None or total is None:
        return total
    if type(value) not in (int, float):
        return None
    added = total + value
    return None if type(added) is int and not INT64_MIN <= added <= INT64_MAX else added


def _least(least: Any, value: Any) -> Any:
    if value is None or not _is_comparable(least, value):
        return least
    return value if least is None or value < least else least


def _greatest(greatest: Any, value: Any) -> Any:
    if value is None or not _is_comparable(greatest, value):
        return greatest
    return value if greatest is None or value > greatest else greatest


def _is_comparable(left: Any, right: Any) -> bool:
    if type(right) not in (int, float, str):
        return False
    return left is None or isinstance(left, str) == isinstance(right, str)


_FOLDS: dict[str, tuple[Fold, Any]] = {
    "count": (lambda count, value: count + 1, 0),
    "values": (lambda count, value: count + (value is not None), 0),
    "sum": (_add, 0),
    "min": (_least, None),
    "max": (_greatest, None),
    "last": (lambda last, value: value, None),
    "first": (lambda first, value: value if first is _NOTHING else first, _NOTHING),
}
