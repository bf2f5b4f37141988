"""Queue of rows that are not due yet, in event-time order over all inputs.

Rows are kept until the watermark has passed them. Order at equal times:

1. side inputs, in their order
2. control messages
3. main rows
4. ends of windows
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.control.operators.operator import Blobs, Changes
from streambroker_core.side.control_messages import ControlMessage
from streambroker_core.side.state.layout import SEQ
from streambroker_core.side.state.pages import PagedMap
from streambroker_core.side.state.sorted_runs import SortedRun, flatten, run_of_lists
from streambroker_core.side.windows import EventTimeWindows, first_start


@dataclass(frozen=True, slots=True)
class RowsDue:
    """Rows of one input that are due; the last column is their order of arrival."""

    port: int
    rows: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class ControlDue:
    """A control message that is due."""

    message: ControlMessage


@dataclass(frozen=True, slots=True)
class TimeAdvanced:
    """Event time has passed all rows up to this time."""

    time: int


QueueStep: TypeAlias = "RowsDue | ControlDue | TimeAdvanced"


class EventQueue:
    """Rows of all inputs that are not due yet.

    ``schemas`` are the columns of the side inputs, then of the main input.
    """

    def __init__(self, schemas: list[pa.Schema], blobs: Blobs, dumped: list[list[Any]]) -> None:
        self._schemas = [pa.schema([*schema, (SEQ, pa.int64())]) for schema in schemas]
        self._ports = [
            PagedMap(f"due{port}", pa.int64(), pa.list_(pa.struct(list(schema))), blobs)
            for port, schema in enumerate(self._schemas)
        ]
        self._control = dumped

    def add_rows(self, port: int, batch: pa.RecordBatch, times: pa.Array, seqs: pa.Array) -> None:
        """Add rows; no time may be null."""
        schema = self._schemas[port]
        rows = pa.RecordBatch.from_arrays([*batch.columns, seqs], schema=schema)
        size = batch.num_rows
        self._ports[port].add(
            run_of_lists(
                SortedRun(
                    times,
                    pa.nulls(size, pa.int64()),
                    pa.repeat(pa.scalar(False), size),
                    rows.to_struct_array(),
                )
            )
        )

    def add_control(self, time: int, message: ControlMessage) -> None:
        """Add a control message, due after the side rows of a time."""
        self._control.append([time, message])

    def pop_until(self, time: int, windows: list[EventTimeWindows]) -> list[QueueStep]:
        """Remove and return what is due up to a time, in order.

        Args:
            time: the watermark.
            windows: where one of these ends between two rows, the result has a
                :class:`TimeAdvanced`.
        """
        rows = [self._pop(port, time) for port in range(len(self._ports))]
        control = sorted((c for c in self._control if c[0] <= time), key=lambda c: c[0])
        self._control = [c for c in self._control if c[0] > time]
        main = len(rows) - 1
        control_times = pa.array([c[0] for c in control], pa.int64())
        ends = _ends([control_times, *(times for times, _ in rows)], windows)
        parts = [
            *(
                (times, port if port < main else main + 1, port)
                for port, (times, _) in enumerate(rows)
            ),
            (control_times, main, main + 1),
            (pa.array(sorted({*ends, time}), pa.int64()), main + 2, main + 2),
        ]
        table = pa.table(
            {
                "time": pa.concat_arrays([times for times, _, _ in parts]),
                "rank": pa.concat_arrays([_repeat(rank, len(t)) for t, rank, _ in parts]),
                "what": pa.concat_arrays([_repeat(what, len(t)) for t, _, what in parts]),
            }
        )
        order = pc.sort_indices(table, [("time", "ascending"), ("rank", "ascending")])
        table = table.take(order).combine_chunks()
        runs = pc.run_end_encode(table["what"].chunk(0), run_end_type=pa.int64())
        steps: list[QueueStep] = []
        done = [0] * (main + 3)
        begin = 0
        for what, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            first, count = done[what], end - begin
            done[what] += count
            if what <= main:
                steps.append(RowsDue(what, rows[what][1].slice(first, count)))
            elif what == main + 1:
                steps += [ControlDue(message) for _, message in control[first : first + count]]
            else:
                steps += [TimeAdvanced(t) for t in table["time"].slice(begin, count).to_pylist()]
            begin = end
        return steps

    def first_time(self) -> int | None:
        """Return the least time in the queue; None if it is empty."""
        firsts = [port.first_key() for port in self._ports]
        times = [*firsts, *(time for time, _ in self._control)]
        return min((time for time in times if time is not None), default=None)

    def first_main_time(self) -> int | None:
        """Return the least time of queued main rows; None if there are none."""
        first: int | None = self._ports[-1].first_key() if self._ports else None
        return first

    def sizes(self) -> tuple[int, int]:
        """Return an upper bound of the number of rows, and their bytes in Arrow."""
        return sum(port.max_count for port in self._ports), sum(port.size for port in self._ports)

    def changes(self) -> Changes:
        """Return the blobs to write; None marks a removed blob."""
        out: Changes = {}
        for port in self._ports:
            out.update(port.changes())
        return out

    def dump(self) -> list[list[Any]]:
        """Return the state outside the blobs, as a JSON value."""
        return self._control

    def _pop(self, port: int, time: int) -> tuple[pa.Array, pa.RecordBatch]:
        schema = self._schemas[port]
        level = self._ports[port].pop_until(time)
        if level is None:
            return pa.array([], pa.int64()), pa.RecordBatch.from_pylist([], schema=schema)
        values = flatten(level.values)
        columns = [pc.struct_field(values, name) for name in schema.names]
        times = level.keys.take(pc.list_parent_indices(level.values))
        return times, pa.RecordBatch.from_arrays(columns, schema=schema)


def _ends(times: list[pa.Array], windows: list[EventTimeWindows]) -> list[int]:
    """Return the instant before each time that is the first after the end of a window.

    A window has ended exactly when the earliest window that contains the time differs. The least
    time always counts.
    """
    ordered = pc.unique(pa.concat_arrays(times))
    ordered = ordered.take(pc.sort_indices(ordered))
    after_ends = ordered.slice(0, 1).to_pylist()
    for window in windows:
        starts = first_start(window, ordered)
        changed = pc.not_equal(starts.slice(1), starts.slice(0, max(0, len(starts) - 1)))
        after_ends += ordered.slice(1).filter(changed).to_pylist()
    return [time - 1 for time in after_ends]


def _repeat(value: int, size: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.int64()), size)
