"""Use case 4: flights in windows of 10 s meet the wind in windows of 20 s, once for each airport.

Spark joins two streams row by row: each flight once for each measurement, none where nothing was
measured. What is counted then is pairs. With a side input a function is called once for each key
and window, with all rows, when the watermark has passed both windows; it may find no wind.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from both import Feed, main, out, seconds

from streambroker.operators import OperatorOptions, stream
from streambroker.side import Views, fixed, side_multimap

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Result = dict[tuple[str, int], tuple[int, float | None]]
FLIGHTS, WEATHER = "at timestamp, origin string", "at timestamp, origin string, wind double"
COUNTS = "origin string, second bigint, flights bigint, wind double"
SECOND = 1_000_000


def run(spark: SparkSession, folder: Path) -> dict[str, Result]:
    """Return flights and greatest wind by airport and window, by Spark and by a side input."""
    return {"spark": with_spark(spark, folder / "1"), "side input": with_side(spark, folder / "2")}


def feeds(spark: SparkSession, folder: Path) -> tuple[Feed, Feed]:
    """Return flights and weather; the last ones only let time pass."""
    folder.mkdir()
    flights = Feed(spark, folder / "flights", FLIGHTS)
    weather = Feed(spark, folder / "weather", WEATHER)
    flights.put(at=seconds(1, 4, 12, 3), origin=["JFK", "JFK", "JFK", "LGA"])
    weather.put(at=seconds(2, 15), origin=["JFK", "JFK"], wind=[10.0, 30.0])
    flights.put(at=seconds(100), origin=["END"])
    weather.put(at=seconds(100), origin=["END"], wind=[0.0])
    return flights, weather


def with_spark(spark: SparkSession, folder: Path) -> Result:
    """Join both streams by airport and window of 20 s, then count."""
    from pyspark.sql import functions as sql

    flights, weather = feeds(spark, folder)
    of = sql.floor(sql.unix_seconds("at") / 20).alias("of")
    left = flights.frame.withWatermark("at", "0 seconds").select("at", "origin", of)
    right = weather.frame.withWatermark("at", "0 seconds").select("origin", "wind", of)
    counts = (
        left.join(right, ["origin", "of"])
        .groupBy("origin", sql.window("at", "10 seconds").alias("in"))
        .agg(sql.count("*").alias("flights"), sql.max("wind").alias("wind"))
        .selectExpr("origin", "unix_seconds(in.start) AS second", "flights", "wind")
    )
    return told(out(counts, folder / "ck", [lambda: None]))


def with_side(spark: SparkSession, folder: Path) -> Result:
    """Meet the wind of the window of 20 s."""
    flights, weather = feeds(spark, folder)
    wind = side_multimap(
        stream(weather.frame).with_watermark("at", "0 seconds"),
        key="origin",
        value="wind",
        windows=fixed(20),
        ready="watermark",
        keyed=True,
    )
    main_ = stream(flights.frame).with_watermark("at", "0 seconds").key_by("origin")
    counts = (
        main_.join_side(wind=wind)
        .window(10)
        .apply(count, COUNTS, options=OperatorOptions(buckets=2))
        .to_df()
    )
    return told(out(counts, folder / "ck", [lambda: None]))


def count(
    key: tuple[Any, ...], window: tuple[int, int], rows: pa.RecordBatch, views: Views
) -> pa.RecordBatch:
    """Return one row for a key and a window."""
    winds = views["wind"].get(key)
    row = (key[0], window[0] // SECOND, rows.num_rows, max(winds, default=None))
    types = (pa.string(), pa.int64(), pa.int64(), pa.float64())
    columns = [pa.array([value], kind) for value, kind in zip(row, types, strict=True)]
    return pa.record_batch(columns, names=["origin", "second", "flights", "wind"])


def told(rows: list[dict[str, Any]]) -> Result:
    """Return rows by airport and second."""
    return {(row["origin"], row["second"]): (row["flights"], row["wind"]) for row in rows}


if __name__ == "__main__":
    main(run)
