"""Main rows meet their views: in which window, ready or not, and what is called then.

A *pair* is a main row and one of its windows. A pair is looked at when its row comes, and again
when what it waited for is there; it is processed once, when nothing holds it back any more.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.side.definition import MAIN, Enrich
from streambroker_core.side.errors import SideError
from streambroker_core.side.join.enrich import add_columns
from streambroker_core.side.join.views import Views, make_view
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
    last_instant,
    side_start,
    window_end,
)

Result: TypeAlias = "pa.RecordBatch | pa.Table | Iterable[pa.RecordBatch] | None"
Function: TypeAlias = "Callable[[pa.RecordBatch, Views], Result]"
"""Called with main rows of one window and its views; returns rows for the output ``out``.

One with a true attribute ``own_keys`` asks maps by the columns alone by which rows wait for their
keys, or not at all; then rows of many keys are released together.
"""
EmitRows: TypeAlias = "Callable[[pa.RecordBatch], None]"
ReportMissing: TypeAlias = "Callable[[str, pa.RecordBatch], None]"
"""Takes main rows for which a side input has no value, with its name."""


class Joiner:
    """The pairs of one bucket in one window of the runtime.

    Attributes:
        passed: event time that has passed, as far as rows have been taken; None for none.
        now: the pinned clock in microseconds.
        late_at: event time up to which windows are over for side rows; None for none.
        has_main_windows: whether main rows have windows.
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
        self._function, self._emit_rows, self._report_missing = function, emit_rows, report_missing
        sees_all = function is not None and not getattr(function, "own_keys", False)
        asked = [{e.on for e in join.enrich if e.input == one.name} for one in join.inputs]
        self._sees_other_keys = [sees_all or len(on) > 1 for on in asked]
        """By side input: rows that wait for a key are shown other keys, too."""
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
        """By side input: rows are shown the key alone that they wait for."""
        self._wait_order = layout.wait_order
        self._schema = layout.pair_schema
        self._names = join.schema.names
        self._window_ends: list[tuple[int, int, int]] = []
        """A heap: when windows end that are, or were, waited for or staged."""
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
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def find_expired(self, pairs: pa.RecordBatch, watermark: int, lateness: int) -> pa.Array | None:
        """Tell of each pair whether its window is over; None if none can be."""
        if self.has_main_windows and self._join.windows is not None:
            last = pc.add(pairs[WINDOW], self._join.windows.size - 1)
            return pc.less_equal(pc.add(last, lateness), watermark)
        over = None
        for number in self._windowed_sides:
            windows = self._join.inputs[number].windows
            last = pc.add(side_start(windows, None, pairs[TIME]), windows.size - 1 + lateness)
            mask = pc.less_equal(last, watermark)
            over = mask if over is None else pc.or_(over, mask)
        return over

    def process_pairs(self, pairs: pa.RecordBatch) -> None:
        """Process the pairs that nothing holds back, and let the others wait."""
        if self._join.grouped:
            pairs = self._wait_for_windows(pairs)
        for starts, group in self._group_by_window(pairs):
            left = group
            for number in self._wait_order:
                if not left.num_rows:
                    break
                left = self._hold_back(number, starts[number], left)
            if left.num_rows:
                self._process(starts, left)

    def retry(self, released: list[pa.RecordBatch]) -> None:
        """Look at pairs again that have waited, in the order in which their rows came."""
        if not released:
            return
        table = pa.Table.from_batches(released)
        order = pc.sort_indices(table, [(SEQ, "ascending"), (WINDOW, "ascending")])
        self.process_pairs(table.take(order).combine_chunks().to_batches()[0])

    def add_side_rows(self, number: int, rows: SortedRun) -> None:
        """Give rows to a side input, and look again at what waited for them."""
        state = self._sides[number]
        for start, part in state.split_by_window(rows):
            rest = part
            while len(rest):
                piece, rest = self._next_rows(number, start, rest)
                if state.add_rows(start, piece, self.late_at):
                    self._retry_for_keys(number, start, piece.keys)
                else:
                    self._begun.add((number, start))
        state.check_size()

    def _next_rows(self, number: int, start: int, rows: SortedRun) -> tuple[SortedRun, SortedRun]:
        """Return the rows to take next, and the rest.

        What a row waited for is there with the first row that brings it. It must not see a later
        one that happens to come in the same batch, or results would depend on how rows are cut.
        """
        side = self._sides[number].side
        none = rows.slice(0, 0)
        first = side.readiness == "first data" and not self._sees_only_key[number]
        if first and self._waiting.has_waiting(number, start):
            return rows.slice(0, 1), rows.slice(1, len(rows) - 1)
        wanted = self._waiting.waited_keys(number, start)
        awaited = None if wanted is None else pc.is_in(rows.keys, value_set=wanted)
        if awaited is None or not pc.any(awaited).as_py():
            return rows, none
        if self._sees_other_keys[number] and not side.keyed:
            end = pc.index(awaited, True).as_py() + 1
            return rows.slice(0, end), rows.slice(end, len(rows) - end)
        places = pc.cast(pc.index_in(rows.keys, value_set=rows.keys), pa.int64())
        here = pc.and_(awaited, pc.equal(places, pa.arange(0, len(rows))))
        return rows.filter(here), rows.filter(pc.invert(here))

    def _retry_for_keys(self, number: int, start: int, keys: pa.Array) -> None:
        """Look again at what waited for a window that has new rows, with these keys."""
        released = self._waiting.release_keys(number, start, keys)
        if self._sides[number].is_ready(start, self.passed):
            released += self._waiting.release(number, start)
        self.retry(released)

    def _wait_for_windows(self, pairs: pa.RecordBatch) -> pa.RecordBatch:
        """Return the pairs whose main window has passed; the others wait for its end."""
        windows = self._join.windows
        if windows is None or not pairs.num_rows:
            return pairs
        over = pa.repeat(pa.scalar(False), pairs.num_rows)
        if self.passed is not None:
            over = pc.less_equal(pc.add(pairs[WINDOW], windows.size - 1), self.passed)
        left = pairs.filter(pc.invert(over))
        for start, places in group_by_start(left[WINDOW]):
            self._waiting.put(GROUP, start, left.take(places), None)
        return pairs.filter(over)

    def retry_window(self, number: int, start: int | None) -> None:
        """Look again at all that waited for a window of a side input; None for every window."""
        self.retry(self._take_released(number, start))

    def retry_all(self) -> None:
        """Look again at all that waits, and at what is staged: other policies hold than before."""
        released = []
        for number, state in enumerate(self._sides):
            if state.side.readiness != "complete":
                for start in state.staged:
                    state.publish_staged(start)
            released += self._take_released(number, None)
        self.retry(released)

    def _take_released(self, number: int, start: int | None) -> list[pa.RecordBatch]:
        """Take out all that waits for a window of a side input; None for every window."""
        released = []
        for one in self._waiting.waited_windows(number) if start is None else [start]:
            released += self._waiting.release(number, one)
            released += self._waiting.release_by_key(number, one)
        if number == GROUP:
            released = [_set_column(pairs, SINCE, self.now) for pairs in released]
        return released

    def advance_to(self, time: int) -> None:
        """Let event time pass: windows end, one after the other, and are ready."""
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
            self.retry([each for at in sorted(ended) for each in self._take_released(*at)])
            self._track_window_ends()
        self.passed = time if self.passed is None else max(self.passed, time)

    def _track_window_ends(self) -> None:
        """Note when windows end that rows have begun to wait for, or to be staged in."""
        for number, start in self._begun | self._waiting.pop_begun():
            if (end := self.window_end(number, start)) is not None:
                heapq.heappush(self._window_ends, (end, number, start))
        self._begun = set()

    def tracked_windows(self) -> list[EventTimeWindows]:
        """Return the windows whose ends matter."""
        found = [self._join.inputs[number].windows for number in self._windowed_sides]
        if self._join.grouped and self._join.windows is not None:
            found.append(self._join.windows)
        return found

    def window_end(self, number: int, start: int) -> int | None:
        """Return the last instant of a window that is waited for; None of the global one."""
        windows = self._join.windows if number == GROUP else self._join.inputs[number].windows
        return last_instant(windows, start) if windows is not None and windows.is_windowed else None

    def _group_by_window(self, pairs: pa.RecordBatch) -> list[tuple[list[int], pa.RecordBatch]]:
        """Return the pairs of equal windows together, with the side window of each side input."""
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
        found = []
        for key, places in groups:
            starts = [GLOBAL_START] * len(self._join.inputs)
            for place, number in enumerate(self._windowed_sides):
                starts[number] = key[place]
            found.append((starts, pairs if len(groups) == 1 else pairs.take(places)))
        return found

    def _hold_back(self, number: int, start: int, pairs: pa.RecordBatch) -> pa.RecordBatch:
        """Return the pairs that a side input lets pass; the others wait for it."""
        state = self._sides[number]
        if not state.is_ready(start, self.passed):
            if state.side.keyed and state.side.readiness == "first data":
                keys = make_keys([pairs.column(name) for name in self._join.key])
                pairs = self._wait_unless(
                    number, start, pairs, state.find_ready_keys(start, keys), keys
                )
            elif self._sees_only_key[
                number
            ]:  # a row with a key waits for that, in the order of all rows
                [enrich] = {one.on: one for one in self._key_waits[number]}.values()
                keys = make_keys([pairs.column(name) for name in enrich.on])
                pairs = self._wait_unless(number, start, pairs, pc.is_valid(keys), None)
            else:
                never = pa.repeat(pa.scalar(False), pairs.num_rows)
                pairs = self._wait_unless(number, start, pairs, never, None)
        if (
            not self._key_waits[number]
            or not pairs.num_rows
            or self._has_window_passed(number, start)
        ):
            return pairs
        whole = state.is_complete(start)
        for enrich in self._key_waits[number]:
            if whole and enrich.missing is None:
                continue
            keys = make_keys([pairs.column(name) for name in enrich.on])
            free = pc.or_(state.has_values(start, keys), pc.is_null(keys))
            pairs = self._wait_unless(number, start, pairs, free, keys)
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
        held = pc.invert(free)
        self._waiting.put(
            number, start, pairs.filter(held), None if keys is None else keys.filter(held)
        )
        return pairs.filter(free)

    def _has_window_passed(self, number: int, start: int) -> bool:
        windows = self._join.inputs[number].windows
        return (
            windows.is_windowed
            and self.passed is not None
            and last_instant(windows, start) <= self.passed
        )

    def _process(self, starts: list[int], pairs: pa.RecordBatch) -> None:
        window = None
        if self.has_main_windows and self._join.windows is not None:
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
            made = add_columns(enrich, self._join.input(enrich.input), batch, views)
            batch = made.batch
            if made.lacking is not None:
                self._report_missing(enrich.input, pairs.filter(made.lacking))
                pairs = pairs.filter(pc.invert(made.lacking))
                batch = batch.filter(pc.invert(made.lacking))
        for key, rows in self._group_by_key(batch) if self._join.grouped else [((), batch)]:
            self._call(rows, views.of_key(key))

    def _call(self, batch: pa.RecordBatch, views: Views) -> None:
        if not batch.num_rows:
            return
        for rows in iter_batches(batch if self._function is None else self._function(batch, views)):
            if rows.num_rows:
                self._emit_rows(rows)

    def _group_by_key(self, batch: pa.RecordBatch) -> list[tuple[tuple[Any, ...], pa.RecordBatch]]:
        """Return the rows of each key together, in their order; keys in the order they came."""
        names = list(self._join.key)
        if not names or not batch.num_rows:
            return [((), batch)]
        codes = _key_codes([batch.column(name) for name in names])
        order = pc.sort_indices(codes)
        batch = batch.take(order)
        ends = pc.run_end_encode(codes.take(order), run_end_type=pa.int64()).run_ends.to_pylist()
        found = []
        for start, end in zip([0, *ends], ends, strict=False):
            rows = batch.slice(start, end - start)
            found.append((tuple(rows.column(name)[0].as_py() for name in names), rows))
        return found


