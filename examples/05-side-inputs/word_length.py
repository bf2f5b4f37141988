"""The example of the original: words that are longer than the average of their window.

With Spark alone a micro-batch knows its own words, so the average, and what is longer, depends on
how words are cut into micro-batches. With side inputs the average is the side input of the words it
is made of: an operator gives it when its window of 10 s has passed, and the words of that window
wait for it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from both import Feed, main, out, seconds

from streambroker.operators import OperatorOptions, stream
from streambroker.side import Views, fixed, side_singleton

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Result = list[str]
WORDS, AVERAGE = "at timestamp, word string", "at timestamp, length double"


def run(spark: SparkSession, folder: Path) -> dict[str, Result]:
    """Return the words that are longer than the average, by Spark and by a side input."""
    return {"spark": with_spark(spark, folder / "1"), "side input": with_side(spark, folder / "2")}


def words_of(spark: SparkSession, folder: Path) -> Feed:
    """Return words in two files for the first window; the last ones only let time pass."""
    folder.mkdir()
    words = Feed(spark, folder / "words", WORDS)
    words.put(at=seconds(1, 2), word=["a", "the"])
    words.put(at=seconds(3, 12, 13), word=["stream", "of", "side"])
    words.put(at=seconds(100), word=["end"])
    words.put(at=seconds(200), word=["end"])
    return words


def with_spark(spark: SparkSession, folder: Path) -> Result:
    """Take the average of each micro-batch."""
    words = words_of(spark, folder)

    def take(batch: DataFrame, window: int) -> DataFrame:
        average = batch.selectExpr("avg(length(word)) AS length")
        return batch.join(average, how="cross").where("length(word) > length")

    return longer(out(words.frame, folder / "ck", [lambda: None], take))


def with_side(spark: SparkSession, folder: Path) -> Result:
    """Meet the average of the window as a side input."""
    words = stream(words_of(spark, folder).frame).with_watermark("at", "0 seconds")
    averages = (
        words.join_side()
        .window(10)
        .apply(average, AVERAGE, name="average", options=OperatorOptions(buckets=1))
    )
    length = side_singleton(averages, value="length", event_time="at", windows=fixed(10))
    made = (
        words.join_side(length=length)
        .map_batches(above, WORDS, options=OperatorOptions(buckets=2))
        .to_df()
    )
    return longer(out(made, folder / "ck", [lambda: None]))


def average(
    key: tuple[Any, ...], window: tuple[int, int], rows: pa.RecordBatch, views: Views
) -> pa.RecordBatch:
    """Return the average length of the words of a window, at its first instant."""
    at = pa.array([window[0]], pa.timestamp("us", "UTC"))
    length = pc.mean(pc.utf8_length(rows.column("word")))
    return pa.record_batch({"at": at, "length": pa.array([length.as_py()], pa.float64())})


def above(batch: pa.RecordBatch, views: Views) -> pa.RecordBatch:
    """Keep the words that are longer than the average of their window."""
    return batch.filter(pc.greater(pc.utf8_length(batch.column("word")), views["length"].value))


def longer(rows: list[dict[str, Any]]) -> Result:
    """Return the words of rows, those that only let time pass left out."""
    return sorted(row["word"] for row in rows if row["word"] != "end")


if __name__ == "__main__":
    main(run)
