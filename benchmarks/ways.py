"""What a query does between its source and its sink: an operator, and the ways that Spark has.

Those with state do the same work, an event at a time: of each key they count the rows and sum
``a``, and hand out key, count and sum with every thousandth row.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import side_ways
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - as Spark's users write it
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import streambroker as sb
from pe_agent.aligned.runtime import hosting
from streambroker.operators import Delivery, OperatorOptions, Stream
from streambroker_core.control.operators.keyed_state import KeyedState
from streambroker_core.control.operators.operator import Blobs, Changes, Operator
from streambroker_core.control.operators.typed_operator import TypedOperator, handles
from streambroker_core.control.tuples import ControlTuple

if TYPE_CHECKING:
    import pandas as pd

KEY = "d"
PARTITIONS = 2
EVERY = 1_000
NOTED = 64
"""Buckets that note control tuples."""
TALLY = "d bigint, rows bigint, sum bigint"
State = tuple[int, int]
"""Rows of a key, and the sum of ``a``."""


@dataclass(frozen=True)
class Mark:
    """A control tuple that says little."""

    number: int


def count(state: State, values: Iterable[int], reported: list[State]) -> State:
    """Count and sum values; every thousandth state is told."""
    rows, total = state
    for value in values:
        rows += 1
        total += value
        if rows % EVERY == 0:
            reported.append((rows, total))
    return rows, total


class Tally(TypedOperator):
    """Does the work on packed rows; its state is one blob per bucket."""

    def __init__(self) -> None:
        self._states: dict[int, list[int]] = {}
        self.marks = 0

    def restore(self, version: int, blobs: Blobs) -> None:
        """Read the state."""
        kept = json.loads(blobs["tally"])
        self.marks = kept.pop("marks")
        self._states = {int(key): state for key, state in kept.items()}

    def snapshot(self) -> Changes:
        """Write the state."""
        return {"tally": json.dumps({**self._states, "marks": self.marks}).encode()}

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        """Take events one by one."""
        states, reported = self._states, list[tuple[int, int, int]]()
        for key, value in zip(
            batch.column(KEY).to_pylist(), batch.column("a").to_pylist(), strict=True
        ):
            state = states.get(key)
            if state is None:
                state = states[key] = [0, 0]
            state[0] += 1
            state[1] += value
            if state[0] % EVERY == 0:
                reported.append((key, *state))
        if reported:
            keys, rows, sums = (list(column) for column in zip(*reported, strict=True))
            self.emit(pa.RecordBatch.from_pydict({KEY: keys, "rows": rows, "sum": sums}))

    @handles(Mark)
    def mark(self, port: str, payload: Mark, control: ControlTuple) -> bool:
        """Count control tuples."""
        self.marks += 1
        return False


class Marking(Operator):
    """Passes rows on, with a control tuple behind every so many rows of a window and bucket."""

    def __init__(self, every: int, delivery: Delivery) -> None:
        self._every, self._delivery = every, delivery

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        """Pass rows on in pieces."""
        for first in range(0, batch.num_rows, self._every):
            piece = batch.slice(first, self._every)
            self.emit(piece)
            if piece.num_rows == self._every:
                self.emit_control(Mark(first), delivery=self._delivery)


class Keeping(Operator):
    """Counts rows by key in a state of any number of keys."""

    def restore(self, version: int, blobs: Blobs) -> None:
        """Read the root."""
        self._state = KeyedState("counts", blobs)

    def begin_window(self) -> None:
        """Begin without state."""
        if not hasattr(self, "_state"):
            self._state = KeyedState("counts")

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        """Count each row at its key."""
        for key in batch.column(KEY).to_pylist():
            name = key.to_bytes(8, "big")
            known = self._state.get(name) or bytes(8)
            self._state.put(name, (int.from_bytes(known, "big") + 1).to_bytes(8, "big"))

    def snapshot(self) -> Changes:
        """Write what changed."""
        return self._state.changes()


class Noting(TypedOperator):
    """Notes when a control tuple reaches each bucket, as the name of a file."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    @handles(Mark)
    def mark(self, port: str, payload: Mark, control: ControlTuple) -> bool:
        """Note it."""
        name = control.id.replace("/", "-")
        (self._folder / f"{name}@{self.window.bucket}@{time.time()}").touch()
        return False


