"""Main rows that wait, each for one thing: a side window, or a key in it.

A row is stored once for each main window in which it waits, under the first thing it waits for.
When that arrives, the row is taken out and retried.
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
"""Number used instead of a side input: rows wait for the end of their own main window."""


@dataclass(frozen=True, slots=True)
class Stall:
    """Cause that blocks rows, and counts of these rows.

    Attributes:
        input: number of the side input they wait for; see ``GROUP``.
        window: start of its window in microseconds; see ``windows.GLOBAL_START``.
        by_key: whether they wait for keys instead of the window.
        rows: number of (row, window) pairs.
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
"""Side input, window, and whether the rows wait for keys."""


@dataclass(frozen=True, slots=True)
class _StallCounts:
    """Rows of a stall, their bytes, least event time, and the time the first began to wait."""

    rows: int
    size: int
    low: int | None
    since: int | None


class WaitingRows:
    """All waiting rows of a bucket.

    Stores not touched since the restore are known by their counts alone and are not read.

    Attributes:
        schema: columns of (row, window) pairs.
    """

    def __init__(self, layout: StateLayout, blobs: Blobs, dumped: list[list[Any]]) -> None:
        """Restore the rows; ``dumped`` is what :meth:`dump` returned."""
        self.schema, self._key_types, self._blobs = layout.pair_schema, layout.key_types, blobs
        self._type = pa.struct(list(self.schema))
        self._begun: set[tuple[int, int]] = {(number, start) for number, start, *_ in dumped}
        self._stores: dict[_StallKey, RowLog | PagedMap] = {}
        self._unread: dict[_StallKey, _StallCounts] = {}
        for number, start, by_key, *counts in dumped:
            stall_key = (number, start, by_key)
            if counts:
                self._unread[stall_key] = _StallCounts(*counts)
            else:  # state written without counts
                self._open(stall_key)

    def put(self, number: int, start: int, pairs: pa.RecordBatch, keys: pa.Array | None) -> None:
        """Store pairs that wait for a window of a side input, or for their keys in it."""
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
        """Return the (side input, window) pairs with new waits since the last call; first: all."""
        begun, self._begun = self._begun, set()
        return begun

    def waited_windows(self, number: int) -> list[int]:
        """Return the windows of a side input for which rows wait."""
        return sorted({start for one, start, by_key in self._stall_keys() if one == number})

    def has_waiting(self, number: int, start: int) -> bool:
        """Return whether rows wait for a window itself, not for keys in it."""
        return self._has_stall((number, start, False))

    def release(self, number: int, start: int) -> list[pa.RecordBatch]:
        """Remove and return the pairs that wait for a window."""
        rows = self._open_rows(number, start)
        return [] if rows is None else self._batches(rows.pop_all()[0])

    def release_by_key(self, number: int, start: int) -> list[pa.RecordBatch]:
        """Remove and return all pairs that wait for keys in a window."""
        pages = self._open_pages(number, start)
        if pages is None:
            return []
        pairs = flatten(pages.read_all().values)
        pages.clear()
        return self._batches(pairs)

    def release_keys(self, number: int, start: int, keys: pa.Array) -> list[pa.RecordBatch]:
        """Remove and return the pairs that wait for these keys in a window."""
        pages = self._open_pages(number, start)
        if pages is None:
            return []
        keys = pc.drop_null(pc.unique(keys))
        pairs = flatten(pages.lookup(keys).values)
        if len(pairs):
            pages.remove(keys)
        return self._batches(pairs)

    def waited_keys(self, number: int, start: int) -> pa.Array | None:
        """Return the keys for which rows wait in a window; None if there are none."""
        pages = self._open_pages(number, start)
        return None if pages is None else pages.read_all().keys

    def release_since(self, number: int, since: int) -> list[pa.RecordBatch]:
        """Remove and return pairs that have waited for a side input since a time, or longer."""
        released: list[pa.RecordBatch] = []
        for stall_key in sorted(self._stall_keys()):
            first = self._stall_counts(stall_key).since if stall_key[0] == number else None
            if first is None or first > since:
                continue
            store = self._open(stall_key)
            if isinstance(store, RowLog):
                old, new = _split(store.pop_all()[0], since)
                store.add(new)
                released += self._batches(old)
            else:
                released += self._batches(_pop_old(store, since))
        return released

    def stalls(self) -> list[Stall]:
        """Return the stalls, ordered by side input and window."""
        counted = [
            (stall_key, self._stall_counts(stall_key)) for stall_key in sorted(self._stall_keys())
        ]
        return [
            Stall(*stall_key, counts.rows, counts.size, counts.since, counts.low)
            for stall_key, counts in counted
        ]

    @property
    def max_count(self) -> int:
        """Upper bound of the number of pairs, known without counting."""
        unread = sum(counts.rows for counts in self._unread.values())
        return unread + sum(store.max_count for store in self._stores.values())

    @property
    def size(self) -> int:
        """Bytes in Arrow."""
        unread = sum(counts.size for counts in self._unread.values())
        return unread + sum(store.size for store in self._stores.values())

    def min_event_time(self) -> int | None:
        """Return the least event time of all rows; None if there is none."""
        unread = (counts.low for counts in self._unread.values())
        return min_present((*unread, *(store.min_value(0) for store in self._stores.values())))

    def waiting_since(self, number: int) -> int | None:
        """Return when the first row began to wait for a side input; None if none waits."""
        return min_present(
            self._stall_counts(stall_key).since
            for stall_key in self._stall_keys()
            if stall_key[0] == number
        )

    def changes(self) -> Changes:
        """Return the blobs to write; None marks a removed blob."""
        out: Changes = {}
        for store in self._stores.values():
            out.update(store.changes())
        return out

    def dump(self) -> list[list[Any]]:
        """Return the state outside the blobs, as a JSON value."""
        return [
            [*stall_key, *astuple(self._stall_counts(stall_key))]
            for stall_key in sorted(self._stall_keys())
        ]

    def _stall_keys(self) -> list[_StallKey]:
        opened = [
            stall_key for stall_key, store in self._stores.items() if store.max_count and len(store)
        ]
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

    def _open_rows(self, number: int, start: int) -> RowLog | None:
        stall_key = (number, start, False)
        store = self._open(stall_key) if self._has_stall(stall_key) else None
        assert store is None or isinstance(store, RowLog)  # noqa: S101 - as its place says
        return store

    def _open_pages(self, number: int, start: int) -> PagedMap | None:
        stall_key = (number, start, True)
        store = self._open(stall_key) if self._has_stall(stall_key) else None
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
