"""Use case 2: a stream meets data that change slowly, and a micro-batch is worked out twice.

The sink fails when it has the rows, the rates change, and the query starts again. Where
`foreachBatch` reads the rates anew the same rows come out with other values the second time, and
whatever took the first ones is wrong. The version of a side input is in the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from both import Feed, main, out, write

from streambroker.operators import stream
from streambroker.side import TableStore, side_map

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Result = list[float]
TRADES = "id bigint, currency string"


def run(spark: SparkSession, folder: Path) -> dict[str, Result]:
    """Return the rate that one trade meets, at the first time and at the second."""
    return {"spark": with_spark(spark, folder / "1"), "side input": with_side(spark, folder / "2")}


def twice(
    make: Callable[[], DataFrame],
    folder: Path,
    change: Callable[[], None],
    take: Callable[[DataFrame, int], DataFrame] | None = None,
) -> Result:
    """Run a query whose sink fails once, and again after a change; return what it gave."""
    found: Result = []

    def first(batch: DataFrame, window: int) -> DataFrame:
        made = batch if take is None else take(batch, window)
        found.extend(row["rate"] for row in made.collect())
        if len(found) == 1:
            raise RuntimeError("the sink fails when it has the rows")
        return made

    try:
        out(make(), folder / "ck", [lambda: None], first)
    except Exception as error:
        if "the sink fails" not in str(error):
            raise
    change()
    out(make(), folder / "ck", [lambda: None], first)
    return found


def with_spark(spark: SparkSession, folder: Path) -> Result:
    """Read the rates in each micro-batch."""
    folder.mkdir()
    rates = folder / "rates"
    write(rates, "rates", currency=["EUR"], rate=[1.0])
    trades = Feed(spark, folder / "trades", TRADES)
    trades.put(id=[1], currency=["EUR"])

    def reload(batch: DataFrame, window: int) -> DataFrame:
        now = spark.read.schema("currency string, rate double").parquet(str(rates))
        return batch.join(now, "currency", "left")

    def change() -> None:
        write(rates, "rates", currency=["EUR"], rate=[2.0])

    return twice(lambda: trades.frame, folder, change, reload)


def with_side(spark: SparkSession, folder: Path) -> Result:
    """Meet a table of a store."""
    folder.mkdir()
    rates = folder / "rates"
    write(rates, "rates", currency=["EUR"], rate=[1.0])
    trades = Feed(spark, folder / "trades", TRADES)
    trades.put(id=[1], currency=["EUR"])
    with TableStore(folder / "store") as store:
        table = store.folder("rates", rates)

        def make() -> DataFrame:
            sides = stream(trades.frame).join_side(rates=side_map(table, key="currency"))
            return sides.enrich("rates", on="currency").to_df()

        def change() -> None:
            write(rates, "rates", currency=["EUR"], rate=[2.0])
            table.refresh()

        return twice(make, folder, change)


if __name__ == "__main__":
    main(run)