class RowTally(StatefulProcessor):
    """Does the work in Spark's own processor, which is handed rows by key."""

    def init(self, handle: Any) -> None:
        """Open the state."""
        self._state = handle.getValueState("tally", "rows bigint, sum bigint")

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: Any,  # noqa: N803 - Spark's name
    ) -> Iterator[Row]:
        """Take the events of a key."""
        reported: list[State] = []
        known = self._state.get()
        self._state.update(count(known or (0, 0), (row.a for row in rows), reported))
        for events, total in reported:
            yield Row(d=key[0], rows=events, sum=total)

    def close(self) -> None:
        """Nothing is kept."""


def _pandas_tally(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    import pandas as pd

    reported: list[State] = []
    known: State = state.get if state.exists else (0, 0)
    for frame in frames:
        known = count(known, frame["a"].tolist(), reported)
    state.update(known)
    rows = [(key[0], events, total) for events, total in reported]
    yield pd.DataFrame(rows, columns=[KEY, "rows", "sum"])


def _same(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _stream(given: DataFrame | Stream) -> Stream:
    return (given if isinstance(given, Stream) else sb.stream(given)).key_by(KEY)


def _frame(given: DataFrame | Stream) -> DataFrame:
    return given.to_df() if isinstance(given, Stream) else given


def operator(given: DataFrame | Stream) -> DataFrame:
    """Run an operator with state that takes control tuples."""
    return _stream(given).apply(Tally, schema=TALLY).to_df()


def chain(given: DataFrame | Stream, *, every: int, delivery: str = "IMMEDIATE") -> DataFrame:
    """Run the same behind one that emits a control tuple with every so many rows."""
    make = partial(Marking, every, Delivery(delivery))
    marked = _stream(given).apply(make, name="marking")
    return marked.key_by(KEY).apply(Tally, schema=TALLY).to_df()


def noting(given: DataFrame | Stream, *, control: str, noted: str) -> DataFrame:
    """Run an operator that notes when control tuples of a file reach its buckets."""
    stream = _stream(given)
    beside = stream.union(sb.control_stream(stream.spark, control))
    make = partial(Noting, noted)
    return beside.apply(make, name="noting", options=OperatorOptions(buckets=NOTED)).to_df()


def keeping(given: DataFrame | Stream, *, keys: int) -> DataFrame:
    """Put each of so many keys into the state, and then count further rows spread over them."""
    key = F.expr(f"CASE WHEN a < {keys} THEN a ELSE pmod(a * 7919, {keys}) END")
    frame = _frame(given).select(key.alias(KEY))
    return sb.stream(frame).key_by(KEY).apply(Keeping).to_df()


def hop(given: DataFrame | Stream) -> DataFrame:
    """Bring rows to partitions and hand them to Python and back, and do nothing."""
    frame = _frame(given)
    spread = frame.repartitionById(PARTITIONS, (F.col(KEY) % PARTITIONS).cast("int"))
    return spread.mapInArrow(_same, frame.schema)


def row_by_row(given: DataFrame | Stream) -> DataFrame:
    """Do the work with Spark's ``transformWithState``."""
    frame = _frame(given)
    frame.sparkSession.conf.set(hosting.STATE_PROVIDER, hosting.ROCKSDB)
    return frame.groupBy(KEY).transformWithState(RowTally(), TALLY, "append", "None")


def by_pandas(given: DataFrame | Stream) -> DataFrame:
    """Do the work with Spark's ``applyInPandasWithState``."""
    frame = _frame(given)
    frame.sparkSession.conf.set(hosting.STATE_PROVIDER, hosting.ROCKSDB)
    groups = frame.groupBy(KEY)
    return groups.applyInPandasWithState(
        _pandas_tally, TALLY, "rows bigint, sum bigint", "append", "NoTimeout"
    )


WAYS: dict[str, Callable[..., DataFrame]] = {
    "operator": operator,
    "chain": chain,
    "noting": noting,
    "keeping": keeping,
    "hop": hop,
    "transformWithState": row_by_row,
    "applyInPandasWithState": by_pandas,
    **side_ways.WAYS,
}
