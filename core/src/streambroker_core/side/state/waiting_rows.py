"""Main rows that wait, each for one thing: a side window, or a key in it.

A row is kept once for each main window in which it waits, under the first thing it waits for.
When that is there it is taken out and looked at again.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.control.operators.operator import Blobs, Changes
from streambroker_core.side.state.layout import SINCE, TIME, StateLayout
from streambroker_core.side.state.pages import PagedMap, min_present
from streambroker_core.side.state.row_log import RowLog
from streambroker_core.side.state.sorted_runs import SortedRun, flatten, run_of_lists

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


_StallKey: TypeAlias = "tuple[int, int, bool]"
"""Of a stall: side input, window, and whether its rows wait for keys."""


@dataclass(frozen=True, slots=True)
class _StallCounts:
    """Of a stall: rows, their bytes, least event time, and since when the first waits."""

    rows: int
    size: int
    low: int | None
    since: int | None


class WaitingRows:
    """All rows that wait in a bucket.

    What was not touched since the state was taken up is known by its figures, and is not read.

    Attributes:
        schema: columns of (row, window) pairs.
    """

    def __init__(self, layout: StateLayout, blobs: Blobs, dumped: list[list[Any]]) -> None:
        """Take them up; ``dumped`` is what :meth:`tell` returned."""
        self.schema, self._key_types, self._blobs = layout.pair_schema, layout.key_types, blobs
        self._type = pa.struct(list(self.schema))
        self._begun: set[tuple[int, int]] = {(number, start) for number, start, *_ in dumped}
        self._stores: dict[_StallKey, RowLog | PagedMap] = {}
        self._unread: dict[_StallKey, _StallCounts] = {}
        for number, start, by_key, *figures in dumped:
            at = (number, start, by_key)
            if figures:
                self._unread[at] = _StallCounts(*figures)
            else:  # of a state that was written without them
                self._open(at)

    def put(self, number: int, start: int, pairs: pa.RecordBatch, keys: pa.Array | None) -> None:
        """Let pairs wait for a window of a side input, or for their keys in it."""
        values = pairs.to_struct_array()
        self._begun.add((number, start))
        store = self._open((number, start, keys is not None))
        if isinstance(store, RowLog):
            store.add(values)
            return
        assert keys is not None  # noqa: S101 - else it is rows
        rows = SortedRun(
            keys,
            pa.nulls(len(keys), pa.int64()),
            pa.nulls(len(keys), pa.bool_()).fill_null(False),
            values,
        )
        store.add(run_of_lists(rows))

    def pop_begun(self) -> set[tuple[int, int]]:
        """Return for what pairs have begun to wait since this was asked last; at first, for all."""
        found, self._begun = self._begun, set()
        return found

    def waited_windows(self, number: int) -> list[int]:
        """Return the windows of a side input that are waited for."""
        return sorted({start for one, start, by_key in self._stall_keys() if one == number})

    def has_waiting(self, number: int, start: int) -> bool:
        """Tell whether anything waits for a window, not for keys in it."""
        return self._has_stall((number, start, False))

    def release(self, number: int, start: int) -> list[pa.RecordBatch]:
        """Take out what waits for a window."""
        rows = self._open_rows(number, start)
        return [] if rows is None else self._batches(rows.pop_all()[0])

    def release_by_key(self, number: int, start: int) -> list[pa.RecordBatch]:
        """Take out all that wait for keys in a window."""
        leaves = self._open_pages(number, start)
        if leaves is None:
            return []
        found = flatten(leaves.read_all().values)
        leaves.clear()
        return self._batches(found)

    def release_keys(self, number: int, start: int, keys: pa.Array) -> list[pa.RecordBatch]:
        """Take out what waits for these keys in a window."""
        leaves = self._open_pages(number, start)
        if leaves is None:
            return []
        keys = pc.drop_null(pc.unique(keys))
        found = flatten(leaves.lookup(keys).values)
        if len(found):
            leaves.remove(keys)
        return self._batches(found)

    def waited_keys(self, number: int, start: int) -> pa.Array | None:
        """Return the keys that are waited for in a window; None if there are none."""
        leaves = self._open_pages(number, start)
        return None if leaves is None else leaves.read_all().keys

    def release_since(self, number: int, since: int) -> list[pa.RecordBatch]:
        """Take out what has waited for a side input since a time, or longer."""
        found: list[pa.RecordBatch] = []
        due = [at for at in self._stall_keys() if at[0] == number and self._is_due(at, since)]
        for at in sorted(due):
            store = self._open(at)
            if isinstance(store, RowLog):
                old, new = _split(store.pop_all()[0], since)
                store.add(new)
                found += self._batches(old)
            else:
                found += self._batches(_pop_old(store, since))
        return found

    def stalls(self) -> list[Stall]:
        """Return what rows wait for, in the order of side inputs and windows."""
        every = [(at, self._stall_counts(at)) for at in sorted(self._stall_keys())]
        return [Stall(*at, of.rows, of.size, of.since, of.low) for at, of in every]

    @property
    def max_count(self) -> int:
        """A number of pairs that is not exceeded, without the work of counting."""
        unread = sum(of.rows for of in self._unread.values())
        return unread + sum(store.max_count for store in self._stores.values())

    @property
    def size(self) -> int:
        """Bytes in Arrow."""
        unread = sum(of.size for of in self._unread.values())
        return unread + sum(store.size for store in self._stores.values())

    def min_event_time(self) -> int | None:
        """Return the least event time among all; None if there is none."""
        unread = (of.low for of in self._unread.values())
        return min_present((*unread, *(store.min_value(0) for store in self._stores.values())))

    def waiting_since(self, number: int) -> int | None:
        """Return since when the first waits for a side input; None if none does."""
        return min_present(
            self._stall_counts(at).since for at in self._stall_keys() if at[0] == number
        )

    def changes(self) -> Changes:
        """Return the blobs to write and, as None, those to remove."""
        out: Changes = {}
        for store in self._stores.values():
            out.update(store.changes())
        return out

    def dump(self) -> list[list[Any]]:
        """Return what is not in blobs, as JSON value."""
        return [[*at, *astuple(self._stall_counts(at))] for at in sorted(self._stall_keys())]

    def _stall_keys(self) -> list[_StallKey]:
        """Return for what anything waits."""
        opened = [at for at, store in self._stores.items() if store.max_count and len(store)]
        return [*self._unread, *opened]

    def _has_stall(self, stall_key: _StallKey) -> bool:
        return stall_key in self._unread or (
            stall_key in self._stores and self._stores[stall_key].max_count > 0
        )

    def _stall_counts(self, stall_key: _StallKey) -> _StallCounts:
        if stall_key in self._unread:
            return self._unread[stall_key]
        store = self._stores[stall_key]
        return _StallCounts(len(store), store.size, store.min_value(0), store.min_value(1))

    def _is_due(self, stall_key: _StallKey, since: int) -> bool:
        first = self._stall_counts(stall_key).since
        return first is not None and first <= since

    def _open_rows(self, number: int, start: int) -> RowLog | None:
        """Return the rows that wait for a window; None if none do."""
        at = (number, start, False)
        store = self._open(at) if self._has_stall(at) else None
        assert store is None or isinstance(store, RowLog)  # noqa: S101 - as its place says
        return store

    def _open_pages(self, number: int, start: int) -> PagedMap | None:
        """Return the rows that wait for keys in a window; None if none do."""
        at = (number, start, True)
        store = self._open(at) if self._has_stall(at) else None
        assert store is None or isinstance(store, PagedMap)  # noqa: S101 - as its place says
        return store

    def _open(self, stall_key: _StallKey) -> RowLog | PagedMap:
        if stall_key not in self._stores:
            self._unread.pop(stall_key, None)
            self._stores[stall_key] = self._new(*stall_key)
        return self._stores[stall_key]

    def _new(self, number: int, start: int, by_key: bool) -> RowLog | PagedMap:
        if not by_key:
            name = f"wait{number if number != GROUP else 'own'}.{start}"
            return RowLog(name, (self._type,), self._blobs, min_fields=(TIME, SINCE))
        return PagedMap(
            f"key{number}.{start}",
            self._key_types[number],
            pa.list_(self._type),
            self._blobs,
            min_fields=(TIME, SINCE),
        )

    def _batches(self, pairs: pa.Array) -> list[pa.RecordBatch]:
        if not len(pairs):
            return []
        columns = [pc.struct_field(pairs, name) for name in self.schema.names]
        return [pa.RecordBatch.from_arrays(columns, schema=self.schema)]


def _split(pairs: pa.Array, since: int) -> tuple[pa.Array, pa.Array]:
    old = pc.less_equal(pc.struct_field(pairs, SINCE), since)
    return pairs.filter(old), pairs.filter(pc.invert(old))


def _pop_old(pages: PagedMap, since: int) -> pa.Array:
    level = pages.read_all()
    keys = level.keys.take(pc.list_parent_indices(level.values))
    pairs = flatten(level.values)
    old = pc.less_equal(pc.struct_field(pairs, SINCE), since)
    young = pc.invert(old)
    pages.clear()
    rest = pairs.filter(young)
    nulls = pa.nulls(len(rest), pa.int64())
    never = pa.nulls(len(rest), pa.bool_()).fill_null(False)
    if len(rest):
        pages.add(run_of_lists(SortedRun(keys.filter(young), nulls, never, rest)))
    return pairs.filter(old)
