"""Operator that joins main rows with side inputs, driven by a runtime of aligned windows."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, ClassVar, cast

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.control.operators.dead_letters import to_json
from streambroker_core.control.operators.operator import Blobs, Changes, Input, Operator
from streambroker_core.control.tuples import ControlError, ControlTuple, UndeliverableError
from streambroker_core.control.tuples.payloads import Payloads
from streambroker_core.deprecation import warn_deprecated
from streambroker_core.side.control_messages import ControlMessage, SideComplete, SideVersion
from streambroker_core.side.definition import MAIN, SideJoin
from streambroker_core.side.describe import describe_stall, explain
from streambroker_core.side.error_rows import ERROR_SCHEMA, ERRORS, ErrorRows
from streambroker_core.side.errors import SideError
from streambroker_core.side.join.function_calls import Function
from streambroker_core.side.join.joiner import Joiner
from streambroker_core.side.join.wait_limits import WaitLimits
from streambroker_core.side.state.bucket import BucketState
from streambroker_core.side.state.event_queue import RowsDue, TimeAdvanced
from streambroker_core.side.state.input_state import TableReader
from streambroker_core.side.state.layout import SEQ, TIME, StateLayout, build_layout
from streambroker_core.side.state.read_rows import event_micros, select_columns
from streambroker_core.side.state.waiting_rows import Stall

__all__ = ["ERRORS", "ERROR_SCHEMA", "LATE", "OUT", "UNKNOWN", "SideOperator"]

OUT, LATE = "out", "late"
UNKNOWN = "SideUnknown"
"""Error code in ``errors``: a control tuple for an unknown side input."""
_CONTROL_TYPES = (SideComplete.__name__, SideVersion.__name__)
_PAYLOADS = Payloads((SideComplete, SideVersion))


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
        self._by_time, self._lateness = self._layout.is_by_time, self._layout.lateness
        windows = [join.windows, *(one.windows for one in join.inputs)]
        self._needs_time = self._by_time or any(one and one.is_windowed for one in windows)
        self._errors = ErrorRows(join, self.emit, self._dead_letters)
        self._started = False
        self._handled_ids: set[str] = set()

    def restore(self, version: int, blobs: Blobs) -> None:
        """Restore the state of the bucket."""
        del version
        self._state = BucketState(self._layout, self._tables, blobs)
        self._joiner = Joiner(
            self._layout,
            self._state.sides,
            self._state.waiting,
            self._function,
            self.emit,
            self._errors.emit_missing,
        )
        self._limits = WaitLimits(
            self._layout, self._state.waiting, self._joiner, self._errors, self.emit
        )
        self._started = True

    def begin_window(self) -> None:
        """Begin a window and end waits that exceeded a ``timeout``."""
        if not self._started:
            self.restore(self.state_version, {})
        self._handled_ids.clear()
        self._errors.reported.clear()
        self._joiner.now = self.window.time
        if self._state.policies_changed:
            self._joiner.retry_all()
            self._state.policies_changed = False
        self._limits.end_overdue(self.window.time, by_default=False)

    def advance(self, time: int) -> None:
        """Advance event time: process rows that are due and windows that became ready."""
        if not self._by_time:
            self._joiner.advance_to(time)
            return
        for step in self._state.queue.pop_until(time, self._joiner.tracked_windows()):
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
            number = self._state.numbers[port]
            self._process_side(number, select_columns(port, batch, self.join.inputs[number].schema))

    def process_control(self, port: str, control: ControlTuple) -> bool:
        """Handle control tuples for a side input; forward all others.

        Raises:
            UndeliverableError: the payload is not of its type, or does not fit the side input.
        """
        del port
        if control.type not in _CONTROL_TYPES:
            return False
        message = _read_message(control, self._state)
        known, handled = message["input"] in self._state.numbers, control.id in self._handled_ids
        self._handled_ids.add(control.id)  # it may also arrive on another port
        if not known:
            if control.type == SideComplete.__name__ and not handled:
                self.reject_unknown(control)
            return False
        if not handled:
            self._schedule_control(message)
        return True

    def reject_unknown(self, control: ControlTuple) -> str:
        """Reject a ``SideComplete`` for a side input that this operator does not have.

        The tuple may be meant for an operator downstream. The bucket that it is addressed to
        writes it to the output ``errors``; of a tuple for all, bucket 0.

        Returns:
            The message in ``errors``.

        Raises:
            UndeliverableError: the tuple is addressed to this operator.
        """
        name = str(control.payload.get("input"))
        known = ", ".join(self._state.numbers) or "none"
        what = f"control tuple {control.id} is SideComplete for `{name}`, which is not a side input"
        if control.target.operator is not None:
            raise UndeliverableError(
                f"{what} of operator {control.target.operator}; there are: {known}."
            )
        message = (
            f"{what} here; there are: {known}. It is forwarded: address it to the operator that"
            " has that side input"
        )
        target = control.target
        if self.window.bucket == 0 or target.bucket is not None or target.key is not None:
            row = to_json(control.payload)
            self._errors.emit("control", name, UNKNOWN, message, [row], [None])
        return message

    def apply_control(self, message: SideComplete | SideVersion) -> None:
        """Apply a control message for a runtime that has no control tuples."""
        fields = {**asdict(message), "type": type(message).__name__}
        self._schedule_control(cast(ControlMessage, fields))

    def _schedule_control(self, message: ControlMessage) -> None:
        at = self._state.effective_time(message, self.window.watermark)
        if at is None:
            self._apply_control(message)
        else:
            self._state.queue.add_control(at, message)

    def end_window(self) -> None:
        """End a window: end overdue waits, check limits and free expired state."""
        # At the end: data of this window still counts, as it does after a restart.
        self._limits.end_overdue(self.window.time, by_default=True)
        for state in self._state.sides:
            # of loads published without a later row
            self._errors.emit_rejected(state, self.window.bucket)
        self._state.check_size()
        if self.window.watermark is not None:
            low = self._state.waiting.min_event_time()
            for state in self._state.sides:
                state.expire(self.window.watermark, low)

    def snapshot(self) -> Changes:
        """Return the state that this window changed."""
        return self._state.changes()

    def wake_at(self) -> int | None:
        """Return the earliest event time at which a row is due, or a window is over."""
        stalled = {(stall.input, stall.window) for stall in self._state.waiting.stalls()}
        ends = [self._joiner.window_end(number, start) for number, start in stalled]
        times = [*ends, *(t for state in self._state.sides for t in state.wake_times())]
        if (first := self._state.queue.first_time()) is not None:
            times.append(first)
        passed = self.window.watermark
        return min(
            (t for t in times if t is not None and (passed is None or t > passed)), default=None
        )

    def held_at(self) -> int | None:
        """Return the least event time of the waiting main rows; None if none wait."""
        times = (self._state.waiting.min_event_time(), self._state.queue.first_main_time())
        return min((time for time in times if time is not None), default=None)

    def timeout_at(self) -> int | None:
        """Return the pinned time at which the next wait exceeds its limit; None for never."""
        return self._limits.timeout_at()

    def stalls(self) -> list[Stall]:
        """Return what blocks rows, and how many."""
        return self._state.waiting.stalls()

    def stall_texts(self) -> list[str]:
        """Return what blocks rows, as sentences."""
        return [describe_stall(self.join, stall, self.window.time) for stall in self.stalls()]

    def explain(self) -> list[str]:
        """Return the settings of this operator, defaults included, one sentence each."""
        return explain(self.join)

    def metrics(self) -> dict[str, Any]:
        """Return sizes and counts of this bucket; broadcast side inputs count in each bucket."""
        return self._state.metrics()

    def figures(self) -> dict[str, Any]:
        """Deprecated: use ``metrics``."""
        warn_deprecated("SideOperator.figures", "metrics")
        return self.metrics()

    def _process_side(self, number: int, batch: pa.RecordBatch) -> None:
        watermark = self.window.watermark
        if self._by_time:
            times = event_micros(batch, self.join.inputs[number].event_time)
            if times.null_count != len(times):
                last = pc.max(times).as_py()
                self._state.last_times[number] = max(last, self._state.last_times[number] or last)
            later = _is_after(times, watermark)
            early = batch.filter(later)
            if early.num_rows:
                self._state.queue.add_rows(
                    number, early, times.filter(later), self._state.next_seqs(early.num_rows)
                )
            batch = batch.filter(pc.invert(later))
        if batch.num_rows:
            self._apply_side_rows(number, batch, watermark)

    def _apply_side_rows(self, number: int, batch: pa.RecordBatch, watermark: int | None) -> None:
        state = self._state.sides[number]
        self._joiner.late_at = watermark
        self._joiner.add_side_rows(number, state.parse_rows(batch))
        self._errors.emit_rejected(state, self.window.bucket)

    def _process_main(self, batch: pa.RecordBatch) -> None:
        times = event_micros(batch, self.join.event_time)
        if times.null_count and self._needs_time:
            valid = pc.is_valid(times)
            self._errors.emit_timeless(batch.filter(pc.invert(valid)))
            batch, times = batch.filter(valid), times.filter(valid)
        seqs = self._state.next_seqs(batch.num_rows)
        watermark = self.window.watermark
        if self._by_time:
            later = _is_after(times, watermark)
            self._state.queue.add_rows(
                len(self._state.sides), batch.filter(later), times.filter(later), seqs.filter(later)
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
        if due.port < len(self._state.sides):
            self._apply_side_rows(due.port, batch, self._joiner.passed)
            return
        times = event_micros(batch, self.join.event_time)
        self._joiner.process_pairs(self._joiner.make_pairs(batch, times, seqs, self.window.time))

    def _apply_control(self, message: ControlMessage) -> None:
        self._joiner.retry_window(*self._state.apply_control(message, self.window.time))


def _read_message(control: ControlTuple, state: BucketState) -> ControlMessage:
    """Return a control message; raise UndeliverableError if it does not fit its side input."""
    try:
        fields = {**asdict(_PAYLOADS.decode(control)), "type": control.type}
        message = cast(ControlMessage, fields)
        if message["input"] in state.numbers:
            state.check_control(message)
    except (ControlError, SideError) as error:
        refused = UndeliverableError(str(error))
        refused.code = error.code
        raise refused from error
    return message


def _is_after(times: pa.Array, watermark: int | None) -> pa.Array:
    """Return for each time whether it is after the watermark; a null is not."""
    if watermark is None:
        return pc.is_valid(times)
    return pc.fill_null(pc.greater(times, watermark), False)
