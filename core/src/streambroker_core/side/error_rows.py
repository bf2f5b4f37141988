"""Rows of the output ``errors``."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from streambroker_core.side.definition import MAIN, SideJoin
from streambroker_core.side.state.input_state import SideState
from streambroker_core.side.state.layout import TIME
from streambroker_core.side.state.read_rows import to_json

ERRORS = "errors"
ERROR_SCHEMA = pa.schema(
    [
        ("input", pa.string()),
        ("code", pa.string()),
        ("message", pa.string()),
        ("event_time", pa.timestamp("us", "UTC")),
        ("row", pa.string()),
    ]
)
"""Columns of the output ``errors``; ``row`` is the row as JSON."""


class ErrorRows:
    """Emits rejected rows to ``errors``."""

    def __init__(self, join: SideJoin, emit: Callable[[pa.RecordBatch, str], None]) -> None:
        self._join, self._emit = join, emit

    def emit_missing(self, name: str, pairs: pa.RecordBatch) -> None:
        """Emit main rows for which a side input has no value."""
        self.emit_pairs(name, "SideMissing", f"side input {name} has no value for the row", pairs)

    def emit_timeless(self, main_rows: pa.RecordBatch) -> None:
        """Emit main rows without an event time."""
        rows = [to_json(row) for row in main_rows.to_pylist()]
        message = f"event time ({self._join.event_time}) is null"
        self.emit(MAIN, "SideMissing", message, rows, [None] * len(rows))

    def emit_pairs(self, name: str, code: str, message: str, pairs: pa.RecordBatch) -> None:
        """Emit main rows of pairs."""
        rows = [to_json(row) for row in pairs.select(self._join.schema.names).to_pylist()]
        self.emit(name, code, message, rows, pairs[TIME].to_pylist())

    def emit_rejected(self, state: SideState, bucket: int) -> None:
        """Emit the rejected rows of a side input; for a broadcast one only from bucket 0."""
        if state.side.keyed or bucket == 0:
            for one in state.rejected_rows:
                self.emit(state.side.name, one.error.code, one.error.problem, one.rows, one.times)
        state.rejected_rows.clear()

    def emit(
        self, name: str, code: str, message: str, rows: list[str], times: list[int | None]
    ) -> None:
        """Emit rows, as JSON text, that were rejected for one reason."""
        size = len(rows)
        columns = [[name] * size, [code] * size, [message] * size, times, rows]
        arrays = [pa.array(c, f.type) for c, f in zip(columns, ERROR_SCHEMA, strict=True)]
        self._emit(pa.RecordBatch.from_arrays(arrays, schema=ERROR_SCHEMA), ERRORS)
