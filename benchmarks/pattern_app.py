"""A Spark application that runs patterns over files of events, on as many cores as it is told.

Orders come as lines of JSON, ``{"place": directory of files, "files": of one micro-batch,
"workload": fields of `Workload`, "checkpoint": …}``; the answer is a list of micro-batches and the
number of matches.
"""

from __future__ import annotations

import json
import os
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pattern_runs import END, Workload
from processes import ANSWER, SECONDS, App
from spark_app import session, shortened

from streambroker.operators import OperatorOptions, stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCHES = 4
WARM, FEW = 60, 2_000
"""Small micro-batches that a query runs through before anything counts, and their events."""
BUCKETS = 8
"""As many as eight cores can share; each takes Spark some milliseconds of a micro-batch."""
TIME = pa.timestamp("us", "UTC")


def write(batch: pa.RecordBatch, place: Path, files: int, batches: int = BATCHES) -> None:
    """Write events as files, and behind them one whose time ends all windows.

    Args:
        batch: the events.
        place: a directory that is made.
        files: of a micro-batch; each is read by a task of its own.
        batches: micro-batches.
    """
    place.mkdir()
    times = batch.column("t").cast(pa.timestamp("us")).cast(TIME)
    table = pa.Table.from_batches([batch.set_column(0, "t", times)])
    count = batches * files
    cuts = [batch.num_rows * n // count for n in range(count + 1)]
    parts = [table.slice(low, high - low) for low, high in pairwise(cuts)]
    last = table.slice(0, 1).set_column(0, "t", pa.array([END], TIME))
    for number, part in enumerate([*parts, last]):
        path = place / f"{number:03}.parquet"
        pq.write_table(part, path)
        os.utime(path, (number, number))  # the source takes the eldest first


class PatternApp(App):
    """The application in a process of its own."""

    program = "pattern_app"


def matches(frame: DataFrame, workload: Workload) -> DataFrame:
    """Return the matches of a pattern in a stream of events."""
    made = workload.pattern()
    found = (
        stream(frame)
        .with_watermark("t", "0 seconds")
        .match(
            made,
            key="key",
            timeouts=False,
            push_down=True,
            options=OperatorOptions(buckets=BUCKETS),
        )
    )
    return found.to_df()


def run(spark: SparkSession, order: dict[str, Any]) -> dict[str, Any]:
    """Run a pattern over all files; return its micro-batches and how many matches there were."""
    from pyspark.sql import functions

    files = (
        spark.readStream.schema("t timestamp, key bigint, kind string, price double")
        .option("maxFilesPerTrigger", order["files"])
        .parquet(order["place"])
    )
    found = matches(files, Workload(**order["workload"]))
    query = (
        found.observe("found", functions.count(functions.lit(1)).alias("matches"))
        .writeStream.format("noop")
        .option("checkpointLocation", order["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(int(SECONDS))
    progress = query.recentProgress
    query.stop()
    observed = [p["observedMetrics"].get("found") for p in progress]
    return {
        "batches": [shortened(p) for p in progress if p["numInputRows"]],
        "matches": sum(one["matches"] for one in observed if one is not None),
    }


def main() -> None:
    """Obey until the input ends."""
    plan = json.loads(sys.argv[1])
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: plan["cores"]])
    spark = session(plan)
    sys.stdout.write(f"{ANSWER}{{}}\n")
    sys.stdout.flush()
    for line in sys.stdin:
        sys.stdout.write(f"{ANSWER}{json.dumps(run(spark, json.loads(line)))}\n")
        sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main()