def _key_codes(columns: list[pa.Array]) -> pa.Array:
    """Return a number for each key, in the order in which keys came; a null is a part, too."""
    keys = make_keys(columns)
    if not keys.null_count:
        return keys.dictionary_encode().indices
    parts = [column.dictionary_encode(null_encoding="encode").indices for column in columns]
    spelled = pc.binary_join_element_wise(*(part.cast(pa.string()) for part in parts), ":")
    lacking = pc.if_else(pc.is_null(keys), spelled.dictionary_encode().indices, -1)
    known = pc.fill_null(keys.dictionary_encode().indices.cast(pa.int64()), -1)
    return pc.add(pc.multiply(known, len(keys)), lacking).dictionary_encode().indices


def _set_column(pairs: pa.RecordBatch, name: str, value: int) -> pa.RecordBatch:
    column = pa.repeat(pa.scalar(value, pa.int64()), pairs.num_rows)
    return pairs.set_column(pairs.schema.get_field_index(name), name, column)


def waive(pairs: pa.RecordBatch, number: int) -> pa.RecordBatch:
    """Return pairs that do not wait for a side input any longer."""
    at = pairs.schema.get_field_index(WAIVED)
    bits = pc.bit_wise_or(pairs.column(at), 1 << number)
    return pairs.set_column(at, WAIVED, bits)


