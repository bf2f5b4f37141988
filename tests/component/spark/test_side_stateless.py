"""Rows that meet tables without state, in queries: a micro-batch has one version, come what may."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's users write it

import streambroker as sb
from streambroker.operators import Operator, OperatorOptions, Stream, stream
from streambroker.side import (
    SideInputs,
    SideRefresh,
    StatelessInputs,
    Table,
    TableStore,
    Views,
    side_map,
    side_multimap,
    side_singleton,
)
from streambroker_core.side.errors import SideDefinitionError
from support.aligned.graphs import chain, names_of, reported, sink, turns
from support.aligned.spark import (
    IN_ORDER,
    collected,
    drain,
    on_spark,
    renumbered,
    run,
    scripted,
    seen,
)
from support.driver import side_pin
from support.driver.process import run_driver
from support.processes.waiting import until
from support.sides.rates import put_rates

TRADES = "id string, currency string, at timestamp"
SECONDS = 240.0
Row = tuple[Any, ...]


def put(folder: Path, ids: str, *currencies: str | None) -> None:
    """Put a file of trades there: a micro-batch."""
    folder.mkdir(exist_ok=True)
    number = len(list(folder.iterdir()))
    at = pa.array([n * 1_000_000 for n in range(len(ids))], pa.timestamp("us", "UTC"))
    table = pa.table({"id": list(ids), "currency": pa.array(currencies, pa.string()), "at": at})
    path = folder / f"{number}.parquet"
    pq.write_table(table, folder / f".{number}")
    (folder / f".{number}").rename(path)
    os.utime(path, (number + 1, number + 1))


def trades(spark: SparkSession, folder: Path, partitions: int) -> Stream:
    files = spark.readStream.schema(TRADES).option("maxFilesPerTrigger", 1).parquet(str(folder))
    return stream(files.repartition(partitions))


@contextmanager
def tables(tmp_path: Path, **rates: float) -> Iterator[tuple[TableStore, Table]]:
    put_rates(tmp_path / "rates", **rates)
    with TableStore(tmp_path / "store") as store:
        yield store, store.folder("rates", tmp_path / "rates", every=None)


def see(batch: pa.RecordBatch, views: Views) -> pa.RecordBatch:
    """Return each row with all that it sees of a multimap and of a singleton, and its types."""
    many = views["many"].lookup(batch["currency"]).to_pylist()
    found = pa.array([f"{one} {batch.schema.types}" for one in many])
    limit = pa.array([views["limit"].value] * batch.num_rows, pa.float64())
    return pa.record_batch({"id": batch["id"], "many": found, "limit": limit, "at": batch["at"]})


def drained(frame: DataFrame, checkpoint: Path) -> list[Row]:
    """Run a query to its end; return its rows, in order."""
    windows = collected(frame, checkpoint)
    return sorted(((window, *row) for window, rows in windows.items() for row in rows), key=repr)


def as_json(frame: DataFrame, way: str) -> DataFrame:
    return frame.select(F.lit(way).alias("way"), F.to_json(F.struct("*")).alias("row"))


@pytest.mark.slow
def test_rows_are_those_of_an_operator_with_state(spark: SparkSession, tmp_path: Path) -> None:
    """Enriched, joined and given to a function; in 1 and in 4 partitions.

    Null keys are among them, and times, which Spark hands over in the zone of the session.
    """
    put(tmp_path / "in", "abcd", "EUR", None, "USD", "EUR")
    put(tmp_path / "in", "efg", "GBP", "USD", "EUR")
    more = pa.table({"currency": ["EUR", "USD", "EUR"], "rate": [1.0, 2.0, 1.5]})
    pq.write_table(more, tmp_path / "more.parquet")
    pq.write_table(pa.table({"limit": [9.5]}), tmp_path / "limit.parquet")
    zone = spark.conf.get("spark.sql.session.timeZone")
    with tables(tmp_path, EUR=1.0, USD=2.0) as (store, rates):
        many = store.folder("many", tmp_path / "more.parquet", every=None)
        limit = store.folder("limit", tmp_path / "limit.parquet", every=None)

        def sides(partitions: int) -> SideInputs:
            main = trades(spark, tmp_path / "in", partitions)
            return main.join_side(
                rates=side_map(rates, key="currency"),
                many=side_multimap(many, key="currency"),
                limit=side_singleton(limit, value="limit"),
            ).enrich("rates", on="currency", version="version")

        def rows(name: str, **made: Stream) -> list[Row]:
            return drained(united({way: one.to_df() for way, one in made.items()}), tmp_path / name)

        columns = "id string, many string, limit double, at timestamp"
        spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
        try:
            of = sides(2)
            expected = rows(
                "with",
                enriched=of.to_stream(name="a", options=OperatorOptions(buckets=2)),
                joined=alone(of, "many").join_view(
                    "many", on="currency", name="b", options=OperatorOptions(buckets=2)
                ),
                mapped=of.map_batches(see, columns, name="c", options=OperatorOptions(buckets=2)),
            )
            for partitions in (1, 4):
                of = sides(partitions)
                found = rows(
                    f"without-{partitions}",
                    enriched=of.stateless().to_stream(),
                    joined=alone(of, "many").stateless().join_view("many", on="currency"),
                    mapped=of.stateless().map_batches(see, columns),
                )
                assert found == expected
            with pytest.raises(Exception, match="sources in the checkpoint offsets and now there"):
                rows("with", enriched=of.stateless().to_stream())
        finally:
            spark.conf.set("spark.sql.session.timeZone", str(zone))
    assert len(expected) == 7 + (7 + 3) + 7


def test_tables_alone_take_no_operator_and_further_outputs_take_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    put(tmp_path / "in", "abcd", "EUR", None, "USD", "GBP")
    with tables(tmp_path, EUR=1.0, USD=2.0) as (_, rates):
        sides = trades(spark, tmp_path / "in", 2).join_side(rates=side_map(rates, key="currency"))
        made = sides.enrich("rates", on="currency").to_stream()
        outputs = {tag: made.outputs[tag].to_df() for tag in ("out", "errors", "late")}

        found = drained(united({"out": made.to_df()}), tmp_path / "without")
        expected = drained(united(outputs), tmp_path / "with")

    assert (list(made.plan.nodes), list(made.outputs)) == ([], ["out", "errors", "late"])
    assert len(found) == 4
    assert found == expected


class Request(Operator):
    """Passes rows on, and requests that the table is read."""

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        del port
        self.emit(batch)
        if batch.num_rows:
            self.emit_control(SideRefresh(input="rates"))
            self.emit_control(SideRefresh(input="others"))


def test_a_request_reaches_a_table_whose_rows_take_no_operator(
    spark: SparkSession, tmp_path: Path
) -> None:
    """In the main stream, and in the store's file."""
    put(tmp_path / "in", "a", "EUR")
    with tables(tmp_path, EUR=1.0) as (store, rates):
        main = trades(spark, tmp_path / "in", 1).key_by("id").apply(Request)
        sides = main.join_side(rates=side_map(rates, key="currency"))
        made = sides.enrich("rates", on="currency").to_stream()
        first = rates.state().version
        put_rates(tmp_path / "rates", EUR=2.0)
        assert len(drained(united({"out": made.to_df()}), tmp_path / "ck")) == 1
        until(lambda: rates.state().version != first, SECONDS, "a version by the main stream")

        second = rates.state().version
        put_rates(tmp_path / "rates", EUR=3.0)
        store.control.append(SideRefresh(input="others"), delivery="BEGIN")
        store.control.append(SideRefresh(input="rates"), delivery="BEGIN")
        until(lambda: rates.state().version != second, SECONDS, "a version by the store's file")
    assert [node.name for node in made.plan.nodes.values()] == ["Request"]


