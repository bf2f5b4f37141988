"""Side inputs at their edges: large maps, all tables and types, old checkpoints, restarts."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's users write it

from streambroker.operators import OperatorOptions, OperatorStream, stream
from streambroker.side import TableStore, Views, side_list, side_map, side_multimap, side_singleton
from support.processes.waiting import until
from support.sides.cases import load
from support.sides.feeds import SECONDS, TRADES, Feed, Rows
from support.sides.rates import RATES, put_rates
from support.sides.spark import run_on_spark

pytestmark = pytest.mark.long
RATE = "currency string, rate double"
HOUR = 3600.0
"""A limit that no query of a test reaches, however slow the machine is."""


def rated(trades: Feed, rates: Feed, **settings: Any) -> OperatorStream:
    side = side_map(rates.stream, key="currency", timeout=HOUR)
    sides = trades.stream.join_side(rates=side)
    return sides.enrich("rates", on="currency", **settings).to_stream(
        options=OperatorOptions(buckets=1)
    )


def once(made: OperatorStream, checkpoint: Path) -> Rows:
    """Run a query over what there is."""
    rows = Rows()
    query = made.foreach_batch(rows, checkpoint=checkpoint, trigger={"availableNow": True})
    query.awaitTermination()
    return rows


@pytest.mark.timeout(1800)
def test_a_map_of_a_million_entries_under_default_settings(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A stream that is keyed, and a table: each main row meets its own entry."""
    count, step = 1_000_000, 9_973
    keys = pa.array(range(count), pa.int64())
    (tmp_path / "table").mkdir()
    pq.write_table(pa.table({"k": keys, "w": keys}), tmp_path / "table" / "0.parquet")
    main, values = (
        Feed(spark, tmp_path / "m", "k bigint"),
        Feed(spark, tmp_path / "v", "k bigint, v bigint"),
    )
    asked = list(range(0, count, step))
    main.put(k=pa.array(asked, pa.int64()))
    values.put(k=keys, v=keys)
    with TableStore(tmp_path / "store") as store:
        table = store.folder("table", tmp_path / "table")
        sides = main.stream.key_by("k").join_side(
            v=side_map(values.stream, key="k", keyed=True, timeout=HOUR),
            w=side_map(table, key="k"),
        )
        made = sides.enrich("v", on="k").enrich("w", on="k").to_stream()
        rows = once(made, tmp_path / "ck")
    assert rows.out("k", "v", "w") == sorted([(k, k, k) for k in asked], key=str)


def test_rows_meet_every_kind_of_table_as_every_kind_of_side_input(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = pa.table({"currency": ["EUR", "USD"], "rate": [1.0, 2.0]}, schema=RATES)
    pq.write_table(data, tmp_path / "a.parquet")
    csv.write_csv(data, tmp_path / "a.csv")
    (tmp_path / "a.json").write_text(
        '{"currency":"EUR","rate":1.0}\n{"currency":"USD","rate":2.0}\n'
    )
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), RATES) as writer:
        writer.write_table(data)
    with closing(sqlite3.connect(tmp_path / "db")) as base, base:
        base.execute("create table rates (currency text, rate real)")
        base.execute("insert into rates values ('EUR', 1.0), ('USD', 2.0)")
    trades = Feed(spark, tmp_path / "trades", TRADES)
    trades.put(id=["a", "b", "c"], currency=["EUR", "USD", "GBP"])
    with TableStore(tmp_path / "store") as store:
        folders = {
            f: store.folder(f, tmp_path / f"a.{f}", format=f, every=None)
            for f in ("parquet", "csv", "json", "arrow")
        }
        query = store.query(
            "query", lambda: sqlite3.connect(tmp_path / "db"), "select * from rates"
        )
        frame = store.frame("frame", lambda: spark.read.parquet(str(tmp_path / "a.parquet")))
        tables = {**folders, "query": query, "frame": frame}
        sides = trades.stream.join_side(
            **{name: side_map(table, key="currency") for name, table in tables.items()},
            many=side_multimap(folders["csv"], key="currency", value="rate"),
            every=side_list(folders["json"], value="rate"),
            last=side_singleton(folders["arrow"], value="rate"),
        )
        for name in tables:
            sides = sides.enrich(name, on="currency", names={"rate": name})
        sides = sides.enrich("many", on="currency", names={"rate": "many"})

        def look(batch: pa.RecordBatch, views: Views) -> pa.RecordBatch:
            size = batch.num_rows
            total = pa.array([sum(views["every"])] * size, pa.float64())
            last = pa.array([views["last"].value] * size, pa.float64())
            return batch.append_column("total", total).append_column("last", last)

        columns = ", ".join(f"{name} double" for name in tables)
        schema = f"{TRADES}, {columns}, many array<double>, total double, last double"
        rows = once(
            sides.map_batches(look, schema, options=OperatorOptions(buckets=2)), tmp_path / "ck"
        )
    assert rows.out("id", *tables, "many", "total", "last") == [
        ("a", *[1.0] * 6, [1.0], 3.0, 2.0),
        ("b", *[2.0] * 6, [2.0], 3.0, 2.0),
        ("c", *[None] * 6, [], 3.0, 2.0),
    ]


