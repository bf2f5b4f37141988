"""Operator that joins main rows with side inputs, driven by a runtime of aligned windows."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.control.operators.operator import Blobs, Changes, Input, Operator, StateError
from streambroker_core.control.tuples import ControlTuple, UndeliverableError
from streambroker_core.side.control_messages import SideComplete, SideVersion
from streambroker_core.side.definition import MAIN, SideJoin
from streambroker_core.side.describe import describe_stall, explain
from streambroker_core.side.errors import SideError, SideTooLargeError
from streambroker_core.side.join.function_calls import Function
from streambroker_core.side.join.joiner import Joiner, waive
from streambroker_core.side.state.event_queue import EventQueue, RowsDue, TimeAdvanced
from streambroker_core.side.state.input_state import SideState, TableReader
from streambroker_core.side.state.layout import SEQ, TIME, WAIVED, StateLayout, build_layout
from streambroker_core.side.state.read_rows import (
    RejectedRows,
    event_micros,
    select_columns,
    to_json,
)
from streambroker_core.side.state.waiting_rows import GROUP, Stall, WaitingRows
from streambroker_core.side.windows import SECOND

OUT, ERRORS, LATE = "out", "errors", "late"
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
UNKNOWN = "SideUnknown"
"""Error code in ``errors``: a control tuple for an unknown side input."""
_META = "side"
_CONTROL_TYPES = (SideComplete.__name__, SideVersion.__name__)


class SideOperator(Operator):
    """Operator that processes main rows with views of side inputs.

    Outputs:

    - ``out``: what the function returns, or main rows with the added columns.
    - ``errors``: rows that a policy rejects, that waited too long, or that lack a value.
    - ``late``: main rows whose window was over on arrival, and rows whose key did not arrive within
      the default limit.
    """

    outputs: tuple[str, ...] = (OUT, ERRORS, LATE)
    state_version: ClassVar[int] = 1

    def __init__(
        self,
        join: SideJoin | StateLayout,
        function: Function | None = None,
        tables: TableReader | None = None,
    ) -> None:
        """Create the operator.

        Args:
            join: the definition, or its layout if it was checked before.
            function: called with main rows, after columns were added, and their views.
            tables: returns versions of static tables.

        Raises:
            SideDefinitionError: the definition can never work.
        """
        self._layout = build_layout(join) if isinstance(join, SideJoin) else join
        join = self._layout.join
        self.join, self._function, self._tables = join, function, tables
        self.inputs = (
            *(
                Input(
                    name=one.name,
                    key=one.key if one.keyed else (),
                    broadcast=not one.keyed,
                    event_time=one.event_time,
                )
                for one in join.inputs
                if not one.static
            ),
            Input(name=MAIN, key=join.key, event_time=join.event_time),
        )
        self._numbers = {one.name: number for number, one in enumerate(join.inputs)}
        self._by_time, self._lateness = self._layout.is_by_time, self._layout.lateness
        self._meta: bytes | None = None
        self._started = False
        self._policies_changed = False
        self._handled_ids: set[str] = set()

    # Called by the runtime.

    def restore(self, version: int, blobs: Blobs) -> None:
        """Restore the state of the bucket."""
        del version
        self._meta = blobs.get(_META)
        try:
            dumped = json.loads(self._meta) if self._meta is not None else {}
        except ValueError as error:
            raise StateError(f"state {_META} is damaged: {error}.") from error
        self._restore_state(blobs, dumped)

    def begin_window(self) -> None:
        """Begin a window and end waits that exceeded a ``timeout``."""
        if not self._started:
            self._restore_state({}, {})
        self._handled_ids.clear()
        self._joiner.now = self.window.time
        if self._policies_changed:
            self._joiner.retry_all()
            self._policies_changed = False
        self._end_overdue_waits(by_default=False)

    def advance(self, time: int) -> None:
        """Advance event time: process rows that are due and windows that became ready."""
        if not self._by_time:
            self._joiner.advance_to(time)
            return
        for step in self._queue.pop_until(time, self._joiner.tracked_windows()):
            if isinstance(step, TimeAdvanced):
                self._joiner.advance_to(step.time)
            elif isinstance(step, RowsDue):
                self._process_due(step)
            else:
                self._apply_control(step.message)

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        """Process rows of a side input or of the main input."""
        if port == MAIN:
            self._process_main(select_columns(MAIN, batch, self.join.schema))
        else:
            number = self._numbers[port]
            self._process_side(number, select_columns(port, batch, self.join.inputs[number].schema))

    def process_control(self, port: str, control: ControlTuple) -> bool:
        """Handle control tuples for a side input; forward all others."""
        del port
        payload = control.payload
        if control.type not in _CONTROL_TYPES:
            return False
        known, handled = payload.get("input") in self._numbers, control.id in self._handled_ids
        self._handled_ids.add(control.id)  # it may also arrive on another port
        if not known:
            if control.type == SideComplete.__name__ and not handled:
                self.reject_unknown(control)
            return False
        if not handled:
            self._schedule_control({**payload, "type": control.type})
        return True

    def reject_unknown(self, control: ControlTuple) -> str:
        """Reject a ``SideComplete`` for a side input that this operator does not have.

        The tuple may be meant for an operator downstream. Bucket 0 writes it to the output
        ``errors``.

        Returns:
            The message in ``errors``.

        Raises:
            UndeliverableError: the tuple is addressed to this operator.
        """
        name = str(control.payload.get("input"))
        known = ", ".join(self._numbers) or "none"
        what = f"control tuple {control.id} is SideComplete for `{name}`, which is not a side input"
        if control.target.operator is not None:
            raise UndeliverableError(
                f"{what} of operator {control.target.operator}; there are: {known}."
            )
        message = (
            f"{what} here; there are: {known}. It is forwarded: address it to the operator that"
            " has that side input"
        )
        if self.window.bucket == 0:
            self._emit_errors(name, UNKNOWN, message, [to_json(control.payload)], [None])
        return message

    def apply_control(self, message: SideComplete | SideVersion) -> None:
        """Apply a control message for a runtime that has no control tuples."""
        self._schedule_control({**asdict(message), "type": type(message).__name__})

    def _schedule_control(self, message: dict[str, Any]) -> None:
        at = self._effective_time(message)
        if at is None:
            self._apply_control(message)
        else:
            self._queue.add_control(at, message)

    def end_window(self) -> None:
        """End a window: end overdue waits, check limits and free expired state."""
        # At the end: data of this window still counts, as it does after a restart.
        self._end_overdue_waits(by_default=True)
        for state in self._sides:
            self._emit_all_rejected(state)  # of loads published without a later row
        self._check_size()
        if self.window.watermark is not None:
            low = self._waiting_rows.min_event_time()
            for state in self._sides:
                state.expire(self.window.watermark, low)

    def snapshot(self) -> Changes:
        """Return the state that this window changed."""
        out: Changes = {}
        for state in self._sides:
            out.update(state.changes())
        out.update(self._waiting_rows.changes())
        out.update(self._queue.changes())
        meta = json.dumps(
            {
                "seq": self._seq,
                "last": self._last_times,
                "sides": [state.dump() for state in self._sides],
                "waiting": self._waiting_rows.dump(),
                "control": self._queue.dump(),
                "forms": self._layout.form_digests,
                "policies": self._layout.policy_digest,
            },
            sort_keys=True,
            separators=(",", ":"),
        ).encode()
        if meta != self._meta:
            out[_META] = meta
        return out

    def wake_at(self) -> int | None:
        """Return the earliest event time at which a row is due, or a window is over."""
        stalled = {(stall.input, stall.window) for stall in self._waiting_rows.stalls()}
        ends = [self._joiner.window_end(number, start) for number, start in stalled]
        times = [*ends, *(t for state in self._sides for t in state.wake_times())]
        if (first := self._queue.first_time()) is not None:
            times.append(first)
        passed = self.window.watermark
        return min(
            (t for t in times if t is not None and (passed is None or t > passed)), default=None
        )

    def held_at(self) -> int | None:
        """Return the least event time of the waiting main rows; None if none wait."""
        times = (self._waiting_rows.min_event_time(), self._queue.first_main_time())
        return min((time for time in times if time is not None), default=None)

    # Called by users and by the runtime's shell.

    def timeout_at(self) -> int | None:
        """Return the pinned time at which the next wait exceeds its limit; None for never."""
        times = []
        for number, limit in enumerate(self._layout.limits):
            since = self._waiting_rows.waiting_since(number)
            if limit is not None and since is not None:
                times.append(since + limit)
        return min(times, default=None)

    def stalls(self) -> list[Stall]:
        """Return what blocks rows, and how many."""
        return self._waiting_rows.stalls()

    def stall_texts(self) -> list[str]:
        """Return what blocks rows, as sentences."""
        return [describe_stall(self.join, stall, self.window.time) for stall in self.stalls()]

    def explain(self) -> list[str]:
        """Return the settings of this operator, defaults included, one sentence each."""
        return explain(self.join)

    def figures(self) -> dict[str, Any]:
        """Return sizes and counts of this bucket, by side input and for waiting rows.

        Broadcast side inputs count in every bucket; waiting rows and keyed side inputs in one.
        """
        stalls = self.stalls()
        queued, size = self._queue.sizes()
        return {
            "waiting_rows": sum(stall.rows for stall in stalls),
            "waiting_bytes": sum(stall.size for stall in stalls),
            "waiting_since": min((s.since for s in stalls if s.since is not None), default=None),
            "unordered_rows": queued,
            "unordered_bytes": size,
            "inputs": {
                state.side.name: {
                    **state.metrics(),
                    "version": state.version,
                    "version_since": state.version_since,
                }
                for state in self._sides
            },
        }

    # Internals.

    def _restore_state(self, blobs: Blobs, dumped: dict[str, Any]) -> None:
        join = self.join
        sides = dumped.get("sides") or [None] * len(join.inputs)
        if len(sides) != len(join.inputs):
            raise StateError(
                f"the state is of {len(sides)} side inputs, the operator has {len(join.inputs)}."
                " Start a new checkpoint."
            )
        self._check_form_digests(dumped.get("forms"))
        self._policies_changed = (
            bool(dumped) and dumped.get("policies") != self._layout.policy_digest
        )
        self._sides = [
            SideState(self._layout, number, blobs, sides[number], self._tables)
            for number in range(len(join.inputs))
        ]
        self._waiting_rows = WaitingRows(self._layout, blobs, dumped.get("waiting", []))
        schemas = [*(one.schema for one in join.inputs), join.schema] if self._by_time else []
        self._queue = EventQueue(schemas, blobs, dumped.get("control", []))
        self._seq: int = dumped.get("seq", 0)
        self._last_times: list[int | None] = dumped.get("last") or [None] * len(join.inputs)
        self._joiner = Joiner(
            self._layout,
            self._sides,
            self._waiting_rows,
            self._function,
            self.emit,
            self._emit_missing,
        )
        self._started = True

    def _check_form_digests(self, stored: list[str] | None) -> None:
        """Reject state of another definition, whose bytes would be misread."""
        names = [*(one.name for one in self.join.inputs), MAIN]
        for name, form, before in zip(names, self._layout.form_digests, stored or (), strict=False):
            if form != before:
                what = "order, key" if name == MAIN else "name, kind, key, values"
                raise StateError(
                    f"the state of `{name}` has another definition: its {what}, columns, types or"
                    " windows have changed. Define it as before, or start a new checkpoint."
                )

    def _process_side(self, number: int, batch: pa.RecordBatch) -> None:
        watermark = self.window.watermark
        if self._by_time:
            times = event_micros(batch, self.join.inputs[number].event_time)
            if times.null_count != len(times):
                last = pc.max(times).as_py()
                self._last_times[number] = max(last, self._last_times[number] or last)
            later = _is_after(times, watermark)
            early = batch.filter(later)
            if early.num_rows:
                self._queue.add_rows(
                    number, early, times.filter(later), self._next_seqs(early.num_rows)
                )
            batch = batch.filter(pc.invert(later))
        if batch.num_rows:
            self._apply_side_rows(number, batch, watermark)

    def _apply_side_rows(self, number: int, batch: pa.RecordBatch, watermark: int | None) -> None:
        state = self._sides[number]
        self._joiner.late_at = watermark
        self._joiner.add_side_rows(number, state.parse_rows(batch))
        self._emit_all_rejected(state)

    def _emit_all_rejected(self, state: SideState) -> None:
        """Emit the rejected rows of a side input; for a broadcast one only from bucket 0."""
        if state.side.keyed or self.window.bucket == 0:
            for rejected in state.rejected_rows:
                self._emit_rejected(state.side.name, rejected)
        state.rejected_rows.clear()

    def _process_main(self, batch: pa.RecordBatch) -> None:
        times = event_micros(batch, self.join.event_time)
        if times.null_count and (self._by_time or self._needs_time()):
            batch, times = self._reject_timeless(batch, times)
        seqs = self._next_seqs(batch.num_rows)
        watermark = self.window.watermark
        if self._by_time:
            later = _is_after(times, watermark)
            self._queue.add_rows(
                len(self._sides), batch.filter(later), times.filter(later), seqs.filter(later)
            )
            rest = pc.invert(later)
            batch, times, seqs = batch.filter(rest), times.filter(rest), seqs.filter(rest)
        if not batch.num_rows:
            return
        pairs = self._joiner.make_pairs(batch, times, seqs, self.window.time)
        if watermark is not None:
            pairs = self._drop_late(batch, seqs, pairs, watermark)
        self._joiner.process_pairs(pairs)

    def _drop_late(
        self, batch: pa.RecordBatch, seqs: pa.Array, pairs: pa.RecordBatch, watermark: int
    ) -> pa.RecordBatch:
        """Return the pairs whose window is open; emit rows without any such pair to ``late``."""
        expired = self._joiner.find_expired(pairs, watermark, self._lateness)
        if self._by_time and not self._joiner.has_main_windows:
            late = pc.less_equal(pc.add(pairs[TIME], self._lateness), watermark)
            expired = late if expired is None else pc.or_(expired, late)
        if expired is None or not pc.any(expired).as_py():
            return pairs
        pairs = pairs.filter(pc.invert(expired))
        late_rows = batch.filter(pc.invert(pc.is_in(seqs, value_set=pairs[SEQ])))
        if late_rows.num_rows:
            self.emit(late_rows, LATE)
        return pairs

    def _process_due(self, due: RowsDue) -> None:
        seqs = due.rows.column(due.rows.num_columns - 1)
        batch = due.rows.select(range(due.rows.num_columns - 1))
        if due.port < len(self._sides):
            self._apply_side_rows(due.port, batch, self._joiner.passed)
            return
        times = event_micros(batch, self.join.event_time)
        self._joiner.process_pairs(self._joiner.make_pairs(batch, times, seqs, self.window.time))

    def _apply_control(self, message: dict[str, Any]) -> None:
        number = self._numbers[message["input"]]
        state = self._sides[number]
        if message["type"] == SideVersion.__name__:
            if not state.side.static:
                raise SideError(
                    state.side.name,
                    f"Side input `{state.side.name}` is a stream; send SideComplete instead.",
                )
            state.set_version(message["version"], self.window.time)
            self._joiner.retry_window(number, None)
            return
        window = message.get("window")
        state.complete(
            window,
            whole=bool(message.get("whole")),
            version=message.get("version"),
            now=self.window.time,
        )
        self._joiner.retry_window(number, window)

    def _effective_time(self, message: dict[str, Any]) -> int | None:
        """Return the event time at which a control message takes effect; None for now."""
        if not self._by_time:
            return None
        at: int | None = message.get("at")
        if at is None and message["type"] == SideComplete.__name__:
            at = self._last_times[self._numbers[message["input"]]]
        watermark = self.window.watermark
        return at if at is not None and (watermark is None or at > watermark) else None

    def _end_overdue_waits(self, *, by_default: bool) -> None:
        """Release rows that waited past their limit: the default one or a ``timeout``."""
        for number in self._layout.wait_order:
            limit = self._layout.limits[number]
            if (
                limit is not None
                and bool(self._layout.default_wait_bits >> number & 1) is by_default
            ):
                released = self._waiting_rows.release_since(number, self.window.time - limit)
                self._release_overdue(number, limit, released)

    def _release_overdue(self, number: int, limit: int, released: list[pa.RecordBatch]) -> None:
        side = self.join.inputs[number]
        if side.on_timeout == "default":
            if self._layout.default_wait_bits >> number & 1:
                self._emit_overdue(released)
            self._joiner.retry([waive(pairs, number) for pairs in released])
            return
        for pairs in released:
            message = f"no value of side input {side.name} within {limit / SECOND:g} s"
            self._emit_pair_errors(side.name, "SideTimeout", message, pairs)

    def _emit_overdue(self, released: list[pa.RecordBatch]) -> None:
        """Emit rows that waited by default to ``late``, each once, in arrival order."""
        batches = []
        for pairs in released:
            waived = pc.bit_wise_and(pairs[WAIVED], self._layout.default_wait_bits)
            batches.append(pairs.filter(pc.equal(waived, 0)))
        table = pa.Table.from_batches(batches, schema=self._layout.pair_schema)
        if table.num_rows:
            table = table.sort_by(SEQ).combine_chunks()
            seqs = table[SEQ].combine_chunks()
            first = pc.cast(pc.index_in(seqs, value_set=seqs), pa.int64())
            table = table.filter(pc.equal(first, pa.arange(0, len(seqs))))
            self.emit(table.select(self.join.schema.names).combine_chunks().to_batches()[0], LATE)

    def _emit_missing(self, name: str, pairs: pa.RecordBatch) -> None:
        self._emit_pair_errors(
            name, "SideMissing", f"side input {name} has no value for the row", pairs
        )

    def _emit_pair_errors(self, name: str, code: str, message: str, pairs: pa.RecordBatch) -> None:
        rows = [to_json(row) for row in pairs.select(self.join.schema.names).to_pylist()]
        self._emit_errors(name, code, message, rows, pairs[TIME].to_pylist())

    def _emit_rejected(self, name: str, rejected: RejectedRows) -> None:
        error = rejected.error
        self._emit_errors(name, error.code, error.problem, rejected.rows, rejected.times)

    def _emit_errors(
        self, name: str, code: str, message: str, rows: list[str], times: list[int | None]
    ) -> None:
        size = len(rows)
        columns = [[name] * size, [code] * size, [message] * size, times, rows]
        arrays = [pa.array(c, f.type) for c, f in zip(columns, ERROR_SCHEMA, strict=True)]
        self.emit(pa.RecordBatch.from_arrays(arrays, schema=ERROR_SCHEMA), ERRORS)

    def _reject_timeless(
        self, batch: pa.RecordBatch, times: pa.Array
    ) -> tuple[pa.RecordBatch, pa.Array]:
        timeless = batch.filter(pc.is_null(times))
        rows = [to_json(row) for row in timeless.to_pylist()]
        message = f"event time ({self.join.event_time}) is null"
        self._emit_errors(MAIN, "SideMissing", message, rows, [None] * len(rows))
        valid = pc.is_valid(times)
        return batch.filter(valid), times.filter(valid)

    def _needs_time(self) -> bool:
        windows = self.join.windows
        return bool(windows and windows.is_windowed) or any(
            one.windows.is_windowed for one in self.join.inputs
        )

    def _next_seqs(self, rows: int) -> pa.Array:
        self._seq += rows
        return pa.arange(self._seq - rows, self._seq)

    def _check_size(self) -> None:
        rows, size = self._queue.sizes()
        size += self._waiting_rows.size
        if size > self.join.max_waiting_bytes:
            raise self._too_many(
                "bytes of rows that wait in one bucket", size, self.join.max_waiting_bytes
            )
        if rows + self._waiting_rows.max_count <= self.join.max_waiting_rows:
            return
        rows += sum(stall.rows for stall in self.stalls())
        if rows > self.join.max_waiting_rows:
            raise self._too_many("rows that wait in one bucket", rows, self.join.max_waiting_rows)

    def _too_many(self, what: str, actual: int, limit: int) -> SideTooLargeError:
        stalls = self.stalls()
        name = MAIN
        if stalls:
            worst = max(stalls, key=lambda stall: stall.rows)
            name = self.join.inputs[worst.input].name if worst.input != GROUP else MAIN
        remedy = "is its stream running? Set timeout=, or ready='not required', or raise the limit"
        return SideTooLargeError(name, what, actual, limit, remedy)


def _is_after(times: pa.Array, watermark: int | None) -> pa.Array:
    """Return for each time whether it is after the watermark; a null is not."""
    if watermark is None:
        return pc.is_valid(times)
    return pc.fill_null(pc.greater(times, watermark), False)
