"""Side inputs in a query, as a user writes it: tables that change, timeouts, views, requests."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from streambroker.operators import OperatorOptions, OperatorStream, Stream, stream
from streambroker.side import (
    SideInputs,
    SideRefresh,
    Table,
    TableStore,
    Views,
    side_list,
    side_map,
    side_multimap,
    side_singleton,
)
from streambroker_core.side import fixed
from support.processes.waiting import until
from support.sides.feeds import SECONDS, TRADES, Feed, Rows, running
from support.sides.rates import put_rates


def enriched(trades: Stream, table: Table) -> OperatorStream:
    sides = trades.join_side(rates=side_map(table, key="currency"))
    sides = sides.enrich("rates", on="currency", version="version")
    return sides.to_stream(options=OperatorOptions(buckets=2, metrics=True))


@pytest.mark.slow
def test_a_table_changes_between_two_windows_and_a_replay_sees_the_version_of_then(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Versions are swapped whole, a request brings one, a broken file brings none, old ones go."""
    put_rates(tmp_path / "rates", EUR=1.0)
    trades = Feed(spark, tmp_path / "trades", TRADES)
    with TableStore(tmp_path / "store") as store:
        table = store.folder("rates", tmp_path / "rates", every=None)
        first, rows = table.state().version, Rows()

        def fail(frames: dict[str, DataFrame], window: int) -> None:
            rows({"out": frames["out"]}, window)
            raise RuntimeError("the sink is away")

        trades.put(id=["a", "b"], currency=["EUR", "USD"])
        query = enriched(trades.stream, table).foreach_batch(fail, checkpoint=tmp_path / "ck")
        with pytest.raises(Exception, match="the sink is away"):
            query.awaitTermination()
        put_rates(tmp_path / "rates", EUR=2.0, USD=3.0)
        second = table.refresh().version
        replayed = Rows()
        with running(enriched(trades.stream, table), replayed, tmp_path / "ck") as query:
            query.processAllAvailable()
            assert rows.out("id", "rate", "version") == replayed.out("id", "rate", "version")
            assert replayed.out("id", "rate", "version") == [
                ("a", 1.0, first),
                ("b", None, first),
            ]
            trades.put(id=["c"], currency=["USD"])
            query.processAllAvailable()
            (tmp_path / "rates" / "b.parquet").write_text("broken")
            store.control.append(SideRefresh(input="rates"), delivery="BEGIN")
            until(lambda: "b.parquet" in (table.state().error or ""), SECONDS, "the broken file")
            (tmp_path / "rates" / "b.parquet").unlink()
            put_rates(tmp_path / "rates", USD=4.0)
            store.control.append(SideRefresh(input="rates"), delivery="BEGIN")
            until(lambda: table.state().version != second, SECONDS, "a third version")
            trades.put(id=["d"], currency=["USD"])
            query.processAllAvailable()
            trades.put(id=["e"], currency=["EUR"])
            query.processAllAvailable()
            third = table.state().version
            assert replayed.out("id", "rate", "version")[2:] == [
                ("c", 3.0, second),
                ("d", 4.0, third),
                ("e", None, third),
            ]
            store.clean()
            assert table.state().kept == (third,)
            seen = {row["version"] for row in replayed.of["figures"] if row["input"] == "rates"}
            assert seen == {first, second, third}


@pytest.mark.long
def test_a_jdbc_table_is_a_side_input_as_any_batch_dataframe_is(
    spark: SparkSession, tmp_path: Path
) -> None:
    """By Derby in memory, which comes with Spark; it changes between two windows."""
    jvm: Any = spark._jvm
    jvm.java.lang.System.setProperty("derby.stream.error.file", str(tmp_path / "derby.log"))
    url = f"jdbc:derby:memory:{tmp_path.name};create=true"
    driver = {"driver": "org.apache.derby.iapi.jdbc.AutoloadedDriver"}

    def write(**rates: float) -> None:
        frame = spark.createDataFrame(list(rates.items()), "currency string, rate double")
        frame.write.jdbc(url, "rates", mode="overwrite", properties=driver)

    write(EUR=1.0, USD=2.0)
    trades = Feed(spark, tmp_path / "trades", TRADES)
    with TableStore(tmp_path / "store") as store:
        table = store.frame(
            "rates", lambda: spark.read.jdbc(url, "rates", properties=driver), every=None
        )
        sides = trades.stream.join_side(rates=side_map(table, key="currency"))
        rows = Rows()
        made = sides.join_view(
            "rates", on="currency", columns=["rate"], options=OperatorOptions(buckets=2)
        )
        trades.put(id=["a", "b"], currency=["EUR", "GBP"])
        with running(made, rows, tmp_path / "ck") as query:
            query.processAllAvailable()
            write(EUR=3.0, GBP=4.0)
            table.refresh()
            trades.put(id=["c", "d"], currency=["EUR", "GBP"])
            query.processAllAvailable()
    assert rows.out("id", "rate") == [("a", 1.0), ("b", None), ("c", 3.0), ("d", 4.0)]


