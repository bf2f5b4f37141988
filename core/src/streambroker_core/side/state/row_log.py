"""Append-only log of one bucket's rows, stored in blobs.

Each window appends one *chunk*. Chunks of similar size are merged, so there are few of them and a
row is rewritten only rarely.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from streambroker_core.control.operators.operator import Blobs, Changes
from streambroker_core.side.state.column_codec import pack, unpack
from streambroker_core.side.state.pages import min_present, min_values

_NUMBERS = (pa.int64(),) * 6


@dataclass(slots=True)
class _Chunk:
    number: int
    rows: int
    size: int
    minima: list[int | None]
    columns: list[pa.Array] | None = None
    changed: bool = False


class RowLog:
    """Rows in arrival order, stored in the blobs that begin with a name."""

    def __init__(
        self,
        name: str,
        types: tuple[pa.DataType, ...],
        blobs: Blobs | None = None,
        *,
        min_fields: tuple[str, ...] = (),
    ) -> None:
        """Restore the rows.

        Args:
            name: name of the directory blob; chunks are ``<name>/<number>``.
            types: types of the columns.
            blobs: the bucket's state; None for none.
            min_fields: up to two fields of the last column, a struct, whose least values are
                tracked.
        """
        self.name, self.types = name, types
        self._blobs = blobs if blobs is not None else {}
        self._min_fields = min_fields
        self._chunks: list[_Chunk] = []
        self._whole: list[pa.Array] | None = None
        self._removed: list[int] = []
        self._next, self._changed = 0, False
        if (root := self._blobs.get(name)) is not None:
            columns = unpack({name: root}, name, _NUMBERS)
            for self._next, number, rows, size, *low in zip(
                *(column.to_pylist() for column in columns), strict=True
            ):
                self._chunks.append(_Chunk(number, rows, size, low))

    @classmethod
    def from_columns(cls, *columns: pa.Array) -> RowLog:
        """Return a log without state."""
        log = cls("t", tuple(column.type for column in columns))
        log.add(*columns)
        return log

    def __len__(self) -> int:
        return sum(chunk.rows for chunk in self._chunks)

    @property
    def max_count(self) -> int:
        """The number of rows."""
        return len(self)

    @property
    def size(self) -> int:
        """Bytes in Arrow."""
        return sum(chunk.size for chunk in self._chunks)

    def min_value(self, number: int) -> int | None:
        """Return the least value of a tracked field; None if there is none."""
        return min_present(chunk.minima[number] for chunk in self._chunks)

    def add(self, *columns: pa.Array) -> None:
        """Append rows."""
        if len(columns[0]):
            self._chunks.append(self._make_chunk(list(columns)))

    def read_all(self) -> list[pa.Array]:
        """Return the columns of all rows."""
        if not self._chunks:
            return [pa.array([], type_) for type_ in self.types]
        if len(self._chunks) == 1:
            return self._load(self._chunks[0])
        if self._whole is None:
            loaded = [self._load(chunk) for chunk in self._chunks]
            self._whole = [pa.concat_arrays(list(parts)) for parts in zip(*loaded, strict=True)]
        return self._whole

    def clear(self) -> None:
        """Remove all rows."""
        self._removed += [old.number for old in self._chunks]
        self._chunks, self._whole, self._changed = [], None, True

    def pop_all(self) -> list[pa.Array]:
        """Remove all rows and return their columns."""
        columns = self.read_all()
        self.clear()
        return columns

    def changes(self) -> Changes:
        """Return the blobs to write; None marks a removed blob."""
        self._merge_chunks()
        out: Changes = {
            f"{self.name}/{number}": None
            for number in self._removed
            if f"{self.name}/{number}" in self._blobs
        }
        for chunk in self._chunks:
            if chunk.changed and chunk.columns is not None:
                out[f"{self.name}/{chunk.number}"] = pack(*chunk.columns)
        if self._chunks and (out or self._changed):
            out[self.name] = self._write()
        elif not self._chunks and self.name in self._blobs:
            out[self.name] = None
        return out

    def _merge_chunks(self) -> None:
        """Merge the last two chunks while the last has at least half the rows of the other."""
        while len(self._chunks) > 1 and 2 * self._chunks[-1].rows >= self._chunks[-2].rows:
            newest, other = self._chunks.pop(), self._chunks.pop()
            both = zip(self._load(other), self._load(newest), strict=True)
            self._removed += [newest.number, other.number]
            self._chunks.append(self._make_chunk([pa.concat_arrays(pair) for pair in both]))

    def _make_chunk(self, columns: list[pa.Array]) -> _Chunk:
        lows: list[int | None] = [None, None]
        if self._min_fields:
            lows[: len(self._min_fields)] = min_values(columns[-1], self._min_fields)
        size = sum(column.nbytes for column in columns)
        chunk = _Chunk(self._next, len(columns[0]), size, lows, columns, changed=True)
        self._next += 1
        self._whole, self._changed = None, True
        return chunk

    def _load(self, chunk: _Chunk) -> list[pa.Array]:
        if chunk.columns is None:
            chunk.columns = unpack(self._blobs, f"{self.name}/{chunk.number}", self.types)
        return chunk.columns

    def _write(self) -> bytes:
        rows = [(self._next, c.number, c.rows, c.size, *c.minima) for c in self._chunks]
        columns = [list(column) for column in zip(*rows, strict=True)]
        return pack(*(pa.array(column, pa.int64()) for column in columns))
