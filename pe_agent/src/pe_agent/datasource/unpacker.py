"""Unpacking of rows with control for an export: rows are staged, control goes to the commit.

- Rows are staged in order of arrival. They arrive in groups, such as the buckets of an operator;
  sequences rise within a group.
- An ``IMMEDIATE`` tuple gets the position before the first row of its group whose sequence is not
  lower; a group without rows determines no position.
- Other tuples are at the end of the epoch.
- Positions keep the order of emission.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.control.runtime.packing import SEQ, by_bucket, unpack
from streambroker_core.control.tuples import ControlTuple, Delivery, IdentityError, sort_key
from streambroker_core.control.tuples.epoch_control import IndexedControl, check_epoch

UnpackedControl = tuple[int | None, int, ControlTuple]
"""Number of rows of its task before a control tuple, or None if unknown; its position, and the
tuple."""


@dataclass(slots=True)
class _Group:
    last_sequences: list[int] = field(default_factory=list)
    spans: list[tuple[pa.Array, int]] = field(default_factory=list)

    def rows_before(self, position: int) -> int | None:
        """Return how many rows of the task precede a position; None without rows."""
        if not self.spans:
            return None
        at = bisect_left(self.last_sequences, position)
        if at == len(self.spans):
            seq, first = self.spans[-1]
            return first + len(seq)
        seq, first = self.spans[at]
        return first + int(pc.sum(pc.less(seq, position).cast(pa.int64())).as_py())


class Unpacker:
    """Unpacks the rows and control tuples that one task writes."""

    def __init__(self, schema: pa.Schema, target: str, query: str) -> None:
        """Start empty; ``target`` describes in messages what is written."""
        self._schema = schema
        self._target, self._query = target, query
        self._rows = 0
        self._groups: dict[int, _Group] = {}
        self._control: dict[str, dict[int, tuple[int, ControlTuple]]] = {}

    def unpack_rows(self, packed: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of packed batches and collect their control tuples; call once."""
        for batch in packed:
            for bucket, one in by_bucket(batch):
                arrival = unpack(one)
                if arrival.rows is None:
                    for position, control in arrival.control:
                        self.add_control(bucket, position, control)
                    continue
                yield self.add_rows(bucket, arrival.rows.column(SEQ), arrival.rows)

    def add_rows(self, group: int, seq: pa.Array, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Append rows to a group; return the columns to stage. Sequences rise over all batches."""
        rows_of_group = self._groups.setdefault(group, _Group())
        rows_of_group.last_sequences.append(seq[-1].as_py())
        rows_of_group.spans.append((seq, self._rows))
        self._rows += rows.num_rows
        arrays = [rows.column(f.name).cast(f.type) for f in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def add_control(self, group: int, position: int, control: ControlTuple) -> None:
        """Add a control tuple with its position in a group; of copies in it the lowest counts."""
        positions = self._control.setdefault(control.id, {})
        for _, other in positions.values():
            if other.differs_from(control):
                raise IdentityError(other, control)
            break
        if group not in positions or position < positions[group][0]:
            positions[group] = (position, control)

    def collect_control(self) -> list[UnpackedControl]:
        """Return each control tuple once, after all rows; raise ControlLimitError if too many."""
        unpacked = [
            min(map(self._locate, of, of.values()), key=_order_key) for of in self._control.values()
        ]
        check_epoch([one for *_, one in unpacked], self._target, self._query)
        return unpacked

    def _locate(self, group: int, placed_control: IndexedControl) -> UnpackedControl:
        position, control = placed_control
        if control.delivery is not Delivery.IMMEDIATE or group not in self._groups:
            return None, position, control
        return self._groups[group].rows_before(position), position, control


def _order_key(unpacked: UnpackedControl) -> tuple[bool, int, int]:
    place, position, _ = unpacked
    return (place is None, place or 0, position)


def merge_tasks(tasks: Iterable[tuple[int, Iterable[UnpackedControl]]]) -> list[IndexedControl]:
    """Return the tuples of tasks with their indexes in the epoch; those without are at its end.

    Tuples with the same index are in the order of their positions. ``tasks`` are rows and tuples of
    each task, in order of partitions.
    """
    before = 0
    first: dict[str, UnpackedControl] = {}
    for rows, tuples in tasks:
        for place, position, one in tuples:
            candidate = (None if place is None else before + place, position, one)
            known = first.setdefault(one.id, candidate)
            if known[2].differs_from(one):
                raise IdentityError(known[2], one)
            first[one.id] = min(known, candidate, key=_order_key)
        before += rows
    placed = [(before if at is None else at, where, one) for at, where, one in first.values()]
    placed.sort(key=lambda it: (it[0], it[1], sort_key(it[2])))
    return [(place, one) for place, _, one in placed]
