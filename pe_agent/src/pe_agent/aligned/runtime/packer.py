"""Rows to packed rows, inside Spark's tasks: one ``mapInArrow`` before each shuffle.

A task packs its rows, many at once, and at its end what goes to every bucket: its control tuples,
its notes, and a row with the largest event time that it has seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from pe_agent.aligned.runtime import progress_messages as notes
from pe_agent.aligned.runtime.frames import (
    CONTROL,
    END,
    NOTES,
    ROWS,
    SEQ,
    Numbering,
    fitting,
    placed_rows,
    read_control,
)
from pe_agent.spark.worker import settle
from streambroker_core.control.operators.operator import OperatorError
from streambroker_core.control.runtime.buckets import Layout
from streambroker_core.control.runtime.control_rows import Placed, keep_first
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
from streambroker_core.control.runtime.row_packer import Gathering
from streambroker_core.control.tuples import ControlError, ControlTuple, Delivery

if TYPE_CHECKING:
    from pe_agent.filters import CompiledFilter

PLACED, REFUSED, AT_END = "placed", "refused", "end"
"""What becomes of ``IMMEDIATE`` tuples: they stand at their place, are refused, or come last."""


@dataclass(kw_only=True)
class _Task:
    """What one task has for every bucket.

    Attributes:
        control: its control tuples, placed, by identity.
        notes: what operators before this one tell of their time.
        latest: the largest event time of its rows.
        began: it has anything at all.
        numbering: of rows that have no place yet.
    """

    control: dict[str, Placed] = field(default_factory=dict)
    notes: list[notes.Note] = field(default_factory=list)
    latest: int | None = None
    began: bool = False
    numbering: Numbering = field(default_factory=Numbering)


@dataclass(frozen=True, kw_only=True)
class Packer:
    """Packs a frame of rows for one port.

    Attributes:
        layout: where its rows go.
        schema: columns of its rows, the same for all frames of the port; None for control alone.
        event_time: column with the event time; None for none.
        immediate: what becomes of ``IMMEDIATE`` tuples.
        needed: filter of the rows that the operator has to see; of others only the time counts.
    """

    layout: Layout
    schema: pa.Schema | None = None
    event_time: str | None = None
    immediate: str = PLACED
    needed: str | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pack the rows of a task."""
        task, gathering = _Task(), Gathering(self.layout)
        for batch in batches:
            if batch.num_rows:
                task.began = True
                yield from self._rows(self._without_control(batch, task), task, gathering)
        yield from gathering.end()
        yield from self.end(task)

    def _without_control(self, batch: pa.RecordBatch, task: _Task) -> pa.RecordBatch:
        if CONTROL not in batch.schema.names:
            return batch
        told = batch.column(CONTROL)
        if told.null_count < len(told):
            control = batch.filter(pc.is_valid(told))
            places = [0] * control.num_rows
            if SEQ in batch.schema.names:
                places = control.column(SEQ).to_pylist()
            for place, data in zip(places, control.column(CONTROL).to_pylist(), strict=True):
                self._control(place, read_control(data), task)
            batch = batch.filter(pc.is_null(told))
        return batch.drop_columns([CONTROL])

    def _control(self, place: int, found: ControlTuple | list[notes.Note], task: _Task) -> None:
        if not isinstance(found, ControlTuple):
            task.notes += found
            return
        if found.delivery is Delivery.IMMEDIATE and self.immediate != PLACED:
            if self.immediate == REFUSED:
                raise beside_refused(found, f"input {self.layout.port}")
            place = at_end(place)
        keep_first(task.control, place, found)

    def _rows(
        self, batch: pa.RecordBatch, task: _Task, gathering: Gathering
    ) -> Iterator[pa.RecordBatch]:
        if not batch.num_rows or SEQ not in batch.schema.names:
            return
        if self.event_time is not None:
            _later(task, batch.column(self.event_time))
        seq = task.numbering.fill(batch.column(SEQ))
        rows = batch.drop_columns([SEQ])
        if self.schema is not None:
            rows = fitting(rows, self.schema, f"the stream of input {self.layout.port}")
        if self.needed is not None:
            mask = _filter(self.needed, rows.schema).mask(rows)
            rows, seq = rows.filter(mask), seq.filter(mask)
        yield from gathering.add(rows, seq)

    def end(self, task: _Task) -> Iterator[pa.RecordBatch]:
        """Pack what a task has for every bucket."""
        yield pack_control(task.control.values(), self.layout.port, self.layout.buckets)
        if task.notes:
            yield packed_rows(
                (bucket, _noted(task.notes)) for bucket in range(-1, self.layout.buckets)
            )
        if task.began:
            yield pack_watermark(task.latest)
        settle("packer")


@dataclass(frozen=True, kw_only=True)
class Repacker:
    """Packs what the output of an operator emitted for a port of the next.

    Attributes:
        layout: where the rows go.
        output: the output's tag.
    """

    layout: Layout
    output: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pack what a task emitted."""
        task, packer, gathering = _Task(), Packer(layout=self.layout), Gathering(self.layout)
        for kind, _, first, n, payload in emitted(batches, self.output):
            task.began = True
            if kind == ROWS:
                for rows, seq in placed_rows(payload, first):
                    yield from gathering.add(rows, seq)
            elif kind == NOTES:
                task.notes += notes.decode(payload)
            else:
                merge_control(Packed(seq=0, n=n, payload=payload), task.control)
        yield from gathering.end()
        yield from packer.end(task)


def at_end(place: int) -> int:
    """Return the place behind all rows of a window; places behind it are in their order."""
    return END | (place & ((1 << (PART_BITS + RUNNING_BITS)) - 1))


def beside_refused(control: ControlTuple, where: str) -> ControlError:
    """Return why an ``IMMEDIATE`` tuple beside rows is refused."""
    return ControlError(
        f"control tuple {control.id} is IMMEDIATE and comes beside the rows of {where}, so it has"
        " no place between them. Deliver it with BEGIN, END_WINDOW or AT_TIME, or say"
        " through(…, immediate='end')."
    )


def emitted(
    batches: Iterable[pa.RecordBatch], output: str
) -> Iterator[tuple[str, int, int, int, bytes]]:
    """Give kind, bucket, sequence, number and payload of what one output emitted; notes, too."""
    names = ("output", "kind", "bucket", "seq", "n", "payload")
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in names)
        for tag, kind, *more in zip(*columns, strict=True):
            if tag == output or kind == NOTES:
                yield (kind, *more)


def tuples_of(n: int, payload: bytes) -> tuple[Placed, ...]:
    """Read emitted control tuples."""
    return unpack(Packed(seq=0, n=n, payload=payload)).control


@lru_cache(maxsize=64)
def _filter(text: str, schema: pa.Schema) -> CompiledFilter:
    from pe_agent.filters import compile_filter  # not for operators that need all rows
    from streambroker_core.expression import parse

    return compile_filter(parse(text, "filter"), schema)


def _noted(given: list[notes.Note]) -> Packed:
    return Packed(seq=0, n=notes.NOTE, payload=notes.encode(given))


def _later(task: _Task, column: pa.Array) -> None:
    kind = column.type
    if not pa.types.is_timestamp(kind):
        raise OperatorError(f"the event time is {kind}: it has to be a timestamp.")
    latest = pc.max(column.cast(pa.timestamp("us", kind.tz))).value
    if latest is not None and (task.latest is None or latest > task.latest):
        task.latest = int(latest)
