"""Packing of rows inside Spark's tasks: one ``mapInArrow`` before each shuffle.

A task packs its rows in batches. At its end it packs what goes to every bucket: its control tuples,
its progress messages, and a row with the largest event time that it has seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from pe_agent.aligned.runtime import progress_messages
from pe_agent.aligned.runtime.frames import (
    CONTROL,
    END_POSITION,
    PROGRESS,
    ROWS,
    SEQ,
    PositionAssigner,
    conform,
    decode_control,
    read_positioned_rows,
)
from pe_agent.spark.worker import freeze_modules
from streambroker_core.control.operators.operator import OperatorError
from streambroker_core.control.runtime.buckets import Layout
from streambroker_core.control.runtime.control_rows import PositionedControl, add_if_first
from streambroker_core.control.runtime.packing import (
    PART_BITS,
    RUNNING_BITS,
    Packed,
    merge_control,
    pack_control,
    pack_watermark,
    packed_rows,
    unpack,
)
from streambroker_core.control.runtime.row_packer import RowPacker
from streambroker_core.control.tuples import ControlError, ControlTuple, Delivery

if TYPE_CHECKING:
    from pe_agent.filters import CompiledFilter

IN_POSITION, REFUSE, AT_END = "placed", "refused", "end"
"""Handling of ``IMMEDIATE`` tuples: keep their position, refuse them, or move them to the end."""


@dataclass(kw_only=True)
class _TaskInput:
    """What one task sends to every bucket; ``control`` is keyed by identity."""

    control: dict[str, PositionedControl] = field(default_factory=dict)
    progress: list[progress_messages.ProgressMessage] = field(default_factory=list)
    latest_event_time: int | None = None
    has_input: bool = False
    positions: PositionAssigner = field(default_factory=PositionAssigner)


@dataclass(frozen=True, kw_only=True)
class FramePacker:
    """Packs a frame of rows for one port.

    Attributes:
        layout: how rows are spread over buckets.
        schema: columns of its rows, the same for all frames of the port; None for control alone.
        event_time: column with the event time, or None.
        immediate: how ``IMMEDIATE`` tuples are handled.
        row_filter: filter of the rows that the operator has to see; others only advance the time.
    """

    layout: Layout
    schema: pa.Schema | None = None
    event_time: str | None = None
    immediate: str = IN_POSITION
    row_filter: str | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pack the rows of a task."""
        task, row_packer = _TaskInput(), RowPacker(self.layout)
        for batch in batches:
            if batch.num_rows:
                task.has_input = True
                yield from self._pack_rows(self._extract_control(batch, task), task, row_packer)
        yield from row_packer.flush()
        yield from self.finish(task)

    def _extract_control(self, batch: pa.RecordBatch, task: _TaskInput) -> pa.RecordBatch:
        if CONTROL not in batch.schema.names:
            return batch
        control_column = batch.column(CONTROL)
        if control_column.null_count < len(control_column):
            control = batch.filter(pc.is_valid(control_column))
            positions = [0] * control.num_rows
            if SEQ in batch.schema.names:
                positions = control.column(SEQ).to_pylist()
            for position, data in zip(positions, control.column(CONTROL).to_pylist(), strict=True):
                self._add_control(position, decode_control(data), task)
            batch = batch.filter(pc.is_null(control_column))
        return batch.drop_columns([CONTROL])

    def _add_control(
        self,
        position: int,
        decoded: ControlTuple | list[progress_messages.ProgressMessage],
        task: _TaskInput,
    ) -> None:
        if not isinstance(decoded, ControlTuple):
            task.progress += decoded
            return
        if decoded.delivery is Delivery.IMMEDIATE and self.immediate != IN_POSITION:
            if self.immediate == REFUSE:
                raise immediate_error(decoded, f"input {self.layout.port}")
            position = move_to_end(position)
        add_if_first(task.control, position, decoded)

    def _pack_rows(
        self, batch: pa.RecordBatch, task: _TaskInput, row_packer: RowPacker
    ) -> Iterator[pa.RecordBatch]:
        if not batch.num_rows or SEQ not in batch.schema.names:
            return
        if self.event_time is not None:
            _update_latest(task, batch.column(self.event_time))
        seq = task.positions.assign(batch.column(SEQ))
        rows = batch.drop_columns([SEQ])
        if self.schema is not None:
            rows = conform(rows, self.schema, f"the stream of input {self.layout.port}")
        if self.row_filter is not None:
            mask = _compiled_filter(self.row_filter, rows.schema).mask(rows)
            rows, seq = rows.filter(mask), seq.filter(mask)
        yield from row_packer.add(rows, seq)

    def finish(self, task: _TaskInput) -> Iterator[pa.RecordBatch]:
        """Yield the rows that a task sends to every bucket."""
        yield pack_control(task.control.values(), self.layout.port, self.layout.buckets)
        if task.progress:
            yield packed_rows(
                (bucket, _pack_progress(task.progress)) for bucket in range(-1, self.layout.buckets)
            )
        if task.has_input:
            yield pack_watermark(task.latest_event_time)
        freeze_modules("packer")


