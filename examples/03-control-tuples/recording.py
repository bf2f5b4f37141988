"""Recording that starts and stops in the same windows everywhere.

A row in the stream asks for it. The operator that sees the row tells all others: also buckets that
have no such row, and rows of the same window that came before it over another task.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import feeding
import pyarrow as pa

from streambroker.operators import (
    ControlTuple,
    Operator,
    OperatorOptions,
    TypedOperator,
    handles,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Record:
    """Whether rows are recorded, from the next window on."""

    on: bool


class Asks(Operator):
    """Passes rows on; one with an alarm asks for recording, one with a silence ends it."""

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        """Pass rows on."""
        for state in batch.column("state").to_pylist():
            if state in ("alarm", "silence"):
                self.emit_control(Record(state == "alarm"), once="record")
        self.emit(batch)


@dataclass
class Recorder(TypedOperator):
    """Passes rows on while it records."""

    on: bool = False

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        """Pass rows on, or not."""
        if self.on:
            self.emit(batch)

    @handles(Record)
    def record(self, port: str, payload: Record, control: ControlTuple) -> bool:
        """Start or stop."""
        self.on = payload.on
        return False


def run(spark: SparkSession, folder: Path) -> dict[int, int]:
    """Return how many rows of each window were recorded."""
    states = ["calm", "alarm", "calm", "silence", "calm"]
    tables: list[dict[str, Any]] = [
        {"machine": list(range(10)), "state": ["calm"] * 9 + [state]} for state in states
    ]
    recorded = (
        feeding.windows(spark, folder / "in", "machine bigint, state string", tables)
        .apply(Asks, options=OperatorOptions(buckets=2))
        .key_by("machine")
        .apply(Recorder, options=OperatorOptions(buckets=4))
    )
    found = feeding.collected(recorded, folder / "checkpoint")
    return {window: len(rows) for window, rows in found.items()}


if __name__ == "__main__":
    feeding.main(run)
