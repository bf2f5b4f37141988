"""A change at an event time: the watermark, not the arrival, divides what is old and what is new.

Rows come out of order and wait until their time has passed. A control tuple with the time of the
change waits with them, so each row meets the price of its own time, whenever it came.
"""

from __future__ import annotations

from dataclasses import dataclass, field
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

SECOND = 1_000_000
Sale = tuple[int, int]
"""Event time in microseconds, and how many were sold."""


@dataclass(frozen=True)
class SetPrice:
    """What one piece costs from now on."""

    price: int


@dataclass
class Cash(TypedOperator):
    """Multiplies pieces by the price of their event time."""

    price: int = 1
    waiting: list[Sale] = field(default_factory=list)

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        """Let rows wait."""
        times = batch.column("time").cast(pa.int64()).to_pylist()
        pieces = batch.column("pieces").to_pylist()
        self.waiting = sorted([*self.waiting, *zip(times, pieces, strict=True)])

    def advance(self, time: int) -> None:
        """Hand out what is due."""
        due = [sale for sale in self.waiting if sale[0] <= time]
        self.waiting = self.waiting[len(due) :]
        if due:
            paid = [pieces * self.price for _, pieces in due]
            seconds = [at // SECOND for at, _ in due]
            self.emit(pa.RecordBatch.from_pydict({"second": seconds, "paid": paid}))

    def wake_at(self) -> int | None:
        """Say when the next row is due."""
        return self.waiting[0][0] if self.waiting else None

    @handles(SetPrice)
    def change(self, port: str, payload: SetPrice, control: ControlTuple) -> bool:
        """Take the new price."""
        self.price = payload.price
        return False


def run(spark: SparkSession, folder: Path) -> dict[int, int]:
    """Return what was paid, by the second of the sale."""
    seconds = [[1, 4, 2], [7, 3, 6], [9, 8, 5], [30]]
    tables: list[dict[str, Any]] = [
        {
            "time": pa.array([at * SECOND for at in some], pa.timestamp("us", "UTC")),
            "pieces": [1] * len(some),
        }
        for some in seconds
    ]
    control = ControlFile(folder / "control")
    control.append(SetPrice(100), delivery=Delivery.AT_TIME, at=5 * SECOND)
    paid = (
        feeding.windows(spark, folder / "in", "time timestamp, pieces bigint", tables)
        .with_watermark("time", "5 seconds")
        .union(control_stream(spark, control.path))
        .apply(Cash, schema="second bigint, paid bigint", options=OperatorOptions(buckets=4))
    )
    found = feeding.collected(paid, folder / "checkpoint")
    return {row["second"]: row["paid"] for rows in found.values() for row in rows}


if __name__ == "__main__":
    feeding.main(run)
