"""A query whose side input is a table.

``python -m support.driver side_table FOLDER CORES``: in window 1, when all of it is worked out and
nothing is committed, the folder of the table changes, and the driver is killed: at once, or when
the change is ``announced``, as ``FOLDER/case`` says.
"""

from __future__ import annotations

import json
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from pe_agent.spark.local_session import SMALL, session
from streambroker.operators import OperatorOptions, stream
from streambroker.side import TableStore, side_map
from support.driver.process import kill_driver, write_window
from support.sides.rates import put_rates


def run(spark: SparkSession, folder: Path) -> None:
    """Run to the end, if nothing of window 1 was written down before."""
    when = json.loads((folder / "case").read_text())
    files = spark.readStream.schema("id string, currency string").option("maxFilesPerTrigger", 1)
    trades = stream(files.parquet(str(folder / "in")))
    with TableStore(folder / "store") as store:
        table = store.folder("rates", folder / "rates", every=None)
        sides = trades.join_side(rates=side_map(table, key="currency"))
        sides = sides.enrich("rates", on="currency", missing="wait", version="version")

        def take(frames: dict[str, DataFrame], window: int) -> None:
            every = frames["out"].collect()
            rows = sorted((row.id, row.rate, row.version.partition("-")[0]) for row in every)
            if write_window(folder, window, rows) == 0 and window == 1:
                put_rates(folder / "rates", EUR=2.0, USD=3.0)
                if when == "announced":
                    table.refresh()
                kill_driver(folder)

        query = sides.to_stream(options=OperatorOptions(buckets=2)).foreach_batch(
            take, checkpoint=folder / "checkpoint", trigger={"availableNow": True}
        )
        query.awaitTermination()


def main(folder: Path, cores: str) -> None:
    run(session("side-kills", cores=int(cores), conf=SMALL), folder)
