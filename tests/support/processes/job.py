"""A Spark job for tests: exports file streams, writes imports to files, runs until killed.

The plan is a JSON file: ``{"job", "home", "broker", "tls": {…}, "attempts", "conf": {…}, "late",
"exports": [{"port", "feed", "checkpoint", …publish settings}], "imports": [{"port", "out",
"checkpoint", …subscribe settings}], "operators": [{"feed", "ports", "checkpoint", …settings of
publish_outputs}]}``; ``start``, ``attempts``, ``conf``, ``late`` and each list may be left out.
``late`` is a folder: all tasks write there that they were tried, and the first of them waits until
it is tried once more. An operator looks for `marked` rows of a feed, and has dead letters.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

import streambroker as sb
from pe_agent.spark.local_session import SMALL, session
from streambroker.operators import OperatorOptions
from support.processes.waiting import until
from support.spark.feeds import DDL
from support.spark.operators import marked

TASKS, RIVAL_SECONDS = 4, 120.0


def late(frame: DataFrame, folder: str) -> DataFrame:
    """Return the rows in four tasks; the first waits amid its rows until Spark tries it twice."""

    def passed_on(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        attempt = f"{context.partitionId()}-{context.attemptNumber()}"
        (Path(folder) / attempt).touch()
        attempts = f"{context.partitionId()}-*"
        two = lambda: len(list(Path(folder).glob(attempts))) >= 2  # noqa: E731
        for batch in rows:
            yield batch
            with contextlib.suppress(FileExistsError):
                (Path(folder) / "waits").symlink_to(attempt)
                until(two, RIVAL_SECONDS, "a second attempt", pause_s=0.05)

    return frame.repartition(TASKS).mapInArrow(passed_on, DDL)


def main(path: str) -> None:
    """Run the plan until a query fails or the process is killed."""
    plan: dict[str, Any] = json.loads(Path(path).read_text())
    server = os.environ.get("SPARK_REMOTE")
    conf = {
        "spark.driver.memory": "700m",
        **({} if server else {"spark.master": f"local[1,{plan.get('attempts', 1)}]"}),
        # A long run is checked by its checkpoints, from the first batch on.
        "spark.sql.streaming.minBatchesToRetain": "100000",
        **plan.get("conf", {}),
    }
    spark = session(plan["job"], conf={**SMALL, **conf})
    pe = sb.start(
        spark,
        job=plan["job"],
        data_dir=plan["home"],
        broker=plan["broker"],
        linger=20,
        agent=sb.AgentOptions(tls=sb.AgentTls(**plan.get("tls", {}))),
    )
    for export in plan.get("exports", []):
        folder = export.pop("feed")
        files = spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1)
        frame = files.option("latestFirst", "false").parquet(folder)
        pe.publish(late(frame, plan["late"]) if "late" in plan else frame, **export)
    for operator in plan.get("operators", []):
        feed = spark.readStream.schema(DDL).parquet(operator.pop("feed"))
        options = OperatorOptions(buckets=2, dead_letters=True)
        pattern = sb.Pattern.begin("row").where(marked)
        found = pe.stream(feed).match(pattern, key="name", timer=False, options=options)
        found.publish_outputs(**operator)
    for import_ in plan.get("imports", []):
        out, checkpoint = import_.pop("out"), import_.pop("checkpoint")
        writer = pe.subscribe(**import_).writeStream.format("parquet").option("path", out)
        writer.option("checkpointLocation", checkpoint).start()
    sys.stdout.write("job ready\n")
    sys.stdout.flush()
    spark.streams.awaitAnyTermination()
    failed = [q.exception() for q in spark.streams.active if q.exception()]
    sys.stdout.write(f"job ended {failed}\n")


if __name__ == "__main__":
    main(sys.argv[1])