def alone(sides: SideInputs, name: str) -> SideInputs:
    """Return the side inputs with one of them alone, and nothing added."""
    return replace(sides, sources={name: sides.sources[name]}, enrichments=(), settings={})


def united(frames: dict[str, DataFrame]) -> DataFrame:
    first, *others = (as_json(frame, way) for way, frame in frames.items())
    for other in others:
        first = first.union(other)
    return first


def test_a_table_changes_between_two_micro_batches_and_not_within_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Neither when its rows are computed again, nor when it is run again after a failure."""
    windows: dict[int, list[list[Row]]] = {}
    for _ in range(3):
        put(tmp_path / "in", "abcdefgh", *["EUR"] * 8)
    with tables(tmp_path, EUR=0.0) as (store, table):
        sides = trades(spark, tmp_path / "in", 4).join_side(rates=side_map(table, key="currency"))
        made = sides.stateless().enrich("rates", on="currency", version="version")
        frame = made.to_df()

        def take(batch: DataFrame, window: int) -> None:
            for turn in (1, 2):
                rows = sorted({(row.rate, row.version) for row in batch.collect()})
                windows.setdefault(window, []).append(rows)
                put_rates(tmp_path / "rates", EUR=window + turn / 2)
                table.refresh()
                store.clean()
            if window == 0:
                with ThreadPoolExecutor() as threads:
                    with pytest.raises(
                        Exception, match="its task belongs to none; process the rows of"
                    ):
                        threads.submit(batch.collect).result()
                    inheriting = inheritable_thread_target(batch.sparkSession)
                    again = threads.submit(inheriting(batch.collect)).result()
                assert {(row.rate, row.version) for row in again} == set(rows)
            if window == 1 and len(windows[1]) == 2:
                raise RuntimeError("the sink is away")

        with pytest.raises(Exception, match="the sink is away"):
            drain(frame.writeStream.foreachBatch(take), tmp_path / "ck")
        drain(frame.writeStream.foreachBatch(take), tmp_path / "ck")
        kept = table.state().kept
    rates = {window: turns[0][0][0] for window, turns in windows.items()}
    assert all(len(turn) == 1 and turn == turns[0] for turns in windows.values() for turn in turns)
    assert [len(turns) for turns in windows.values()] == [2, 4, 2]
    assert rates == {0: 0.0, 1: 1.0, 2: 2.0}
    assert kept == (windows[1][0][0][1], windows[2][0][0][1], kept[-1])


@pytest.mark.slow
@pytest.mark.parametrize(
    "when",
    [
        "listed",
        pytest.param("changed", marks=pytest.mark.long),
        pytest.param("in a task", marks=pytest.mark.long),
    ],
)
def test_a_kill_between_pin_and_commit_shows_a_window_the_version_of_then(
    spark: SparkSession, tmp_path: Path, when: str
) -> None:
    """The driver is killed while the table changes; the window is run again by another one."""
    for ids in ("ab", "cd", "ef"):
        put(tmp_path / "in", ids, "EUR", "EUR")
    put_rates(tmp_path / "rates", EUR=1.0)
    (tmp_path / "case").write_text(json.dumps(when))
    run_driver("side_pin", tmp_path, 2, killed=True)
    side_pin.run(spark, tmp_path)
    found = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("out-*.json")}
    again = {} if when == "in a task" else {"out-1-1": [["c", 1.0, "v1"], ["d", 1.0, "v1"]]}
    assert found == {
        "out-0-0": [["a", 1.0, "v1"], ["b", 1.0, "v1"]],
        "out-1-0": [["c", 1.0, "v1"], ["d", 1.0, "v1"]],
        **again,
        "out-2-0": [["e", 2.0, "v2"], ["f", 2.0, "v2"]],
    }


@pytest.mark.slow
def test_control_keeps_its_place_and_reaches_the_next_operator(
    spark: SparkSession, tmp_path: Path
) -> None:
    script = renumbered(turns("D1 I(a) D2 D3 E(b)", "B(c) D4 I(d) D5"))
    source = scripted(spark, tmp_path / "one", script, tasks=1, seed=IN_ORDER)
    values = pa.table({"v": [1, 2, 3, 4, 5], "more": [11, 12, 13, 14, 15]})
    pq.write_table(values, tmp_path / "more.parquet")
    with TableStore(tmp_path / "store") as store:
        table = store.folder("more", tmp_path / "more.parquet", every=None)
        sides = source.join_side(more=side_map(table, key="v")).stateless()
        made = sides.enrich("more", on="v").to_stream().select("k", F.col("more").alias("v"), "t")
        (only,) = on_spark(chain(sink()), made, tmp_path / "seen").values()
        log = seen(tmp_path / "seen", run(only, tmp_path / "ck"))
    assert reported(log, names_of(script)) == {0: "D11 a D12 D13 b", 1: "c D14 d D15"}


def test_version_and_size_reach_the_agent(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "in", "ab", "EUR", "USD")
    pe = sb.start(spark, job="tables", data_dir=tmp_path / "home", linger=5.0)
    try:
        with tables(tmp_path, EUR=1.0, USD=2.0) as (_, table):
            files = spark.readStream.schema(TRADES).parquet(str(tmp_path / "in"))
            sides = pe.stream(files).join_side(rates=side_map(table, key="currency"))
            made = sides.stateless().join_view("rates", on="currency", name="rated")
            writer = made.to_df().writeStream.format("noop")
            query = writer.option("checkpointLocation", str(tmp_path / "ck")).start()
            try:
                sides_reported = lambda: pe.agent.call("status", timeout=10.0)["sides"]  # noqa: E731
                (one,) = until(sides_reported, SECONDS, "figures of the table")
                assert (one["query"], one["operator"]) == (str(query.id), "rated")
                assert (one["input"], one["entries"]) == ("rates", 2)
                assert one["version"] == table.state().version
            finally:
                query.stop()
    finally:
        pe.stop(end_agent=True)


@pytest.fixture
def sides(spark: SparkSession, tmp_path: Path) -> Iterator[SideInputs]:
    rate = stream(spark.readStream.format("rate").load().selectExpr("value", "timestamp"))
    table = pa.table({"value": [1], "name": ["one"]})
    pq.write_table(table, tmp_path / "names.parquet")
    with TableStore(tmp_path / "store") as store:
        names = store.folder("names", tmp_path / "names.parquet", every=None)
        yield rate.with_watermark("timestamp", "1 second").join_side(
            names=side_map(names, key="value")
        )


@pytest.mark.parametrize(
    "change",
    [
        lambda of: of.options(order="arrival"),
        lambda of: of.enrich("names", on="value", missing="wait"),
        lambda of: of.enrich("names", on="value", missing="error"),
        lambda of: replace(of, groups="buckets"),
        lambda of: replace(of, main=Stream(of.main).with_watermark("timestamp", "1 s").plan),
        lambda of: replace(
            of, main=of.main.union(of.sources["names"].source.store.version_source(of.main.spark))
        ),
        lambda of: replace(of, sources={**of.sources, "last": side_singleton(Stream(of.main))}),
    ],
)
def test_what_needs_state_is_given_an_operator_and_explained(
    sides: SideInputs, change: Callable[[SideInputs], SideInputs]
) -> None:
    plain = replace(sides, main=replace(sides.main, event_time=None))
    assert plain.explain()[:2] == plain.stateless().explain()[:2]
    assert "chosen because all side inputs are tables" in plain.explain()[-1]
    assert plain.to_stream().plan.nodes == {}

    assert change(plain).explain()[0] == "Rows of all inputs are processed in the order of arrival."
    assert list(change(plain).to_stream().plan.nodes) != []


def stateless(act: Callable[[StatelessInputs], Any]) -> Callable[[SideInputs], Any]:
    return lambda sides: act(sides.stateless())


@pytest.mark.parametrize(
    ("act", "why"),
    [
        (
            stateless(lambda of: of.to_stream(options=OperatorOptions(metrics=True))),
            "metrics is a setting of an operator",
        ),
        (
            stateless(lambda of: of.to_stream(options=OperatorOptions(buckets=2))),
            "buckets is a setting .*; leave it out, ",
        ),
        (
            stateless(
                lambda of: of.map_batches(see, "id string", options=OperatorOptions(order_by="v"))
            ),
            "order_by is a set",
        ),
        (
            stateless(lambda of: of.join_view("names", on="value", own_keys=True)),
            "own_keys is a setting",
        ),
        (stateless(lambda of: of.window(10)), "window groups rows that are kept in state"),
        (stateless(lambda of: of.apply(see, "id string")), "apply needs .*; take map_batches, or"),
        (stateless(lambda of: of.options(order="event time")), "order is for rows that wait"),
        (lambda of: of.window(10).stateless().to_stream(), "windows of rows are kept in state"),
        (lambda of: of.options(lateness=1.0).stateless().to_stream(), "lateness is for rows that"),
        (
            lambda of: of.options(event_time="timestamp").stateless().explain(),
            "event_time is for rows that wait",
        ),
        (
            stateless(lambda of: of.enrich("names", on="value", missing="wait").to_stream()),
            "a row without a value would wait for its key",
        ),
        (
            lambda of: (
                Stream(of.main)
                .join_side(last=side_singleton(Stream(of.main)))
                .stateless()
                .explain()
            ),
            "`last`: rows that arrived on a stream are kept in state",
        ),
    ],
)
def test_what_needs_state_is_refused_where_it_is_said(
    sides: SideInputs, act: Callable[[SideInputs], Any], why: str
) -> None:
    with pytest.raises(SideDefinitionError, match=why):
        act(sides)


def test_what_holds_is_reported_before_anything_runs(sides: SideInputs) -> None:
    lines = sides.stateless().enrich("names", on="value").explain()
    assert "without state: there is no shuffle and no order, and no row waits" in lines[0]
    assert "one version of each table, pinned when its first row is joined" in lines[1]
    assert lines[2].startswith("Side input `names`: map by value, a table, once per process")
    assert lines[4].startswith("`names` is table names, checked on request; version v1")
