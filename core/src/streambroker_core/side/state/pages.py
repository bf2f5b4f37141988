"""Sorted map of one bucket, paged into blobs so that a window reads and writes few of them.

Keys are sorted in *pages* of up to twice ``PAGE_ENTRIES`` keys. A lookup reads the pages that can
contain its keys, for all keys of a column at once. New entries stay in *runs* until the window
ends. Then they are merged into their pages, and only changed pages are written. A directory blob
records each page's first key, counts, and least values of tracked fields.
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

    def set_run(self, run: SortedRun, min_fields: tuple[str, ...]) -> None:
        """Replace the entries, with their counts and least values."""
        self.run, self.changed = run, True
        self.keys, self.entries, self.size = len(run), run.entries, run.nbytes
        if len(run):
            self.first = run.keys[0].as_py()
        if min_fields:
            values = flatten(run.values) if is_list(run.values.type) else run.values
            self.minima[: len(min_fields)] = min_values(values, min_fields)


class PagedMap:
    """Sorted map from keys to values, in the blobs that begin with a name."""

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
        """Restore the map.

        Args:
            name: name of its directory blob; pages are ``<name>/<number>``.
            key_type: type of the keys.
            value_type: struct, or list of struct.
            blobs: the bucket's state; None for none.
            latest: the greatest event time of a key wins.
            keep_deleted: keys without value stay known.
            min_fields: up to two fields of the values, whose least values are tracked per page.
        """
        self.name, self.key_type, self.value_type = name, key_type, value_type
        self._blobs = blobs if blobs is not None else {}
        self._latest, self._keep_deleted, self._min_fields = latest, keep_deleted, min_fields
        self._pages: list[_Page] = []
        self._runs: list[SortedRun] = []
        self._base: SortedRun | None = None
        self._next, self._changed = 0, False
        self._removed: list[int] = []
        self._types = (key_type, pa.int64(), pa.bool_(), value_type)
        if (root := self._blobs.get(name)) is not None:
            columns = unpack({name: root}, name, _directory_types(key_type))
            rows = zip(*(column.to_pylist() for column in columns), strict=True)
            for self._next, number, first, keys, entries, size, *lows in rows:
                self._pages.append(_Page(number, first, keys, entries, size, lows))

    @classmethod
    def from_run(cls, run: SortedRun) -> PagedMap:
        """Return a map of one run, without state."""
        result = cls("t", run.keys.type, run.values.type)
        result._pages = [result._make_page(run)]
        return result

    def __len__(self) -> int:
        """Return the number of values; each value of a list counts."""
        self.merge_runs()
        return sum(page.entries for page in self._pages)

    @property
    def size(self) -> int:
        """Bytes in Arrow."""
        return sum(page.size for page in self._pages) + sum(run.nbytes for run in self._runs)

    @property
    def max_count(self) -> int:
        """Upper bound of ``len``, known without merging runs."""
        return sum(page.entries for page in self._pages) + sum(run.entries for run in self._runs)

    def min_value(self, number: int) -> int | None:
        """Return the least value of a tracked field; None if there is none."""
        self.merge_runs()
        return min_present(page.minima[number] for page in self._pages)

    def first_key(self) -> Any:
        """Return the least key; None if there is none."""
        self.merge_runs()
        return self._pages[0].first if self._pages else None

    def add(self, run: SortedRun) -> None:
        """Add a run that is newer than all content."""
        if not len(run):
            return
        self._runs.append(run)
        self._changed = True
        while len(self._runs) > 1 and 2 * len(self._runs[-1]) >= len(self._runs[-2]):
            newest = self._runs.pop()
            self._runs[-1] = merge([self._runs[-1], newest], latest=self._latest)

    def lookup(self, keys: Keys) -> LookupResult:
        """Return the entry of each key, in their order; keys may be null and repeat."""
        if is_list(self.value_type):
            self.merge_runs()
        runs = [self._load_for(keys), *self._runs]
        indices, offset = None, 0
        for run in runs:
            shifted = pc.add(find_indices(run, keys), offset)
            indices = shifted if indices is None else pc.coalesce(shifted, indices)
            offset += len(run)
        return LookupResult(concat([run for run in runs if len(run)] or runs[:1]), indices)

    def read_all(self) -> SortedRun:
        """Return all entries that have a value, ascending."""
        self.merge_runs()
        return drop_deleted(self._load_for(None))

    def remove(self, keys: Keys) -> None:
        """Remove keys at once, also those kept as deleted."""
        self.merge_runs()
        if not self._pages:
            return
        indices = self._page_indices(keys)
        for index in _distinct_indices(indices):
            run = self._load_page(self._pages[index])
            page_keys = keys.filter(pc.equal(indices, index))
            remaining = pc.invert(pc.is_in(run.keys, value_set=page_keys))
            self._replace_page(index, run.filter(remaining))
        self._drop_empty()

    def pop_until(self, key: Any) -> SortedRun | None:
        """Remove and return all entries up to a key, ascending; None if there are none."""
        self.merge_runs()
        popped: list[SortedRun] = []
        for index, page in enumerate(self._pages):
            if page.first > key:
                break
            run = self._load_page(page)
            count = int(pc.sum(pc.less_equal(run.keys, key)).as_py() or 0)
            popped.append(run.slice(0, count))
            self._replace_page(index, run.slice(count, len(run) - count))
        self._drop_empty()
        return concat(popped) if popped else None

    def clear(self) -> None:
        """Remove all entries."""
        self._removed += [page.number for page in self._pages]
        self._pages, self._runs, self._base, self._changed = [], [], None, True

    def merge_runs(self) -> None:
        """Merge the runs into their pages."""
        if not self._runs:
            return
        run = self._runs[0] if len(self._runs) == 1 else merge(self._runs, latest=self._latest)
        self._runs = []
        if not self._pages:
            self._pages = self._split_pages(self._drop_deleted(run))
            self._base = None
            return
        for index, start, end in reversed(self._ranges(run.keys)):
            part = run.slice(start, end - start)
            merged = merge([self._load_page(self._pages[index]), part], latest=self._latest)
            self._replace_page(index, self._drop_deleted(merged))
        self._drop_empty()

    def changes(self) -> Changes:
        """Return the blobs to write; None marks a removed blob."""
        self.merge_runs()
        out: Changes = {}
        for number in self._removed:
            if f"{self.name}/{number}" in self._blobs:
                out[f"{self.name}/{number}"] = None
        for page in self._pages:
            if page.changed and page.run is not None:
                out[f"{self.name}/{page.number}"] = pack(*page.run.columns)
        if self._pages and (out or self._changed):
            out[self.name] = self._write_directory()
        elif not self._pages and self.name in self._blobs:
            out[self.name] = None
        return out

    def _drop_deleted(self, run: SortedRun) -> SortedRun:
        return run if self._keep_deleted else drop_deleted(run)

    def _load_for(self, keys: Keys | None) -> SortedRun:
        """Return the pages that can contain keys, or all, as one run, with any others loaded."""
        if any(page.run is None for page in self._pages):
            pages = self._pages
            if keys is not None:
                pages = [pages[index] for index in _distinct_indices(self._page_indices(keys))]
            for page in pages:
                if page.run is None:
                    self._load_page(page)
                    self._base = None
        if self._base is None:
            loaded = [(page, page.run) for page in self._pages if page.run is not None]
            self._base = concat(
                [run for _, run in loaded]
                or [SortedRun(*(pa.array([], type_) for type_ in self._types))]
            )
            start = 0
            for page, _ in loaded:
                page.run = self._base.slice(start, page.keys)
                start += page.keys
        return self._base

    def _page_indices(self, keys: Keys) -> pa.Array:
        firsts = pa.array([page.first for page in self._pages], self.key_type)
        indices = pc.cast(pc.search_sorted(firsts, keys, side="right"), pa.int64())
        return pc.max_element_wise(pc.subtract(indices, 1), 0, skip_nulls=False)

    def _ranges(self, keys: Keys) -> list[tuple[int, int, int]]:
        """Return (page index, start, end) of ascending keys, for each page that they touch."""
        ends = pc.run_end_encode(self._page_indices(keys), run_end_type=pa.int64())
        starts = [0, *ends.run_ends.to_pylist()]
        return [
            (index, starts[n], starts[n + 1]) for n, index in enumerate(ends.values.to_pylist())
        ]

    def _make_page(self, run: SortedRun) -> _Page:
        page = _Page(self._next, None, 0, 0, 0, [None, None])
        self._next += 1
        self._changed = True
        page.set_run(run, self._min_fields)
        return page

    def _split_pages(self, run: SortedRun) -> list[_Page]:
        return [
            self._make_page(run.slice(at, PAGE_ENTRIES)) for at in range(0, len(run), PAGE_ENTRIES)
        ]

    def _replace_page(self, index: int, run: SortedRun) -> None:
        self._base, self._changed = None, True
        if len(run) <= 2 * PAGE_ENTRIES:
            self._pages[index].set_run(run, self._min_fields)
            return
        self._removed.append(self._pages[index].number)
        self._pages[index : index + 1] = self._split_pages(run)

    def _drop_empty(self) -> None:
        self._removed += [page.number for page in self._pages if not page.keys]
        self._pages = [page for page in self._pages if page.keys]
        self._base = None

    def _load_page(self, page: _Page) -> SortedRun:
        if page.run is None:
            name = f"{self.name}/{page.number}"
            page.run = SortedRun(*unpack(self._blobs, name, self._types))
        return page.run

    def _write_directory(self) -> bytes:
        rows = [
            (page.number, page.first, page.keys, page.entries, page.size, *page.minima)
            for page in self._pages
        ]
        columns = [list(column) for column in zip(*rows, strict=True)]
        types = _directory_types(self.key_type)
        return pack(
            pa.array([self._next] * len(rows), pa.int64()),
            *(pa.array(column, type_) for column, type_ in zip(columns, types[1:], strict=True)),
        )


def _directory_types(key_type: pa.DataType) -> tuple[pa.DataType, ...]:
    number = pa.int64()
    return (number, number, key_type, *[number] * 5)


def min_values(values: pa.Array, fields: Sequence[str]) -> list[int | None]:
    """Return the least value of each field of structs; None where there is none."""
    return [pc.min(pc.struct_field(values, field)).as_py() for field in fields]


def min_present(values: Iterable[int | None]) -> int | None:
    """Return the least of the values that are not None; None if there is none."""
    return min((value for value in values if value is not None), default=None)


def _distinct_indices(indices: pa.Array) -> list[int]:
    return sorted(index for index in pc.unique(indices).to_pylist() if index is not None)
