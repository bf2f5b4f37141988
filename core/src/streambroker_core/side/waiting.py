"""Main rows that wait, each for one thing: a side window, or a key in it.

A row is kept once for each main window in which it waits, under the first thing it waits for.
When that is there it is taken out and looked at again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.control.operator import Blobs, Changes
from streambroker_core.side.leaves import Leaves, least
from streambroker_core.side.levels import Level, flat, lists_of_rows
from streambroker_core.side.rows import Rows
from streambroker_core.side.shape import SINCE, TIME, Shape

GROUP = -1
"""Stands for a side input where rows wait for the end of their own main window."""


@dataclass(frozen=True, slots=True)
class Stall:
    """What holds rows back.

    Attributes:
        input: the side input they wait for, by its number; see ``GROUP``.
        window: start of its window in microseconds; see ``windows.EVER``.
        by_key: whether they wait for keys, not for the window.
        rows: how many (row, window) pairs.
        size: their bytes in Arrow.
        since: pinned time at which the first began to wait, in microseconds.
        low: least event time among them; None if they have none.
    """

    input: int
    window: int
    by_key: bool
    rows: int
    size: int
    since: int | None
    low: int | None


class Waiting:
    """All rows that wait in a bucket.

    Attributes:
        schema: columns of (row, window) pairs.
    """

    def __init__(self, shape: Shape, blobs: Blobs, told: list[list[Any]]) -> None:
        """Take them up; ``told`` is what :meth:`tell` returned."""
        self.schema, self._key_types, self._blobs = shape.pairs, shape.key_types, blobs
        self._type = pa.struct(list(self.schema))
        self._whole: dict[tuple[int, int], Rows] = {}
        self._by_key: dict[tuple[int, int], Leaves] = {}
        self._begun: set[tuple[int, int]] = {(number, start) for number, start, _ in told}
        for number, start, by_key in told:
            if by_key:
                self._leaves(number, start)
            else:
                self._rows(number, start)

    def put(self, number: int, start: int, pairs: pa.RecordBatch, keys: pa.Array | None) -> None:
        """Let pairs wait for a window of a side input, or for their keys in it."""
        values = pairs.to_struct_array()
        self._begun.add((number, start))
        if keys is None:
            self._rows(number, start).add(values)
            return
        rows = Level(
            keys,
            pa.nulls(len(keys), pa.int64()),
            pa.nulls(len(keys), pa.bool_()).fill_null(False),
            values,
        )
        self._leaves(number, start).add(lists_of_rows(rows))

    def begun(self) -> set[tuple[int, int]]:
        """Return for what pairs have begun to wait since this was asked last; at first, for all."""
        found, self._begun = self._begun, set()
        return found

    def starts(self, number: int) -> list[int]:
        """Return the windows of a side input that are waited for."""
        whole = {at for at, rows in self._whole.items() if rows.at_most}
        by_key = {at for at, leaves in self._by_key.items() if leaves.at_most}
        return sorted(start for one, start in whole | by_key if one == number)

    def waits(self, number: int, start: int) -> bool:
        """Tell whether anything waits for a window, not for keys in it."""
        rows = self._whole.get((number, start))
        return rows is not None and rows.at_most > 0

    def release(self, number: int, start: int) -> list[pa.RecordBatch]:
        """Take out what waits for a window."""
        rows = self._whole.get((number, start))
        return [] if rows is None else self._batches(rows.take()[0])

    def release_by_key(self, number: int, start: int) -> list[pa.RecordBatch]:
        """Take out all that wait for keys in a window."""
        leaves = self._by_key.get((number, start))
        if leaves is None:
            return []
        found = flat(leaves.all().values)
        leaves.clear()
        return self._batches(found)

    def release_keys(self, number: int, start: int, keys: pa.Array) -> list[pa.RecordBatch]:
        """Take out what waits for these keys in a window."""
        leaves = self._by_key.get((number, start))
        if leaves is None or not leaves.at_most:
            return []
        keys = pc.drop_null(pc.unique(keys))
        found = flat(leaves.look(keys).values)
        if len(found):
            leaves.remove(keys)
        return self._batches(found)

    def keys(self, number: int, start: int) -> pa.Array | None:
        """Return the keys that are waited for in a window; None if there are none."""
        leaves = self._by_key.get((number, start))
        return None if leaves is None or not leaves.at_most else leaves.all().keys

    def release_since(self, number: int, since: int) -> list[pa.RecordBatch]:
        """Take out what has waited for a side input since a time, or longer."""
        found: list[pa.RecordBatch] = []
        for start in self.starts(number):
            rows = self._whole.get((number, start))
            if rows is not None and _due(rows, since):
                old, new = _split(rows.take()[0], since)
                rows.add(new)
                found += self._batches(old)
            leaves = self._by_key.get((number, start))
            if leaves is not None and _due(leaves, since):
                found += self._batches(_take_old(leaves, since))
        return found

    def stalls(self) -> list[Stall]:
        """Return what rows wait for, in the order of side inputs and windows."""
        every: list[tuple[tuple[int, int], bool, Rows | Leaves]] = [
            *((at, False, rows) for at, rows in self._whole.items()),
            *((at, True, leaves) for at, leaves in self._by_key.items()),
        ]
        return [
            Stall(*at, by_key, len(store), store.size, store.low(1), store.low(0))
            for at, by_key, store in sorted(every, key=lambda one: one[:2])
            if len(store)
        ]

    @property
    def at_most(self) -> int:
        """A number of pairs that is not exceeded, without the work of counting."""
        return sum(store.at_most for store in self._stores())

    @property
    def size(self) -> int:
        """Bytes in Arrow."""
        return sum(store.size for store in self._stores())

    def low(self) -> int | None:
        """Return the least event time among all; None if there is none."""
        return least(store.low(0) for store in self._stores())

    def since(self, number: int) -> int | None:
        """Return since when the first waits for a side input; None if none does."""
        starts = self.starts(number)
        return least(
            stores[number, start].low(1)
            for stores in (self._whole, self._by_key)
            for start in starts
            if (number, start) in stores
        )

    def changes(self) -> Changes:
        """Return the blobs to write and, as None, those to remove."""
        out: Changes = {}
        for store in self._stores():
            out.update(store.changes())
        return out

    def tell(self) -> list[list[Any]]:
        """Return what is not in blobs, as JSON value."""
        whole = [[*at, False] for at, rows in sorted(self._whole.items()) if len(rows)]
        return whole + [[*at, True] for at, one in sorted(self._by_key.items()) if len(one)]

    def _stores(self) -> Iterator[Rows | Leaves]:
        yield from self._whole.values()
        yield from self._by_key.values()

    def _rows(self, number: int, start: int) -> Rows:
        if (number, start) not in self._whole:
            name = f"wait{number if number != GROUP else 'own'}.{start}"
            self._whole[number, start] = Rows(name, (self._type,), self._blobs, lows=(TIME, SINCE))
        return self._whole[number, start]

    def _leaves(self, number: int, start: int) -> Leaves:
        if (number, start) not in self._by_key:
            self._by_key[number, start] = Leaves(
                f"key{number}.{start}",
                self._key_types[number],
                pa.list_(self._type),
                self._blobs,
                lows=(TIME, SINCE),
            )
        return self._by_key[number, start]

    def _batches(self, pairs: pa.Array) -> list[pa.RecordBatch]:
        if not len(pairs):
            return []
        columns = [pc.struct_field(pairs, name) for name in self.schema.names]
        return [pa.RecordBatch.from_arrays(columns, schema=self.schema)]


def _due(store: Rows | Leaves, since: int) -> bool:
    first = store.low(1)
    return first is not None and first <= since


def _split(pairs: pa.Array, since: int) -> tuple[pa.Array, pa.Array]:
    old = pc.less_equal(pc.struct_field(pairs, SINCE), since)
    return pairs.filter(old), pairs.filter(pc.invert(old))


def _take_old(leaves: Leaves, since: int) -> pa.Array:
    level = leaves.all()
    keys = level.keys.take(pc.list_parent_indices(level.values))
    pairs = flat(level.values)
    old = pc.less_equal(pc.struct_field(pairs, SINCE), since)
    young = pc.invert(old)
    leaves.clear()
    rest = pairs.filter(young)
    nulls = pa.nulls(len(rest), pa.int64())
    never = pa.nulls(len(rest), pa.bool_()).fill_null(False)
    if len(rest):
        leaves.add(lists_of_rows(Level(keys.filter(young), nulls, never, rest)))
    return pairs.filter(old)
