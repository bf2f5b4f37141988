"""Batches that begin and end: a sum for each, over as many windows as it has.

An operator that reads the rows sees where a batch begins and ends, and tells those that follow, in
every bucket. The one that sums need not know how the batches are marked in the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import feeding
import pyarrow as pa

from streambroker.operators import (
    ControlTuple,
    Delivery,
    Operator,
    OperatorOptions,
    TypedOperator,
    handles,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class BatchBegin:
    """All rows of this window, and of those that follow, are of a batch."""

    name: str


@dataclass(frozen=True)
class BatchEnd:
    """All rows of a batch have passed."""

    name: str


class Marks(Operator):
    """Passes rows on, and tells what the column ``mark`` says."""

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        """Pass rows on; a batch begins before its window's rows and ends behind them."""
        for mark in batch.column("mark").to_pylist():
            kind, _, name = (mark or "").partition(" ")
            if kind == "begin":
                self.emit_control(BatchBegin(name), delivery=Delivery.BEGIN)
            elif kind == "end":
                self.emit_control(BatchEnd(name))
        self.emit(batch)


@dataclass
class Sum(TypedOperator):
    """Sums amounts from the begin of a batch to its end, and hands out each bucket's sum."""

    total: int = 0

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        """Add rows."""
        self.total += sum(batch.column("amount").to_pylist())

    @handles(BatchBegin)
    def begin(self, port: str, payload: BatchBegin, control: ControlTuple) -> bool:
        """Begin from nothing."""
        self.total = 0
        return False

    @handles(BatchEnd)
    def end(self, port: str, payload: BatchEnd, control: ControlTuple) -> bool:
        """Hand out the sum."""
        self.emit(pa.RecordBatch.from_pydict({"batch": [payload.name], "sum": [self.total]}))
        return False


def run(spark: SparkSession, folder: Path) -> dict[str, int]:
    """Return the sum of each batch."""
    tables: list[dict[str, Any]] = [
        {"customer": [1, 2, 3], "amount": [10, 20, 30], "mark": ["begin monday", None, None]},
        {"customer": [1, 4, 5], "amount": [1, 2, 3], "mark": [None, None, "end monday"]},
        {"customer": [6, 7], "amount": [100, 200], "mark": ["begin tuesday", "end tuesday"]},
    ]
    ddl = "customer bigint, amount bigint, mark string"
    sums = (
        feeding.windows(spark, folder / "in", ddl, tables)
        .apply(Marks, options=OperatorOptions(buckets=4))
        .key_by("customer")
        .apply(Sum, schema="batch string, sum bigint", options=OperatorOptions(buckets=4))
    )
    found: dict[str, int] = {}
    for rows in feeding.collected(sums, folder / "checkpoint").values():
        for row in rows:
            found[row["batch"]] = found.get(row["batch"], 0) + row["sum"]
    return found


if __name__ == "__main__":
    feeding.main(run)
