"""Index of Imports by the properties of an Export.

- Each alternative of a subscription is indexed under its *access*: its two rarest conditions, or
  its only one. An Export looks up the pairs of its values. So a value that half of all
  subscriptions name costs nothing by itself.
- A range is indexed like a value. Numbers are divided into cells at least half as wide as the
  range, which is indexed under the cells it touches, three at most. Cells may round: a greater
  number is never in a lower cell.
- Subscriptions without access (only ``!=``, one-sided ranges, string tests …) are on a list that
  every Export must test. `IndexStats` reports its length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, combinations, product
from math import floor, frexp, isfinite
from typing import Any, NamedTuple, TypeAlias

from streambroker_core.expression.evaluate import Code, Literals
from streambroker_core.matching.property_conditions import (
    Alternative,
    Attribute,
    Between,
    Facts,
    PropertyCondition,
    ValueIn,
)
from streambroker_core.model import Import

MAX_VALUES = 64
"""Maximum number of values of a condition; ``in`` with more is no access."""
MAX_PAIRS = 16
"""Maximum number of value pairs of two conditions; with more, the rarer one is used alone."""
MAX_ENTRIES = 512
"""Maximum number of entries of a subscription; with more, it is not indexed."""

_MAX_WEIGHED = 4
_WIDEST, _NARROWEST = 64, -30


class IndexedImport:
    """An Import in the index, without text and tree.

    Attributes:
        code: function of the subscription's form; None for an Import by name.
        literals: arguments of `code`.
        entries: where it is indexed: table, key, table, key, …
        is_truncated: whether conditions of the subscription were left out.
    """

    __slots__ = ("code", "entries", "import_", "is_truncated", "literals")

    def __init__(self, import_: Import, code: Code | None, literals: Literals) -> None:
        self.import_ = import_
        self.code = code
        self.literals = literals
        self.entries: tuple[Any, ...] = ()
        self.is_truncated = False


_Bucket: TypeAlias = "IndexedImport | set[IndexedImport]"
"""One Import, or several."""


class _Table:
    """Imports by the values of one attribute, or by value pairs of two.

    With one attribute, `second` is None.
    """

    __slots__ = ("entries", "first", "second")

    def __init__(self, first: Attribute, second: Attribute | None) -> None:
        self.first = first
        self.second = second
        self.entries: dict[Any, _Bucket] = {}

    def add(self, key: Any, indexed: IndexedImport) -> None:
        bucket = self.entries.get(key)
        if isinstance(bucket, set):
            bucket.add(indexed)
        else:
            self.entries[key] = indexed if bucket is None else {bucket, indexed}

    def remove(self, key: Any, indexed: IndexedImport) -> None:
        bucket = self.entries[key]
        if isinstance(bucket, set):
            bucket.discard(indexed)
            if len(bucket) == 1:
                self.entries[key] = bucket.pop()
        else:
            del self.entries[key]


class _Option(NamedTuple):
    """A condition as an access, and the share of Exports that satisfy it."""

    selectivity: float
    attribute: Attribute
    values: tuple[Any, ...]


class _Grid:
    """A cell width: the factor from a number to its cell, and how many tables use it."""

    __slots__ = ("scale", "uses")

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.uses = 0


class ImportIndex:
    """Index of Imports by access and by stream id.

    `selectivity` returns the share of Exports that satisfy a condition.
    """

    def __init__(self, selectivity: Callable[[PropertyCondition], float]) -> None:
        self._selectivity = selectivity
        self._tables: dict[Attribute, dict[Attribute | None, _Table]] = {}
        self._grids: dict[str, dict[Attribute, _Grid]] = {}
        self._streams: dict[str, set[IndexedImport]] = {}
        self.unindexed: set[IndexedImport] = set()
        self.entry_count = 0

    def add(self, indexed: IndexedImport, alternatives: Iterable[Alternative]) -> None:
        """Index an Import under all alternatives of its subscription."""
        keys: dict[tuple[Attribute, Attribute | None, Any], None] = {}
        for alternative in alternatives:
            access = self._choose_access(alternative)
            if access is None or len(keys) + access.size > MAX_ENTRIES:
                self.unindexed.add(indexed)
                return
            for key in access.entries():
                keys[access.first, access.second, key] = None
        # Entries refer to tables, so that attributes are not stored once per Import.
        entries = [(self._table(first, second), key) for first, second, key in keys]
        for table, key in entries:
            table.add(key, indexed)
        indexed.entries = tuple(chain.from_iterable(entries))
        self.entry_count += len(keys)

    def add_by_name(self, indexed: IndexedImport) -> None:
        """Index an Import under the stream ids that it names."""
        for name in indexed.import_.streams:
            self._streams.setdefault(name.stream_id, set()).add(indexed)

    def remove(self, indexed: IndexedImport) -> None:
        """Remove an Import from all entries."""
        self.unindexed.discard(indexed)
        for table, key in _iter_entries(indexed.entries):
            table.remove(key, indexed)
            if not table.entries:
                self._drop_table(table)
            self.entry_count -= 1
        for name in indexed.import_.streams:
            imports = self._streams.get(name.stream_id, set())
            imports.discard(indexed)
            if not imports:
                self._streams.pop(name.stream_id, None)

    def _table(self, first: Attribute, second: Attribute | None) -> _Table:
        row = self._tables.setdefault(first, {})
        table = row.get(second)
        if table is None:
            table = row[second] = _Table(first, second)
            self._count_cells(table, 1)
        return table

    def _drop_table(self, table: _Table) -> None:
        row = self._tables[table.first]
        del row[table.second]
        if not row:
            del self._tables[table.first]
        self._count_cells(table, -1)

    # ---- lookup for an Export --------------------------------------------

    def find_by_stream(self, stream_id: str | None) -> Iterable[IndexedImport]:
        """Return the Imports that name a stream id."""
        return () if stream_id is None else self._streams.get(stream_id, ())

    def find_candidates(self, facts: Facts) -> set[IndexedImport]:
        """Return a superset of the Imports whose subscription is true for the facts."""
        found = set(self.unindexed)
        facts = self._with_cells(facts)
        for first, values in facts.items():
            row = self._tables.get(first)
            if row is None:
                continue
            seconds: Iterable[Attribute | None] = row
            if len(row) > len(facts):
                seconds = (None, *facts)
            for second in seconds:
                table = row.get(second)
                if table is None or (second is not None and second not in facts):
                    continue
                keys = values if second is None else product(values, facts[second])
                _collect(table.entries, keys, found)
        return found

    def _with_cells(self, facts: Facts) -> Facts:
        if not self._grids:
            return facts
        cells: dict[Attribute, tuple[Any, ...]] = dict(facts)
        for name, grids in self._grids.items():
            values = facts.get((name, "number"))
            if values is not None:
                number = values[0]
                for attribute, grid in grids.items():
                    cell = _cell(number, grid.scale)
                    if cell is not None:
                        cells[attribute] = (cell,)
        return cells

    def _count_cells(self, table: _Table, change: int) -> None:
        for attribute in (table.first, table.second):
            if attribute is None or not attribute[1].startswith("cell "):
                continue
            grids = self._grids.setdefault(attribute[0], {})
            grid = grids.setdefault(attribute, _Grid(_scale(int(attribute[1][5:]))))
            grid.uses += change
            if not grid.uses:
                del grids[attribute]
            if not grids:
                del self._grids[attribute[0]]

    # ---- access of an alternative ------------------------------------------

    def _choose_access(self, alternative: Alternative) -> _Access | None:
        options = sorted(
            (option for condition in alternative if (option := self._access_option(condition))),
            key=lambda option: option.selectivity,
        )
        if not options:
            return None
        pairs = [
            (one, other)
            for one, other in combinations(options[:_MAX_WEIGHED], 2)
            if len(one.values) * len(other.values) <= MAX_PAIRS
        ]
        if not pairs:
            return _Access(options[0], None)
        best = min(pairs, key=lambda pair: pair[0].selectivity * pair[1].selectivity)
        return _Access(*sorted(best, key=lambda option: option.attribute))

    def _access_option(self, condition: PropertyCondition) -> _Option | None:
        if isinstance(condition, ValueIn):
            if len(condition.values) > MAX_VALUES:
                return None
            return _Option(self._selectivity(condition), condition.attribute, condition.values)
        cells = _cells(condition)
        if cells is None:
            return None
        grid, numbers = cells
        return _Option(self._selectivity(condition), grid, numbers)


class _Access:
    """One or two conditions under which an alternative is indexed."""

    def __init__(self, option: _Option, second_option: _Option | None) -> None:
        self._option, self._second_option = option, second_option
        self.first: Attribute = option.attribute
        self.second: Attribute | None = None if second_option is None else second_option.attribute
        self.size = len(option.values) * (1 if second_option is None else len(second_option.values))

    def entries(self) -> Iterable[Any]:
        """Return the keys in the table of the attributes."""
        if self._second_option is None:
            return self._option.values
        return product(self._option.values, self._second_option.values)


def _collect(
    entries: Mapping[Any, _Bucket], keys: Iterable[Any], results: set[IndexedImport]
) -> None:
    for key in keys:
        bucket = entries.get(key)
        if bucket is None:
            continue
        if isinstance(bucket, set):
            results |= bucket
        else:
            results.add(bucket)


def _iter_entries(entries: tuple[Any, ...]) -> Iterator[tuple[_Table, Any]]:
    flat = iter(entries)
    return zip(flat, flat, strict=True)


def _cells(between: Between) -> tuple[Attribute, tuple[int, ...]] | None:
    """Return a grid and the cells that a range touches; None if it is open or too wide."""
    if between.low is None or between.high is None:
        return None
    low, high = float(between.low), float(between.high)
    width = high - low
    exponent = max(frexp(width)[1] - 1, _NARROWEST) if isfinite(width) else _WIDEST + 1
    scale = _scale(exponent)
    first, last = _cell(low, scale), _cell(high, scale)
    if exponent > _WIDEST or first is None or last is None:
        return None
    return (between.name, f"cell {exponent}"), tuple(range(first, last + 1))


def _scale(exponent: int) -> float:
    """Return the factor from a number to its cell, for cells 2**exponent wide."""
    return 2.0**-exponent


def _cell(number: float, scale: float) -> int | None:
    """Return the cell of a number; None if the cell number would overflow."""
    try:
        return floor(number * scale)
    except (OverflowError, ValueError):
        return None
