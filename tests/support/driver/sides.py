"""A case of side inputs, run to its end.

``python -m support.driver sides FOLDER CORES`` runs the case in ``FOLDER/case``. It kills itself
once in each window that ``case`` names, when all of the window is worked out and nothing is
committed.
"""

from __future__ import annotations

import json
from pathlib import Path

from pyspark.sql import DataFrame

from pe_agent.aligned.data import OutputFrame
from pe_agent.spark.local_session import SMALL, session
from support.aligned.spark import SHUFFLE, configured, drain
from support.driver.process import kill_driver, write_window
from support.sides.spark import BODY, POLICY, Fed, Seen, made_of


def main(folder: Path, cores: str) -> None:
    given = json.loads((folder / "case").read_text())
    spark = session("side-kills", cores=int(cores), conf=SMALL)
    frame = spark.readStream.schema(BODY).option("maxFilesPerTrigger", 1)
    fed = Fed(frame.parquet(str(folder / "in")), given["case"], folder / "tables")
    data = made_of(given["case"], fed, given["buckets"]).plan.data
    assert isinstance(data, OutputFrame)

    def take(batch: DataFrame, window: int) -> None:
        seen = Seen()
        for row in sorted(batch.collect(), key=lambda row: (row.bucket, row.seq)):
            seen.take(row)
        if write_window(folder, window, seen.run.out) == 0 and window in given["kills"]:
            kill_driver(folder)

    with configured(spark, {SHUFFLE: "3", POLICY: "max"}):
        drain(data.frame.writeStream.foreachBatch(take), folder / "checkpoint")
