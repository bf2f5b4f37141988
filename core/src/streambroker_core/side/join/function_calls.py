"""Calls a function with batches of main rows and their views, after columns were added."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.side.definition import MAIN, SideJoin
from streambroker_core.side.errors import SideError
from streambroker_core.side.join.enrich import add_columns
from streambroker_core.side.join.views import Views, make_view
from streambroker_core.side.keys import make_keys
from streambroker_core.side.state.input_state import SideState
from streambroker_core.side.state.layout import WINDOW
from streambroker_core.side.windows import window_end

Result: TypeAlias = "pa.RecordBatch | pa.Table | Iterable[pa.RecordBatch] | None"
Function: TypeAlias = "Callable[[pa.RecordBatch, Views], Result]"
"""Called with main rows of one window and its views; returns rows for the output ``out``.

A true attribute ``own_keys`` declares that it looks up maps only by the columns by which rows wait
for keys, or not at all. Then rows of many keys are released together.
"""
EmitRows: TypeAlias = "Callable[[pa.RecordBatch], None]"
ReportMissing: TypeAlias = "Callable[[str, pa.RecordBatch], None]"
"""Called with the name of a side input and the main rows for which it has no value."""


class FunctionCaller:
    """Passes pairs that wait for nothing to the function, by window and, if grouped, by key."""

    def __init__(
        self,
        join: SideJoin,
        sides: list[SideState],
        function: Function | None,
        emit_rows: EmitRows,
        report_missing: ReportMissing,
    ) -> None:
        self._join, self._sides, self._function = join, sides, function
        self._emit_rows, self._report_missing = emit_rows, report_missing
        self._names = join.schema.names

    def process(self, starts: list[int], pairs: pa.RecordBatch) -> None:
        """Process pairs of one window; `starts` has the windows of the side inputs."""
        window = None
        if self._join.windows is not None and self._join.windows.is_windowed:
            first = pairs[WINDOW][0].as_py()
            window = (first, window_end(self._join.windows, first))
        views = Views(
            {
                state.side.name: make_view(state.side, state.content(start), state.version)
                for state, start in zip(self._sides, starts, strict=True)
            },
            window,
        )
        batch = pairs.select(self._names)
        for enrich in self._join.enrich:
            if enrich.only_wait and enrich.missing != "error":
                continue
            enriched = add_columns(enrich, self._join.input(enrich.input), batch, views)
            batch = enriched.batch
            if enriched.lacking is not None:
                self._report_missing(enrich.input, pairs.filter(enriched.lacking))
                pairs = pairs.filter(pc.invert(enriched.lacking))
                batch = batch.filter(pc.invert(enriched.lacking))
        for key, rows in self._group_by_key(batch) if self._join.grouped else [((), batch)]:
            for result in call_function(self._function, rows, views.of_key(key)):
                self._emit_rows(result)

    def _group_by_key(self, batch: pa.RecordBatch) -> list[tuple[tuple[Any, ...], pa.RecordBatch]]:
        """Group rows by key, keeping their order; keys are in order of arrival."""
        names = list(self._join.key)
        if not names or not batch.num_rows:
            return [((), batch)]
        codes = _key_codes([batch.column(name) for name in names])
        order = pc.sort_indices(codes)
        batch = batch.take(order)
        ends = pc.run_end_encode(codes.take(order), run_end_type=pa.int64()).run_ends.to_pylist()
        groups = []
        for start, end in zip([0, *ends], ends, strict=False):
            rows = batch.slice(start, end - start)
            groups.append((tuple(rows.column(name)[0].as_py() for name in names), rows))
        return groups


def call_function(
    function: Function | None, batch: pa.RecordBatch, views: Views
) -> Iterator[pa.RecordBatch]:
    """Yield the rows that a function returns for a batch; without a function, the batch.

    Raises:
        SideError: the function returned something other than rows.
    """
    if not batch.num_rows:
        return
    for rows in iter_batches(batch if function is None else function(batch, views)):
        if rows.num_rows:
            yield rows


def _key_codes(columns: list[pa.Array]) -> pa.Array:
    """Return a number for each key, in order of arrival; null parts are distinguished too."""
    keys = make_keys(columns)
    if not keys.null_count:
        return keys.dictionary_encode().indices
    parts = [column.dictionary_encode(null_encoding="encode").indices for column in columns]
    spelled = pc.binary_join_element_wise(*(part.cast(pa.string()) for part in parts), ":")
    null_codes = pc.if_else(pc.is_null(keys), spelled.dictionary_encode().indices, -1)
    codes = pc.fill_null(keys.dictionary_encode().indices.cast(pa.int64()), -1)
    return pc.add(pc.multiply(codes, len(keys)), null_codes).dictionary_encode().indices


def iter_batches(result: Any) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a function's result.

    Raises:
        SideError: the result is not an Arrow batch, a table or an iterable of these.
    """
    if isinstance(result, pa.RecordBatch):
        yield result
    elif isinstance(result, pa.Table):
        yield from result.to_batches()
    elif isinstance(result, Iterable) and not isinstance(result, str | bytes | Mapping):
        for item in result:
            if not isinstance(item, pa.RecordBatch | pa.Table):
                raise _result_error(f"{type(result).__name__} of {type(item).__name__}")
            yield from iter_batches(item)
    elif result is not None:
        raise _result_error(type(result).__name__)


def _result_error(actual: str) -> SideError:
    return SideError(
        MAIN,
        f"The function with side inputs returned {actual}; return Arrow record batches, a table,"
        " or nothing.",
    )
