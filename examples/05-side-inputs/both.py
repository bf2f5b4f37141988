"""What the examples share: files that come one after the other, and a query over them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

sys.path.append(str(Path(__file__).parents[1] / "03-control-tuples"))
from feeding import main

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Feed", "Step", "after_each", "main", "out", "seconds", "write"]

Step = Callable[[], None]


def write(folder: Path, name: str, *, time: float | None = None, **columns: Any) -> None:
    """Put a file into a folder, whole or not at all; Spark reads files by their times."""
    folder.mkdir(exist_ok=True)
    hidden = folder / f".{name}"
    pq.write_table(pa.table(columns), hidden)
    if time is not None:
        os.utime(hidden, (time, time))
    hidden.rename(folder / f"{name}.parquet")


def seconds(*values: int) -> pa.Array:
    """Return seconds of event time as a column."""
    return pa.array([value * 1_000_000 for value in values], pa.timestamp("us", "UTC"))


class Feed:
    """A folder of files as a stream: a micro-batch for each."""

    def __init__(self, spark: SparkSession, folder: Path, ddl: str) -> None:
        self._folder, self._count = folder, 0
        folder.mkdir()
        reader = spark.readStream.schema(ddl).option("maxFilesPerTrigger", 1)
        self.frame = reader.parquet(str(folder))

    def put(self, **columns: Any) -> None:
        """Let rows come."""
        self._count += 1
        write(self._folder, str(self._count), time=self._count, **columns)


def out(
    frame: DataFrame,
    checkpoint: Path,
    steps: Sequence[Step],
    take: Callable[[DataFrame, int], DataFrame] | None = None,
) -> list[dict[str, Any]]:
    """Run a query, let each step happen when the one before was worked off; return all rows.

    Args:
        frame: what the query gives.
        checkpoint: its directory.
        steps: what happens meanwhile.
        take: what is made of a micro-batch, as `foreachBatch` calls it.
    """
    rows: dict[int, list[dict[str, Any]]] = {}

    def collect(batch: DataFrame, window: int) -> None:
        made = batch if take is None else take(batch, window)
        rows[window] = [row.asDict() for row in made.collect()]

    writer = frame.writeStream.foreachBatch(collect)
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    try:
        for step in steps:
            step()
            query.processAllAvailable()
    finally:
        query.stop()
    return sorted((row for window in rows for row in rows[window]), key=str)


def after_each(
    frame: DataFrame, column: str, checkpoint: Path, steps: Sequence[Step]
) -> list[list[Any]]:
    """Return the values of a column that a query gives after each step, sorted."""
    found: list[list[Any]] = []

    def take(batch: DataFrame, window: int) -> None:
        found[-1] += sorted(row[column] for row in batch.collect())

    query = None
    try:
        for step in steps:
            found.append([])
            step()
            if query is None:
                writer = frame.writeStream.foreachBatch(take)
                query = writer.option("checkpointLocation", str(checkpoint)).start()
            query.processAllAvailable()
    finally:
        if query is not None:
            query.stop()
    return found
