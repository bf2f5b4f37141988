"""Event-time windows, and the mapping of main windows to side windows.

- A window is named by its start. All times are microseconds, int64.
- The side window of a main window is the earliest one that contains its last instant. It is
  complete first. For equal windows on both sides it is the same window.
- A row without main windows is a window of one instant.

Source: side inputs of the Beam model, mapping by the end of the main window.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.model.durations import Duration, in_microseconds
from streambroker_core.side.errors import SideDefinitionError

SECOND = 1_000_000
GLOBAL_START = -(1 << 63)
"""Start of the one global window."""
GLOBAL_END = (1 << 63) - 1
MAX_SECONDS = 100_000_000_000
"""Upper bound of every duration in a definition, in seconds: about 3,000 years."""


@dataclass(frozen=True, slots=True)
class EventTimeWindows:
    """Windowing of event time.

    Attributes:
        size: length of a window in microseconds; 0 for one global window.
        slide: microseconds from one start to the next; equal to ``size`` for fixed windows.
        gap: gap of session windows, which definitions reject; else 0.
    """

    size: int = 0
    slide: int = 0
    gap: int = 0

    @property
    def is_windowed(self) -> bool:
        """Whether there is more than one window."""
        return self.size > 0

    def __str__(self) -> str:
        if self.gap:
            return f"sessions with a gap of {_seconds(self.gap)}"
        if not self.is_windowed:
            return "one global window"
        if self.size == self.slide:
            return f"fixed windows of {_seconds(self.size)}"
        return f"sliding windows of {_seconds(self.size)} every {_seconds(self.slide)}"


GLOBAL = EventTimeWindows()


def fixed(seconds: Duration) -> EventTimeWindows:
    """Return consecutive windows of one size, aligned to 1970.

    Raises:
        SideDefinitionError: the size is out of bounds.
    """
    size = _to_micros("fixed windows", seconds)
    return EventTimeWindows(size, size)


def sliding(seconds: Duration, every: Duration) -> EventTimeWindows:
    """Return overlapping windows of one size that begin every so many seconds.

    Raises:
        SideDefinitionError: the size or the slide is out of bounds.
    """
    return EventTimeWindows(
        _to_micros("sliding windows", seconds), _to_micros("windows that slide by", every)
    )


def sessions(gap: Duration) -> EventTimeWindows:
    """Return session windows, which every definition of a side input rejects with the reason."""
    return EventTimeWindows(0, 0, _to_micros("session windows with a gap", gap))


def _to_micros(what: str, duration: Duration) -> int:
    size = in_microseconds(duration)
    if size is None or not 1 <= size <= MAX_SECONDS * SECOND:
        shown = f"{duration:g} s" if isinstance(duration, int | float) else str(duration)
        raise SideDefinitionError(
            "windows",
            f"{what} of {shown}",
            f"use a microsecond or more, at most {MAX_SECONDS:,} s, or leave windows out for one"
            " global window",
        )
    return size


def window_end(windows: EventTimeWindows, start: int) -> int:
    """Return the first instant after a window."""
    return start + windows.size if windows.is_windowed else GLOBAL_END


def last_instant(windows: EventTimeWindows, start: int) -> int:
    """Return the last instant of a window; a watermark at it has passed the window."""
    return window_end(windows, start) - 1 if windows.is_windowed else GLOBAL_END


def is_start(windows: EventTimeWindows, start: int) -> bool:
    """Return whether a window begins at an instant."""
    return windows.is_windowed and start % windows.slide == 0


def first_start(windows: EventTimeWindows, times: pa.Array) -> pa.Array:
    """Return the start of the earliest window that contains each time."""
    if not windows.is_windowed:
        return pa.nulls(len(times), pa.int64()).fill_null(GLOBAL_START)
    lowest = pc.add(pc.subtract(times, windows.size), windows.slide)
    return pc.subtract(lowest, pc.modulo(lowest, windows.slide))


def has_passed(windows: EventTimeWindows, start: int, time: int | None, lateness: int = 0) -> bool:
    """Return whether a window is over at a time; the global window never is."""
    return (
        windows.is_windowed and time is not None and last_instant(windows, start) + lateness <= time
    )


def side_start(side: EventTimeWindows, main: EventTimeWindows | None, starts: pa.Array) -> pa.Array:
    """Return the start of the side window of each main window.

    Args:
        side: windows of the side input.
        main: windows of the main input; None if its rows have none.
        starts: starts of main windows, or times of rows if ``main`` is None.
    """
    if main is None or not main.is_windowed:
        return first_start(side, starts)
    return first_start(side, pc.add(starts, main.size - 1))


def assign_windows(windows: EventTimeWindows, times: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return every (row, window) pair of times as row numbers and starts, both ascending.

    A row without a time is in no window, except in the global one.
    """
    rows = pa.arange(0, len(times))
    if not windows.is_windowed:
        return rows, first_start(windows, times)
    first = first_start(windows, times)
    row_parts, start_parts = [], []
    for step in range(-(-windows.size // windows.slide)):
        starts = pc.add(first, step * windows.slide)
        inside = pc.less_equal(starts, times)
        row_parts.append(rows.filter(inside))
        start_parts.append(starts.filter(inside))
    row_numbers, starts = pa.concat_arrays(row_parts), pa.concat_arrays(start_parts)
    if len(row_parts) == 1:
        return row_numbers, starts
    order = pc.sort_indices(row_numbers)
    return row_numbers.take(order), starts.take(order)


def group_by_start(starts: pa.Array) -> list[tuple[int, pa.Array]]:
    """Return each start, ascending, with its indices, also ascending."""
    if not len(starts):
        return []
    order = pc.cast(pc.sort_indices(starts), pa.int64())
    runs = pc.run_end_encode(starts.take(order), run_end_type=pa.int64())
    ends = runs.run_ends.to_pylist()
    spans = zip(runs.values.to_pylist(), [0, *ends], ends, strict=False)
    return [(start, order.slice(first, end - first)) for start, first, end in spans]


def _seconds(micros: int) -> str:
    return f"{micros / SECOND:g} s"