@dataclass(frozen=True, kw_only=True)
class Repacker:
    """Packs what an output of an operator emitted for a port of the next operator."""

    layout: Layout
    output: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pack the emitted rows of a task."""
        task, packer, row_packer = (
            _TaskInput(),
            FramePacker(layout=self.layout),
            RowPacker(self.layout),
        )
        for kind, _, first, n, payload in read_output(batches, self.output):
            task.has_input = True
            if kind == ROWS:
                for rows, seq in read_positioned_rows(payload, first):
                    yield from row_packer.add(rows, seq)
            elif kind == PROGRESS:
                task.progress += progress_messages.decode(payload)
            else:
                merge_control(Packed(seq=0, n=n, payload=payload), task.control)
        yield from row_packer.flush()
        yield from packer.finish(task)


def move_to_end(position: int) -> int:
    """Return the position after all rows of a window; the order of moved positions stays."""
    return END_POSITION | (position & ((1 << (PART_BITS + RUNNING_BITS)) - 1))


def immediate_error(control: ControlTuple, where: str) -> ControlError:
    """Return the error for an ``IMMEDIATE`` tuple that is not among the rows."""
    return ControlError(
        f"control tuple {control.id} is IMMEDIATE and does not arrive in sequence with the rows"
        f" of {where}, so it has no position among them. Deliver it with BEGIN, END_WINDOW or"
        " AT_TIME, or use transform(…, immediate='end')."
    )


def read_output(
    batches: Iterable[pa.RecordBatch], output: str
) -> Iterator[tuple[str, int, int, int, bytes]]:
    """Yield kind, bucket, sequence, number and payload of an output's rows, and progress rows."""
    names = ("output", "kind", "bucket", "seq", "n", "payload")
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in names)
        for tag, kind, *more in zip(*columns, strict=True):
            if tag == output or kind == PROGRESS:
                yield (kind, *more)


def unpack_tuples(n: int, payload: bytes) -> tuple[PositionedControl, ...]:
    """Read emitted control tuples."""
    return unpack(Packed(seq=0, n=n, payload=payload)).control


@lru_cache(maxsize=64)
def _compiled_filter(text: str, schema: pa.Schema) -> CompiledFilter:
    from pe_agent.filters import compile_filter  # not for operators that need all rows
    from streambroker_core.expression import parse

    return compile_filter(parse(text, "filter"), schema)


def _pack_progress(messages: list[progress_messages.ProgressMessage]) -> Packed:
    return Packed(
        seq=0, n=progress_messages.PROGRESS_ROW, payload=progress_messages.encode(messages)
    )


def _update_latest(task: _TaskInput, column: pa.Array) -> None:
    kind = column.type
    if not pa.types.is_timestamp(kind):
        raise OperatorError(f"the event time is {kind}: it has to be a timestamp.")
    latest = pc.max(column.cast(pa.timestamp("us", kind.tz))).value
    if latest is not None and (task.latest_event_time is None or latest > task.latest_event_time):
        task.latest_event_time = int(latest)
