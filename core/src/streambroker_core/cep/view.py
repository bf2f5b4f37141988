"""Rows as rules see them: events, made when a rule looks at one, and the order within each key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.cep.history import Event
from streambroker_core.cep.keystore import place_of


class LazyRow(Mapping[str, Any]):
    """A row of a batch, read when it is first looked at."""

    __slots__ = ("_batch", "_place", "_values")

    def __init__(self, batch: pa.RecordBatch, place: int) -> None:
        self._batch, self._place = batch, place
        self._values: dict[str, Any] | None = None

    def _read(self) -> dict[str, Any]:
        if self._values is None:
            columns = zip(self._batch.schema.names, self._batch.columns, strict=True)
            self._values = {name: column[self._place].as_py() for name, column in columns}
            self._batch = None
        return self._values

    def __getitem__(self, name: str) -> Any:
        return self._read()[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field, or the default."""
        return self._read().get(name, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def __repr__(self) -> str:
        return repr(self._read())


class Rows:
    """Rows in the order in which they are to be seen.

    Attributes:
        batch: the rows.
        times: their event times, or the clock, in microseconds.
        arrived: the windows in which they came.
        first: number of the first row; the others follow.
        clock: the pinned clock of the window.
    """

    __slots__ = ("_events", "arrived", "batch", "clock", "first", "times")

    def __init__(
        self, batch: pa.RecordBatch, times: list[int], arrived: list[int], first: int, clock: int
    ) -> None:
        self.batch, self.times, self.arrived = batch, times, arrived
        self.first, self.clock = first, clock
        self._events: dict[int, Event] = {}

    def event(self, row: int) -> Event:
        """Return a row as an event, the same one for all rules."""
        event = self._events.get(row)
        if event is None:
            event = Event(self.first + row, self.times[row], LazyRow(self.batch, row), self.clock)
            self._events[row] = event
        return event


class _Order(NamedTuple):
    """Rows by key: `rows` in the order of keys, then of rows; where each row and key is in it."""

    rows: Any
    place_in: Any
    codes: Any
    ends: list[int]
    places: list[bytes]


class View:
    """Rows by the key of some columns.

    Args:
        rows: the rows.
        columns: those of the key; none for one key for all.
    """

    def __init__(self, rows: Rows, columns: tuple[str, ...]) -> None:
        self.rows, self._columns = rows, columns
        self._cache: dict[Any, bytes] = {}
        self._made: _Order | None = None

    def places(self, rows: list[int]) -> list[bytes]:
        """Return the keys of some rows."""
        if not self._columns:
            return [place_of((), ())] * len(rows)
        indices = pa.array(rows, pa.int64())
        columns = [self._column(name).take(indices).to_pylist() for name in self._columns]
        values: list[Any] = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        single, cache, places = len(columns) == 1, self._cache, []
        for value in values:
            place = cache.get(value) if value == value else None
            if place is None:
                place = place_of(self._columns, (value,) if single else value)
                cache[value] = place
            places.append(place)
        return places

    def _column(self, name: str) -> Any:
        return self.rows.batch.column(self.rows.batch.schema.get_field_index(name))

    def order(self) -> _Order:
        """Return all rows by key; keys in the order of their first rows."""
        if self._made is None:
            self._made = self._ordered()
        return self._made

    def _ordered(self) -> _Order:
        count = self.rows.batch.num_rows
        if len(self._columns) == 1:
            encoded = self._column(self._columns[0]).dictionary_encode("encode")
            codes, values = encoded.indices, encoded.dictionary.to_pylist()
            places = [place_of(self._columns, (value,)) for value in values]
        else:
            found: dict[bytes, int] = {}
            numbers = [
                found.setdefault(place, len(found)) for place in self.places(list(range(count)))
            ]
            codes, places = pa.array(numbers, pa.int32()), list(found)
        rows = pc.sort_indices(codes)
        counts = pc.value_counts(codes.take(rows))
        ends = pc.cumulative_sum(counts.field("counts")).to_pylist()
        return _Order(rows, pc.sort_indices(rows), codes, ends, places)
