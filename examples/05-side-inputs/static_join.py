"""Use case 1: a stream meets a table of which a new part appears while the query runs.

Spark resolves the files of a batch DataFrame once, so a stream-static join never sees the airline
that came later. A table of a store is read again when its files change, as a whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from both import Feed, main, out, write

from streambroker.operators import stream
from streambroker.side import TableStore, side_map

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Result = dict[str, str | None]


def run(spark: SparkSession, folder: Path) -> dict[str, Result]:
    """Return the airline's name that each flight meets, by Spark's join and by a side input."""
    return {"spark": with_spark(spark, folder / "1"), "side input": with_side(spark, folder / "2")}


def with_spark(spark: SparkSession, folder: Path) -> Result:
    """Join with a batch DataFrame."""
    folder.mkdir()
    airlines = folder / "airlines"
    write(airlines, "first", carrier=["UA"], airline=["United"])
    flights = Feed(spark, folder / "flights", "flight bigint, carrier string")
    table = spark.read.schema("carrier string, airline string").parquet(str(airlines))
    joined = flights.frame.join(table, "carrier", "left")

    def later() -> None:
        write(airlines, "second", carrier=["B6"], airline=["JetBlue"])
        flights.put(flight=[3, 4], carrier=["UA", "B6"])

    steps = [lambda: flights.put(flight=[1, 2], carrier=["UA", "B6"]), later]
    return {str(row["flight"]): row["airline"] for row in out(joined, folder / "ck", steps)}


def with_side(spark: SparkSession, folder: Path) -> Result:
    """Meet a table of a store."""
    folder.mkdir()
    airlines = folder / "airlines"
    write(airlines, "first", carrier=["UA"], airline=["United"])
    flights = Feed(spark, folder / "flights", "flight bigint, carrier string")
    with TableStore(folder / "store") as store:
        table = store.folder("airlines", airlines)
        sides = stream(flights.frame).join_side(airlines=side_map(table, key="carrier"))
        joined = sides.enrich("airlines", on="carrier").to_df()

        def later() -> None:
            write(airlines, "second", carrier=["B6"], airline=["JetBlue"])
            table.refresh()  # or a second later by itself
            flights.put(flight=[3, 4], carrier=["UA", "B6"])

        steps = [lambda: flights.put(flight=[1, 2], carrier=["UA", "B6"]), later]
        return {str(row["flight"]): row["airline"] for row in out(joined, folder / "ck", steps)}


if __name__ == "__main__":
    main(run)
