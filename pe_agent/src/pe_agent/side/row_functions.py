"""Functions on main rows and their views, as the tasks of side inputs call them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.side import Enrich, SideJoin, Views
from streambroker_core.side.errors import SideDefinitionError
from streambroker_core.side.join.enrich import enriched_schema
from streambroker_core.side.join.function_calls import Function, Result
from streambroker_core.side.state.layout import build_layout

GroupFunction = Callable[[tuple[Any, ...], tuple[int, int], pa.RecordBatch, Views], Result]
"""Called with key, window, rows and views."""


@dataclass(frozen=True)
class GroupedFunction:
    """A function of key, window, rows and views, called with rows and views."""

    function: GroupFunction

    def __call__(self, batch: pa.RecordBatch, views: Views) -> Result:
        """Call the function."""
        assert views.window is not None  # noqa: S101 - rows are grouped by windows
        return self.function(views.key, views.window, batch, views)


@dataclass(frozen=True)
class OwnKeysFunction:
    """Wrapper of a function that reads maps only by the keys for which rows wait."""

    function: Function
    own_keys: ClassVar[bool] = True

    def __call__(self, batch: pa.RecordBatch, views: Views) -> Result:
        """Call the function."""
        return self.function(batch, views)


@dataclass(frozen=True)
class RowJoiner:
    """Joins main rows with a map or multimap: each row once for each value of its key."""

    name: str
    on: tuple[str, ...]
    fields: tuple[str, ...]
    is_multimap: bool
    is_inner: bool

    def __call__(self, batch: pa.RecordBatch, views: Views) -> pa.RecordBatch:
        """Join a batch."""
        columns = (batch.column(name) for name in self.on)
        known, added = views[self.name].columns(*columns, names=self.fields)
        if self.is_multimap:
            rows, places = self._join_indices(added[0])
            batch = batch.take(rows)
            added = [one.flatten().take(places) for one in added]
        elif self.is_inner:
            batch, added = batch.filter(known), [one.filter(known) for one in added]
        for name, column in zip(self.fields, added, strict=True):
            batch = batch.append_column(name, column)
        return batch

    def _join_indices(self, lists: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Return the index of the main row of each joined row, and of its value or null."""
        rows = pc.cast(pc.list_parent_indices(lists), pa.int64())
        places = pa.array(range(len(rows)), pa.int64())
        if self.is_inner:
            return rows, places
        empty = pc.equal(pc.list_value_length(lists), 0)
        lacking = pc.cast(pc.indices_nonzero(empty), pa.int64())
        rows = pa.concat_arrays([rows, lacking])
        order = pc.sort_indices(rows)
        places = pa.concat_arrays([places, pa.nulls(len(lacking), pa.int64())])
        return rows.take(order), places.take(order)


def build_row_joiner(
    join: SideJoin,
    name: str,
    on: str | Sequence[str],
    columns: Sequence[str],
    how: str,
) -> tuple[RowJoiner, pa.Schema]:
    """Return the function that joins main rows with a side input, and the columns of its rows.

    Raises:
        SideDefinitionError: the join could never work.
    """
    side = join.input(name)
    # An enrichment with the same arguments runs the same checks.
    one = Enrich(input=name, on=as_tuple(on), columns=tuple(columns))
    build_layout(replace(join, enrich=(*join.enrich, one)))
    if side.kind not in ("map", "multimap") or how not in ("left", "inner"):
        raise SideDefinitionError(
            name,
            f"a {side.kind} is joined as `{how}`",
            "use a map or a multimap, and left or inner; else enrich or map_batches",
        )
    fields = tuple(columns) or side.fields
    join_rows = RowJoiner(name, as_tuple(on), fields, side.many, is_inner=how == "inner")
    added = [side.schema.field(one) for one in fields]
    return join_rows, pa.schema([*enriched_schema(join), *added])


def as_tuple(names: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return one name, several or none as a tuple."""
    return () if names is None else (names,) if isinstance(names, str) else tuple(names)
