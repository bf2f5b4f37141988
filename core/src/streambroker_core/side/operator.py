"""The operator with side inputs, as a runtime of aligned windows drives it."""

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
from streambroker_core.side.describe import explain, stall_text
from streambroker_core.side.errors import SideError, SideTooLargeError
from streambroker_core.side.join.joiner import Function, Joining, waive
from streambroker_core.side.state.event_queue import Due, Passed, Sequence
from streambroker_core.side.state.input_state import SideState, Tables
from streambroker_core.side.state.layout import SEQ, TIME, WAIVED, Shape, shape_of
from streambroker_core.side.state.read_rows import Refusal, as_json, fitting, micros
from streambroker_core.side.state.waiting_rows import GROUP, Stall, Waiting
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
"""Code of a row of ``errors``: a control tuple for a side input that is not there."""
_META = "side"
_SAID = (SideComplete.__name__, SideVersion.__name__)


class SideOperator(Operator):
    """Main rows with views of side inputs.

    Outputs: ``out``, what the function returns, or main rows with the columns that were added;
    ``errors``, rows that a policy does not take, or that waited for too long, or lack a value;
    ``late``, main rows whose window was over when they came, and those whose key did not come in
    time, where that is the default.
    """

    outputs: tuple[str, ...] = (OUT, ERRORS, LATE)
    state_version: ClassVar[int] = 1

    def __init__(
        self,
        join: SideJoin | Shape,
        function: Function | None = None,
        tables: Tables | None = None,
    ) -> None:
        """Define it.

        Args:
            join: the definition; its shape instead, if it was checked before.
            function: called with main rows, after columns were added, and their views.
            tables: gives versions of static tables.

        Raises:
            SideDefinitionError: the definition could never work.
        """
        self._shape = shape_of(join) if isinstance(join, SideJoin) else join
        join = self._shape.join
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
        self._by_time, self._lateness = self._shape.by_time, self._shape.lateness
        self._meta: bytes | None = None
        self._started = False
        self._other_policies = False
        self._heard: set[str] = set()

    # What a runtime calls.

    def restore(self, version: int, blobs: Blobs) -> None:
        """Take up the state of the bucket."""
        del version
        self._meta = blobs.get(_META)
        try:
            told = json.loads(self._meta) if self._meta is not None else {}
        except ValueError as error:
            raise StateError(f"state {_META} is damaged: {error}.") from error
        self._take_up(blobs, told)

    def begin_window(self) -> None:
        """Begin a window; rows that have waited for too long wait no longer."""
        if not self._started:
            self._take_up({}, {})
        self._heard.clear()
        self._joining.now = self.window.time
        if self._other_policies:
            self._joining.changed()
            self._other_policies = False
        self._end_waits(by_default=False)

    def advance(self, time: int) -> None:
        """Let event time pass: rows that waited for it are due, and windows are ready."""
        if not self._by_time:
            self._joining.pass_to(time)
            return
        for step in self._sequence.pop_to(time, self._joining.windows()):
            if isinstance(step, Passed):
                self._joining.pass_to(step.time)
            elif isinstance(step, Due):
                self._take_due(step)
            else:
                self._obey(step.said)

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        """Take rows of a side input, or of the main one."""
        if port == MAIN:
            self._take_main(fitting(MAIN, batch, self.join.schema))
        else:
            number = self._numbers[port]
            self._take_side(number, fitting(port, batch, self.join.inputs[number].schema))

    def process_control(self, port: str, control: ControlTuple) -> bool:
        """Take what is said to one of the side inputs; everything else goes on."""
        del port
        said = control.payload
        if control.type not in _SAID:
            return False
        known, again = said.get("input") in self._numbers, control.id in self._heard
        self._heard.add(control.id)  # it may come over another port, too
        if not known:
            if control.type == SideComplete.__name__ and not again:
                self.refuse_unknown(control)
            return False
        if not again:
            self._take_said({**said, "type": control.type})
        return True

    def refuse_unknown(self, control: ControlTuple) -> str:
        """Refuse what is complete for no side input here; it may be for an operator behind.

        Returns:
            What the output ``errors`` has of it.

        Raises:
            UndeliverableError: it is addressed to this operator.
        """
        name = str(control.payload.get("input"))
        known = ", ".join(self._numbers) or "none"
        why = f"control tuple {control.id} is SideComplete for `{name}`, which is no side input"
        if control.target.operator is not None:
            raise UndeliverableError(
                f"{why} of operator {control.target.operator}; there are: {known}."
            )
        message = (
            f"{why} here; there are: {known}. It goes on: address it to the operator that has that"
            " side input"
        )
        if self.window.bucket == 0:
            self._emit_errors(name, UNKNOWN, message, [as_json(control.payload)], [None])
        return message

    def obey(self, said: SideComplete | SideVersion) -> None:
        """Take what a control tuple says, of a runtime that has none."""
        self._take_said({**asdict(said), "type": type(said).__name__})

    def _take_said(self, said: dict[str, Any]) -> None:
        at = self._place_of(said)
        if at is None:
            self._obey(said)
        else:
            self._sequence.put_control(at, said)

    def end_window(self) -> None:
        """End a window: what nothing needs any more is freed, limits are checked."""
        self._end_waits(by_default=True)  # what came in this window counts, as after a restart
        for state in self._sides:
            self._tell_refusals(state)  # of loads that were seen with no row behind them
        self._check_size()
        if self.window.watermark is not None:
            low = self._waiting.low()
            for state in self._sides:
                state.expire(self.window.watermark, low)

    def snapshot(self) -> Changes:
        """Return what this window changed of the state."""
        out: Changes = {}
        for state in self._sides:
            out.update(state.changes())
        out.update(self._waiting.changes())
        out.update(self._sequence.changes())
        meta = json.dumps(
            {
                "seq": self._seq,
                "last": self._last,
                "sides": [state.tell() for state in self._sides],
                "waiting": self._waiting.tell(),
                "control": self._sequence.tell(),
                "forms": self._shape.forms,
                "policies": self._shape.policies,
            },
            sort_keys=True,
            separators=(",", ":"),
        ).encode()
        if meta != self._meta:
            out[_META] = meta
        return out

    def wake_at(self) -> int | None:
        """Return the earliest event time at which a row is due, or a window is over."""
        stalled = {(stall.input, stall.window) for stall in self._waiting.stalls()}
        ends = [self._joining.end(number, start) for number, start in stalled]
        times = [*ends, *(t for state in self._sides for t in state.wakes())]
        if (first := self._sequence.first()) is not None:
            times.append(first)
        passed = self.window.watermark
        return min(
            (t for t in times if t is not None and (passed is None or t > passed)), default=None
        )

    def held_at(self) -> int | None:
        """Return the least event time of the main rows that wait."""
        times = (self._waiting.low(), self._sequence.first_main())
        return min((time for time in times if time is not None), default=None)

    # What people and the runtime's shell ask.

    def timeout_at(self) -> int | None:
        """Return the pinned time at which the next row has waited for too long; None for never."""
        times = []
        for number, limit in enumerate(self._shape.limits):
            since = self._waiting.since(number)
            if limit is not None and since is not None:
                times.append(since + limit)
        return min(times, default=None)

    def stalls(self) -> list[Stall]:
        """Return what holds rows back, and how many."""
        return self._waiting.stalls()

    def stall_texts(self) -> list[str]:
        """Return what holds rows back, in sentences."""
        return [stall_text(self.join, stall, self.window.time) for stall in self.stalls()]

    def explain(self) -> list[str]:
        """Return what holds for this operator, defaults included, one sentence for each thing."""
        return explain(self.join)

    def figures(self) -> dict[str, Any]:
        """Return sizes and counts of this bucket: of each side input, and of what waits.

        What is broadcast counts in every bucket; what waits, and what is keyed, in one.
        """
        stalls = self.stalls()
        turns, size = self._sequence.sizes()
        return {
            "waiting_rows": sum(stall.rows for stall in stalls),
            "waiting_bytes": sum(stall.size for stall in stalls),
            "waiting_since": min((s.since for s in stalls if s.since is not None), default=None),
            "unordered_rows": turns,
            "unordered_bytes": size,
            "inputs": {
                state.side.name: {
                    **state.figures(),
                    "version": state.version,
                    "version_since": state.version_since,
                }
                for state in self._sides
            },
        }

    # How it is done.

    def _take_up(self, blobs: Blobs, told: dict[str, Any]) -> None:
        join = self.join
        sides = told.get("sides") or [None] * len(join.inputs)
        if len(sides) != len(join.inputs):
            raise StateError(
                f"the state is of {len(sides)} side inputs, the operator has {len(join.inputs)}."
                " Begin a new checkpoint."
            )
        self._check_forms(told.get("forms"))
        self._other_policies = bool(told) and told.get("policies") != self._shape.policies
        self._sides = [
            SideState(self._shape, number, blobs, sides[number], self._tables)
            for number in range(len(join.inputs))
        ]
        self._waiting = Waiting(self._shape, blobs, told.get("waiting", []))
        schemas = [*(one.schema for one in join.inputs), join.schema] if self._by_time else []
        self._sequence = Sequence(schemas, blobs, told.get("control", []))
        self._seq: int = told.get("seq", 0)
        self._last: list[int | None] = told.get("last") or [None] * len(join.inputs)
        self._joining = Joining(
            self._shape, self._sides, self._waiting, self._function, self.emit, self._lack
        )
        self._started = True

    def _check_forms(self, known: list[str] | None) -> None:
        """Refuse state that was written under another definition: its bytes would be misread."""
        names = [*(one.name for one in self.join.inputs), MAIN]
        for name, form, before in zip(names, self._shape.forms, known or (), strict=False):
            if form != before:
                what = "order, key" if name == MAIN else "name, kind, key, values"
                raise StateError(
                    f"the state of `{name}` is of another definition: its {what}, columns, types or"
                    " windows are not those of before. Define it as it was, or begin a new"
                    " checkpoint."
                )

    def _take_side(self, number: int, batch: pa.RecordBatch) -> None:
        watermark = self.window.watermark
        if self._by_time:
            times = micros(batch, self.join.inputs[number].event_time)
            if times.null_count != len(times):
                last = pc.max(times).as_py()
                self._last[number] = max(last, self._last[number] or last)
            later = _after(times, watermark)
            early = batch.filter(later)
            if early.num_rows:
                self._sequence.put(number, early, times.filter(later), self._count(early.num_rows))
            batch = batch.filter(pc.invert(later))
        if batch.num_rows:
            self._apply(number, batch, watermark)

    def _apply(self, number: int, batch: pa.RecordBatch, watermark: int | None) -> None:
        state = self._sides[number]
        self._joining.late_at = watermark
        self._joining.feed(number, state.read(batch))
        self._tell_refusals(state)

    def _tell_refusals(self, state: SideState) -> None:
        """Tell what a side input has refused; of a broadcast one, one bucket tells it."""
        if state.side.keyed or self.window.bucket == 0:
            for refusal in state.refusals:
                self._tell_refusal(state.side.name, refusal)
        state.refusals.clear()

    def _take_main(self, batch: pa.RecordBatch) -> None:
        times = micros(batch, self.join.event_time)
        if times.null_count and (self._by_time or self._needs_time()):
            batch, times = self._refuse_timeless(batch, times)
        seqs = self._count(batch.num_rows)
        watermark = self.window.watermark
        if self._by_time:
            later = _after(times, watermark)
            self._sequence.put(
                len(self._sides), batch.filter(later), times.filter(later), seqs.filter(later)
            )
            rest = pc.invert(later)
            batch, times, seqs = batch.filter(rest), times.filter(rest), seqs.filter(rest)
        if not batch.num_rows:
            return
        pairs = self._joining.pairs(batch, times, seqs, self.window.time)
        if watermark is not None:
            pairs = self._without_late(batch, seqs, pairs, watermark)
        self._joining.offer(pairs)

    def _without_late(
        self, batch: pa.RecordBatch, seqs: pa.Array, pairs: pa.RecordBatch, watermark: int
    ) -> pa.RecordBatch:
        """Return the pairs whose window is open; a row that has none is late."""
        over = self._joining.expired(pairs, watermark, self._lateness)
        if self._by_time and not self._joining.main_cut:
            late = pc.less_equal(pc.add(pairs[TIME], self._lateness), watermark)
            over = late if over is None else pc.or_(over, late)
        if over is None or not pc.any(over).as_py():
            return pairs
        pairs = pairs.filter(pc.invert(over))
        late_rows = batch.filter(pc.invert(pc.is_in(seqs, value_set=pairs[SEQ])))
        if late_rows.num_rows:
            self.emit(late_rows, LATE)
        return pairs

    def _take_due(self, due: Due) -> None:
        seqs = due.rows.column(due.rows.num_columns - 1)
        batch = due.rows.select(range(due.rows.num_columns - 1))
        if due.port < len(self._sides):
            self._apply(due.port, batch, self._joining.passed)
            return
        times = micros(batch, self.join.event_time)
        self._joining.offer(self._joining.pairs(batch, times, seqs, self.window.time))

    def _obey(self, said: dict[str, Any]) -> None:
        number = self._numbers[said["input"]]
        state = self._sides[number]
        if said["type"] == SideVersion.__name__:
            if not state.side.static:
                raise SideError(
                    state.side.name,
                    f"Side input `{state.side.name}` is a stream; send SideComplete instead.",
                )
            state.announce(said["version"], self.window.time)
            self._joining.opened(number, None)
            return
        window = said.get("window")
        state.complete(
            window,
            whole=bool(said.get("whole")),
            version=said.get("version"),
            now=self.window.time,
        )
        self._joining.opened(number, window)

    def _place_of(self, said: dict[str, Any]) -> int | None:
        """Return the event time at which control holds; None for now."""
        if not self._by_time:
            return None
        at: int | None = said.get("at")
        if at is None and said["type"] == SideComplete.__name__:
            at = self._last[self._numbers[said["input"]]]
        watermark = self.window.watermark
        return at if at is not None and (watermark is None or at > watermark) else None

    def _end_waits(self, *, by_default: bool) -> None:
        """Let rows that have waited for too long wait no longer, by default or by a ``timeout``."""
        for number in self._shape.turns:
            limit = self._shape.limits[number]
            if limit is not None and bool(self._shape.by_default >> number & 1) is by_default:
                released = self._waiting.release_since(number, self.window.time - limit)
                self._give_up(number, limit, released)

    def _give_up(self, number: int, limit: int, released: list[pa.RecordBatch]) -> None:
        side = self.join.inputs[number]
        if side.on_timeout == "default":
            if self._shape.by_default >> number & 1:
                self._emit_overdue(released)
            self._joining.again([waive(pairs, number) for pairs in released])
            return
        for pairs in released:
            message = f"no value of side input {side.name} within {limit / SECOND:g} s"
            self._tell(side.name, "SideTimeout", message, pairs)

    def _emit_overdue(self, released: list[pa.RecordBatch]) -> None:
        """Emit to ``late`` the rows that waited by default, each once, in the order they came."""
        batches = []
        for pairs in released:
            given_up = pc.bit_wise_and(pairs[WAIVED], self._shape.by_default)
            batches.append(pairs.filter(pc.equal(given_up, 0)))
        table = pa.Table.from_batches(batches, schema=self._shape.pairs)
        if table.num_rows:
            table = table.sort_by(SEQ).combine_chunks()
            seqs = table[SEQ].combine_chunks()
            first = pc.cast(pc.index_in(seqs, value_set=seqs), pa.int64())
            table = table.filter(pc.equal(first, pa.arange(0, len(seqs))))
            self.emit(table.select(self.join.schema.names).combine_chunks().to_batches()[0], LATE)

    def _lack(self, name: str, pairs: pa.RecordBatch) -> None:
        self._tell(name, "SideMissing", f"side input {name} has no value for the row", pairs)

    def _tell(self, name: str, code: str, message: str, pairs: pa.RecordBatch) -> None:
        rows = [as_json(row) for row in pairs.select(self.join.schema.names).to_pylist()]
        self._emit_errors(name, code, message, rows, pairs[TIME].to_pylist())

    def _tell_refusal(self, name: str, refusal: Refusal) -> None:
        error = refusal.error
        self._emit_errors(name, error.code, error.problem, refusal.rows, refusal.times)

    def _emit_errors(
        self, name: str, code: str, message: str, rows: list[str], times: list[int | None]
    ) -> None:
        size = len(rows)
        columns = [[name] * size, [code] * size, [message] * size, times, rows]
        arrays = [pa.array(c, f.type) for c, f in zip(columns, ERROR_SCHEMA, strict=True)]
        self.emit(pa.RecordBatch.from_arrays(arrays, schema=ERROR_SCHEMA), ERRORS)

    def _refuse_timeless(
        self, batch: pa.RecordBatch, times: pa.Array
    ) -> tuple[pa.RecordBatch, pa.Array]:
        lacking = batch.filter(pc.is_null(times))
        rows = [as_json(row) for row in lacking.to_pylist()]
        message = f"event time ({self.join.event_time}) is null"
        self._emit_errors(MAIN, "SideMissing", message, rows, [None] * len(rows))
        known = pc.is_valid(times)
        return batch.filter(known), times.filter(known)

    def _needs_time(self) -> bool:
        windows = self.join.windows
        return bool(windows and windows.cut) or any(one.windows.cut for one in self.join.inputs)

    def _count(self, rows: int) -> pa.Array:
        self._seq += rows
        return pa.arange(self._seq - rows, self._seq)

    def _check_size(self) -> None:
        rows, size = self._sequence.sizes()
        size += self._waiting.size
        if size > self.join.max_waiting_bytes:
            raise self._too_many(
                "bytes of rows that wait in one bucket", size, self.join.max_waiting_bytes
            )
        if rows + self._waiting.at_most <= self.join.max_waiting_rows:
            return
        rows += sum(stall.rows for stall in self.stalls())
        if rows > self.join.max_waiting_rows:
            raise self._too_many("rows that wait in one bucket", rows, self.join.max_waiting_rows)

    def _too_many(self, what: str, found: int, limit: int) -> SideTooLargeError:
        stalls = self.stalls()
        name = MAIN
        if stalls:
            worst = max(stalls, key=lambda stall: stall.rows)
            name = self.join.inputs[worst.input].name if worst.input != GROUP else MAIN
        remedy = "is its stream running? Say timeout=, or ready='not required', or raise the limit"
        return SideTooLargeError(name, what, found, limit, remedy)


def _after(times: pa.Array, watermark: int | None) -> pa.Array:
    """Tell of each time whether it is still to come; one that is null is not."""
    if watermark is None:
        return pc.is_valid(times)
    return pc.fill_null(pc.greater(times, watermark), False)
