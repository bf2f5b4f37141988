"""Sorted levels of keys and values, and how several become one.

A *level* has each key once, ascending. A newer level hides older ones, key by key; an entry that
is *gone* hides them without a value. Of a map the value is one struct; of a multimap a list of
them, which is put after the older ones, unless it is gone: then it begins anew.
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
    """Keys, ascending, each once, with what belongs to them.

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
        """All four columns."""
        return (self.keys, self.times, self.deleted, self.values)

    def slice(self, start: int, length: int) -> SortedRun:
        """Return entries from a place on, without a copy."""
        return SortedRun(*(one.slice(start, length) for one in self.columns))

    def take(self, indices: pa.Array) -> SortedRun:
        """Return entries by their places."""
        return SortedRun(*(one.take(indices) for one in self.columns))

    def filter(self, mask: pa.Array) -> SortedRun:
        """Return the entries for which a mask is true."""
        return SortedRun(*(one.filter(mask) for one in self.columns))

    @property
    def nbytes(self) -> int:
        """Bytes of the entries in Arrow."""
        return sum(one.nbytes for one in self.columns)

    @property
    def entries(self) -> int:
        """Values there are; those of one key counted each."""
        if is_list(self.values.type):
            return len(flatten(self.values))
        return len(self) - int(pc.sum(self.deleted).as_py() or 0)


@dataclass(frozen=True, slots=True)
class LookupResult:
    """Entries of a level by their places; each column is taken when it is asked for.

    Attributes:
        run: the entries; not all of them need be in the order of a level.
        indices: where each key is, int64; null for those that are not there.
    """

    run: SortedRun
    indices: pa.Array

    @property
    def has_entry(self) -> pa.Array:
        """Whether each key has an entry, gone or not."""
        return pc.is_valid(self.indices)

    @property
    def times(self) -> pa.Array:
        """The event time of each entry; null where there is none."""
        return self.run.times.take(self.indices)

    @property
    def values(self) -> pa.Array:
        """The value of each entry; null where there is none, of any kind where it is gone."""
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
        """Whether there is any entry whose value does not count, because it is gone."""
        return bool(pc.any(self.run.deleted).as_py())


def is_list(type_: pa.DataType) -> bool:
    """Tell whether values of this type are several for a key."""
    return bool(pa.types.is_list(type_))


def flatten(lists: pa.Array) -> pa.Array:
    """Return all values of lists, in order."""
    return lists.flatten()


def concat(runs: list[SortedRun]) -> SortedRun:
    """Return the entries of levels one after the other; not a level unless their ranges follow."""
    if len(runs) == 1:
        return runs[0]
    columns = zip(*(level.columns for level in runs), strict=True)
    return SortedRun(*(pa.concat_arrays(list(column)) for column in columns))


def run_from_rows(rows: SortedRun, *, latest: bool) -> SortedRun:
    """Return rows of a map, in order, as a level: the last of each key stays.

    Args:
        rows: as a level, with keys in any order and more than once.
        latest: the last by event time instead, the later row at equal times; one without a time,
            of a policy before, is older than any.
    """
    return _keep_last(rows, latest=latest)


def run_of_lists(rows: SortedRun) -> SortedRun:
    """Return rows of a multimap, in order, as a level of lists.

    A row that is gone takes what was before it, and is no value itself.
    """
    lengths = pc.cast(pc.invert(rows.deleted), pa.int64())
    kept = rows.values.filter(pc.invert(rows.deleted))
    return merge(
        [SortedRun(rows.keys, rows.times, rows.deleted, _lists(lengths, kept))], latest=False
    )


def merge(runs: list[SortedRun], *, latest: bool) -> SortedRun:
    """Return one level that says what several say, the oldest first.

    Args:
        runs: at least one; the keys of one need not ascend.
        latest: of a map, the greatest event time wins, not the newest level.
    """
    every = concat(runs)
    if not is_list(every.values.type):
        return _keep_last(every, latest=latest)
    every = every.take(pc.sort_indices(every.keys))
    anew = every.deleted
    if pc.any(every.deleted).as_py():
        every, anew = _drop_before_deleted(every)
    ends = _ends(every.keys)
    counts = pc.cumulative_sum(pc.cast(pc.list_value_length(every.values), pa.int64()))
    last = pc.subtract(ends, 1)
    sums = counts.take(last)
    return SortedRun(
        every.keys.take(last),
        every.times.take(last),
        anew.take(last),
        _lists_at(sums, flatten(every.values)),
    )


def find_indices(run: SortedRun, keys: Keys) -> pa.Array:
    """Return where each key is in a level, int64; null for those that are not.

    Takes the way that is cheaper for so many keys: a search for each, or a hash table of all.
    """
    size = len(run)
    if not size:
        return pa.nulls(len(keys), pa.int64())
    if 2 * len(keys) > size:
        places = pc.index_in(keys, value_set=run.keys, skip_nulls=True)
        return pc.cast(places, pa.int64())
    places = pc.cast(pc.search_sorted(run.keys, keys), pa.int64())
    inside = pc.min_element_wise(places, size - 1, skip_nulls=False)
    return pc.if_else(pc.equal(run.keys.take(inside), keys), inside, pa.scalar(None, pa.int64()))


def drop_deleted(run: SortedRun) -> SortedRun:
    """Return the entries that have a value."""
    if is_list(run.values.type):
        kept = pc.greater(pc.list_value_length(run.values), 0)
    else:
        kept = pc.invert(run.deleted)
    if pc.all(kept).as_py():
        return run
    return run.filter(kept)


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
    """Tell whether each key is greater than the one before."""
    size = len(keys)
    return bool(pc.all(pc.less(keys.slice(0, max(size - 1, 0)), keys.slice(min(size, 1)))).as_py())


def _ends(keys: pa.Array) -> pa.Array:
    """Return where the run of each key ends, of keys that ascend."""
    return pc.cast(pc.run_end_encode(keys, run_end_type=pa.int64()).run_ends, pa.int64())


def _drop_before_deleted(every: SortedRun) -> tuple[SortedRun, pa.Array]:
    """Drop what is before the last gone entry of each key; also tell which keys have one."""
    keys = every.keys.to_pylist()
    gone = every.deleted.to_pylist()
    last = {key: place for place, key in enumerate(keys) if gone[place]}
    kept = pa.array([place >= last.get(key, 0) for place, key in enumerate(keys)])
    anew = pa.array([key in last for key in keys])
    return every.filter(kept), anew.filter(kept)


def _lists(lengths: pa.Array, values: pa.Array) -> pa.Array:
    return _lists_at(pc.cumulative_sum(lengths), values)


def _lists_at(sums: pa.Array, values: pa.Array) -> pa.Array:
    zero = pa.array([0], pa.int64())
    offsets = pc.cast(pa.concat_arrays([zero, sums]), pa.int32())
    return pa.ListArray.from_arrays(offsets, values)
