"""What only Spark Connect has: a server that outlives its clients, and that can be killed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql.streaming.query import StreamingQuery

import streambroker as sb
from streambroker import PE
from streambroker.errors import ClassicSessionRequiredError
from streambroker.patterns import Pattern
from support.processes.jobs import Broker
from support.processes.waiting import until
from support.spark.connect import ConnectServer
from support.spark.feeds import DDL, Feed, Row, row
from support.spark.session import SECONDS, Session
from support.spark.tables import Table

TRADES = {"kind": "trade"}


def write_trades(jobs: Session, pe: PE, **settings: object) -> StreamingQuery:
    """Import trades and write them."""
    frame = pe.subscribe("in", 'kind == "trade"', start="earliest", schema=DDL, **settings)  # type: ignore[arg-type]
    return Table(jobs, "trades").write(frame)


def rows_of(feed: Feed, *, first: int = 0, above: float = -1.0) -> Counter[Row]:
    """Return the rows of the released files from the first one on."""
    every = (row(line) for file in range(first, feed.files) for line in feed.lines(file))
    return Counter(one for one in every if one[1] > above)


def test_a_search_for_patterns_on_spark_connect_needs_a_pe(jobs: Session, tmp_path: Path) -> None:
    pe = jobs.pe("alerts")
    frame = jobs.files(Feed(tmp_path / "feed"))
    dear = Pattern.begin("dear").where("price > 40")

    with pytest.raises(ClassicSessionRequiredError, match=r"Make the stream with pe\.stream"):
        sb.stream(frame).match(dear, key="name")

    assert pe.stream(frame).match(dear, key="name").to_df().isStreaming


def test_queries_outlive_their_client_and_the_next_one_adopts_the_agent(
    server: ConnectServer, tmp_path: Path, broker: Broker
) -> None:
    id_ = "5bd6f2a0-2f7b-4d6e-9d5c-0d8f3c0a7e11"
    first = Session(server.session(id_), tmp_path, broker.url)
    feed = Feed(tmp_path / "feed")
    exporter, importer = first.pe("feed", linger=None), first.pe("alerts", linger=None)
    table = Table(first, "trades")
    write_trades(first, importer)
    first.publish(exporter, feed, "out", properties=TRADES)
    feed.release()
    table.await_rows(rows_of(feed))
    for pe in (exporter, importer):
        pe.stop()

    second = Session(server.session(id_), tmp_path, broker.url)
    again = [second.pe("feed"), second.pe("alerts")]
    second.queries += second.spark.streams.active
    feed.release()

    Table(second, "trades").await_rows(rows_of(feed))
    assert [pe.agent.location for pe in again] == [exporter.agent.location, importer.agent.location]
    reading = str(first.queries[0].id)
    until(
        lambda: reading in again[1].status()["imports"]["queries"],
        SECONDS,
        "the query is reported by its new client",
    )
    second.end()


@pytest.mark.timeout(1_200)  # it starts the server and its queries twice
def test_after_a_kill_of_the_server_queries_go_on_from_their_checkpoints(
    server: ConnectServer, tmp_path: Path, broker: Broker
) -> None:
    feed = Feed(tmp_path / "feed")

    def run() -> tuple[Session, Table]:
        """Start both queries, and release more files."""
        jobs = Session(server.session(), tmp_path, broker.url)
        exporter, importer = jobs.pe("feed"), jobs.pe("alerts")
        jobs.publish(exporter, feed, "out", properties=TRADES)
        table = Table(jobs, "trades")
        write_trades(jobs, importer)
        feed.release(3)
        return jobs, table

    jobs, table = run()
    until(lambda: bool(table.rows), SECONDS, "the first rows")
    feed.release(3)
    server.kill()
    server.start()
    for pe in jobs.pes:
        pe.stop()
    jobs, table = run()
    table.await_rows(rows_of(feed))
    jobs.end()
