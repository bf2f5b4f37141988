"""FLIP-200's DummyPatternProcessor: rules in a table, found by an SQL statement.

A row of the table names a class and its parameters. The classes are those that the job registers.
A changed row is a new version of its rule, and a deleted row removes it.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import streambroker as sb
from streambroker.patterns import MatchFunction, Pattern, PatternProcessor, TableDiscoverer, sql
from streambroker.patterns import sqlite_table as connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLE = "CREATE TABLE processors (uid TEXT, className TEXT, constructorParams TEXT)"
INSERT = "INSERT INTO processors VALUES (?, ?, ?)"
ROW = (
    "a, b, c",
    "org.x.DummyPatternProcessor",
    '[{"type": "string", "value": "abc"}, {"type": "int", "value": 10}]',
)
STATEMENT = """
  SELECT T.aid, T.bid, T.cid
  FROM MyTable
  MATCH_RECOGNIZE_DYNAMIC (
    pattern_processor_discoverer_factory = 'org.x.DiscovererFactory',
    table = 'processors', interval = '100 ms'
  ) AS T"""
DDL = "id bigint, name string, t timestamp"
ROWS = [(1, "a", 0), (2, "b", 1), (3, "a", 2), (4, "x", 3), (5, "c", 4), (6, "", 60)]
"""An id, a name, and a time in seconds; the last row lets the time of the others pass."""


def dummy_pattern_processor(names: str, seconds: int) -> PatternProcessor:
    """Return a rule: three names that follow each other within some seconds."""
    pattern = Pattern.begin("A").where(f'name == "{names[0]}"')
    pattern = pattern.followed_by("B").where(f'name == "{names[1]}"')
    pattern = pattern.followed_by("C").where(f'name == "{names[2]}"').within(seconds)
    return PatternProcessor(id="dummy", version=0, pattern=pattern, function="ids")


def ids(found: Any) -> dict[str, int]:
    """Return the row of a match."""
    return {f"{stage.lower()}id": rows[0]["id"] for stage, rows in found.events.items()}


def matches(my_table: DataFrame, database: Path, control_file: Path, **settings: Any) -> DataFrame:
    """Return the ids of the rows of each match."""
    classes = {"org.x.DummyPatternProcessor": dummy_pattern_processor}
    found = sql(
        STATEMENT,
        tables={"MyTable": sb.stream(my_table).with_watermark("t", "0 seconds")},
        factories={
            "org.x.DiscovererFactory": partial(TableDiscoverer, connect(database), classes=classes)
        },
        functions={"ids": MatchFunction(schema="aid bigint, bid bigint, cid bigint", matched=ids)},
        control_file=control_file,
        **settings,
    )
    return found.to_df()


def write(spark: SparkSession, folder: Path, window: int = 0) -> None:
    """Append the rows to the files of a folder; each window has later ids and times."""
    rows = [(at + 10 * window, name, second + 100 * window) for at, name, second in ROWS]
    frame = spark.createDataFrame(rows, "id bigint, name string, t bigint")
    frame = frame.selectExpr("id", "name", "timestamp_seconds(t) t").coalesce(1)
    frame.write.mode("append").parquet(str(folder))


if __name__ == "__main__":
    from streambroker.testing import SMALL, session

    with tempfile.TemporaryDirectory(prefix="streambroker-example-") as place:
        folder = Path(place)
        with sqlite3.connect(folder / "rules.db") as connection:
            connection.execute(TABLE)
            connection.execute(INSERT, ROW)
        started = session("dummy-pattern-processor", conf=SMALL)
        write(started, folder / "in")
        my_table = started.readStream.schema(DDL).parquet(str(folder / "in"))
        writer = matches(my_table, folder / "rules.db", folder / "control").writeStream
        writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
        writer.format("console").trigger(availableNow=True).start().awaitTermination()
        started.stop()
    sys.exit(0)
