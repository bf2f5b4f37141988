"""Use case 3: a limit that changes filters a stream, and rows come before the first limit.

A join with the limits of the moment loses those rows. With a side input they wait for the limit,
and come out under it; later rows meet later limits.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from both import Feed, Step, main, out

from streambroker.operators import OperatorOptions, stream
from streambroker.side import Views, side_singleton

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Result = list[int]
FLIGHTS, LIMITS = "flight bigint, delay bigint", "minutes bigint"


def run(spark: SparkSession, folder: Path) -> dict[str, Result]:
    """Return the flights that are later than the limit, by Spark and by a side input."""
    return {"spark": with_spark(spark, folder / "1"), "side input": with_side(spark, folder / "2")}


def feeds(spark: SparkSession, folder: Path) -> tuple[Feed, Feed]:
    """Return the streams of flights and limits."""
    folder.mkdir()
    return Feed(spark, folder / "flights", FLIGHTS), Feed(spark, folder / "limits", LIMITS)


def with_spark(spark: SparkSession, folder: Path) -> Result:
    """Read the limits in each micro-batch, and take the greatest."""
    flights, limits = feeds(spark, folder)

    def take(batch: DataFrame, window: int) -> DataFrame:
        now = spark.read.schema(LIMITS).parquet(str(folder / "limits"))
        return batch.join(now.groupBy().max("minutes").toDF("limit"), how="cross").where(
            "delay > limit"
        )

    return late(out(flights.frame, folder / "ck", steps(flights, limits), take))


def with_side(spark: SparkSession, folder: Path) -> Result:
    """Meet the limit as a side input."""
    flights, limits = feeds(spark, folder)
    sides = stream(flights.frame).join_side(limit=side_singleton(limits.frame))
    made = sides.map_batches(above, FLIGHTS, options=OperatorOptions(buckets=2)).to_df()
    return late(out(made, folder / "ck", steps(flights, limits)))


def above(batch: pa.RecordBatch, views: Views) -> pa.RecordBatch:
    """Keep the flights that are later than the limit."""
    return batch.filter(pc.greater(batch.column("delay"), views["limit"].value["minutes"]))


def late(rows: list[dict[str, int]]) -> Result:
    """Return the flights of rows."""
    return sorted(row["flight"] for row in rows)


def steps(flights: Feed, limits: Feed) -> list[Step]:
    """Return what happens: two flights, a limit of 30 minutes, two flights, 60, two flights."""
    return [
        lambda: flights.put(flight=[1, 2], delay=[20, 40]),
        lambda: limits.put(minutes=[30]),
        lambda: flights.put(flight=[3, 4], delay=[20, 40]),
        lambda: limits.put(minutes=[60]),
        lambda: flights.put(flight=[5, 6], delay=[40, 70]),
    ]


if __name__ == "__main__":
    main(run)
