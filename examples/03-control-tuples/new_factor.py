"""A property that changes in the same window everywhere: in each bucket of two operators.

A program outside of the query writes the change into a control file. It holds for all rows of the
windows after the one that it came in, in both operators and all buckets, and never for a part.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import feeding
import pyarrow as pa

from streambroker.operators import (
    ControlFile,
    ControlTuple,
    Delivery,
    OperatorOptions,
    TypedOperator,
    control_stream,
    handles,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class SetFactor:
    """What values are multiplied by."""

    factor: int


@dataclass
class Multiply(TypedOperator):
    """Multiplies values by a factor."""

    factor: int = 1

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        """Multiply."""
        values = [value * self.factor for value in batch.column("value").to_pylist()]
        self.emit(pa.RecordBatch.from_pydict({"key": batch.column("key"), "value": values}))

    @handles(SetFactor)
    def change(self, port: str, payload: SetFactor, control: ControlTuple) -> bool:
        """Take the new factor, and let the tuple go on to the next operator."""
        self.factor = payload.factor
        return False


def run(spark: SparkSession, folder: Path) -> dict[int, set[int]]:
    """Return the values that come out of each window; all that go in are 1."""
    tables: list[dict[str, Any]] = [{"key": list(range(20)), "value": [1] * 20} for _ in range(3)]
    control = ControlFile(folder / "control")
    control.append(SetFactor(3), delivery=Delivery.END_WINDOW)
    made = (
        feeding.windows(spark, folder / "in", "key bigint, value bigint", tables)
        .union(control_stream(spark, control.path))
        .key_by("key")
        .apply(Multiply, name="first", options=OperatorOptions(buckets=4))
        .where("value > 0")
        .key_by("value")
        .apply(Multiply, name="second", options=OperatorOptions(buckets=2))
    )
    found = feeding.collected(made, folder / "checkpoint")
    return {window: {row["value"] for row in rows} for window, rows in found.items()}


if __name__ == "__main__":
    feeding.main(run)
