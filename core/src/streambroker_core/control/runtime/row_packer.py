"""Packs the rows of a task in large batches.

A packed row costs about the same for any content: an Arrow header, a Spark row, a Python object.
With one packed row per bucket and Arrow batch, that would be a third of the total cost. So rows are
buffered up to a number of rows or bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.control.runtime.buckets import Layout
from streambroker_core.control.runtime.packing import consecutive_numbers, pack

BATCH_ROWS = 65_536
BATCH_BYTES = 16 << 20


class RowPacker:
    """Packs the rows of one port; ``flush`` packs the remaining ones."""

    def __init__(self, layout: Layout, *, rows: int = BATCH_ROWS, size: int = BATCH_BYTES) -> None:
        """Create an empty packer that packs at ``rows`` buffered rows or ``size`` bytes."""
        self._layout, self._max_rows, self._max_bytes = layout, rows, size
        self._batches: list[pa.RecordBatch] = []
        self._numbers: list[pa.Array] = []
        self._rows = self._bytes = 0

    def add(self, batch: pa.RecordBatch, seq: int | pa.Array) -> Iterator[pa.RecordBatch]:
        """Add rows with the same columns as before; yield packed rows if there are enough.

        ``seq`` is the sequence of the first row, the others follow; or of each row.
        """
        if not batch.num_rows:
            return
        self._batches.append(batch)
        self._numbers.append(
            consecutive_numbers(seq, batch.num_rows) if isinstance(seq, int) else seq
        )
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= self._max_rows or self._bytes >= self._max_bytes:
            yield from self.flush()

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield the buffered rows, packed."""
        if not self._rows:
            return
        rows, seq = concat(self._batches), pa.concat_arrays(self._numbers)
        self._batches, self._numbers, self._rows, self._bytes = [], [], 0, 0
        if not _is_ascending(seq):
            order = pc.sort_indices(seq)
            rows, seq = rows.take(order), seq.take(order)
        yield pack(rows, self._layout, seq)


def concat(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Return batches as one; a single one is not copied."""
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _is_ascending(seq: pa.Array) -> bool:
    rises = pc.less(seq.slice(0, len(seq) - 1), seq.slice(1))
    return bool(pc.all(rises, min_count=0).as_py())
