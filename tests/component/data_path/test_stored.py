"""Spark jobs on object storage: tasks write and read large batches there, and a disk is lost."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest
from pyspark.sql import functions as f

from pe_agent.agent.process import read_address
from support.processes.waiting import until
from support.spark.session import SECONDS, Session, exporter_status

ROWS = 60_000
"""Rows of a batch; each of its two tasks has more than MIN_BYTES."""


@pytest.mark.slow
def test_large_batches_pass_by_the_agent_and_survive_its_disk(
    jobs: Session, tmp_path: Path
) -> None:
    home, shared = tmp_path / "home-feed", tmp_path / "shared"
    exporter = jobs.pe("feed", storage=f"file://{shared}")
    importer = jobs.pe("alerts")
    source = tmp_path / "source"

    def release(batch: int) -> None:
        frame = jobs.spark.range(batch * ROWS, (batch + 1) * ROWS, numPartitions=1)
        frame.select(f.col("id"), f.repeat(f.hex("id"), 120).alias("text")).write.mode(
            "append"
        ).parquet(str(source))

    release(0)
    query = exporter.publish(
        jobs.spark.readStream.schema("id bigint, text string").parquet(str(source)).repartition(2),
        "out",
        properties={"kind": "a"},
        durability="stored",
        checkpoint=tmp_path / "ck-feed",
    )
    jobs.queries.append(query)
    wanted = importer.subscribe(
        "in", 'kind == "a"', start="earliest", schema="id bigint, text string"
    )
    totals = wanted.groupBy().agg(f.count("*").alias("rows"), f.sum("id").alias("sum"))
    reading = (
        totals.writeStream.format("memory")
        .queryName("stored_totals")
        .outputMode("complete")
        .option("checkpointLocation", str(tmp_path / "ck-alerts"))
        .start()
    )
    jobs.queries.append(reading)

    def total() -> tuple[int, int]:
        rows = jobs.spark.table("stored_totals").collect()
        return (rows[0]["rows"], rows[0]["sum"]) if rows else (0, 0)

    until(lambda: total()[0] == ROWS, SECONDS, "first batch", progress=total)
    (stream,) = exporter_status(exporter, "out")["streams"]
    objects = list((shared / "default/feed/0/streams" / stream / "direct").glob("*/*/*"))
    assert len(objects) == 2
    (reader,) = exporter_status(exporter, "out")["readers"].values()
    assert reader["sentRows"] == ROWS

    address = read_address(home)
    assert address is not None
    os.kill(address["pid"], signal.SIGKILL)
    shutil.rmtree(home / "log")
    (home / "state.sqlite").unlink()
    release(1)
    until(lambda: total()[0] >= 2 * ROWS, SECONDS, "second batch", progress=total)
    assert total() == (2 * ROWS, ROWS * (2 * ROWS - 1))
    assert list(exporter_status(exporter, "out")["streams"]) == [stream]
