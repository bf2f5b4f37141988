"""Buffer of rows that wait for the watermark.

Each blob has the rows of one arrival window, so a change rewrites few rows.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.control.operators.operator import Blobs, Changes, StateError

_NAME = "waiting/"


class BufferedWindow:
    """Waiting rows of one arrival window: earliest time, count and rows; None if not loaded."""

    __slots__ = ("count", "first", "rows")

    def __init__(self, first: int, count: int, rows: pa.RecordBatch | None) -> None:
        self.first, self.count, self.rows = first, count, rows


class WatermarkBuffer:
    """All waiting rows of a bucket, in order of arrival."""

    def __init__(self, column: str, *, tie_break: str | None = None) -> None:
        self._column, self._tie_break = column, tie_break
        self._changed: set[int] = set()
        self.restore({}, [])

    def restore(self, blobs: Blobs, dumped: list[list[int]]) -> None:
        """Restore the index from the result of `dump`; rows are read when they are needed."""
        self._blobs = blobs
        self._segments = {
            number: BufferedWindow(first, count, None) for number, first, count in dumped
        }
        self._stored_windows = frozenset(self._segments)

    def add(
        self, rows: pa.RecordBatch, window: int, watermark: int | None
    ) -> pa.RecordBatch | None:
        """Add rows that arrived in a window; return late rows and rows without a time, if any."""
        times = event_times(rows, self._column)
        late = pc.is_null(times)
        if watermark is not None:
            late = pc.less_equal(times, watermark).fill_null(True)
        late_rows = None
        if pc.any(late).as_py():
            late_rows, rows = rows.filter(late), rows.filter(pc.invert(late))
        if rows.num_rows:
            self._add(rows, window)
        return late_rows

    def _add(self, rows: pa.RecordBatch, window: int) -> None:
        first = pc.min(event_times(rows, self._column)).as_py()
        segment = self._segments.get(window)
        if segment is not None:
            rows, first = _concat([self._rows(window), rows]), min(first, segment.first)
        self._segments[window] = BufferedWindow(first, rows.num_rows, rows)
        self._changed.add(window)

    def pop_until(self, time: int) -> tuple[pa.RecordBatch, pa.Array, pa.Array] | None:
        """Remove and return the rows up to a time, their times and their arrival windows.

        They are in the order of time, then tie break, then arrival. Returns None without rows.
        """
        parts: list[pa.RecordBatch] = []
        windows: list[pa.Array] = []
        for window, segment in list(self._segments.items()):
            if segment.first > time:
                continue
            rows = self._rows(window)
            times = event_times(rows, self._column)
            passed = pc.less_equal(times, time)
            remaining = pc.invert(passed)
            parts.append(rows.filter(passed))
            windows.append(pa.repeat(pa.scalar(window, pa.int64()), parts[-1].num_rows))
            self._changed.add(window)
            if parts[-1].num_rows == rows.num_rows:
                del self._segments[window]
            else:
                first = pc.min(times.filter(remaining)).as_py()
                rows = rows.filter(remaining)
                self._segments[window] = BufferedWindow(first, rows.num_rows, rows)
        return self._order(_concat(parts), pa.concat_arrays(windows)) if parts else None

    def _order(
        self, rows: pa.RecordBatch, windows: pa.Array
    ) -> tuple[pa.RecordBatch, pa.Array, pa.Array]:
        times, names = event_times(rows, self._column), [self._column]
        if self._tie_break is None and _is_ascending(times):
            return rows, times, windows
        if self._tie_break not in (None, self._column):
            names.append(self._tie_break)
        keys = [(name, "ascending") for name in names]
        order = pc.sort_indices(rows.select(names), sort_keys=keys)
        return rows.take(order), times.take(order), windows.take(order)

    def count(self) -> int:
        """Return the number of waiting rows."""
        return sum(segment.count for segment in self._segments.values())

    def earliest_time(self) -> int | None:
        """Return the earliest time of a waiting row; None without rows."""
        return min((segment.first for segment in self._segments.values()), default=None)

    def oldest_window(self) -> int | None:
        """Return the earliest arrival window of a waiting row; None without rows."""
        return min(self._segments, default=None)

    def dump(self) -> list[list[int]]:
        """Return the index of the buffer, which is not in blobs, as a JSON value."""
        return [[number, one.first, one.count] for number, one in self._segments.items()]

    def changes(self) -> Changes:
        """Return the blobs to write; None marks a blob to delete."""
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


def _is_ascending(times: pa.Array) -> bool:
    descents = pc.greater(times.slice(0, max(0, len(times) - 1)), times.slice(1))
    return not pc.any(descents).as_py()


def _concat(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _to_ipc(rows: pa.RecordBatch) -> bytes:
    """Encode rows in Arrow IPC; equal rows have equal bytes, also if sliced from others."""
    rows = rows.take(pa.arange(0, rows.num_rows))  # drop the buffers of other rows
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return bytes(sink.getvalue())
