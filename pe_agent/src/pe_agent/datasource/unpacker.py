"""Rows with control on their way into an export: rows, and control beside them.

Rows are staged in the order in which they come. They come in groups, such as the buckets of an
operator, in each of which sequences rise. An ``IMMEDIATE`` tuple gets the place in front of the
first row of its group whose sequence is not lower; a group without rows says nothing of places.
Other tuples are at the end of the epoch. Positions keep the order of emission.
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
"""The rows of its task in front of a control tuple, None if there is nothing to say; its position,
and the tuple."""


@dataclass(slots=True)
class _Group:
    """Rows of one group, batch by batch: sequences, and where they stand in the task."""

    last_sequences: list[int] = field(default_factory=list)
    spans: list[tuple[pa.Array, int]] = field(default_factory=list)

    def rows_before(self, position: int) -> int | None:
        """Return how many rows of the task are in front of a position."""
        if not self.spans:
            return None
        at = bisect_left(self.last_sequences, position)
        if at == len(self.spans):
            seq, first = self.spans[-1]
            return first + len(seq)
        seq, first = self.spans[at]
        return first + int(pc.sum(pc.less(seq, position).cast(pa.int64())).as_py())


class Unpacker:
    """What one task writes."""

    def __init__(self, schema: pa.Schema, target: str, query: str) -> None:
        """Begin with nothing.

        Args:
            schema: of the rows that are staged.
            target: what is written, for messages.
            query: id of the query that writes it.
        """
        self._schema = schema
        self._target, self._query = target, query
        self._rows = 0
        self._groups: dict[int, _Group] = {}
        self._control: dict[str, dict[int, tuple[int, ControlTuple]]] = {}

    def unpack_rows(self, packed: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Give the rows of packed batches and take the control tuples; once.

        Raises:
            ControlError, FormatTooNewError: a payload is no packed row of this release.
        """
        for batch in packed:
            for bucket, one in by_bucket(batch):
                arrival = unpack(one)
                if arrival.rows is None:
                    for position, control in arrival.control:
                        self.add_control(bucket, position, control)
                    continue
                yield self.add_rows(bucket, arrival.rows.column(SEQ), arrival.rows)

    def add_rows(self, group: int, seq: pa.Array, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows as they are staged; they come next.

        Args:
            group: which rows they are of.
            seq: their sequences, which rise, also from batch to batch.
            rows: with the columns that are staged, and maybe others.
        """
        of = self._groups.setdefault(group, _Group())
        of.last_sequences.append(seq[-1].as_py())
        of.spans.append((seq, self._rows))
        self._rows += rows.num_rows
        arrays = [rows.column(f.name).cast(f.type) for f in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def add_control(self, group: int, position: int, control: ControlTuple) -> None:
        """Take a control tuple that stands in front of a position of a group.

        Raises:
            IdentityError: another tuple has its identity.
        """
        of = self._control.setdefault(control.id, {})
        for _, other in of.values():
            if other.differs_from(control):
                raise IdentityError(other, control)
            break
        if group not in of or position < of[group][0]:
            of[group] = (position, control)

    def collect_control(self) -> list[UnpackedControl]:
        """Return the control tuples, once all rows were given; each once.

        Raises:
            ControlLimitError: the query emits more than one epoch takes.
        """
        found = [
            min(map(self._locate, of, of.values()), key=_order_key) for of in self._control.values()
        ]
        check_epoch([one for *_, one in found], self._target, self._query)
        return found

    def _locate(self, group: int, placed_control: IndexedControl) -> UnpackedControl:
        position, control = placed_control
        if control.delivery is not Delivery.IMMEDIATE or group not in self._groups:
            return None, position, control
        return self._groups[group].rows_before(position), position, control


def _order_key(unpacked: UnpackedControl) -> tuple[bool, int, int]:
    place, position, _ = unpacked
    return (place is None, place or 0, position)


def merge_tasks(tasks: Iterable[tuple[int, Iterable[UnpackedControl]]]) -> list[IndexedControl]:
    """Return the tuples of tasks with their places in their epoch; those without at its end.

    Those of one place are in the order of their positions.

    Args:
        tasks: rows and tuples of each, in order of partitions.
    """
    before = 0
    first: dict[str, UnpackedControl] = {}
    for rows, given in tasks:
        for place, position, one in given:
            found = (None if place is None else before + place, position, one)
            known = first.setdefault(one.id, found)
            if known[2].differs_from(one):
                raise IdentityError(known[2], one)
            first[one.id] = min(known, found, key=_order_key)
        before += rows
    placed = [(before if at is None else at, where, one) for at, where, one in first.values()]
    placed.sort(key=lambda it: (it[0], it[1], sort_key(it[2])))
    return [(place, one) for place, _, one in placed]
