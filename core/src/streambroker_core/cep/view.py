"""Rows as rules see them: events, made of the rows that some rule has to see, and keys."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.cep.history import Event
from streambroker_core.cep.keystore import place_of


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

    def events(self, rows: list[int]) -> list[Event]:
        """Return rows as events, the same ones for all rules."""
        known = self._events
        new = [row for row in rows if row not in known] if known else rows
        if new:
            taken = self.batch.take(pa.array(new, pa.int64())).to_pylist()
            first, times, clock = self.first, self.times, self.clock
            for row, fields in zip(new, taken, strict=True):
                known[row] = Event(first + row, times[row], fields, clock)
        return [known[row] for row in rows]


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
