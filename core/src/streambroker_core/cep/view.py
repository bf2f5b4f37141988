"""Rows as rules see them: events, made of the rows that a rule takes notice of, and keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.cep.history import Event, fill
from streambroker_core.cep.keys import coded, key_columns
from streambroker_core.cep.keystore import place_of
from streambroker_core.cep.masks import Hits
from streambroker_core.cep.selectors import Selector

_NOT_READ = object()
_LETTERS: Mapping[pa.DataType, Literal["i", "q", "Q"]] = {
    pa.int32(): "i",
    pa.int64(): "q",
    pa.uint64(): "Q",
}


class Rows:
    """Rows in the order in which they are to be seen.

    Attributes:
        batch: the rows.
        times: their event times, or the clock, in microseconds.
        arrived: the windows in which they came.
        seqs: their numbers.
        clock: the pinned clock of the window.
        places: their keys as bytes, where they are copies made for one key; else None.
    """

    __slots__ = (
        "_known", "_values", "arrived", "batch", "clock", "places", "seqs", "times",
    )  # fmt: skip

    def __init__(
        self,
        batch: pa.RecordBatch,
        times: pa.Array,
        arrived: pa.Array,
        seqs: pa.Array,
        clock: int,
        *,
        places: pa.Array | None = None,
        known: dict[int, Event] | None = None,
    ) -> None:
        self.batch, self.times, self.arrived, self.seqs = batch, times, arrived, seqs
        self.clock, self.places = clock, places
        self._known: dict[int, Event] = {} if known is None else known
        self._values: dict[str, dict[int, Any]] = {}

    def where(self, chosen: pa.BooleanArray) -> Rows:
        """Return some of the rows; their events are the same ones."""
        return Rows(
            self.batch.filter(chosen),
            self.times.filter(chosen),
            self.arrived.filter(chosen),
            self.seqs.filter(chosen),
            self.clock,
            places=None if self.places is None else self.places.filter(chosen),
            known=self._known,
        )

    def event(self, row: int, seq: int, time: int) -> Event:
        """Return a row as an event, the same one for all rules."""
        event = self._known.get(seq)
        if event is None:
            event = self._known[seq] = Event(seq, time, None, self.clock, self, row)
        return event

    def fill(self) -> None:
        """Read all fields of the rows that are events."""
        fill(self._known.values())

    def fields(self, places: list[int]) -> list[dict[str, Any]]:
        """Return all fields of rows."""
        taken, names = self.batch.take(pa.array(places, pa.int64())), self.batch.schema.names
        columns = [column.to_pylist() for column in taken.columns]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def value(self, name: str, place: int) -> Any:
        """Return a field of a row; None if there is no such column."""
        values = self._values.setdefault(name, {})
        value = values.get(place, _NOT_READ)
        if value is _NOT_READ:
            at = self.batch.schema.get_field_index(name)
            value = values[place] = None if at < 0 else self.batch.column(at)[place].as_py()
        return value

    def read(self, chosen: Chosen, names: frozenset[str], *, whole: bool) -> None:
        """Read what will be asked of rows in one go: columns, or all of them."""
        if whole:
            places = zip(chosen.places, chosen.seqs, chosen.times, strict=True)
            fill([self.event(place, seq, time) for place, seq, time in places])
            return
        for name in names:
            at = self.batch.schema.get_field_index(name)
            if at >= 0:
                values = self.batch.column(at).take(chosen.rows).to_pylist()
                self._values.setdefault(name, {}).update(zip(chosen.places, values, strict=True))


def integers(column: pa.Array) -> list[int]:
    """Return integers, of which none is null, without the object that Arrow makes of each."""
    letter = _LETTERS.get(column.type)
    if letter is None or column.null_count or not len(column):
        read: list[int] = column.to_pylist()
        return read
    low = column.offset
    return memoryview(column.buffers()[1]).cast(letter)[low : low + len(column)].tolist()


class Chosen(NamedTuple):
    """Some rows: where they are in the batch, their numbers, times and keys.

    Attributes:
        rows: as in `places`.
    """

    rows: pa.Array
    places: list[int]
    seqs: list[int]
    times: list[int]
    codes: list[int]


class View:
    """Rows by a key.

    Args:
        rows: the rows.
        selector: what the key is made of: columns or expressions; none for one key for all.
        many: it will be asked for rows so often that all are read at once.
    """

    def __init__(self, rows: Rows, selector: Selector, *, many: bool = False) -> None:
        self.rows, self._selector, self._many = rows, selector, many
        self._lists: tuple[list[int], list[int], list[int]] | None = None
        self._made: tuple[pa.Array, Any] | None = None
        self._places: dict[int, bytes] = {}
        self._order: tuple[pa.Array, pa.Array] | None = None

    @property
    def codes(self) -> pa.Array:
        """A number for each row, the same for rows of one key."""
        return self._coded()[0]

    def at(self, rows: pa.Array) -> Chosen:
        """Return some of the rows."""
        columns = (self.rows.seqs, self.rows.times, self.codes)
        places = integers(rows)
        if not self._many:
            return Chosen(rows, places, *(integers(column.take(rows)) for column in columns))
        if self._lists is None:
            seqs, times, codes = (integers(column) for column in columns)
            self._lists = seqs, times, codes
        return Chosen(rows, places, *([each[place] for place in places] for each in self._lists))

    def read_places(self, codes: list[int]) -> None:
        """Make the keys with these numbers in one go, where they are of one column."""
        values = self._coded()[1]
        if not isinstance(values, pa.Array):
            return
        new = [code for code in dict.fromkeys(codes) if code not in self._places]
        found = values.take(pa.array(new, pa.int64())).to_pylist()
        if self.rows.places is None:
            found = [place_of(self._selector, (value,)) for value in found]
        self._places.update(zip(new, found, strict=True))

    def place(self, code: int) -> bytes:
        """Return the key with a number."""
        place = self._places.get(code)
        if place is None:
            value = self._coded()[1][code]
            if isinstance(value, pa.Scalar):
                value = value.as_py() if self.rows.places is not None else (value.as_py(),)
            if self.rows.places is None:
                value = place_of(self._selector, value)
            place = self._places[code] = value
        return place

    def _coded(self) -> tuple[pa.Array, Any]:
        if self._made is None:
            self._made = self._code()
        return self._made

    def _code(self) -> tuple[pa.Array, Any]:
        """Return the codes of the rows, and the values or the bytes of each code.

        Those of one column stay Arrow's: of many keys a rule takes notice of few.
        """
        if self.rows.places is not None:
            encoded = self.rows.places.dictionary_encode()
            return encoded.indices, encoded.dictionary
        columns = key_columns(self.rows.batch, self._selector)
        if len(columns) == 1:
            encoded = columns[0].dictionary_encode("encode")
            return encoded.indices, encoded.dictionary
        if not columns:
            return pa.repeat(pa.scalar(0, pa.int32()), self.rows.batch.num_rows), [()]
        return coded(columns)

    def order(self) -> tuple[pa.Array, pa.Array]:
        """Return all rows, those of one key together, and where the rows of a key begin."""
        if self._order is None:
            rows = pc.sort_indices(self.codes)
            codes = self.codes.take(rows)
            changes = pc.not_equal(codes.slice(1), codes.slice(0, max(0, len(codes) - 1)))
            first = pa.array([True] * min(1, len(codes)), pa.bool_())
            self._order = rows, pa.concat_arrays([first, changes])
        return self._order


class Gaps:
    """Rows key by key: those that fulfil some condition, and the first row of each gap between.

    What is before the first of them and behind the last counts as a gap.

    Attributes:
        chosen: the rows.
        bits: what holds of each; 0 of those in gaps.
    """

    def __init__(self, view: View, hits: Hits) -> None:
        rows, first = view.order()
        found = pc.index_in(rows, value_set=pc.cast(hits.rows, rows.type))
        hit = pc.is_valid(found)
        behind = pa.concat_arrays(
            [pa.array([False] * min(1, len(hit)), pa.bool_()), hit.slice(0, max(0, len(hit) - 1))]
        )
        at = pc.indices_nonzero(pc.or_(pc.or_(hit, first), behind))
        self.chosen = view.at(rows.take(at))
        self.bits = [0 if each is None else hits.bits[each] for each in found.take(at).to_pylist()]

    def by_key(self) -> Iterator[tuple[int, int, int]]:
        """Yield the number of each key, and from and up to which place its rows are chosen."""
        codes = self.chosen.codes
        low = 0
        for at in range(1, len(codes) + 1):
            if at == len(codes) or codes[at] != codes[low]:
                yield codes[low], low, at
                low = at
