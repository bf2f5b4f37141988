"""An importing job: keeps the rows of each micro-batch in a directory of its own.

The directory is named by the batch and overwritten when a batch is repeated, so it holds each
row once, whatever was stopped when.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

import streambroker as sb
from flights.orders import answer, obey, phase
from streambroker.testing import SMALL, session

PORT = "in"
CHAINED = "line bigint, dest string"


def main() -> None:
    """Subscribe, keep the rows, and obey orders until told to stop."""
    options = _options()
    work, job = options.work, options.job
    spark = session(job, cores=1, conf=SMALL)
    phase("Spark started")
    pe = sb.start(spark, job=job, broker=options.broker, data_dir=work / "agents" / job, linger=5)
    phase("agent started")
    rows = pe.subscribe(
        PORT,
        options.subscription,
        filter=options.filter,
        start=options.start,
        schema=options.schema,
        source=True,
    )

    def keep(batch: DataFrame, number: int) -> None:
        batch.write.mode("overwrite").parquet(str(work / "received" / job / f"{number:05}"))

    writer = rows.writeStream.foreachBatch(keep)
    query = writer.option("checkpointLocation", str(work / "checkpoints" / job)).start()
    chained = _chain(pe, options)
    phase("query started")
    answer(ready=job)

    def status() -> dict[str, Any]:
        return {"failed": {PORT: str(query.exception())} if query.exception() else {}}

    def set_subscription(subscription: str) -> dict[str, Any]:
        begun = time.monotonic()
        change = pe.imports[PORT].set_subscription(subscription)
        accepted = time.monotonic() - begun
        change.wait_applied(30.0)
        applied = time.monotonic() - begun
        return {"accepted": accepted, "applied": applied, "routes": dict(change.routes)}

    obey({"status": status, "set_subscription": set_subscription})
    query.stop()
    for other in chained:
        other.stop()
    pe.stop(end_agent=True)
    spark.stop()


def _chain(pe: sb.PE, options: argparse.Namespace) -> list[StreamingQuery]:
    """Pass the departures from Newark on to another importer, or take over what that passes on."""
    checkpoint = options.work / "checkpoints" / f"{options.job}-chain"
    if options.pass_on:
        departures = pe.subscribe("departures", 'airport == "EWR"', schema=CHAINED)
        return [pe.publish(departures, "passed", properties={"passed": 1}, checkpoint=checkpoint)]
    if options.take_over:
        passed = pe.subscribe("passed", "passed == 1", schema=CHAINED)
        sink = passed.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
        return [sink.start()]
    return []


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--broker", "--job", "--subscription", "--filter", "--start", "--schema"):
        parser.add_argument(name, required=True)
    parser.add_argument("--work", required=True, type=Path)
    for name in ("--pass-on", "--take-over"):
        parser.add_argument(name, action="store_true", help="the job's part in a chain of jobs")
    return parser.parse_args()


if __name__ == "__main__":
    main()
