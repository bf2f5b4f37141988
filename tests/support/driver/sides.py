"""The driver of a query with side inputs, in a process of its own, for tests that kill it.

``python -m support.driver.sides FOLDER CORES``: runs the case in ``FOLDER/case`` to its end, and
writes down what each window gives, each time that it is given. In the windows that ``case`` names
it is killed once, when all of the window was worked out and nothing of it is committed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from pyspark.sql import DataFrame

from pe_agent.aligned.data import OutputFrame
from pe_agent.spark.local_session import SMALL, session
from support.processes.waiting import until
from support.sides.spark import BODY, Fed, Seen, made_of, settings


def main(folder: Path, cores: int) -> None:
    """Run to the end."""
    until((folder / "begin").exists, 30.0, "the driver's id is written down")
    told = json.loads((folder / "case").read_text())
    spark = session("side-kills", cores=cores, conf=SMALL)
    frame = spark.readStream.schema(BODY).option("maxFilesPerTrigger", 1)
    fed = Fed(frame.parquet(str(folder / "in")), told["case"], folder / "tables")
    data = made_of(told["case"], fed, told["buckets"]).plan.data
    assert isinstance(data, OutputFrame)

    def take(batch: DataFrame, window: int) -> None:
        seen = Seen()
        for row in sorted(batch.collect(), key=lambda row: (row.bucket, row.seq)):
            seen.take(row)
        turn = len(list(folder.glob(f"out-{window}-*")))
        (folder / f"out-{window}-{turn}.json").write_text(json.dumps(seen.run.out, default=str))
        if window in told["kills"] and turn == 0:
            os.killpg(int((folder / "driver").read_text()), signal.SIGKILL)

    with settings(spark, 3):
        query = (
            data.frame.writeStream.foreachBatch(take)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
