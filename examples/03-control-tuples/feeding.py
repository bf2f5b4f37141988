"""What the examples share: a few rows as files, one for each window, and a query over them."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from streambroker.operators import Stream, stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def windows(
    spark: SparkSession, folder: Path, ddl: str, tables: Sequence[dict[str, Any]]
) -> Stream:
    """Return tables of columns as a stream: one micro-batch, and so one window, for each."""
    folder.mkdir(parents=True)
    for number, columns in enumerate(tables):
        path = folder / f"{number}.parquet"
        pq.write_table(pa.table(columns), path)
        os.utime(path, (number + 1, number + 1))  # Spark takes the oldest file first
    frame = spark.readStream.schema(ddl).option("maxFilesPerTrigger", 1).parquet(str(folder))
    return stream(frame)


def collected(made: Stream, checkpoint: Path) -> dict[int, list[dict[str, Any]]]:
    """Run a stream to the end of what there is; return its rows by window."""
    found: dict[int, list[dict[str, Any]]] = {}

    def take(batch: DataFrame, window: int) -> None:
        rows = [row.asDict() for row in batch.collect()]
        if rows:
            found[window] = sorted(rows, key=str)

    query = (
        made.to_df()
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return found


def main(run: Callable[[SparkSession, Path], Any]) -> None:
    """Run an example by itself, and print what it comes to."""
    from streambroker.testing import SMALL, session

    with tempfile.TemporaryDirectory(prefix="streambroker-example-") as folder:
        spark = session("control tuples", conf=SMALL)
        print(run(spark, Path(folder)))
        spark.stop()
    sys.exit(0)
