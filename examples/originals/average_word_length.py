"""FLIP-17's average word length: words that are longer than the average, which changes.

Covered of the proposal:

- One stream is main input and, by another operator, the source of the side input.
- Words wait until the first average is there; each later word meets the average as it is then.
- A second singleton value replaces the first; nothing is computed once more.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

sys.path.append(str(Path(__file__).parents[1] / "05-side-inputs"))
from both import Feed, after_each, main, seconds

import streambroker as sb
from streambroker.side import Views, side_singleton

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WORDS, LENGTHS = "at timestamp, word string", "length double"


def average(
    key: tuple[Any, ...], window: tuple[int, int], rows: pa.RecordBatch, views: Views
) -> pa.RecordBatch:
    """Return the average length of the words of a window."""
    return pa.record_batch({"length": [pc.mean(pc.utf8_length(rows["word"])).as_py()]})


def longer(batch: pa.RecordBatch, views: Views) -> pa.RecordBatch:
    """Keep the words that are longer than the average."""
    return batch.filter(pc.greater(pc.utf8_length(batch["word"]), views["length"].value))


def program(words: sb.Stream) -> DataFrame:
    """Return the words that are longer than the average of the last window that has passed."""
    one = sb.OperatorOptions(buckets=1)
    by_window = words.join_side().window("10 seconds")
    averages = by_window.apply(average, LENGTHS, name="average", options=one)
    sides = words.join_side(length=side_singleton(averages, value="length"))
    return sides.map_batches(longer, WORDS, options=one).to_df()


def run(spark: SparkSession, folder: Path) -> list[list[str]]:
    """Return the words that pass after each step."""
    words = Feed(spark, folder / "words", WORDS)
    steps = [
        lambda: words.put(at=seconds(1, 2, 3), word=["a", "the", "stream"]),  # no average yet
        lambda: words.put(at=seconds(11, 12, 13), word=["of", "side", "be"]),  # it is 3.3
        lambda: words.put(at=seconds(21), word=["yes"]),  # not longer; then the average is 2.7
        lambda: words.put(at=seconds(22), word=["yes"]),
    ]
    timed = sb.stream(words.frame).with_watermark("at", "0 seconds")
    return after_each(program(timed), "word", folder / "ck", steps)


if __name__ == "__main__":
    main(run)
