"""A query whose rows meet a table without state.

``python -m support.driver side_pin FOLDER CORES``: in window 1, when its version is pinned and
nothing is committed, the table changes and the driver is killed, as ``FOLDER/case`` says: ``in a
task``, behind rows that have met the table; when the new version is ``listed`` and old ones were
removed; or when the folder of the table has ``changed`` and no query has looked.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from pe_agent.spark.local_session import SMALL, session
from streambroker.operators import stream
from streambroker.side import TableStore, side_map
from support.aligned.spark import drain
from support.driver.process import kill_driver, write_window
from support.sides.rates import put_rates


class Rated:
    """Rows with rate and version; ``kills``: a task of window 1 kills the driver."""

    def __init__(self, folder: Path, *, kills: bool) -> None:
        self._folder, self._kills = folder, kills

    def __call__(self, batch: pa.RecordBatch, views: Any) -> pa.RecordBatch:
        rates = views["rates"]
        version = pa.array([rates.version.partition("-")[0]] * batch.num_rows)
        columns = [batch["id"], rates.lookup(batch["currency"]), version]
        made = pa.RecordBatch.from_arrays(columns, ["id", "rate", "version"])
        if self._kills and "c" in batch["id"].to_pylist():
            put_rates(self._folder / "rates", EUR=2.0)
            kill_driver(self._folder)
        return made


def run(spark: SparkSession, folder: Path) -> None:
    """Run to the end, if nothing of window 1 was begun before."""
    when, first = json.loads((folder / "case").read_text()), not (folder / "checkpoint").exists()
    files = spark.readStream.schema("id string, currency string").option("maxFilesPerTrigger", 1)
    trades = stream(files.parquet(str(folder / "in")).repartition(2))
    with TableStore(folder / "store") as store:
        table = store.folder("rates", folder / "rates", every=None)
        sides = trades.join_side(rates=side_map(table, key="currency", value="rate"))
        rated = Rated(folder, kills=first and when == "in a task")
        made = sides.stateless().map_batches(rated, "id string, rate double, version string")

        def take(frame: DataFrame, window: int) -> None:
            write_window(folder, window, sorted(tuple(row) for row in frame.collect()))
            if window == 1 and first:
                put_rates(folder / "rates", EUR=2.0)
                if when == "listed":
                    table.refresh()
                    store.clean()
                kill_driver(folder)

        drain(made.to_df().writeStream.foreachBatch(take), folder / "checkpoint")


def main(folder: Path, cores: str) -> None:
    run(session("side-pins", cores=int(cores), conf=SMALL), folder)
