"""Rows as rules see them: ordered rows, their keys, and events of the rows that a rule needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.cep.engine.condition_masks import Hits
from streambroker_core.cep.engine.key_columns import encode_columns, key_columns
from streambroker_core.cep.engine.key_store import KeyRuns, encode_key
from streambroker_core.cep.nfa.condition_bits import ConditionBits
from streambroker_core.cep.pattern.key_selectors import Selector
from streambroker_core.cep.pattern.match_buffer import Event, RunNode, load_fields
from streambroker_core.expression.evaluate import Row

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
"""The epoch of each timestamp type, as Arrow returns it."""


class OrderedRows:
    """Rows in processing order.

    Attributes:
        times: event times, or the pinned clock, in microseconds.
        arrival_windows: window in which each row arrived.
        seqs: sequence numbers.
        clock: the pinned clock of the window.
        key_bytes: encoded keys if the rows are copies made for one key; else None.
    """

    __slots__ = (
        "_events", "_nodes", "_values", "arrival_windows", "batch", "clock", "key_bytes",
        "seqs", "times",
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
        self._nodes: dict[tuple[str, ...], dict[tuple[int, ...], RunNode]] = {}
        self._values: dict[str, dict[int, Any]] = {}

    def filter(self, chosen: pa.BooleanArray) -> OrderedRows:
        """Return some of the rows; they share their events with these."""
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
        """Return a row as an event; all rules share it."""
        event = self._events.get(seq)
        if event is None:
            event = self._events[seq] = Event(seq, time, None, self.clock, self, row)
        return event

    def nodes_of(self, stages: tuple[str, ...]) -> dict[tuple[int, ...], RunNode]:
        """Return the nodes that all rules with these stages share; see `LinearMatcher`."""
        return self._nodes.setdefault(stages, {})

    def load_events(self) -> None:
        """Read all fields of the rows that are events."""
        load_fields(self._events.values())

    def fields(self, rows: list[int]) -> list[Row]:
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

    def load_columns(self, chosen: SelectedRows, conditions: ConditionBits) -> None:
        """Read the columns that conditions need, of the selected rows at once."""
        if conditions.needs_whole_rows:
            positions = zip(chosen.indices, chosen.seqs, chosen.times, strict=True)
            load_fields([self.event_at(index, seq, time) for index, seq, time in positions])
            return
        for name in conditions.needed_fields:
            at = self.batch.schema.get_field_index(name)
            if at >= 0:
                values = to_python_values(self.batch.column(at).take(chosen.rows))
                self._values.setdefault(name, {}).update(zip(chosen.indices, values, strict=True))


def to_integers(column: pa.Array) -> list[int]:
    """Convert a column of integers; without nulls it creates no Arrow object per value."""
    letter = _LETTERS.get(column.type)
    if letter is None or column.null_count or not len(column):
        values: list[int] = column.to_pylist()
        return values
    low = column.offset
    return memoryview(column.buffers()[1]).cast(letter)[low : low + len(column)].tolist()


def to_python_values(column: pa.Array) -> list[Any]:
    """Return the result of ``to_pylist``, six times as fast for timestamps of UTC or no zone."""
    epoch = _SINCE.get(column.type)
    if epoch is not None:
        numbers = column.view(pa.int64()).to_pylist()
        return [None if micros is None else epoch + timedelta(0, 0, micros) for micros in numbers]
    values: list[Any] = column.to_pylist()
    return values


class KeyCodes:
    """Keys of rows as a number per row; key bytes are computed on demand, as rules need few.

    Attributes:
        runs: cache by key number: the runs of a key, which all rules look up.
    """

    __slots__ = ("_key_bytes", "_selector", "_values", "codes", "runs")

    def __init__(self, rows: OrderedRows, selector: Selector, at: pa.Array | None = None) -> None:
        """Number the keys of all rows, or of the rows `at`, whose key consists of columns."""
        self._selector: Selector | None = selector
        self._key_bytes: dict[int, bytes] = {}
        self.runs: dict[int, KeyRuns] = {}
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
        """Encode the keys with these numbers at once, if the key has a single column."""
        if not isinstance(self._values, pa.Array):
            return
        new = [code for code in dict.fromkeys(codes) if code not in self._key_bytes]
        values = self._values.take(pa.array(new, pa.int64())).to_pylist()
        if self._selector is not None:
            values = [encode_key(self._selector, (value,)) for value in values]
        self._key_bytes.update(zip(new, values, strict=True))

    def key_at(self, code: int) -> bytes:
        """Return the key bytes of a key number, as `KeyStore` uses them."""
        key_bytes = self._key_bytes.get(code)
        if key_bytes is None and isinstance(self._values, pa.Array):
            self.load([code])
            key_bytes = self._key_bytes[code]
        elif key_bytes is None:
            key_bytes = self._key_bytes[code] = encode_key(self._selector or (), self._values[code])
        return key_bytes


class SelectedRows(NamedTuple):
    """Some rows: their indices in the batch (twice), sequence numbers, times and key numbers."""

    rows: pa.Array
    indices: list[int]
    seqs: list[int]
    times: list[int]
    codes: list[int]
    keys: KeyCodes


class RowView:
    """Rows by key.

    With `read_all` all rows are read at once, because many selections follow.
    """

    def __init__(self, rows: OrderedRows, selector: Selector, *, read_all: bool = False) -> None:
        self.rows, self._selector, self._read_all = rows, selector, read_all
        self._lists: tuple[list[int], ...] | None = None
        self._keys: KeyCodes | None = None
        self._order: tuple[pa.Array, pa.Array] | None = None
        columns = set(rows.batch.schema.names)
        # Expressions are evaluated on all rows at once, so that their values have one type.
        by_selection = rows.key_bytes is not None or (selector and columns.issuperset(selector))
        self._remaining = rows.batch.num_rows // 2 if by_selection and not read_all else 0
        """Number of rows whose keys may be encoded alone before encoding all keys is cheaper."""

    @property
    def keys(self) -> KeyCodes:
        """Keys of all rows."""
        if self._keys is None:
            self._keys = KeyCodes(self.rows, self._selector)
        return self._keys

    def select(self, rows: pa.Array) -> SelectedRows:
        """Return some of the rows."""
        indices = to_integers(rows)
        if self._read_all:
            if self._lists is None:
                columns = self.rows.seqs, self.rows.times, self.keys.codes
                self._lists = tuple(to_integers(column) for column in columns)
            seqs, times, codes = ([each[index] for index in indices] for each in self._lists)
            return SelectedRows(rows, indices, seqs, times, codes, self.keys)
        if self._keys is None and len(indices) < self._remaining:
            self._remaining -= len(indices)
            keys = KeyCodes(self.rows, self._selector, rows)
            codes = to_integers(keys.codes)
        else:
            keys = self.keys
            codes = to_integers(keys.codes.take(rows))
        seqs, times = (to_integers(each.take(rows)) for each in (self.rows.seqs, self.rows.times))
        return SelectedRows(rows, indices, seqs, times, codes, keys)

    def order_by_key(self) -> tuple[pa.Array, pa.Array]:
        """Return all rows grouped by key, and a mask of the first row of each key."""
        if self._order is None:
            rows = pc.sort_indices(self.keys.codes)
            codes = self.keys.codes.take(rows)
            starts = pc.not_equal(codes.slice(1), codes.slice(0, max(0, len(codes) - 1)))
            first = pa.array([True] * min(1, len(codes)), pa.bool_())
            self._order = rows, pa.concat_arrays([first, starts])
        return self._order


class GapRows:
    """Rows by key: rows that fulfil a condition, and the first row of each gap between them.

    Rows before the first hit and after the last hit count as gaps. `bits` has the condition bits of
    each row in `chosen`; 0 in gaps.
    """

    def __init__(self, view: RowView, hits: Hits) -> None:
        rows, first = view.order_by_key()
        positions = pc.index_in(rows, value_set=pc.cast(hits.rows, rows.type))
        hit = pc.is_valid(positions)
        after_hit = pa.concat_arrays(
            [pa.array([False] * min(1, len(hit)), pa.bool_()), hit.slice(0, max(0, len(hit) - 1))]
        )
        at = pc.indices_nonzero(pc.or_(pc.or_(hit, first), after_hit))
        self.chosen = view.select(rows.take(at))
        self.bits = [
            0 if each is None else hits.bits[each] for each in positions.take(at).to_pylist()
        ]

    def iter_keys(self) -> Iterator[tuple[int, int, int]]:
        """Yield the number of each key with the range of its rows in `chosen`, end exclusive."""
        codes = self.chosen.codes
        low = 0
        for end in range(1, len(codes) + 1):
            if end == len(codes) or codes[end] != codes[low]:
                yield codes[low], low, end
                low = end
