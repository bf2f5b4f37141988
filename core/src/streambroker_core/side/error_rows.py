"""Rows of the output ``errors``."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from streambroker_core.control.operators.dead_letters import DeadLetters, Kind, to_json, to_utf8
from streambroker_core.side.definition import MAIN, SideJoin
from streambroker_core.side.state.input_state import SideState
from streambroker_core.side.state.layout import SEQ, TIME
from streambroker_core.side.state.read_rows import RejectedRows, reject_rows

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


LATE_SIDE_ROW = "SideLate"
"""Code of side rows that arrived after their window; they are dead letters, and no errors."""


class ErrorRows:
    """Emits rejected rows to ``errors``, and adds them to the dead letters.

    Attributes:
        reported: numbers of the main rows that are dead letters of this window; a row may be in
            several windows of event time.
    """

    def __init__(
        self,
        join: SideJoin,
        emit: Callable[[pa.RecordBatch, str], None],
        dead_letters: Callable[[], DeadLetters | None],
    ) -> None:
        self._join, self._emit, self._dead_letters = join, emit, dead_letters
        self.reported: set[int] = set()

    def emit_missing(self, name: str, pairs: pa.RecordBatch) -> None:
        """Emit main rows for which a side input has no value."""
        self.emit_pairs(name, "SideMissing", f"side input {name} has no value for the row", pairs)

    def emit_timeless(self, main_rows: pa.RecordBatch) -> None:
        """Emit main rows without an event time."""
        rows = [to_json(row) for row in main_rows.to_pylist()]
        message = f"event time ({self._join.event_time}) is null"
        self.emit("main_row", MAIN, "SideMissing", message, rows, [None] * len(rows))

    def emit_pairs(self, name: str, code: str, message: str, pairs: pa.RecordBatch) -> None:
        """Emit main rows of pairs."""
        rows = [to_json(row) for row in pairs.select(self._join.schema.names).to_pylist()]
        times, letters = pairs[TIME].to_pylist(), self._dead_letters()
        self._emit_errors(name, code, message, rows, times)
        for seq, row, time in zip(pairs[SEQ].to_pylist(), rows, times, strict=True):
            if letters is not None and seq not in self.reported:
                self.reported.add(seq)
                letters.add("main_row", MAIN, code, message, row=row, event_time=time)

    def emit_rejected(self, state: SideState, bucket: int) -> None:
        """Emit the rejected rows of a side input; for a broadcast one only from bucket 0."""
        if state.side.keyed or bucket == 0:
            name = state.side.name
            for one in state.rejected_rows:
                if isinstance(one, RejectedRows):
                    error = one.error
                    self.emit("side_row", name, error.code, error.problem, one.rows, one.times)
                elif self._dead_letters() is not None:
                    late = reject_rows(state.side, one, "a row whose window is over", "")
                    why = LATE_SIDE_ROW, late.error.problem
                    self.emit("side_row", name, *why, late.rows, late.times, as_errors=False)
        state.rejected_rows.clear()

    def emit(
        self,
        kind: Kind,
        name: str,
        code: str,
        message: str,
        rows: list[str],
        times: list[int | None],
        *,
        as_errors: bool = True,
    ) -> None:
        """Emit rows, as JSON text, that were rejected for one reason; late ones only as letters."""
        letters = self._dead_letters()
        if letters is not None:
            port = MAIN if kind == "main_row" else name
            for row, time in zip(rows, times, strict=True):
                letters.add(kind, port, code, message, row=row, event_time=time)
        if as_errors:
            self._emit_errors(name, code, message, rows, times)

    def _emit_errors(
        self, name: str, code: str, message: str, rows: list[str], times: list[int | None]
    ) -> None:
        size = len(rows)
        texts = [[to_utf8(text)] * size for text in (name, code, message)]
        columns = [*texts, times, rows]
        arrays = [pa.array(c, f.type) for c, f in zip(columns, ERROR_SCHEMA, strict=True)]
        self._emit(pa.RecordBatch.from_arrays(arrays, schema=ERROR_SCHEMA), ERRORS)
