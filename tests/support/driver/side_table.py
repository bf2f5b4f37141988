"""The driver of a query whose side input is a table, for tests that kill it.

``python -m support.driver.side_table FOLDER CORES``: in window 1, when all of it was worked out and
nothing is committed, the folder of the table changes, and the driver is killed: at once, or when
the change is ``announced``, as ``FOLDER/case`` says. What each window gives is written down each
time.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from pe_agent.aligned import stream
from pe_agent.side import TableStore, side_map
from pe_agent.spark.local_session import SMALL, session
from support.processes.waiting import until

RATES = pa.schema([("currency", pa.string()), ("rate", pa.float64())])


def put_rates(folder: Path, **rates: float) -> None:
    """Put the table of the folder there, whole."""
    table = pa.table({"currency": list(rates), "rate": list(rates.values())}, schema=RATES)
    folder.mkdir(exist_ok=True)
    pq.write_table(table, folder / ".rates")
    (folder / ".rates").rename(folder / "rates.parquet")


def run(spark: SparkSession, folder: Path) -> None:
    """Run to the end, if nothing of window 1 was written down before."""
    when = json.loads((folder / "case").read_text())
    files = spark.readStream.schema("id string, currency string").option("maxFilesPerTrigger", 1)
    trades = stream(files.parquet(str(folder / "in")))
    with TableStore(folder / "store") as store:
        table = store.folder("rates", folder / "rates", every=None)
        sides = trades.with_side_inputs(rates=side_map(table, key="currency"))
        sides = sides.enrich("rates", on="currency", missing="wait", version="version")

        def take(window: int, frames: dict[str, DataFrame]) -> None:
            every = frames["out"].collect()
            rows = sorted((row.id, row.rate, row.version.partition("-")[0]) for row in every)
            turn = len(list(folder.glob(f"out-{window}-*")))
            (folder / f"out-{window}-{turn}.json").write_text(json.dumps(rows))
            if window == 1 and turn == 0:
                put_rates(folder / "rates", EUR=2.0, USD=3.0)
                if when == "announced":
                    table.refresh()
                os.killpg(int((folder / "driver").read_text()), signal.SIGKILL)

        query = sides.to_stream(buckets=2).for_each_window(
            take, checkpoint=folder / "checkpoint", trigger={"availableNow": True}
        )
        query.awaitTermination()


def main(folder: Path, cores: int) -> None:
    """Run in a session of its own."""
    until((folder / "begin").exists, 30.0, "the driver's id is written down")
    run(session("side-kills", cores=cores, conf=SMALL), folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
