"""Rows as rules see them: events, made of the rows that a rule takes notice of, and keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.cep.engine.condition_masks import Hits
from streambroker_core.cep.engine.key_columns import encode_columns, key_columns
from streambroker_core.cep.engine.key_store import encode_key
from streambroker_core.cep.pattern.key_selectors import Selector
from streambroker_core.cep.pattern.match_buffer import Event, load_fields

_NOT_READ = object()
_LETTERS: Mapping[pa.DataType, Literal["i", "q", "Q"]] = {
    pa.int32(): "i",
    pa.int64(): "q",
    pa.uint64(): "Q",
}

_SINCE = {
    kind: pa.scalar(0, pa.int64()).cast(kind).as_py()
    for kind in (pa.timestamp("us"), pa.timestamp("us", "UTC"))
}
"""The instants from which microseconds are counted, as Arrow gives them."""


class OrderedRows:
    """Rows in the order in which they are to be seen.

    Attributes:
        batch: the rows.
        times: their event times, or the clock, in microseconds.
        arrival_windows: the windows in which they came.
        seqs: their numbers.
        clock: the pinned clock of the window.
        key_bytes: their keys as bytes, where they are copies made for one key; else None.
    """

    __slots__ = (
        "_events", "_values", "arrival_windows", "batch", "clock", "key_bytes", "seqs", "times",
    )  # fmt: skip

    def __init__(
        self,
        batch: pa.RecordBatch,
        times: pa.Array,
        arrival_windows: pa.Array,
        seqs: pa.Array,
        clock: int,
        *,
        key_bytes: pa.Array | None = None,
        events: dict[int, Event] | None = None,
    ) -> None:
        self.batch, self.times, self.arrival_windows, self.seqs = (
            batch,
            times,
            arrival_windows,
            seqs,
        )
        self.clock, self.key_bytes = clock, key_bytes
        self._events: dict[int, Event] = {} if events is None else events
        self._values: dict[str, dict[int, Any]] = {}

    def filter(self, chosen: pa.BooleanArray) -> OrderedRows:
        """Return some of the rows; their events are the same ones."""
        return OrderedRows(
            self.batch.filter(chosen),
            self.times.filter(chosen),
            self.arrival_windows.filter(chosen),
            self.seqs.filter(chosen),
            self.clock,
            key_bytes=None if self.key_bytes is None else self.key_bytes.filter(chosen),
            events=self._events,
        )

    def event_at(self, row: int, seq: int, time: int) -> Event:
        """Return a row as an event, the same one for all rules."""
        event = self._events.get(seq)
        if event is None:
            event = self._events[seq] = Event(seq, time, None, self.clock, self, row)
        return event

    def load_events(self) -> None:
        """Read all fields of the rows that are events."""
        load_fields(self._events.values())

    def fields(self, rows: list[int]) -> list[dict[str, Any]]:
        """Return all fields of rows."""
        taken, names = self.batch.take(pa.array(rows, pa.int64())), self.batch.schema.names
        columns = [to_python_values(column) for column in taken.columns]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def value(self, name: str, row: int) -> Any:
        """Return a field of a row; None if there is no such column."""
        values = self._values.setdefault(name, {})
        value = values.get(row, _NOT_READ)
        if value is _NOT_READ:
            at = self.batch.schema.get_field_index(name)
            value = values[row] = None if at < 0 else self.batch.column(at)[row].as_py()
        return value

    def load_columns(self, chosen: SelectedRows, names: frozenset[str], *, whole: bool) -> None:
        """Read what will be asked of rows in one go: columns, or all of them."""
        if whole:
            places = zip(chosen.indices, chosen.seqs, chosen.times, strict=True)
            load_fields([self.event_at(place, seq, time) for place, seq, time in places])
            return
        for name in names:
            at = self.batch.schema.get_field_index(name)
            if at >= 0:
                found = to_python_values(self.batch.column(at).take(chosen.rows))
                self._values.setdefault(name, {}).update(zip(chosen.indices, found, strict=True))


def to_integers(column: pa.Array) -> list[int]:
    """Return integers, of which none is null, without the object that Arrow makes of each."""
    letter = _LETTERS.get(column.type)
    if letter is None or column.null_count or not len(column):
        read: list[int] = column.to_pylist()
        return read
    low = column.offset
    return memoryview(column.buffers()[1]).cast(letter)[low : low + len(column)].tolist()


def to_python_values(column: pa.Array) -> list[Any]:
    """Return what ``to_pylist`` does; instants of UTC or of no zone in a sixth of its time."""
    since = _SINCE.get(column.type)
    if since is not None:
        numbers = column.view(pa.int64()).to_pylist()
        return [None if micros is None else since + timedelta(0, 0, micros) for micros in numbers]
    read: list[Any] = column.to_pylist()
    return read


class KeyCodes:
    """The keys of some rows, of which a rule takes notice of few: made when they are asked for.

    Attributes:
        codes: a number for each row, the same for rows of one key.
    """

    __slots__ = ("_key_bytes", "_selector", "_values", "codes")

    def __init__(self, rows: OrderedRows, selector: Selector, at: pa.Array | None = None) -> None:
        """Number the keys.

        Args:
            rows: the rows.
            selector: what the key is made of: columns or expressions; none for one key for all.
            at: of these rows only, whose keys are made of columns; None for all.
        """
        self._selector: Selector | None = selector
        self._key_bytes: dict[int, bytes] = {}
        if rows.key_bytes is not None:
            self._selector = None
            columns = [rows.key_bytes if at is None else rows.key_bytes.take(at)]
        elif at is None:
            columns = key_columns(rows.batch, selector)
        else:
            columns = key_columns(
                rows.batch.select(list(dict.fromkeys(selector))).take(at), selector
            )
        if len(columns) == 1:
            encoded = columns[0].dictionary_encode("encode")
            self.codes, self._values = encoded.indices, encoded.dictionary
        elif not columns:
            self.codes = pa.repeat(pa.scalar(0, pa.int32()), rows.batch.num_rows)
            self._values = [()]
        else:
            self.codes, self._values = encode_columns(columns)

    def load(self, codes: list[int]) -> None:
        """Make the keys with these numbers in one go, where they are of one column."""
        if not isinstance(self._values, pa.Array):
            return
        new = [code for code in dict.fromkeys(codes) if code not in self._key_bytes]
        found = self._values.take(pa.array(new, pa.int64())).to_pylist()
        if self._selector is not None:
            found = [encode_key(self._selector, (value,)) for value in found]
        self._key_bytes.update(zip(new, found, strict=True))

    def key_at(self, code: int) -> bytes:
        """Return the key with a number, as `KeyStore` has it."""
        place = self._key_bytes.get(code)
        if place is None and isinstance(self._values, pa.Array):
            self.load([code])
            place = self._key_bytes[code]
        elif place is None:
            place = self._key_bytes[code] = encode_key(self._selector or (), self._values[code])
        return place


class SelectedRows(NamedTuple):
    """Some rows: where they are in the batch, their numbers, times and keys.

    Attributes:
        rows: as in `indices`.
        keys: what the codes stand for.
    """

    rows: pa.Array
    indices: list[int]
    seqs: list[int]
    times: list[int]
    codes: list[int]
    keys: KeyCodes


class RowView:
    """Rows by a key.

    Args:
        rows: the rows.
        selector: what the key is made of: columns or expressions; none for one key for all.
        read_all: it will be asked for rows so often that all are read at once.
    """

    def __init__(self, rows: OrderedRows, selector: Selector, *, read_all: bool = False) -> None:
        self.rows, self._selector, self._read_all = rows, selector, read_all
        self._lists: tuple[list[int], ...] | None = None
        self._keys: KeyCodes | None = None
        self._order: tuple[pa.Array, pa.Array] | None = None
        columns = set(rows.batch.schema.names)
        # An expression is asked of all rows at once, so that its values are of one type.
        by_part = rows.key_bytes is not None or (selector and columns.issuperset(selector))
        self._remaining = rows.batch.num_rows // 2 if by_part and not read_all else 0
        """So many rows may have keys of their own before those of all are cheaper."""

    @property
    def keys(self) -> KeyCodes:
        """The keys of all rows."""
        if self._keys is None:
            self._keys = KeyCodes(self.rows, self._selector)
        return self._keys

    def select(self, rows: pa.Array) -> SelectedRows:
        """Return some of the rows."""
        places = to_integers(rows)
        if self._read_all:
            if self._lists is None:
                columns = self.rows.seqs, self.rows.times, self.keys.codes
                self._lists = tuple(to_integers(column) for column in columns)
            seqs, times, codes = ([each[place] for place in places] for each in self._lists)
            return SelectedRows(rows, places, seqs, times, codes, self.keys)
        if self._keys is None and len(places) < self._remaining:
            self._remaining -= len(places)
            keys = KeyCodes(self.rows, self._selector, rows)
            codes = to_integers(keys.codes)
        else:
            keys = self.keys
            codes = to_integers(keys.codes.take(rows))
        seqs, times = (to_integers(each.take(rows)) for each in (self.rows.seqs, self.rows.times))
        return SelectedRows(rows, places, seqs, times, codes, keys)

    def order_by_key(self) -> tuple[pa.Array, pa.Array]:
        """Return all rows, those of one key together, and where the rows of a key begin."""
        if self._order is None:
            rows = pc.sort_indices(self.keys.codes)
            codes = self.keys.codes.take(rows)
            changes = pc.not_equal(codes.slice(1), codes.slice(0, max(0, len(codes) - 1)))
            first = pa.array([True] * min(1, len(codes)), pa.bool_())
            self._order = rows, pa.concat_arrays([first, changes])
        return self._order


class GapRows:
    """Rows key by key: those that fulfil some condition, and the first row of each gap between.

    What is before the first of them and behind the last counts as a gap.

    Attributes:
        chosen: the rows.
        bits: what holds of each; 0 of those in gaps.
    """

    def __init__(self, view: RowView, hits: Hits) -> None:
        rows, first = view.order_by_key()
        found = pc.index_in(rows, value_set=pc.cast(hits.rows, rows.type))
        hit = pc.is_valid(found)
        behind = pa.concat_arrays(
            [pa.array([False] * min(1, len(hit)), pa.bool_()), hit.slice(0, max(0, len(hit) - 1))]
        )
        at = pc.indices_nonzero(pc.or_(pc.or_(hit, first), behind))
        self.chosen = view.select(rows.take(at))
        self.bits = [0 if each is None else hits.bits[each] for each in found.take(at).to_pylist()]

    def iter_keys(self) -> Iterator[tuple[int, int, int]]:
        """Yield the number of each key, and from and up to which place its rows are chosen."""
        codes = self.chosen.codes
        low = 0
        for at in range(1, len(codes) + 1):
            if at == len(codes) or codes[at] != codes[low]:
                yield codes[low], low, at
                low = at