def test_rows_that_wait_too_long_wait_no_longer_though_nothing_comes(
    spark: SparkSession, tmp_path: Path
) -> None:
    """C-48: of a map the default is seen; a singleton sends rows to the output errors."""
    trades = Feed(spark, tmp_path / "trades", TRADES)
    rates = Feed(spark, tmp_path / "rates", "currency string, rate double")
    sides = trades.stream.join_side(
        rates=side_map(rates.stream, key="currency", timeout=1.0, default=0.5),
        limit=side_singleton(rates.stream, value="rate", timeout=2.0, on_timeout="error"),
    )
    rows = Rows()
    made = sides.enrich("rates", on="currency").to_stream(
        options=OperatorOptions(buckets=1, metrics=True)
    )

    def taken() -> bool:
        return any(row["rows"] for row in rows.of["figures"] if row["input"] == "rates")

    trades.put(id=["a", "b"], currency=["EUR", "USD"])
    with running(made, rows, tmp_path / "ck") as query:
        until(lambda: len(rows.of.get("errors", [])) == 2 or not query.isActive, SECONDS, "both")
        rates.put(currency=["EUR"], rate=[2.0])
        until(lambda: taken() or not query.isActive, SECONDS, "the rate")
        trades.put(id=["c"], currency=["EUR"])
        until(lambda: bool(rows.of["out"]) or not query.isActive, SECONDS, "c")
    assert {(row["input"], row["code"]) for row in rows.of["errors"]} == {("limit", "SideTimeout")}
    assert rows.out("id", "rate") == [("c", 2.0)]


