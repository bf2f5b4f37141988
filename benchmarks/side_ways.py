"""What a query does with rows that meet others: side inputs, and the joins that Spark has.

Main rows are the measured ones with a key spread over all entries, and an event time that advances
by a second with every ``rows`` rows. The others are files of :func:`side_files`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as Spark's users write it

import streambroker as sb
from pe_agent.aligned.runtime import hosting
from streambroker.side import Table, TableStore, side_map

KEY = "k"
ENTRY = pa.schema(
    [
        (KEY, pa.int64()),
        ("rate", pa.float64()),
        ("label", pa.string()),
        ("since", pa.timestamp("us", "UTC")),
    ]
)
DDL = "k bigint, rate double, label string, since timestamp"
HOUR = 3_600
_TABLES: dict[str, Table] = {}


def entries(count: int, first: int = 0, shift: float = 0.0) -> pa.Table:
    """Return entries in no order of keys, ``since`` a second that is their shift."""
    keys = np.arange(first, count) * 7919 % count
    columns = [
        pa.array(keys),
        pa.array(keys + shift, pa.float64()),
        pa.array([f"label-{number}" for number in range(1_000)]).take(pa.array(keys % 1_000)),
        pa.array(np.full(len(keys), round(shift * 1e6)), pa.timestamp("us", "UTC")),
    ]
    return pa.Table.from_arrays(columns, schema=ENTRY)


def write(folder: Path, name: str, table: pa.Table) -> None:
    """Put a file of entries into a folder, whole."""
    folder.mkdir(parents=True, exist_ok=True)
    hidden = folder / f".{name}"
    pq.write_table(table, hidden)
    hidden.rename(folder / f"{name}.parquet")


def side_files(folder: Path, count: int, changes: int, changed: int) -> None:
    """Write a file of all entries, and then files that change some of them."""
    write(folder, "000", entries(count))
    for number in range(1, changes + 1):
        write(folder, f"{number:03}", entries(count, count - changed, float(number)))


def _main(frame: DataFrame, count: int, rows: int) -> DataFrame:
    return frame.withColumn(KEY, F.expr(f"pmod(a * 104729 + a div 3, {count})")).withColumn(
        "t", F.expr(f"timestamp_micros(a * 1000000 div {rows})")
    )


def _files(frame: DataFrame, folder: str) -> DataFrame:
    reader = frame.sparkSession.readStream.schema(DDL).option("maxFilesPerTrigger", 1)
    return reader.parquet(folder)


def _table(store: str, folder: str) -> Table:
    if store not in _TABLES:
        _TABLES[store] = TableStore(store).folder("rates", folder, every=0.2)
    return _TABLES[store]


def table(frame: DataFrame, *, count: int, rows: int, folder: str, store: str) -> DataFrame:
    """Add both values of a table of a store, by an operator with state."""
    side = side_map(_table(store, folder), key=KEY, value=("rate", "label"))
    sides = sb.stream(_main(frame, count, rows)).join_side(rates=side).options(order="arrival")
    return sides.enrich("rates", on=KEY).to_stream().to_df()


def stateless(frame: DataFrame, *, count: int, rows: int, folder: str, store: str) -> DataFrame:
    """Add both values of a table of a store, as by default: without state."""
    side = side_map(_table(store, folder), key=KEY, value=("rate", "label"))
    sides = sb.stream(_main(frame, count, rows)).join_side(rates=side)
    return sides.enrich("rates", on=KEY).to_stream().to_df()


def broadcast(frame: DataFrame, *, count: int, rows: int, folder: str) -> DataFrame:
    """Add them by a broadcast join with a static frame that is kept in memory."""
    static = frame.sparkSession.read.schema(DDL).parquet(folder).drop("since").cache()
    return _main(frame, count, rows).join(F.broadcast(static), KEY, "left")


def keyed(frame: DataFrame, *, count: int, rows: int, folder: str) -> DataFrame:
    """Add them from a stream that changes slowly, as rows arrive."""
    side = side_map(sb.stream(_files(frame, folder)), key=KEY, keyed=True, value=("rate", "label"))
    main = sb.stream(_main(frame, count, rows)).key_by(KEY)
    return main.join_side(rates=side).enrich("rates", on=KEY).to_stream().to_df()


def timed(frame: DataFrame, *, count: int, rows: int, folder: str) -> DataFrame:
    """Add what was valid at the event time of each row."""
    files = sb.stream(_files(frame, folder)).with_watermark("since", "0 seconds")
    side = side_map(files, key=KEY, keyed=True, update="latest", value=("rate", "label"))
    main = sb.stream(_main(frame, count, rows)).with_watermark("t", "0 seconds").key_by(KEY)
    sides = main.join_side(rates=side).options(order="event time")
    return sides.enrich("rates", on=KEY).to_stream().to_df()


def stream_stream(frame: DataFrame, *, count: int, rows: int, folder: str) -> DataFrame:
    """Join with the stream that changes slowly: the entries of the hour before a row."""
    frame.sparkSession.conf.set(hosting.STATE_PROVIDER, hosting.ROCKSDB)
    main = _main(frame, count, rows).withWatermark("t", "0 seconds").alias("m")
    side = _files(frame, folder).withWatermark("since", "0 seconds").alias("s")
    valid = f"m.t >= s.since AND m.t < s.since + INTERVAL {HOUR} SECONDS"
    joined = main.join(side, F.expr(f"m.{KEY} = s.{KEY} AND {valid}"))
    return joined.selectExpr("m.*", "s.rate", "s.label")


def waiting(frame: DataFrame, *, count: int, rows: int, folder: str, control: str) -> DataFrame:
    """Let rows wait until a control tuple says that a load is complete."""
    side = side_map(
        sb.stream(_files(frame, folder)), key=KEY, ready="complete", value=("rate", "label")
    )
    main = sb.stream(_main(frame, count, rows))
    main = main.union(sb.control_stream(frame.sparkSession, control))
    return main.join_side(rates=side).enrich("rates", on=KEY).to_stream().to_df()


WAYS: dict[str, Callable[..., Any]] = {
    "table": table,
    "stateless": stateless,
    "broadcast": broadcast,
    "keyed": keyed,
    "timed": timed,
    "stream-stream": stream_stream,
    "waiting": waiting,
}
