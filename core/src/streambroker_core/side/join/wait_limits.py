"""Limits of how long main rows wait, and what becomes of rows that exceed them."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.side.error_rows import ErrorRows
from streambroker_core.side.join.joiner import Joiner, waive
from streambroker_core.side.state.layout import SEQ, WAIVED, StateLayout
from streambroker_core.side.state.waiting_rows import WaitingRows
from streambroker_core.side.windows import SECOND


class WaitLimits:
    """Ends the waits of one bucket that exceed their limit."""

    def __init__(
        self,
        layout: StateLayout,
        waiting: WaitingRows,
        joiner: Joiner,
        errors: ErrorRows,
        emit: Callable[[pa.RecordBatch, str], None],
    ) -> None:
        self._layout, self._waiting, self._joiner = layout, waiting, joiner
        self._errors, self._emit = errors, emit

    def end_overdue(self, now: int, *, by_default: bool) -> None:
        """Release rows that waited past their limit: the default one or a ``timeout``."""
        for number in self._layout.wait_order:
            limit = self._layout.limits[number]
            if (
                limit is not None
                and bool(self._layout.default_wait_bits >> number & 1) is by_default
            ):
                released = self._waiting.release_since(number, now - limit)
                self._release_overdue(number, limit, released)

    def _release_overdue(self, number: int, limit: int, released: list[pa.RecordBatch]) -> None:
        side = self._layout.join.inputs[number]
        if side.on_timeout == "default":
            if self._layout.default_wait_bits >> number & 1:
                self._emit_overdue(released)
            self._joiner.retry([waive(pairs, number) for pairs in released])
            return
        for pairs in released:
            message = f"no value of side input {side.name} within {limit / SECOND:g} s"
            self._errors.emit_pairs(side.name, "SideTimeout", message, pairs)

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
            self._emit(
                table.select(self._layout.join.schema.names).combine_chunks().to_batches()[0],
                "late",
            )

    def timeout_at(self) -> int | None:
        """Return the pinned time at which the next wait exceeds its limit; None for never."""
        times = []
        for number, limit in enumerate(self._layout.limits):
            since = self._waiting.waiting_since(number)
            if limit is not None and since is not None:
                times.append(since + limit)
        return min(times, default=None)