@pytest.mark.long
def test_an_idle_side_stream_holds_no_window_any_longer(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Its last row is long ago, so the watermark of the query does not move; windows go on."""
    trades = Feed(spark, tmp_path / "trades", f"{TRADES}, at timestamp")
    rates = Feed(spark, tmp_path / "rates", "currency string, rate double, at timestamp")

    def at(*seconds: int) -> pa.Array:
        return pa.array([second * 1_000_000 for second in seconds], pa.timestamp("us", "UTC"))

    side = side_map(
        rates.stream.with_watermark("at", "0 seconds", idle=1.0),
        key="currency",
        value="rate",
        windows=fixed(10),
        ready="watermark",
    )
    sides = trades.stream.with_watermark("at", "5 seconds").join_side(rates=side)
    made, rows = (
        sides.enrich("rates", on="currency").to_stream(options=OperatorOptions(buckets=2)),
        Rows(),
    )
    rates.put(currency=["EUR"], rate=[1.0], at=at(3))
    trades.put(id=["a"], currency=["EUR"], at=at(4))
    trades.put(id=["b", "c", "d"], currency=["EUR"] * 3, at=at(12, 20, 25))
    with running(made, rows, tmp_path / "ck") as query:
        until(lambda: len(rows.out("id")) == 2 or not query.isActive, SECONDS, "two windows")
        assert rows.out("id", "rate") == [("a", 1.0), ("b", None)]
        rates.put(currency=["EUR"], rate=[3.0], at=at(26))
        trades.put(id=["e"], currency=["EUR"], at=at(36))
        until(lambda: len(rows.out("id")) == 4 or not query.isActive, SECONDS, "one more")
        assert rows.out("id", "rate")[2:] == [("c", 3.0), ("d", 3.0)]


@pytest.mark.slow
def test_one_join_feeds_several_queries_each_with_its_own_state(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A row that waits in one query comes out there after its restart, and in no other one."""
    trades = Feed(spark, tmp_path / "trades", TRADES)
    rates = Feed(spark, tmp_path / "rates", "currency string, rate double")
    frame = (
        trades.stream.join_side(rates=side_map(rates.stream, key="currency", timeout="1h"))
        .enrich("rates", on="currency")
        .to_df(options=OperatorOptions(buckets=2))
    )
    found: dict[str, list[tuple[str, float]]] = {"one": [], "two": []}

    with ExitStack() as stack:

        def drained(name: str) -> StreamingQuery:
            def take(batch: DataFrame, window: int) -> None:
                found[name] += sorted((row.id, row.rate) for row in batch.collect())

            path = tmp_path / f"ck-{name}"
            writer = frame.writeStream.queryName(name).option("checkpointLocation", str(path))
            query = writer.foreachBatch(take).start()
            stack.callback(query.stop)
            query.processAllAvailable()
            return query

        rates.put(currency=["EUR"], rate=[1.0])
        trades.put(id=["a", "b"], currency=["EUR", "USD"])
        drained("one").stop()
        assert found == {"one": [("a", 1.0)], "two": []}
        rates.put(currency=["USD"], rate=[2.0])
        drained("two")
        assert found == {"one": [("a", 1.0)], "two": [("a", 1.0), ("b", 2.0)]}
        drained("one")
    assert found == {name: [("a", 1.0), ("b", 2.0)] for name in ("one", "two")}


def counted(
    key: tuple[Any, ...], window: tuple[int, int], rows: pa.RecordBatch, views: Views
) -> pa.RecordBatch:
    del key, views
    reported = {
        "second": [window[0] // 1_000_000],
        "n": [rows.num_rows],
        "v": [rows["v"][0].as_py()],
    }
    return pa.record_batch(reported)


@pytest.mark.long
def test_rows_that_wait_are_not_late_for_the_operator_behind(
    spark: SparkSession, tmp_path: Path
) -> None:
    """C-46: its windows stay open while rows wait, though the watermark is far beyond them."""
    flights = Feed(spark, tmp_path / "flights", "at timestamp")
    limits = Feed(spark, tmp_path / "limits", "v bigint")

    def fly(*seconds: int) -> None:
        at = pa.array([second * 1_000_000 for second in seconds], pa.timestamp("us", "UTC"))
        flights.put(at=at)
        query.processAllAvailable()

    main = flights.stream.with_watermark("at", "0 seconds")
    first = main.join_side(limit=side_singleton(limits.stream, value="v")).enrich("limit")
    behind = (
        first.to_stream(name="first", options=OperatorOptions(buckets=1))
        .join_side()
        .options(event_time="at")
    )
    counts = "second bigint, n bigint, v bigint"
    made = behind.window(10).apply(
        counted, counts, name="second", options=OperatorOptions(buckets=1)
    )
    rows = Rows()
    with running(made, rows, tmp_path / "ck") as query:
        for second in (3, 50, 60):
            fly(second)
        assert rows.out("second") == []
        limits.put(v=[7])
        query.processAllAvailable()
        fly(100)
        fly(120)
        until(lambda: len(rows.out("second")) == 4, SECONDS, "four windows")
    assert rows.out("second", "n", "v") == [(0, 1, 7), (100, 1, 7), (50, 1, 7), (60, 1, 7)]
    assert rows.of["late"] == []


def joined(sides: SideInputs) -> OperatorStream:
    return sides.join_view("rates", on="currency", how="inner", options=OperatorOptions(buckets=2))


def mapped(sides: SideInputs) -> OperatorStream:
    def look(batch: pa.RecordBatch, views: Views) -> pa.RecordBatch:
        found = views["rates"].lookup(batch.column("currency"), name="rate")
        count = pa.array([len(views["words"])] * batch.num_rows, pa.int64())
        return pa.record_batch({"id": batch.column("id"), "rate": found, "words": count})

    return sides.map_batches(
        look, "id string, rate array<double>, words bigint", options=OperatorOptions(buckets=2)
    )


@pytest.mark.parametrize(
    ("end", "columns", "expected"),
    [
        (joined, ("id", "rate"), [("a", 1.0), ("a", 1.5), ("b", 2.0)]),
        pytest.param(
            mapped,
            ("id", "rate", "words"),
            [("a", [1.0, 1.5], 2), ("b", [2.0], 2), ("c", [], 2)],
            marks=pytest.mark.long,
        ),
    ],
)
def test_functions_and_joins_see_streams_that_are_keyed_and_broadcast(
    spark: SparkSession,
    tmp_path: Path,
    end: Callable[[SideInputs], OperatorStream],
    columns: tuple[str, ...],
    expected: list[tuple[Any, ...]],
) -> None:
    trades = Feed(spark, tmp_path / "trades", TRADES)
    rates = Feed(spark, tmp_path / "rates", "currency string, rate double")
    words = Feed(spark, tmp_path / "words", "word string")
    sides = trades.stream.key_by("currency").join_side(
        rates=side_multimap(rates.stream, key="currency", keyed=True, ready="not required"),
        words=side_list(words.stream),
    )
    rates.put(currency=["EUR", "USD", "EUR"], rate=[1.0, 2.0, 1.5])
    words.put(word=["x", "y"])
    trades.put(id=["a", "b", "c"], currency=["EUR", "USD", None])
    rows = Rows()
    with running(end(sides), rows, tmp_path / "ck") as query:
        query.processAllAvailable()
    assert rows.out(*columns) == expected


def test_what_holds_is_reported_before_anything_runs(spark: SparkSession, tmp_path: Path) -> None:
    put_rates(tmp_path / "rates", EUR=1.0)
    rate = stream(spark.readStream.format("rate").load())
    with TableStore(tmp_path / "store") as store:
        table = store.folder("rates", tmp_path / "rates", every=None)
        sides = rate.join_side(rates=side_map(table, key="currency"), last=side_list(rate))
        reported = sides.explain()
    assert "a table, once per process, replaced version by version" in reported[1]
    assert "rows wait for the first data (by default)" in reported[2]
    version = table.state().version
    assert reported[3] == f"`rates` is table rates, checked on request; version {version} now."
