"""Windows of event time, and which side window belongs to a main window.

A window is named by its start. All times are microseconds, int64. The side window of a main window
is the earliest one that contains the main window's last instant: it is complete first, and for
equal windows on both sides it is the same window. A row without main windows is a window of one
instant. Source: side inputs of the Beam model, mapping by the end of the main window.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.model.durations import Duration, in_microseconds
from streambroker_core.side.errors import SideDefinitionError

SECOND = 1_000_000
EVER = -(1 << 63)
"""The start that stands for the one global window."""
END_OF_EVER = (1 << 63) - 1
LONGEST = 100_000_000_000
"""Seconds that any time of a definition may have: about 3,000 years."""


@dataclass(frozen=True, slots=True)
class Windows:
    """How event time is cut.

    Attributes:
        size: length of a window in microseconds; 0 for one global window.
        slide: from one start to the next; equal to ``size`` for fixed windows.
        gap: of session windows, which are known only to be refused; else 0.
    """

    size: int = 0
    slide: int = 0
    gap: int = 0

    @property
    def cut(self) -> bool:
        """Whether there is more than one window."""
        return self.size > 0

    def __str__(self) -> str:
        if self.gap:
            return f"sessions with a gap of {_seconds(self.gap)}"
        if not self.cut:
            return "one global window"
        if self.size == self.slide:
            return f"fixed windows of {_seconds(self.size)}"
        return f"sliding windows of {_seconds(self.size)} every {_seconds(self.slide)}"


GLOBAL = Windows()


def fixed(seconds: Duration) -> Windows:
    """Return windows of one size, one after the other, from 1970 on.

    Raises:
        SideDefinitionError: they would have no size.
    """
    size = _micros("fixed windows", seconds)
    return Windows(size, size)


def sliding(seconds: Duration, every: Duration) -> Windows:
    """Return windows of one size that begin every so many seconds and overlap.

    Raises:
        SideDefinitionError: they would have no size, or never move on.
    """
    return Windows(_micros("sliding windows", seconds), _micros("windows that slide by", every))


def sessions(gap: Duration) -> Windows:
    """Return session windows; no side input can have them, and its definition says why."""
    return Windows(0, 0, _micros("session windows with a gap", gap))


def _micros(what: str, given: Duration) -> int:
    size = in_microseconds(given)
    if size is None or not 1 <= size <= LONGEST * SECOND:
        shown = f"{given:g} s" if isinstance(given, int | float) else str(given)
        raise SideDefinitionError(
            "windows",
            f"{what} of {shown}",
            f"give a microsecond or more, at most {LONGEST:,} s, or leave windows out for one"
            " global window",
        )
    return size


def end_of(windows: Windows, start: int) -> int:
    """Return the first instant after a window."""
    return start + windows.size if windows.cut else END_OF_EVER


def last_of(windows: Windows, start: int) -> int:
    """Return the last instant of a window; the window has passed when the watermark is there."""
    return end_of(windows, start) - 1 if windows.cut else END_OF_EVER


def is_start(windows: Windows, start: int) -> bool:
    """Tell whether a window begins there."""
    return windows.cut and start % windows.slide == 0


def first_start(windows: Windows, times: pa.Array) -> pa.Array:
    """Return the start of the earliest window that contains each time."""
    if not windows.cut:
        return pa.nulls(len(times), pa.int64()).fill_null(EVER)
    lowest = pc.add(pc.subtract(times, windows.size), windows.slide)
    return pc.subtract(lowest, pc.modulo(lowest, windows.slide))


def side_start(side: Windows, main: Windows | None, starts: pa.Array) -> pa.Array:
    """Return the start of the side window of each main window.

    Args:
        side: windows of the side input.
        main: windows of the main input; None if its rows stand alone.
        starts: starts of main windows, or times of rows if ``main`` is None.
    """
    if main is None or not main.cut:
        return first_start(side, starts)
    return first_start(side, pc.add(starts, main.size - 1))


def assign(windows: Windows, times: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return every (row, window) pair of times: row numbers, and starts; both ascend.

    A row without a time is in no window unless there is but one.
    """
    rows = pa.arange(0, len(times))
    if not windows.cut:
        return rows, first_start(windows, times)
    first = first_start(windows, times)
    found_rows, found_starts = [], []
    for step in range(-(-windows.size // windows.slide)):
        starts = pc.add(first, step * windows.slide)
        inside = pc.less_equal(starts, times)
        found_rows.append(rows.filter(inside))
        found_starts.append(starts.filter(inside))
    every, starts = pa.concat_arrays(found_rows), pa.concat_arrays(found_starts)
    if len(found_rows) == 1:
        return every, starts
    order = pc.sort_indices(every)
    return every.take(order), starts.take(order)


def by_start(starts: pa.Array) -> list[tuple[int, pa.Array]]:
    """Return each start, ascending, with the places that have it, which ascend, too."""
    if not len(starts):
        return []
    order = pc.cast(pc.sort_indices(starts), pa.int64())
    runs = pc.run_end_encode(starts.take(order), run_end_type=pa.int64())
    ends = runs.run_ends.to_pylist()
    spans = zip(runs.values.to_pylist(), [0, *ends], ends, strict=False)
    return [(start, order.slice(first, end - first)) for start, first, end in spans]


def _seconds(micros: int) -> str:
    return f"{micros / SECOND:g} s"