MOMENT = datetime(2024, 2, 29, 12, 30)  # noqa: DTZ001 - Spark gives times so
TYPES: dict[str, tuple[str, Any]] = {
    "tinyint": ("tinyint", 7),
    "smallint": ("smallint", 7),
    "int": ("int", 7),
    "bigint": ("bigint", 7),
    "float": ("float", 1.5),
    "double": ("double", 1.5),
    "decimal": ("decimal(20,2)", Decimal("1.50")),
    "string": ("string", "ä b"),
    "boolean": ("boolean", True),
    "binary": ("binary", b"\x00\xff"),
    "date": ("date", date(2024, 2, 29)),
    "timestamp": ("timestamp", MOMENT),
    "ntz": ("timestamp_ntz", MOMENT),
}
VALUES: dict[str, tuple[str, Any]] = {
    **TYPES,
    "nothing": ("string", None),
    "list": ("array<bigint>", [1, None, 3]),
    "struct": ("struct<a:bigint,b:array<string>>", {"a": 1, "b": ["x"]}),
    "map": ("map<string,double>", {"x": 1.5}),
}


def test_keys_and_values_of_every_type_come_out_as_they_came_in(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A map for each type of key; each gives a value of each type."""
    ddl = ", ".join(f"`v_{name}` {kind}" for name, (kind, _) in VALUES.items())
    given = {f"v_{name}": value for name, (_, value) in VALUES.items()}
    frame = spark.createDataFrame([tuple(given.values())], ddl)
    frame.write.parquet(str(tmp_path / "in"))
    main = spark.readStream.schema(frame.schema).parquet(str(tmp_path / "in"))
    keys = stream(main.selectExpr(*(f"v_{name} AS k_{name}" for name in TYPES)))
    sides = keys.join_side(
        **{f"x_{name}": side_map(stream(main), key=f"v_{name}", timeout=HOUR) for name in TYPES}
    )
    for name in TYPES:
        others = [one for one in given if one != f"v_{name}"]
        named = {one: f"{name}_{one}" for one in others}
        sides = sides.enrich(f"x_{name}", on=f"k_{name}", names=named)
    [row] = once(sides.to_stream(options=OperatorOptions(buckets=2)), tmp_path / "ck").of["out"]
    for name in TYPES:
        for one, value in given.items():
            if one != f"v_{name}":
                found = row[f"{name}_{one}"]
                found = found.asDict() if hasattr(found, "asDict") else found
                assert found == value, (name, one)


def test_a_checkpoint_takes_other_policies_and_refuses_another_definition(
    spark: SparkSession, tmp_path: Path
) -> None:
    trades, rates = Feed(spark, tmp_path / "trades", TRADES), Feed(spark, tmp_path / "rates", RATE)
    trades.put(id=["a", "b"], currency=["EUR", "USD"])
    rates.put(currency=["EUR"], rate=[1.0])
    rows = once(rated(trades, rates), tmp_path / "ck")
    assert rows.out("id", "rate") == [("a", 1.0)], "b waits"
    trades.put(id=["c"], currency=["GBP"])
    rows = once(rated(trades, rates, missing="null"), tmp_path / "ck")
    assert rows.out("id", "rate") == [("b", None), ("c", None)], "and waits no longer"
    trades.put(id=["d"], currency=["EUR"])
    other = trades.stream.join_side(
        rates=side_map(
            rates.stream.select("currency", F.col("rate").cast("float").alias("rate")),
            key="currency",
        )
    )
    made = other.enrich("rates", on="currency").to_stream(options=OperatorOptions(buckets=1))
    with pytest.raises(Exception, match="the state of `rates` has another definition"):
        once(made, tmp_path / "ck")
    assert once(rated(trades, rates), tmp_path / "ck").out("id", "rate") == [("d", 1.0)]


def test_rows_wait_from_one_run_to_the_next_with_available_now(
    spark: SparkSession, tmp_path: Path
) -> None:
    trades, rates = Feed(spark, tmp_path / "trades", TRADES), Feed(spark, tmp_path / "rates", RATE)
    trades.put(id=["a", "b"], currency=["EUR", "USD"])
    assert once(rated(trades, rates), tmp_path / "ck").out("id") == []
    rates.put(currency=["USD"], rate=[2.0])
    assert once(rated(trades, rates), tmp_path / "ck").out("id", "rate") == [("b", 2.0)]
    rates.put(currency=["EUR"], rate=[1.0])
    assert once(rated(trades, rates), tmp_path / "ck").out("id", "rate") == [("a", 1.0)]


def test_ten_thousand_rows_that_waited_come_out_once_each_in_the_order_of_arrival(
    spark: SparkSession, tmp_path: Path
) -> None:
    """In one bucket, by a load that has the keys in another order than the rows."""
    trades, rates = Feed(spark, tmp_path / "trades", TRADES), Feed(spark, tmp_path / "rates", RATE)
    currencies = [f"c{n * 7 % 100}" for n in range(10_000)]
    trades.put(id=list(map(str, range(10_000))), currency=currencies)
    assert once(rated(trades, rates), tmp_path / "ck").out("id") == []
    rates.put(currency=[f"c{n}" for n in range(100)], rate=[float(n) for n in range(100)])
    found = once(rated(trades, rates), tmp_path / "ck").of["out"]
    assert [(row["id"], row["rate"]) for row in found] == [
        (str(n), float(n * 7 % 100)) for n in range(10_000)
    ]


def test_a_table_that_changed_while_no_driver_was_there_is_seen_after_the_start(
    spark: SparkSession, tmp_path: Path
) -> None:
    trades = Feed(spark, tmp_path / "trades", TRADES)

    def run(*ids: str) -> list[tuple[Any, ...]]:
        trades.put(id=list(ids), currency=["EUR"] * len(ids))
        with TableStore(tmp_path / "store") as store:
            table = store.folder("rates", tmp_path / "rates")
            sides = trades.stream.join_side(rates=side_map(table, key="currency"))
            made = sides.enrich("rates", on="currency").to_stream(
                options=OperatorOptions(buckets=2)
            )
            return once(made, tmp_path / "ck").out("id", "rate")

    put_rates(tmp_path / "rates", EUR=1.0)
    assert run("a") == [("a", 1.0)]
    put_rates(tmp_path / "rates", EUR=2.0)
    assert run("b") == [("b", 2.0)]
    (tmp_path / "rates" / "a.parquet").unlink()
    assert run("c") == [("c", 2.0)], "a table that is away stays as it was"


def test_an_aggregation_of_spark_behind_the_operator_counts_each_row_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    """In windows of event time: rows that waited are counted where they belong."""
    trades = Feed(spark, tmp_path / "trades", f"{TRADES}, at timestamp")
    rates = Feed(spark, tmp_path / "rates", RATE)

    def at(*seconds: int) -> pa.Array:
        return pa.array([second * 1_000_000 for second in seconds], pa.timestamp("us", "UTC"))

    trades.put(id=list("abc"), currency=["EUR", "USD", "EUR"], at=at(1, 2, 12))
    side = side_map(rates.stream, key="currency", timeout=HOUR)
    sides = trades.stream.join_side(rates=side)
    made = (
        sides.enrich("rates", on="currency").to_stream(options=OperatorOptions(buckets=2)).to_df()
    )
    sums = (
        made.withWatermark("at", "0 seconds")
        .groupBy(F.window("at", "10 seconds").alias("w"), "currency")
        .agg(F.count("*").alias("n"), F.sum("rate").alias("rate"))
        .selectExpr("unix_seconds(w.start) AS second", "currency", "n", "rate")
    )
    found: list[tuple[Any, ...]] = []
    query = (
        sums.writeStream.foreachBatch(lambda batch, _: found.extend(map(tuple, batch.collect())))
        .option("checkpointLocation", str(tmp_path / "ck"))
        .start()
    )
    try:
        query.processAllAvailable()
        rates.put(currency=["USD", "EUR"], rate=[2.0, 1.0])
        query.processAllAvailable()
        trades.put(id=["z"], currency=["EUR"], at=at(100))
        until(lambda: len(found) == 3 or not query.isActive, SECONDS, "three groups")
    finally:
        query.stop()
    assert sorted(found) == [(0, "EUR", 1, 1.0), (0, "USD", 1, 2.0), (10, "EUR", 1, 1.0)]


@pytest.mark.timeout(1800)
def test_a_session_with_200_shuffle_partitions_gives_the_same(
    spark: SparkSession, tmp_path: Path
) -> None:
    [case] = [case for case in load() if case["id"] == "W-1"]
    found = run_on_spark(spark, tmp_path, [case], pieces=1, partitions=200)
    assert found["W-1"].differences(case, 4) == []
