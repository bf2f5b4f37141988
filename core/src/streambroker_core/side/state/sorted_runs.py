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

from streambroker_core.side.windows import EVER

Keys: TypeAlias = pa.Array


@dataclass(frozen=True, slots=True)
class Level:
    """Keys, ascending, each once, with what belongs to them.

    Attributes:
        keys: without nulls.
        times: event time of each value, int64; null where there is none.
        gone: boolean.
        values: struct, or list of structs.
    """

    keys: pa.Array
    times: pa.Array
    gone: pa.Array
    values: pa.Array

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def columns(self) -> tuple[pa.Array, pa.Array, pa.Array, pa.Array]:
        """All four columns."""
        return (self.keys, self.times, self.gone, self.values)

    def slice(self, start: int, length: int) -> Level:
        """Return entries from a place on, without a copy."""
        return Level(*(one.slice(start, length) for one in self.columns))

    def take(self, places: pa.Array) -> Level:
        """Return entries by their places."""
        return Level(*(one.take(places) for one in self.columns))

    def filter(self, mask: pa.Array) -> Level:
        """Return the entries for which a mask is true."""
        return Level(*(one.filter(mask) for one in self.columns))

    @property
    def nbytes(self) -> int:
        """Bytes of the entries in Arrow."""
        return sum(one.nbytes for one in self.columns)

    @property
    def entries(self) -> int:
        """Values there are; those of one key counted each."""
        if is_list(self.values.type):
            return len(flat(self.values))
        return len(self) - int(pc.sum(self.gone).as_py() or 0)


@dataclass(frozen=True, slots=True)
class Found:
    """Entries of a level by their places; each column is taken when it is asked for.

    Attributes:
        level: the entries; not all of them need be in the order of a level.
        places: where each key is, int64; null for those that are not there.
    """

    level: Level
    places: pa.Array

    @property
    def known(self) -> pa.Array:
        """Whether each key has an entry, gone or not."""
        return pc.is_valid(self.places)

    @property
    def times(self) -> pa.Array:
        """The event time of each entry; null where there is none."""
        return self.level.times.take(self.places)

    @property
    def values(self) -> pa.Array:
        """The value of each entry; null where there is none, of any kind where it is gone."""
        return self.level.values.take(self.places)

    @property
    def there(self) -> pa.Array:
        """Whether each key has a value."""
        if is_list(self.level.values.type):
            return pc.fill_null(pc.greater(pc.list_value_length(self.values), 0), False)
        if not pc.any(self.level.gone).as_py():
            return self.known
        return pc.invert(pc.fill_null(self.level.gone.take(self.places), True))

    @property
    def hollow(self) -> bool:
        """Whether there is any entry whose value does not count, because it is gone."""
        return bool(pc.any(self.level.gone).as_py())


def is_list(type_: pa.DataType) -> bool:
    """Tell whether values of this type are several for a key."""
    return bool(pa.types.is_list(type_))


def flat(lists: pa.Array) -> pa.Array:
    """Return all values of lists, in order."""
    return lists.flatten()


def concat(levels: list[Level]) -> Level:
    """Return the entries of levels one after the other; not a level unless their ranges follow."""
    if len(levels) == 1:
        return levels[0]
    columns = zip(*(level.columns for level in levels), strict=True)
    return Level(*(pa.concat_arrays(list(column)) for column in columns))


def level_of_rows(rows: Level, *, latest: bool) -> Level:
    """Return rows of a map, in order, as a level: the last of each key stays.

    Args:
        rows: as a level, with keys in any order and more than once.
        latest: the last by event time instead, the later row at equal times; one without a time,
            of a policy before, is older than any.
    """
    return _last_of_each(rows, latest=latest)


def lists_of_rows(rows: Level) -> Level:
    """Return rows of a multimap, in order, as a level of lists.

    A row that is gone takes what was before it, and is no value itself.
    """
    lengths = pc.cast(pc.invert(rows.gone), pa.int64())
    kept = rows.values.filter(pc.invert(rows.gone))
    return merge([Level(rows.keys, rows.times, rows.gone, _lists(lengths, kept))], latest=False)


def merge(levels: list[Level], *, latest: bool) -> Level:
    """Return one level that says what several say, the oldest first.

    Args:
        levels: at least one; the keys of one need not ascend.
        latest: of a map, the greatest event time wins, not the newest level.
    """
    every = concat(levels)
    if not is_list(every.values.type):
        return _last_of_each(every, latest=latest)
    every = every.take(pc.sort_indices(every.keys))
    anew = every.gone
    if pc.any(every.gone).as_py():
        every, anew = _begin_anew(every)
    ends = _ends(every.keys)
    counts = pc.cumulative_sum(pc.cast(pc.list_value_length(every.values), pa.int64()))
    last = pc.subtract(ends, 1)
    sums = counts.take(last)
    return Level(
        every.keys.take(last),
        every.times.take(last),
        anew.take(last),
        _lists_at(sums, flat(every.values)),
    )


def find(level: Level, keys: Keys) -> pa.Array:
    """Return where each key is in a level, int64; null for those that are not.

    Takes the way that is cheaper for so many keys: a search for each, or a hash table of all.
    """
    size = len(level)
    if not size:
        return pa.nulls(len(keys), pa.int64())
    if 2 * len(keys) > size:
        places = pc.index_in(keys, value_set=level.keys, skip_nulls=True)
        return pc.cast(places, pa.int64())
    places = pc.cast(pc.search_sorted(level.keys, keys), pa.int64())
    inside = pc.min_element_wise(places, size - 1, skip_nulls=False)
    return pc.if_else(pc.equal(level.keys.take(inside), keys), inside, pa.scalar(None, pa.int64()))


def without_gone(level: Level) -> Level:
    """Return the entries that have a value."""
    if is_list(level.values.type):
        kept = pc.greater(pc.list_value_length(level.values), 0)
    else:
        kept = pc.invert(level.gone)
    if pc.all(kept).as_py():
        return level
    return level.filter(kept)


def _last_of_each(rows: Level, *, latest: bool) -> Level:
    if _ascend(rows.keys):
        return rows
    if latest:
        table = pa.table({"key": rows.keys, "time": pc.fill_null(rows.times, EVER)})
        order = pc.sort_indices(table, sort_keys=[("key", "ascending"), ("time", "ascending")])
    else:
        order = pc.sort_indices(rows.keys)
    return rows.take(order.take(pc.subtract(_ends(rows.keys.take(order)), 1)))


def _ascend(keys: pa.Array) -> bool:
    """Tell whether each key is greater than the one before."""
    size = len(keys)
    return bool(pc.all(pc.less(keys.slice(0, max(size - 1, 0)), keys.slice(min(size, 1)))).as_py())


def _ends(keys: pa.Array) -> pa.Array:
    """Return where the run of each key ends, of keys that ascend."""
    return pc.cast(pc.run_end_encode(keys, run_end_type=pa.int64()).run_ends, pa.int64())


def _begin_anew(every: Level) -> tuple[Level, pa.Array]:
    """Drop what is before the last gone entry of each key; also tell which keys have one."""
    keys = every.keys.to_pylist()
    gone = every.gone.to_pylist()
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
