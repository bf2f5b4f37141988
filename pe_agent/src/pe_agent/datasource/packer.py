"""Rows and control tuples of an import, packed for the buckets of an operator.

With ``control``, ``read()`` returns core's packed row schema:

- rows with their position among all rows of the batch,
- control tuples, for every bucket,
- per task one row for no bucket, with the largest event time and the number of rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from pe_agent.transport.messages import BlockMetadata, Ticket
from streambroker_core.control.operators.operator import Input, OperatorError
from streambroker_core.control.runtime.buckets import Layout, make_layout
from streambroker_core.control.runtime.control_rows import PositionedControl, from_batch
from streambroker_core.control.runtime.packing import (
    SEQ,
    consecutive_numbers,
    pack_control,
    pack_watermark,
    sequence,
)
from streambroker_core.control.runtime.row_packer import RowPacker
from streambroker_core.control.runtime.spacing import position_before, slot_bits, space_positions
from streambroker_core.control.tuples import Delivery
from streambroker_core.control.tuples.window_bounds import merge_controls
from streambroker_core.errors import StreambrokerError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

UNKNOWN_ROWS = (1 << 31) - 1
"""Assumed row count of a stream if the ticket has none."""
PACKED_DDL = "bucket int, seq bigint, n int, event_time timestamp, payload binary"


class NotNumberedError(StreambrokerError):
    """An exporter of an older release sends rows without their places."""

    code = "NotNumbered"


class NotTimedError(StreambrokerError):
    """An exporter of an older release does not send the time of rows that rules leave out."""

    code = "NotTimed"


@dataclass(frozen=True, kw_only=True)
class Packing:
    """How an import is packed; see the options of the data source.

    Attributes:
        columns: columns of its rows, as DDL; empty until they are known.
        key: columns whose values decide the bucket, with their types if they are to be cast.
        broadcast: every bucket gets every row.
        nulls: rows with a null in their key go to bucket 0.
        rank: position of this frame among the frames of the input.
        mergeable: types of control tuples of which only the last one counts; they cut no window.
        unpacks_rows: the packed rows are unpacked again, so each task also gets the ``IMMEDIATE``
            tuples between its rows.
        log: the frame carries the agent's control log.
        rules: control file whose rules the frame carries, and which decide the rows it needs.
        slots: packed rows have the slots of their buckets as first column.
    """

    columns: str = ""
    input: str = "in"
    buckets: int = 64
    key: str = ""
    broadcast: bool = False
    nulls: bool = False
    event_time: str | None = None
    rank: int = 0
    mergeable: tuple[str, ...] = ()
    unpacks_rows: bool = False
    log: bool = False
    rules: str | None = None
    slots: bool = False

    @cached_property
    def struct(self) -> StructType:
        """The columns as Spark types."""
        from pe_agent.datasource.columns import parse_struct

        return parse_struct(self.columns)

    def layout(self, schema: pa.Schema) -> Layout:
        """Return how rows are spread over buckets; raise an error without the key's columns."""
        from pyspark.sql.pandas.types import to_arrow_schema

        typed = self.key_types()
        names = tuple(typed.names) if typed else _split_names(self.key)
        input_ = Input(name=self.input, key=names, broadcast=self.broadcast)
        key_schema = to_arrow_schema(typed, timezone="UTC") if typed else schema
        for name in names if typed else ():
            make_layout(Input(name=self.input, key=(name,)), schema, self.buckets)
        return make_layout(input_, key_schema, self.buckets, nulls=self.nulls)

    def check(self) -> None:
        """Raise OperatorError or SchemaError unless key and event time fit the columns."""
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = to_arrow_schema(self.struct, timezone="UTC")
        self.layout(schema)
        name = self.event_time
        if name is not None and (
            name not in schema.names or not pa.types.is_timestamp(schema.field(name).type)
        ):
            raise OperatorError(
                f"input {self.input} has the event time {name}, and its rows have no timestamp"
                f" column of that name; they have {self.columns}."
            )

    def key_types(self) -> StructType | None:
        """Return the key's columns with their types; None if the rows' own types apply."""
        from pe_agent.datasource.columns import parse_struct

        entries = [one.strip() for one in self.key.split(",")]
        return parse_struct(self.key) if any(" " in one for one in entries) else None


def _split_names(key: str) -> tuple[str, ...]:
    return tuple(one.strip() for one in key.split(",") if one.strip())


