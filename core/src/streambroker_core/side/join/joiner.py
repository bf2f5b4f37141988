"""Joins main rows with views: finds windows, holds back rows that must wait, calls the function.

A *pair* is a main row and one of its windows. It is tried when its row arrives, and again when what
it waited for is there. It is processed once, when nothing holds it back any more.
"""

from __future__ import annotations

import heapq

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.side.definition import Enrich
from streambroker_core.side.join.function_calls import (
    EmitRows,
    Function,
    FunctionCaller,
    ReportMissing,
)
from streambroker_core.side.keys import make_keys
from streambroker_core.side.state.input_state import SideState
from streambroker_core.side.state.layout import SEQ, SINCE, TIME, WAIVED, WINDOW, StateLayout
from streambroker_core.side.state.sorted_runs import SortedRun
from streambroker_core.side.state.waiting_rows import GROUP, WaitingRows
from streambroker_core.side.windows import (
    GLOBAL_START,
    EventTimeWindows,
    assign_windows,
    group_by_start,
    has_passed,
    last_instant,
    side_start,
)


class Joiner:
    """Joins the pairs of one bucket in one window of the runtime.

    Attributes:
        passed: event time that has passed, as far as rows were processed; None for none.
        now: the pinned clock in microseconds.
        late_at: event time up to which windows are over for side rows; None for none.
    """

    def __init__(
        self,
        layout: StateLayout,
        sides: list[SideState],
        waiting: WaitingRows,
        function: Function | None,
        emit_rows: EmitRows,
        report_missing: ReportMissing,
    ) -> None:
        join = layout.join
        self._join, self._sides, self._waiting = join, sides, waiting
        self._calls = FunctionCaller(join, sides, function, emit_rows, report_missing)
        sees_all = function is not None and not getattr(function, "own_keys", False)
        key_columns = [{e.on for e in join.enrich if e.input == one.name} for one in join.inputs]
        self._sees_other_keys = [sees_all or len(on) > 1 for on in key_columns]
        """By side input: rows that wait for a key can also read other keys."""
        self.passed: int | None = None
        self.late_at: int | None = None
        self.now = 0
        self._windowed_sides = [n for n, one in enumerate(join.inputs) if one.windows.is_windowed]
        self.has_main_windows = join.windows is not None and join.windows.is_windowed
        self._key_waits: list[list[Enrich]] = [join.waits(one) for one in join.inputs]
        self._sees_only_key = [
            one.readiness == "first data"
            and not one.keyed
            and 0 < len(self._key_waits[n]) == sum(e.input == one.name for e in join.enrich)
            and not self._sees_other_keys[n]
            for n, one in enumerate(join.inputs)
        ]
        """By side input: rows can read only the key that they wait for."""
        self._wait_order = layout.wait_order
        self._window_ends: list[tuple[int, int, int]] = []
        """Heap of (end, side input, start) of windows that have, or had, waits or staged rows."""
        self._begun = {(n, start) for n in self._windowed_sides for start in sides[n].staged}

    def make_pairs(
        self, batch: pa.RecordBatch, times: pa.Array, seqs: pa.Array, now: int
    ) -> pa.RecordBatch:
        """Return the (row, window) pairs of rows, in the order of rows, then of windows."""
        starts = pa.repeat(pa.scalar(GLOBAL_START, pa.int64()), batch.num_rows)
        if self.has_main_windows and self._join.windows is not None:
            rows, starts = assign_windows(self._join.windows, times)
            batch, times, seqs = batch.take(rows), times.take(rows), seqs.take(rows)
        since = pa.repeat(pa.scalar(now, pa.int64()), batch.num_rows)
        waived = pa.repeat(pa.scalar(0, pa.int64()), batch.num_rows)
        columns = [*batch.columns, seqs, starts, times, since, waived]
        return pa.RecordBatch.from_arrays(columns, schema=self._waiting.schema)

    def find_expired(self, pairs: pa.RecordBatch, watermark: int, lateness: int) -> pa.Array | None:
        """Return for each pair whether its window is over; None if there are no windows."""
        if self.has_main_windows and self._join.windows is not None:
            last = pc.add(pairs[WINDOW], self._join.windows.size - 1)
            return pc.less_equal(pc.add(last, lateness), watermark)
        expired = None
        for number in self._windowed_sides:
            windows = self._join.inputs[number].windows
            last = pc.add(side_start(windows, None, pairs[TIME]), windows.size - 1 + lateness)
            mask = pc.less_equal(last, watermark)
            expired = mask if expired is None else pc.or_(expired, mask)
        return expired

    def process_pairs(self, pairs: pa.RecordBatch) -> None:
        """Process the pairs that nothing holds back; store the others as waiting."""
        if self._join.grouped:
            pairs = self._wait_for_windows(pairs)
        for starts, group in self._group_by_window(pairs):
            remaining = group
            for number in self._wait_order:
                if not remaining.num_rows:
                    break
                remaining = self._hold_back(number, starts[number], remaining)
            if remaining.num_rows:
                self._calls.process(starts, remaining)

    def retry(self, released: list[pa.RecordBatch]) -> None:
        """Retry pairs that have waited, in the order in which their rows arrived."""
        if not released:
            return
        table = pa.Table.from_batches(released)
        order = pc.sort_indices(table, [(SEQ, "ascending"), (WINDOW, "ascending")])
        self.process_pairs(table.take(order).combine_chunks().to_batches()[0])

    def add_side_rows(self, number: int, rows: SortedRun) -> None:
        """Add rows to a side input and retry the pairs that waited for them."""
        state = self._sides[number]
        for start, part in state.split_by_window(rows):
            remaining = part
            while len(remaining):
                chunk, remaining = self._next_rows(number, start, remaining)
                if state.add_rows(start, chunk, self.late_at):
                    self._retry_for_keys(number, start, chunk.keys)
                else:
                    self._begun.add((number, start))
        state.check_size()

    def _next_rows(self, number: int, start: int, rows: SortedRun) -> tuple[SortedRun, SortedRun]:
        """Return the rows to add next, and the rest.

        A waiting row is ready at the first row that brings what it waits for. It must not see a
        later row of the same batch, or results would depend on how batches are cut.
        """
        side = self._sides[number].side
        none = rows.slice(0, 0)
        first = side.readiness == "first data" and not self._sees_only_key[number]
        if first and self._waiting.has_waiting(number, start):
            return rows.slice(0, 1), rows.slice(1, len(rows) - 1)
        waited_keys = self._waiting.waited_keys(number, start)
        awaited = None if waited_keys is None else pc.is_in(rows.keys, value_set=waited_keys)
        if awaited is None or not pc.any(awaited).as_py():
            return rows, none
        if self._sees_other_keys[number] and not side.keyed:
            end = pc.index(awaited, True).as_py() + 1
            return rows.slice(0, end), rows.slice(end, len(rows) - end)
        first_index = pc.cast(pc.index_in(rows.keys, value_set=rows.keys), pa.int64())
        selected = pc.and_(awaited, pc.equal(first_index, pa.arange(0, len(rows))))
        return rows.filter(selected), rows.filter(pc.invert(selected))

    def _retry_for_keys(self, number: int, start: int, keys: pa.Array) -> None:
        """Retry the pairs that waited for a window with new rows, or for these keys in it."""
        released = self._waiting.release_keys(number, start, keys)
        if self._sides[number].is_ready(start, self.passed):
            released += self._waiting.release(number, start)
        self.retry(released)

    def _wait_for_windows(self, pairs: pa.RecordBatch) -> pa.RecordBatch:
        """Return the pairs whose main window has passed; store the others until it ends."""
        windows = self._join.windows
        if windows is None or not pairs.num_rows:
            return pairs
        ended = pa.repeat(pa.scalar(False), pairs.num_rows)
        if self.passed is not None:
            ended = pc.less_equal(pc.add(pairs[WINDOW], windows.size - 1), self.passed)
        open_pairs = pairs.filter(pc.invert(ended))
        for start, indices in group_by_start(open_pairs[WINDOW]):
            self._waiting.put(GROUP, start, open_pairs.take(indices), None)
        return pairs.filter(ended)

    def retry_window(self, number: int, start: int | None) -> None:
        """Retry all pairs that waited for a window of a side input; None for every window."""
        self.retry(self._take_released(number, start))

    def retry_all(self) -> None:
        """Publish stages no longer needed and retry all waiting pairs, after policies changed."""
        released = []
        for number, state in enumerate(self._sides):
            if state.side.readiness != "complete":
                for start in state.staged:
                    state.publish_staged(start)
            released += self._take_released(number, None)
        self.retry(released)

    def _take_released(self, number: int, start: int | None) -> list[pa.RecordBatch]:
        """Remove and return all pairs that wait for a side input's window; None for all windows."""
        released = []
        for window in self._waiting.waited_windows(number) if start is None else [start]:
            released += self._waiting.release(number, window)
            released += self._waiting.release_by_key(number, window)
        if number == GROUP:
            released = [_set_column(pairs, SINCE, self.now) for pairs in released]
        return released

    def advance_to(self, time: int) -> None:
        """Advance event time; windows end, and become ready, one after the other."""
        self._track_window_ends()
        while self._window_ends and self._window_ends[0][0] <= time:
            last = self._window_ends[0][0]
            self.passed = last if self.passed is None else max(self.passed, last)
            ended = set()
            while self._window_ends and self._window_ends[0][0] == last:
                ended.add(heapq.heappop(self._window_ends)[1:])
            for number, start in sorted(ended):
                if number != GROUP:
                    self._sides[number].publish_staged(start)
            self.retry([pairs for at in sorted(ended) for pairs in self._take_released(*at)])
            self._track_window_ends()
        self.passed = time if self.passed is None else max(self.passed, time)

    def _track_window_ends(self) -> None:
        """Record the ends of windows that have new waiting or staged rows."""
        for number, start in self._begun | self._waiting.pop_begun():
            if (end := self.window_end(number, start)) is not None:
                heapq.heappush(self._window_ends, (end, number, start))
        self._begun = set()

    def tracked_windows(self) -> list[EventTimeWindows]:
        """Return the windows whose ends matter."""
        tracked = [self._join.inputs[number].windows for number in self._windowed_sides]
        if self._join.grouped and self._join.windows is not None:
            tracked.append(self._join.windows)
        return tracked

    def window_end(self, number: int, start: int) -> int | None:
        """Return the last instant of a window; None for the global one."""
        windows = self._join.windows if number == GROUP else self._join.inputs[number].windows
        return last_instant(windows, start) if windows is not None and windows.is_windowed else None

    def _group_by_window(self, pairs: pa.RecordBatch) -> list[tuple[list[int], pa.RecordBatch]]:
        """Group pairs by window; return the start of each side input's window with each group."""
        if not pairs.num_rows:
            return []
        columns = [
            side_start(
                self._join.inputs[number].windows,
                self._join.windows,
                pairs[WINDOW] if self.has_main_windows else pairs[TIME],
            )
            for number in self._windowed_sides
        ]
        if self.has_main_windows:
            columns.append(pairs[WINDOW])
        groups = _group_rows(columns, pairs.num_rows)
        result = []
        for key, indices in groups:
            starts = [GLOBAL_START] * len(self._join.inputs)
            for index, number in enumerate(self._windowed_sides):
                starts[number] = key[index]
            result.append((starts, pairs if len(groups) == 1 else pairs.take(indices)))
        return result

    def _hold_back(self, number: int, start: int, pairs: pa.RecordBatch) -> pa.RecordBatch:
        """Return the pairs that a side input lets pass; store the others as waiting."""
        state = self._sides[number]
        if not state.is_ready(start, self.passed):
            if state.side.keyed and state.side.readiness == "first data":
                keys = make_keys([pairs.column(name) for name in self._join.key])
                pairs = self._wait_unless(
                    number, start, pairs, state.find_ready_keys(start, keys), keys
                )
            elif self._sees_only_key[number]:
                # A row with a key waits for that key below, in the order of all rows.
                [enrich] = {one.on: one for one in self._key_waits[number]}.values()
                keys = make_keys([pairs.column(name) for name in enrich.on])
                pairs = self._wait_unless(number, start, pairs, pc.is_valid(keys), None)
            else:
                never = pa.repeat(pa.scalar(False), pairs.num_rows)
                pairs = self._wait_unless(number, start, pairs, never, None)
        if (
            not self._key_waits[number]
            or not pairs.num_rows
            or has_passed(state.side.windows, start, self.passed)
        ):
            return pairs
        complete = state.is_complete(start)
        for enrich in self._key_waits[number]:
            if complete and enrich.missing is None:
                continue
            keys = make_keys([pairs.column(name) for name in enrich.on])
            ready = pc.or_(state.has_values(start, keys), pc.is_null(keys))
            pairs = self._wait_unless(number, start, pairs, ready, keys)
        return pairs

    def _wait_unless(
        self,
        number: int,
        start: int,
        pairs: pa.RecordBatch,
        free: pa.Array,
        keys: pa.Array | None,
    ) -> pa.RecordBatch:
        waived = pc.not_equal(pc.bit_wise_and(pairs[WAIVED], 1 << number), 0)
        free = pc.or_(free, waived)
        if pc.all(free).as_py():
            return pairs
        waiting = pc.invert(free)
        self._waiting.put(
            number, start, pairs.filter(waiting), None if keys is None else keys.filter(waiting)
        )
        return pairs.filter(free)


def _set_column(pairs: pa.RecordBatch, name: str, value: int) -> pa.RecordBatch:
    column = pa.repeat(pa.scalar(value, pa.int64()), pairs.num_rows)
    return pairs.set_column(pairs.schema.get_field_index(name), name, column)


def waive(pairs: pa.RecordBatch, number: int) -> pa.RecordBatch:
    """Return pairs that no longer wait for a side input."""
    at = pairs.schema.get_field_index(WAIVED)
    bits = pc.bit_wise_or(pairs.column(at), 1 << number)
    return pairs.set_column(at, WAIVED, bits)


def _group_rows(columns: list[pa.Array], size: int) -> list[tuple[tuple[int, ...], pa.Array]]:
    """Return the distinct rows of columns, ascending, each with its indices, also ascending."""
    groups: list[tuple[tuple[int, ...], pa.Array]] = [((), pa.arange(0, size))]
    for column in columns:
        groups = [
            ((*key, start), indices if len(at) == len(indices) else indices.take(at))
            for key, indices in groups
            for start, at in group_by_start(column.take(indices))
        ]
    return groups