def _group_rows(columns: list[pa.Array], size: int) -> list[tuple[tuple[int, ...], pa.Array]]:
    """Return the different rows of columns, ascending, each with its places, which ascend, too."""
    found: list[tuple[tuple[int, ...], pa.Array]] = [((), pa.arange(0, size))]
    for column in columns:
        found = [
            ((*key, start), places if len(at) == len(places) else places.take(at))
            for key, places in found
            for start, at in group_by_start(column.take(places))
        ]
    return found


def iter_batches(result: Any) -> Iterator[pa.RecordBatch]:
    """Give what a function has returned, batch by batch.

    Raises:
        SideError: it is no Arrow batch, no table, and not several of them.
    """
    if isinstance(result, pa.RecordBatch):
        yield result
    elif isinstance(result, pa.Table):
        yield from result.to_batches()
    elif isinstance(result, Iterable) and not isinstance(result, str | bytes | Mapping):
        for one in result:
            if not isinstance(one, pa.RecordBatch | pa.Table):
                raise _result_error(f"{type(result).__name__} of {type(one).__name__}")
            yield from iter_batches(one)
    elif result is not None:
        raise _result_error(type(result).__name__)


def _result_error(actual: str) -> SideError:
    return SideError(
        MAIN,
        f"The function with side inputs gave {actual}; let it give Arrow record batches, a table,"
        f" or"
        " nothing.",
    )
