"""Keys and values of one bucket in blobs, of which a window reads and writes few.

Keys are kept sorted in *leaves* of up to ``LEAF`` entries. A lookup reads the leaves in which its
keys could be, all keys of a column at once. New entries are *runs* until the window ends; then
they are merged into their leaves, and only these are written. A directory blob says which leaf
begins with which key, and how old the oldest row in it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.control.operators.operator import Blobs, Changes
from streambroker_core.side.state.column_codec import pack, unpack
from streambroker_core.side.state.sorted_runs import (
    Found,
    Keys,
    Level,
    concat,
    find,
    flat,
    is_list,
    merge,
    without_gone,
)

LEAF = 4096


@dataclass(slots=True)
class _Leaf:
    number: int
    first: Any
    keys: int
    entries: int
    size: int
    lows: list[int | None]
    level: Level | None = None
    changed: bool = False


class Leaves:
    """A sorted map from keys to values, in the blobs that begin with a name."""

    def __init__(
        self,
        name: str,
        key_type: pa.DataType,
        value_type: pa.DataType,
        blobs: Blobs | None = None,
        *,
        latest: bool = False,
        keep_gone: bool = False,
        lows: tuple[str, ...] = (),
    ) -> None:
        """Take up the map.

        Args:
            name: of its directory blob; leaves are ``<name>/<number>``.
            key_type: type of the keys.
            value_type: struct, or list of struct.
            blobs: the bucket's state; None for none.
            latest: the greatest event time of a key wins.
            keep_gone: keys without value stay known.
            lows: up to two fields of the values, whose least values are kept of each leaf.
        """
        self.name, self.key_type, self.value_type = name, key_type, value_type
        self._blobs = blobs if blobs is not None else {}
        self._latest, self._keep_gone, self._lows = latest, keep_gone, lows
        self._leaves: list[_Leaf] = []
        self._runs: list[Level] = []
        self._base: Level | None = None
        self._next, self._changed = 0, False
        self._removed: list[int] = []
        if (root := self._blobs.get(name)) is not None:
            self._read(root)

    @classmethod
    def of(cls, level: Level) -> Leaves:
        """Return a map of one level, without state."""
        made = cls("t", level.keys.type, level.values.type)
        made._leaves = [made._leaf(level)]
        return made

    def __len__(self) -> int:
        """Return how many values there are; those of one key counted each."""
        self.settle()
        return sum(leaf.entries for leaf in self._leaves)

    @property
    def size(self) -> int:
        """Bytes in Arrow."""
        return sum(leaf.size for leaf in self._leaves) + sum(run.nbytes for run in self._runs)

    @property
    def at_most(self) -> int:
        """A number of values that ``len`` does not exceed, without the work of counting."""
        return sum(leaf.entries for leaf in self._leaves) + sum(run.entries for run in self._runs)

    def low(self, number: int) -> int | None:
        """Return the least value of a field that is watched; None if there is none."""
        self.settle()
        return least(leaf.lows[number] for leaf in self._leaves)

    def first(self) -> Any:
        """Return the least key; None if there is none."""
        self.settle()
        return self._leaves[0].first if self._leaves else None

    def add(self, run: Level) -> None:
        """Take a level that is newer than everything."""
        if not len(run):
            return
        self._runs.append(run)
        self._changed = True
        while len(self._runs) > 1 and 2 * len(self._runs[-1]) >= len(self._runs[-2]):
            newest = self._runs.pop()
            self._runs[-1] = merge([self._runs[-1], newest], latest=self._latest)

    def look(self, keys: Keys) -> Found:
        """Return the entry of each key, in their order.

        Keys may be null and repeat.
        """
        if is_list(self.value_type):
            self.settle()
        levels = [self._level_for(keys), *self._runs]
        places, offset = None, 0
        for level in levels:
            found = pc.add(find(level, keys), offset)
            places = found if places is None else pc.coalesce(found, places)
            offset += len(level)
        return Found(concat([level for level in levels if len(level)] or levels[:1]), places)

    def all(self) -> Level:
        """Return every entry that has a value, ascending."""
        self.settle()
        return without_gone(self._whole())

    def remove(self, keys: Keys) -> None:
        """Forget keys at once: nothing of them stays known."""
        self.settle()
        for place, inside in self._routed(keys):
            level = self._load(self._leaves[place])
            kept = pc.invert(pc.is_in(level.keys, value_set=inside))
            self._put(place, level.filter(kept))
        self._drop_empty()

    def pop_to(self, key: Any) -> Level | None:
        """Return and forget all entries up to a key, ascending; None if there are none."""
        self.settle()
        found: list[Level] = []
        for place, leaf in enumerate(self._leaves):
            if leaf.first > key:
                break
            level = self._load(leaf)
            count = int(pc.sum(pc.less_equal(level.keys, key)).as_py() or 0)
            found.append(level.slice(0, count))
            self._put(place, level.slice(count, len(level) - count))
        self._drop_empty()
        return concat(found) if found else None

    def clear(self) -> None:
        """Forget everything."""
        self._removed += [leaf.number for leaf in self._leaves]
        self._leaves, self._runs, self._base, self._changed = [], [], None, True

    def settle(self) -> None:
        """Merge the runs into their leaves."""
        if not self._runs:
            return
        run = self._runs[0] if len(self._runs) == 1 else merge(self._runs, latest=self._latest)
        self._runs = []
        if not self._leaves:
            self._leaves = self._cut(self._kept(run))
            self._base = None
            return
        for place, start, end in reversed(self._ranges(run.keys)):
            part = run.slice(start, end - start)
            made = merge([self._load(self._leaves[place]), part], latest=self._latest)
            self._put(place, self._kept(made))
        self._drop_empty()

    def changes(self) -> Changes:
        """Return the blobs to write and, as None, those to remove."""
        self.settle()
        out: Changes = {}
        for number in self._removed:
            if f"{self.name}/{number}" in self._blobs:
                out[f"{self.name}/{number}"] = None
        for leaf in self._leaves:
            if leaf.changed and leaf.level is not None:
                out[f"{self.name}/{leaf.number}"] = pack(*leaf.level.columns)
        if self._leaves and (out or self._changed):
            out[self.name] = self._write()
        elif not self._leaves and self.name in self._blobs:
            out[self.name] = None
        return out

    def _kept(self, level: Level) -> Level:
        return level if self._keep_gone else without_gone(level)

    def _level_for(self, keys: Keys) -> Level:
        """Return the leaves in which keys could be, as one level; others may be in it."""
        if any(leaf.level is None for leaf in self._leaves):
            for place in _distinct(self._places(keys)):
                if self._leaves[place].level is None:
                    self._load(self._leaves[place])
                    self._base = None
        return self._loaded()

    def _whole(self) -> Level:
        for leaf in self._leaves:
            if leaf.level is None:
                self._load(leaf)
                self._base = None
        return self._loaded()

    def _loaded(self) -> Level:
        if self._base is None:
            leaves = [leaf for leaf in self._leaves if leaf.level is not None]
            self._base = concat(
                [leaf.level for leaf in leaves if leaf.level is not None] or [self._empty()]
            )
            start = 0
            for leaf in leaves:
                leaf.level = self._base.slice(start, leaf.keys)
                start += leaf.keys
        return self._base

    def _empty(self) -> Level:
        types = (self.key_type, pa.int64(), pa.bool_(), self.value_type)
        return Level(*(pa.array([], type_) for type_ in types))

    def _places(self, keys: Keys) -> pa.Array:
        firsts = pa.array([leaf.first for leaf in self._leaves], self.key_type)
        places = pc.cast(pc.search_sorted(firsts, keys, side="right"), pa.int64())
        return pc.max_element_wise(pc.subtract(places, 1), 0, skip_nulls=False)

    def _routed(self, keys: Keys) -> list[tuple[int, pa.Array]]:
        if not self._leaves:
            return []
        places = self._places(keys)
        return [(place, keys.filter(pc.equal(places, place))) for place in _distinct(places)]

    def _ranges(self, keys: Keys) -> list[tuple[int, int, int]]:
        """Return leaf, first and end of ascending keys, for each leaf that they touch."""
        ends = pc.run_end_encode(self._places(keys), run_end_type=pa.int64())
        starts = [0, *ends.run_ends.to_pylist()]
        return [
            (place, starts[n], starts[n + 1]) for n, place in enumerate(ends.values.to_pylist())
        ]

    def _leaf(self, level: Level) -> _Leaf:
        made = _Leaf(self._next, None, 0, 0, 0, [None, None])
        self._next += 1
        self._fill(made, level)
        return made

    def _fill(self, leaf: _Leaf, level: Level) -> None:
        leaf.level, leaf.changed, self._changed = level, True, True
        leaf.keys, leaf.entries, leaf.size = len(level), level.entries, level.nbytes
        if len(level):
            leaf.first = level.keys[0].as_py()
        if self._lows:
            values = flat(level.values) if is_list(level.values.type) else level.values
            leaf.lows[: len(self._lows)] = lows_of(values, self._lows)

    def _cut(self, level: Level) -> list[_Leaf]:
        return [self._leaf(level.slice(at, LEAF)) for at in range(0, len(level), LEAF)]

    def _put(self, place: int, level: Level) -> None:
        self._base = None
        if len(level) <= 2 * LEAF:
            self._fill(self._leaves[place], level)
            return
        self._removed.append(self._leaves[place].number)
        self._leaves[place : place + 1] = self._cut(level)

    def _drop_empty(self) -> None:
        self._removed += [leaf.number for leaf in self._leaves if not leaf.keys]
        self._leaves = [leaf for leaf in self._leaves if leaf.keys]
        self._base = None

    def _load(self, leaf: _Leaf) -> Level:
        if leaf.level is None:
            name = f"{self.name}/{leaf.number}"
            types = (self.key_type, pa.int64(), pa.bool_(), self.value_type)
            leaf.level = Level(*unpack(self._blobs, name, types))
        return leaf.level

    def _write(self) -> bytes:
        rows = [
            (leaf.number, leaf.first, leaf.keys, leaf.entries, leaf.size, *leaf.lows)
            for leaf in self._leaves
        ]
        columns = [list(column) for column in zip(*rows, strict=True)]
        types = self._directory()
        return pack(
            pa.array([self._next] * len(rows), pa.int64()),
            *(pa.array(column, type_) for column, type_ in zip(columns, types[1:], strict=True)),
        )

    def _directory(self) -> tuple[pa.DataType, ...]:
        number = pa.int64()
        return (number, number, self.key_type, *[number] * 5)

    def _read(self, root: bytes) -> None:
        columns = unpack({self.name: root}, self.name, self._directory())
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        for self._next, number, first, keys, entries, size, *lows in rows:
            self._leaves.append(_Leaf(number, first, keys, entries, size, lows))


def lows_of(values: pa.Array, fields: Sequence[str]) -> list[int | None]:
    """Return the least value of each field of structs; None where there is none."""
    return [pc.min(pc.struct_field(values, field)).as_py() for field in fields]


def least(values: Iterable[int | None]) -> int | None:
    """Return the least of numbers of which some may be missing."""
    return min((value for value in values if value is not None), default=None)


def _distinct(places: pa.Array) -> list[int]:
    return sorted(place for place in pc.unique(places).to_pylist() if place is not None)
