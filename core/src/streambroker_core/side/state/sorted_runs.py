"""Sorted runs of keys and values, and how runs are merged.

- A *run* has each key once, ascending.
- In a map a value is one struct. A newer run hides older ones, key by key; a *deleted* entry hides
  them without a value.
- In a multimap a value is a list of structs. It is appended to older lists of its key; a deleted
  entry drops these first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.side.windows import GLOBAL_START

Keys: TypeAlias = pa.Array


@dataclass(frozen=True, slots=True)
class SortedRun:
    """Keys with their times, deletion flags and values.

    In a run, keys ascend and occur once. Rows not yet made into a run use this class too; their
    keys may be in any order and repeat.

    Attributes:
        keys: without nulls.
        times: event time of each value, int64; null where there is none.
        deleted: boolean.
        values: struct, or list of structs.
    """

    keys: pa.Array
    times: pa.Array
    deleted: pa.Array
    values: pa.Array

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def columns(self) -> tuple[pa.Array, pa.Array, pa.Array, pa.Array]:
        """The columns in the order of the constructor."""
        return (self.keys, self.times, self.deleted, self.values)

    def slice(self, start: int, length: int) -> SortedRun:
        """Return consecutive entries without copying."""
        return SortedRun(*(column.slice(start, length) for column in self.columns))

    def take(self, indices: pa.Array) -> SortedRun:
        """Return entries by their indices."""
        return SortedRun(*(column.take(indices) for column in self.columns))

    def filter(self, mask: pa.Array) -> SortedRun:
        """Return the entries for which a mask is true."""
        return SortedRun(*(column.filter(mask) for column in self.columns))

    @property
    def nbytes(self) -> int:
        """Bytes of the entries in Arrow."""
        return sum(column.nbytes for column in self.columns)

    @property
    def entries(self) -> int:
        """Number of values; each value of a list counts."""
        if is_list(self.values.type):
            return len(flatten(self.values))
        return len(self) - int(pc.sum(self.deleted).as_py() or 0)


@dataclass(frozen=True, slots=True)
class LookupResult:
    """Result of a lookup; each column is computed when it is read.

    Attributes:
        run: the entries, not necessarily sorted.
        indices: index of each key, int64; null for keys that were not found.
    """

    run: SortedRun
    indices: pa.Array

    @property
    def has_entry(self) -> pa.Array:
        """Whether each key has an entry, deleted or not."""
        return pc.is_valid(self.indices)

    @property
    def times(self) -> pa.Array:
        """The event time of each entry; null where there is none."""
        return self.run.times.take(self.indices)

    @property
    def values(self) -> pa.Array:
        """The value of each entry; null where there is none, arbitrary where it is deleted."""
        return self.run.values.take(self.indices)

    @property
    def has_value(self) -> pa.Array:
        """Whether each key has a value."""
        if is_list(self.run.values.type):
            return pc.fill_null(pc.greater(pc.list_value_length(self.values), 0), False)
        if not pc.any(self.run.deleted).as_py():
            return self.has_entry
        return pc.invert(pc.fill_null(self.run.deleted.take(self.indices), True))

    @property
    def has_deleted(self) -> bool:
        """Whether any entry of the run is deleted, so its value does not count."""
        return bool(pc.any(self.run.deleted).as_py())


def is_list(type_: pa.DataType) -> bool:
    """Return whether a key has several values of this type."""
    return bool(pa.types.is_list(type_))


def flatten(lists: pa.Array) -> pa.Array:
    """Return all values of lists, in order."""
    return lists.flatten()


def concat(runs: list[SortedRun]) -> SortedRun:
    """Concatenate runs; the result is a run only if their key ranges follow each other."""
    if len(runs) == 1:
        return runs[0]
    columns = zip(*(run.columns for run in runs), strict=True)
    return SortedRun(*(pa.concat_arrays(list(column)) for column in columns))


def run_from_rows(rows: SortedRun, *, latest: bool) -> SortedRun:
    """Return a run of a map from ordered rows; the last row of each key wins.

    Args:
        rows: rows with keys in any order, also repeated.
        latest: the last by event time wins, at equal times the later row. A row without a time,
            from an earlier policy, counts as older than any.
    """
    return _keep_last(rows, latest=latest)


def run_of_lists(rows: SortedRun) -> SortedRun:
    """Return a run of a multimap from ordered rows.

    A deleted row drops the values before it and is no value itself.
    """
    lengths = pc.cast(pc.invert(rows.deleted), pa.int64())
    values = rows.values.filter(pc.invert(rows.deleted))
    return merge(
        [SortedRun(rows.keys, rows.times, rows.deleted, _lists(lengths, values))], latest=False
    )


def merge(runs: list[SortedRun], *, latest: bool) -> SortedRun:
    """Merge runs, the oldest first, into one run.

    Args:
        runs: at least one; the keys of each may be in any order.
        latest: in a map, the greatest event time wins, not the newest run.
    """
    merged = concat(runs)
    if not is_list(merged.values.type):
        return _keep_last(merged, latest=latest)
    merged = merged.take(pc.sort_indices(merged.keys))
    deleted = merged.deleted
    if pc.any(merged.deleted).as_py():
        merged, deleted = _drop_before_deleted(merged)
    ends = _ends(merged.keys)
    counts = pc.cumulative_sum(pc.cast(pc.list_value_length(merged.values), pa.int64()))
    last = pc.subtract(ends, 1)
    sums = counts.take(last)
    return SortedRun(
        merged.keys.take(last),
        merged.times.take(last),
        deleted.take(last),
        _lists_at(sums, flatten(merged.values)),
    )


def find_indices(run: SortedRun, keys: Keys) -> pa.Array:
    """Return the index of each key in a run, int64; null for keys that are not found.

    Uses the cheaper way for this number of keys: a search for each, or a hash table of all.
    """
    size = len(run)
    if not size:
        return pa.nulls(len(keys), pa.int64())
    if 2 * len(keys) > size:
        indices = pc.index_in(keys, value_set=run.keys, skip_nulls=True)
        return pc.cast(indices, pa.int64())
    indices = pc.cast(pc.search_sorted(run.keys, keys), pa.int64())
    bounded = pc.min_element_wise(indices, size - 1, skip_nulls=False)
    return pc.if_else(pc.equal(run.keys.take(bounded), keys), bounded, pa.scalar(None, pa.int64()))


def drop_deleted(run: SortedRun) -> SortedRun:
    """Return the entries that have a value."""
    if is_list(run.values.type):
        has_value = pc.greater(pc.list_value_length(run.values), 0)
    else:
        has_value = pc.invert(run.deleted)
    if pc.all(has_value).as_py():
        return run
    return run.filter(has_value)


def _keep_last(rows: SortedRun, *, latest: bool) -> SortedRun:
    if _is_ascending(rows.keys):
        return rows
    if latest:
        table = pa.table({"key": rows.keys, "time": pc.fill_null(rows.times, GLOBAL_START)})
        order = pc.sort_indices(table, sort_keys=[("key", "ascending"), ("time", "ascending")])
    else:
        order = pc.sort_indices(rows.keys)
    return rows.take(order.take(pc.subtract(_ends(rows.keys.take(order)), 1)))


def _is_ascending(keys: pa.Array) -> bool:
    """Return whether each key is greater than the one before."""
    size = len(keys)
    return bool(pc.all(pc.less(keys.slice(0, max(size - 1, 0)), keys.slice(min(size, 1)))).as_py())


def _ends(keys: pa.Array) -> pa.Array:
    """Return the end of each key's run, for ascending keys."""
    return pc.cast(pc.run_end_encode(keys, run_end_type=pa.int64()).run_ends, pa.int64())


def _drop_before_deleted(every: SortedRun) -> tuple[SortedRun, pa.Array]:
    """Drop entries before the last deleted entry of each key; mark the keys that have one."""
    keys = every.keys.to_pylist()
    deleted = every.deleted.to_pylist()
    last = {key: index for index, key in enumerate(keys) if deleted[index]}
    retained = pa.array([index >= last.get(key, 0) for index, key in enumerate(keys)])
    has_deleted = pa.array([key in last for key in keys])
    return every.filter(retained), has_deleted.filter(retained)


def _lists(lengths: pa.Array, values: pa.Array) -> pa.Array:
    return _lists_at(pc.cumulative_sum(lengths), values)


def _lists_at(sums: pa.Array, values: pa.Array) -> pa.Array:
    zero = pa.array([0], pa.int64())
    offsets = pc.cast(pa.concat_arrays([zero, sums]), pa.int32())
    return pa.ListArray.from_arrays(offsets, values)
