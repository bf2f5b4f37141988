"""Rows that wait for the watermark; what came in one window is one blob, so little is rewritten."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.control.operators.operator import Blobs, Changes, StateError

_NAME = "waiting/"


class BufferedWindow:
    """Rows that came in one window and still wait.

    Attributes:
        first: the earliest time among them.
        count: how many they are.
        rows: the rows; None if they are in the state alone.
    """

    __slots__ = ("count", "first", "rows")

    def __init__(self, first: int, count: int, rows: pa.RecordBatch | None) -> None:
        self.first, self.count, self.rows = first, count, rows


class WatermarkBuffer:
    """All rows that wait in a bucket, in the order in which they came.

    Args:
        column: has the event time.
        blobs: the state.
        dumped: what `dump` returned.
    """

    def __init__(self, column: str, blobs: Blobs, dumped: list[list[int]]) -> None:
        self._column, self._blobs = column, blobs
        self._segments = {
            number: BufferedWindow(first, count, None) for number, first, count in dumped
        }
        self._stored_windows = frozenset(self._segments)
        self._changed: set[int] = set()

    def add(self, rows: pa.RecordBatch, window: int) -> None:
        """Let rows wait that came in a window; they have times, and at least one is there."""
        first = pc.min(event_times(rows, self._column)).as_py()
        known = self._segments.get(window)
        if known is not None:
            rows, first = _concat([self._rows(window), rows]), min(first, known.first)
        self._segments[window] = BufferedWindow(first, rows.num_rows, rows)
        self._changed.add(window)

    def pop_until(self, time: int) -> tuple[pa.RecordBatch, pa.Array] | None:
        """Take out the rows up to a time, in the order in which they came.

        Returns:
            The rows, and the windows in which they came; None if there are none.
        """
        parts: list[pa.RecordBatch] = []
        windows: list[pa.Array] = []
        for window, segment in list(self._segments.items()):
            if segment.first > time:
                continue
            rows = self._rows(window)
            times = event_times(rows, self._column)
            passed = pc.less_equal(times, time)
            left = pc.invert(passed)
            parts.append(rows.filter(passed))
            windows.append(pa.repeat(pa.scalar(window, pa.int64()), parts[-1].num_rows))
            self._changed.add(window)
            if parts[-1].num_rows == rows.num_rows:
                del self._segments[window]
            else:
                first = pc.min(times.filter(left)).as_py()
                rows = rows.filter(left)
                self._segments[window] = BufferedWindow(first, rows.num_rows, rows)
        return (_concat(parts), pa.concat_arrays(windows)) if parts else None

    def count(self) -> int:
        """Return how many rows wait."""
        return sum(segment.count for segment in self._segments.values())

    def earliest_time(self) -> int | None:
        """Return the earliest time among the rows; None if there are none."""
        return min((segment.first for segment in self._segments.values()), default=None)

    def oldest_window(self) -> int | None:
        """Return the first window of which rows wait; None if there are none."""
        return min(self._segments, default=None)

    def dump(self) -> list[list[int]]:
        """Return what is not in blobs, as JSON value."""
        return [[number, one.first, one.count] for number, one in self._segments.items()]

    def changes(self) -> Changes:
        """Return the blobs to write and, as None, those to remove."""
        out: Changes = {}
        for number in sorted(self._changed):
            segment = self._segments.get(number)
            if segment is not None:
                out[f"{_NAME}{number}"] = _to_ipc(self._rows(number))
            elif number in self._stored_windows:
                out[f"{_NAME}{number}"] = None
        return out

    def _rows(self, window: int) -> pa.RecordBatch:
        segment = self._segments[window]
        if segment.rows is None:
            blob = self._blobs.get(f"{_NAME}{window}")
            if blob is None:
                raise StateError(f"state {_NAME}{window} is missing: the store has lost a blob.")
            try:
                segment.rows = _concat(pa.ipc.open_stream(blob).read_all().to_batches())
            except (pa.ArrowException, IndexError) as error:
                raise StateError(f"state {_NAME}{window} is damaged: {error}.") from error
        return segment.rows


def event_times(batch: pa.RecordBatch | pa.Table, column: str) -> Any:
    """Return the times of a column in microseconds since 1970, as int64."""
    times = batch.column(column)
    if pa.types.is_timestamp(times.type):
        times = pc.cast(times, pa.timestamp("us", times.type.tz))
    return pc.cast(times, pa.int64())


def _concat(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _to_ipc(rows: pa.RecordBatch) -> bytes:
    """Return rows as bytes, which are the same however they were cut out of others."""
    rows = rows.take(pa.arange(0, rows.num_rows))  # texts of other rows stay behind
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return bytes(sink.getvalue())
