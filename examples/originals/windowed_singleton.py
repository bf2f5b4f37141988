"""FLIP-17's windowed singleton: a reading passes if it is above the limit of its own window.

Covered of the proposal:

- A function sees the side input of the window of its main element.
- An element waits until the first side data of its window is there; other windows do not wait.
- Later side data of a window is for the elements that follow. Nothing is computed once more.
- The value is broadcast: every bucket has it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

sys.path.append(str(Path(__file__).parents[1] / "05-side-inputs"))
from both import Feed, after_each, main, seconds

import streambroker as sb
from streambroker.side import Views, fixed, side_singleton

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

READINGS, LIMITS = "at timestamp, v bigint", "at timestamp, limit bigint"


def above(batch: pa.RecordBatch, views: Views) -> pa.RecordBatch:
    """Keep the readings above the limit of their window."""
    return batch.filter(pc.greater(batch["v"], views["limit"].value))


def program(readings: sb.Stream, limits: sb.Stream) -> DataFrame:
    """Return the readings that pass."""
    limit = side_singleton(limits, value="limit", windows=fixed("10 seconds"))
    sides = readings.join_side(limit=limit)
    return sides.map_batches(above, READINGS, options=sb.OperatorOptions(buckets=2)).to_df()


def run(spark: SparkSession, folder: Path) -> list[list[int]]:
    """Return the readings that pass after each step."""
    readings = Feed(spark, folder / "readings", READINGS)
    limits = Feed(spark, folder / "limits", LIMITS)
    steps = [
        lambda: readings.put(at=seconds(3, 4), v=[30, 31]),  # no limit in their window yet
        lambda: limits.put(at=seconds(12), limit=[50]),  # of the next window
        lambda: readings.put(at=seconds(13, 14), v=[40, 51]),  # 51 passes, 31 still waits
        lambda: limits.put(at=seconds(5), limit=[30]),  # 31 passes
        lambda: limits.put(at=seconds(15), limit=[10]),  # 40 was refused, and stays so
        lambda: readings.put(at=seconds(16), v=[41]),  # passes by the new limit
    ]
    main_, side = (sb.stream(f.frame).with_watermark("at", "1 minute") for f in (readings, limits))
    return after_each(program(main_.key_by("v"), side), "v", folder / "ck", steps)


if __name__ == "__main__":
    main(run)