class ImportPacker:
    """Packs the rows that one task reads of one slice."""

    def __init__(self, packing: Packing, ticket: Ticket) -> None:
        self._packing = packing
        self._stream_number = ticket["part"]
        self._rows_before: Sequence[int] = ticket["before"]
        self._slot_bits = slot_bits(ticket.get("rows", UNKNOWN_ROWS))
        self._has_latest = "latest" in ticket
        self._row_packer: RowPacker | None = None
        self._latest: int | None = None
        self._rows = 0

    def _sequence_at(self, number: int) -> int:
        return sequence(rank=self._packing.rank, part=self._stream_number, number=number)

    def pack_rows(
        self, batch: pa.RecordBatch, block: int, row_numbers: pa.Array | None
    ) -> Iterator[pa.RecordBatch]:
        """Pack a block's rows that passed the filter; without ``row_numbers`` all passed."""
        if self._row_packer is None:
            self._row_packer = RowPacker(self._packing.layout(batch.schema))
        self._rows += batch.num_rows
        first = self._sequence_at(self._rows_before[block])
        seq = (
            consecutive_numbers(first, batch.num_rows)
            if row_numbers is None
            else pc.add(row_numbers, first)
        )
        yield from self._row_packer.add(batch, space_positions(seq, self._slot_bits))

    def note_time(self, batch: pa.RecordBatch, metadata: BlockMetadata) -> None:
        """Record the largest event time of a block.

        If rules leave out rows, the metadata has to contain it, because all rows advance the time.

        Raises:
            NotTimedError: the metadata lacks it.
        """
        name = self._packing.event_time
        if name is None:
            return
        if not self._has_latest:
            latest: int | None = pc.max(batch.column(name)).cast(pa.timestamp("us", "UTC")).value
        elif "latest" in metadata:
            latest = metadata["latest"]
        else:
            raise NotTimedError(
                "the exporter's agent does not send the times of rows that are not relevant for"
                " any rule, so event time would not advance as it does without push_down: update"
                " that agent, or leave push_down out."
            )
        if latest is not None:
            self._latest = max(latest, self._latest) if self._latest is not None else latest

    def pack_control(self, epochs: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pack the control tuples of a stream's epochs for every bucket."""
        yield from self._pack_positioned(self._positions(self._rows_before, epochs))

    def pack_immediate(
        self, rows_before: Sequence[int], epochs: Sequence[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Pack copies of those ``IMMEDIATE`` tuples of a stream that may be between these rows."""
        first = position_before(
            self._sequence_at(min(self._rows_before, default=0) + 1), self._slot_bits
        )
        placed = [
            (position, one)
            for position, one in self._positions(rows_before, epochs)
            if one.delivery is Delivery.IMMEDIATE and position >= first
        ]
        yield from self._pack_positioned(placed)

    def _positions(
        self, rows_before: Sequence[int], epochs: Sequence[pa.RecordBatch]
    ) -> list[PositionedControl]:
        """Return a stream's tuples with positions that rise in the order of their emission."""
        placed: list[PositionedControl] = []
        used_slots: Counter[int] = Counter()
        for rows, batch in zip(rows_before, epochs, strict=True):
            for at, one in from_batch(batch):
                position = self._sequence_at(len(placed))
                if one.delivery is Delivery.IMMEDIATE:
                    place = self._sequence_at(rows + at)
                    position = position_before(place, self._slot_bits, used_slots[place])
                    used_slots[place] += 1
                placed.append((position, one))
        return placed

    def _pack_positioned(self, control: Sequence[PositionedControl]) -> Iterator[pa.RecordBatch]:
        mergeable = frozenset(self._packing.mergeable)
        kept_ids = {one.id for one in merge_controls([one for _, one in control], mergeable)}
        yield pack_control(
            [(at, one) for at, one in control if one.id in kept_ids],
            self._packing.input,
            self._packing.buckets,
        )

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yield the remaining rows, and the row for no bucket with largest event time and count."""
        if self._row_packer is not None:
            yield from self._row_packer.flush()
        yield pack_watermark(self._latest, self._rows)


def link_control_slices(slices: Sequence[Ticket]) -> list[Ticket]:
    """Return the slices; those with rows refer to the control slice of their stream."""
    control_slices = {
        one["stream"]: one for one in slices if one.get("control") and "stream" in one
    }
    return [
        {**one, "marks": control_slices[one["stream"]]}
        if not one.get("control") and one["stream"] in control_slices
        else one
        for one in slices
    ]


def read_row_numbers(batch: pa.RecordBatch, *, filtered: bool) -> pa.Array | None:
    """Return the numbers of rows in their block, if a filter or a policy may have removed some.

    Raises:
        NotNumberedError: rows are ``filtered``, and the exporter is too old to number them.
    """
    if SEQ in batch.schema.names:
        return batch.column(SEQ)
    if not filtered:
        return None
    raise NotNumberedError(
        "the exporter's agent does not number the rows that pass a filter, so control tuples"
        " would not find their positions: update it, or read without a filter."
    )
