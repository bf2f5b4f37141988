"""Keys and values of one bucket in blobs, of which a window reads and writes few.

Keys are kept sorted in *leaves* of up to ``PAGE_ENTRIES`` entries. A lookup reads the leaves in
which its keys could be, all keys of a column at once. New entries are *runs* until the window ends;
then they are merged into their leaves, and only these are written. A directory blob says which leaf
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
    Keys,
    LookupResult,
    SortedRun,
    concat,
    drop_deleted,
    find_indices,
    flatten,
    is_list,
    merge,
)

PAGE_ENTRIES = 4096


@dataclass(slots=True)
class _Page:
    number: int
    first: Any
    keys: int
    entries: int
    size: int
    minima: list[int | None]
    run: SortedRun | None = None
    changed: bool = False


class PagedMap:
    """A sorted map from keys to values, in the blobs that begin with a name."""

    def __init__(
        self,
        name: str,
        key_type: pa.DataType,
        value_type: pa.DataType,
        blobs: Blobs | None = None,
        *,
        latest: bool = False,
        keep_deleted: bool = False,
        min_fields: tuple[str, ...] = (),
    ) -> None:
        """Take up the map.

        Args:
            name: of its directory blob; leaves are ``<name>/<number>``.
            key_type: type of the keys.
            value_type: struct, or list of struct.
            blobs: the bucket's state; None for none.
            latest: the greatest event time of a key wins.
            keep_deleted: keys without value stay known.
            min_fields: up to two fields of the values, whose least values are kept of each leaf.
        """
        self.name, self.key_type, self.value_type = name, key_type, value_type
        self._blobs = blobs if blobs is not None else {}
        self._latest, self._keep_deleted, self._min_fields = latest, keep_deleted, min_fields
        self._pages: list[_Page] = []
        self._runs: list[SortedRun] = []
        self._base: SortedRun | None = None
        self._next, self._changed = 0, False
        self._removed: list[int] = []
        if (root := self._blobs.get(name)) is not None:
            self._read_directory(root)

    @classmethod
    def from_run(cls, run: SortedRun) -> PagedMap:
        """Return a map of one level, without state."""
        made = cls("t", run.keys.type, run.values.type)
        made._pages = [made._make_page(run)]
        return made

    def __len__(self) -> int:
        """Return how many values there are; those of one key counted each."""
        self.merge_runs()
        return sum(leaf.entries for leaf in self._pages)

    @property
    def size(self) -> int:
        """Bytes in Arrow."""
        return sum(leaf.size for leaf in self._pages) + sum(run.nbytes for run in self._runs)

    @property
    def max_count(self) -> int:
        """A number of values that ``len`` does not exceed, without the work of counting."""
        return sum(leaf.entries for leaf in self._pages) + sum(run.entries for run in self._runs)

    def min_value(self, number: int) -> int | None:
        """Return the least value of a field that is watched; None if there is none."""
        self.merge_runs()
        return min_present(leaf.minima[number] for leaf in self._pages)

    def first_key(self) -> Any:
        """Return the least key; None if there is none."""
        self.merge_runs()
        return self._pages[0].first if self._pages else None

    def add(self, run: SortedRun) -> None:
        """Take a level that is newer than everything."""
        if not len(run):
            return
        self._runs.append(run)
        self._changed = True
        while len(self._runs) > 1 and 2 * len(self._runs[-1]) >= len(self._runs[-2]):
            newest = self._runs.pop()
            self._runs[-1] = merge([self._runs[-1], newest], latest=self._latest)

    def lookup(self, keys: Keys) -> LookupResult:
        """Return the entry of each key, in their order.

        Keys may be null and repeat.
        """
        if is_list(self.value_type):
            self.merge_runs()
        levels = [self._load_for(keys), *self._runs]
        places, offset = None, 0
        for level in levels:
            found = pc.add(find_indices(level, keys), offset)
            places = found if places is None else pc.coalesce(found, places)
            offset += len(level)
        return LookupResult(concat([level for level in levels if len(level)] or levels[:1]), places)

    def read_all(self) -> SortedRun:
        """Return every entry that has a value, ascending."""
        self.merge_runs()
        return drop_deleted(self._load_all())

    def remove(self, keys: Keys) -> None:
        """Forget keys at once: nothing of them stays known."""
        self.merge_runs()
        for place, inside in self._keys_by_page(keys):
            level = self._load_page(self._pages[place])
            kept = pc.invert(pc.is_in(level.keys, value_set=inside))
            self._replace_page(place, level.filter(kept))
        self._drop_empty()

    def pop_until(self, key: Any) -> SortedRun | None:
        """Return and forget all entries up to a key, ascending; None if there are none."""
        self.merge_runs()
        found: list[SortedRun] = []
        for place, leaf in enumerate(self._pages):
            if leaf.first > key:
                break
            level = self._load_page(leaf)
            count = int(pc.sum(pc.less_equal(level.keys, key)).as_py() or 0)
            found.append(level.slice(0, count))
            self._replace_page(place, level.slice(count, len(level) - count))
        self._drop_empty()
        return concat(found) if found else None

    def clear(self) -> None:
        """Forget everything."""
        self._removed += [leaf.number for leaf in self._pages]
        self._pages, self._runs, self._base, self._changed = [], [], None, True

    def merge_runs(self) -> None:
        """Merge the runs into their leaves."""
        if not self._runs:
            return
        run = self._runs[0] if len(self._runs) == 1 else merge(self._runs, latest=self._latest)
        self._runs = []
        if not self._pages:
            self._pages = self._split_pages(self._drop_deleted(run))
            self._base = None
            return
        for place, start, end in reversed(self._ranges(run.keys)):
            part = run.slice(start, end - start)
            made = merge([self._load_page(self._pages[place]), part], latest=self._latest)
            self._replace_page(place, self._drop_deleted(made))
        self._drop_empty()

    def changes(self) -> Changes:
        """Return the blobs to write and, as None, those to remove."""
        self.merge_runs()
        out: Changes = {}
        for number in self._removed:
            if f"{self.name}/{number}" in self._blobs:
                out[f"{self.name}/{number}"] = None
        for leaf in self._pages:
            if leaf.changed and leaf.run is not None:
                out[f"{self.name}/{leaf.number}"] = pack(*leaf.run.columns)
        if self._pages and (out or self._changed):
            out[self.name] = self._write_directory()
        elif not self._pages and self.name in self._blobs:
            out[self.name] = None
        return out

    def _drop_deleted(self, run: SortedRun) -> SortedRun:
        return run if self._keep_deleted else drop_deleted(run)

    def _load_for(self, keys: Keys) -> SortedRun:
        """Return the leaves in which keys could be, as one level; others may be in it."""
        if any(leaf.run is None for leaf in self._pages):
            for place in _distinct_indices(self._page_indices(keys)):
                if self._pages[place].run is None:
                    self._load_page(self._pages[place])
                    self._base = None
        return self._merge_loaded()

    def _load_all(self) -> SortedRun:
        for leaf in self._pages:
            if leaf.run is None:
                self._load_page(leaf)
                self._base = None
        return self._merge_loaded()

    def _merge_loaded(self) -> SortedRun:
        if self._base is None:
            leaves = [leaf for leaf in self._pages if leaf.run is not None]
            self._base = concat(
                [leaf.run for leaf in leaves if leaf.run is not None] or [self._empty()]
            )
            start = 0
            for leaf in leaves:
                leaf.run = self._base.slice(start, leaf.keys)
                start += leaf.keys
        return self._base

    def _empty(self) -> SortedRun:
        types = (self.key_type, pa.int64(), pa.bool_(), self.value_type)
        return SortedRun(*(pa.array([], type_) for type_ in types))

    def _page_indices(self, keys: Keys) -> pa.Array:
        firsts = pa.array([leaf.first for leaf in self._pages], self.key_type)
        places = pc.cast(pc.search_sorted(firsts, keys, side="right"), pa.int64())
        return pc.max_element_wise(pc.subtract(places, 1), 0, skip_nulls=False)

    def _keys_by_page(self, keys: Keys) -> list[tuple[int, pa.Array]]:
        if not self._pages:
            return []
        places = self._page_indices(keys)
        return [
            (place, keys.filter(pc.equal(places, place))) for place in _distinct_indices(places)
        ]

    def _ranges(self, keys: Keys) -> list[tuple[int, int, int]]:
        """Return leaf, first and end of ascending keys, for each leaf that they touch."""
        ends = pc.run_end_encode(self._page_indices(keys), run_end_type=pa.int64())
        starts = [0, *ends.run_ends.to_pylist()]
        return [
            (place, starts[n], starts[n + 1]) for n, place in enumerate(ends.values.to_pylist())
        ]

    def _make_page(self, run: SortedRun) -> _Page:
        made = _Page(self._next, None, 0, 0, 0, [None, None])
        self._next += 1
        self._set_page(made, run)
        return made

    def _set_page(self, page: _Page, run: SortedRun) -> None:
        page.run, page.changed, self._changed = run, True, True
        page.keys, page.entries, page.size = len(run), run.entries, run.nbytes
        if len(run):
            page.first = run.keys[0].as_py()
        if self._min_fields:
            values = flatten(run.values) if is_list(run.values.type) else run.values
            page.minima[: len(self._min_fields)] = min_values(values, self._min_fields)

    def _split_pages(self, run: SortedRun) -> list[_Page]:
        return [
            self._make_page(run.slice(at, PAGE_ENTRIES)) for at in range(0, len(run), PAGE_ENTRIES)
        ]

    def _replace_page(self, index: int, run: SortedRun) -> None:
        self._base = None
        if len(run) <= 2 * PAGE_ENTRIES:
            self._set_page(self._pages[index], run)
            return
        self._removed.append(self._pages[index].number)
        self._pages[index : index + 1] = self._split_pages(run)

    def _drop_empty(self) -> None:
        self._removed += [leaf.number for leaf in self._pages if not leaf.keys]
        self._pages = [leaf for leaf in self._pages if leaf.keys]
        self._base = None

    def _load_page(self, page: _Page) -> SortedRun:
        if page.run is None:
            name = f"{self.name}/{page.number}"
            types = (self.key_type, pa.int64(), pa.bool_(), self.value_type)
            page.run = SortedRun(*unpack(self._blobs, name, types))
        return page.run

    def _write_directory(self) -> bytes:
        rows = [
            (leaf.number, leaf.first, leaf.keys, leaf.entries, leaf.size, *leaf.minima)
            for leaf in self._pages
        ]
        columns = [list(column) for column in zip(*rows, strict=True)]
        types = self._directory_types()
        return pack(
            pa.array([self._next] * len(rows), pa.int64()),
            *(pa.array(column, type_) for column, type_ in zip(columns, types[1:], strict=True)),
        )

    def _directory_types(self) -> tuple[pa.DataType, ...]:
        number = pa.int64()
        return (number, number, self.key_type, *[number] * 5)

    def _read_directory(self, root: bytes) -> None:
        columns = unpack({self.name: root}, self.name, self._directory_types())
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        for self._next, number, first, keys, entries, size, *lows in rows:
            self._pages.append(_Page(number, first, keys, entries, size, lows))


def min_values(values: pa.Array, fields: Sequence[str]) -> list[int | None]:
    """Return the least value of each field of structs; None where there is none."""
    return [pc.min(pc.struct_field(values, field)).as_py() for field in fields]


def min_present(values: Iterable[int | None]) -> int | None:
    """Return the least of numbers of which some may be missing."""
    return min((value for value in values if value is not None), default=None)


def _distinct_indices(indices: pa.Array) -> list[int]:
    return sorted(place for place in pc.unique(indices).to_pylist() if place is not None)
