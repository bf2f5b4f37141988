"""The driver of a query whose rows meet a table without state, for tests that kill it.

``python -m support.driver.side_pin FOLDER CORES``: in window 1, when its version is pinned and
nothing is committed, the table changes and the driver is killed, as ``FOLDER/case`` says: ``in a
task``, behind rows that have met the table; when the new version is ``listed`` and old ones were
removed; or when the folder of the table has ``changed`` and nobody has looked. What each window
gives is written down each time.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from pe_agent.aligned import stream
from pe_agent.side import TableStore, side_map
from pe_agent.spark.local_session import SMALL, session
from support.driver.side_table import put_rates
from support.processes.waiting import until


def kill(folder: Path) -> None:
    """End the driver and all of its workers."""
    os.killpg(int((folder / "driver").read_text()), signal.SIGKILL)


class Rated:
    """Rows with rate and version; in a task of window 1 the driver is killed, if that is said."""

    def __init__(self, folder: Path, *, kills: bool) -> None:
        self._folder, self._kills = folder, kills

    def __call__(self, batch: pa.RecordBatch, views: Any) -> pa.RecordBatch:
        """Add the columns."""
        rates = views["rates"]
        version = pa.array([rates.version.partition("-")[0]] * batch.num_rows)
        columns = [batch["id"], rates.lookup(batch["currency"]), version]
        made = pa.RecordBatch.from_arrays(columns, ["id", "rate", "version"])
        if self._kills and "c" in batch["id"].to_pylist():
            put_rates(self._folder / "rates", EUR=2.0)
            kill(self._folder)
        return made


def run(spark: SparkSession, folder: Path) -> None:
    """Run to the end, if nothing of window 1 was begun before."""
    when, first = json.loads((folder / "case").read_text()), not (folder / "checkpoint").exists()
    files = spark.readStream.schema("id string, currency string").option("maxFilesPerTrigger", 1)
    trades = stream(files.parquet(str(folder / "in")).repartition(2))
    with TableStore(folder / "store") as store:
        table = store.folder("rates", folder / "rates", every=None)
        sides = trades.with_side_inputs(rates=side_map(table, key="currency", value="rate"))
        rated = Rated(folder, kills=first and when == "in a task")
        made = sides.stateless().map_batches(rated, "id string, rate double, version string")

        def take(frame: DataFrame, window: int) -> None:
            rows = sorted((row.id, row.rate, row.version) for row in frame.collect())
            turn = len(list(folder.glob(f"out-{window}-*")))
            (folder / f"out-{window}-{turn}.json").write_text(json.dumps(rows))
            if window == 1 and first:
                put_rates(folder / "rates", EUR=2.0)
                if when == "listed":
                    table.refresh()
                    store.clean()
                kill(folder)

        query = (
            made.to_df()
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()


def main(folder: Path, cores: int) -> None:
    """Run in a session of its own."""
    until((folder / "begin").exists, 30.0, "the driver's id is written down")
    run(session("side-pins", cores=cores, conf=SMALL), folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
