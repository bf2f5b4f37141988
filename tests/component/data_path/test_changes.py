"""Changes of imports and exports while their queries run, counted row by row."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest

import streambroker as sb
from support.processes.forks import CLI, program
from support.processes.jobs import Broker
from support.processes.waiting import until
from support.spark.checkpoints import committed, offset
from support.spark.feeds import DDL, Feed, Row
from support.spark.session import SECONDS, Session
from support.spark.tables import Table

pytestmark = pytest.mark.both_kinds
TRADES = {"kind": "trade"}


def release(feed: Feed, *, above: float = -1.0) -> Counter[Row]:
    """Release two files, and return their rows above a price."""
    feed.release(2)
    last = range(feed.files - 2, feed.files)
    return Counter(row for file in last for row in feed.rows(file) if row[1] > above)


def test_rows_arrive_once_and_a_filter_changes_while_both_queries_run(
    jobs: Session, tmp_path: Path
) -> None:
    feed = Feed(tmp_path / "feed")
    exporter, importer = jobs.pe("feed"), jobs.pe("alerts")
    jobs.publish(exporter, feed, "out", properties=TRADES, archive={"maxAge": "1h"})
    table = Table(jobs, "trades")
    table.write(importer.subscribe("in", 'kind == "trade"', start="earliest", schema=DDL))
    expected = release(feed)
    table.await_rows(expected)
    importer.imports["in"].set_filter("price > 20.0").wait_applied("60s")
    table.await_rows(expected + release(feed, above=20.0))

    held = importer.imports["in"].read(schema=DDL).collect()
    every = Counter(row for file in range(feed.files) for row in feed.rows(file) if row[1] > 20.0)
    assert Counter(map(tuple, held)) == every


def test_the_changes_of_the_demonstration_hold_for_all_rows_that_come_after_them(
    jobs: Session, tmp_path: Path, broker: Broker
) -> None:
    """A program, REST and the command line change ports; then the query stops and returns."""
    airports, delays = jobs.pe("airports"), jobs.pe("delays")
    ports = {"jfk": {"airport": "JFK"}, "lga": {"airport": "LGA"}, "weather": {"quality": "raw"}}
    feeds = {
        port: Feed(tmp_path / port, rows_per_file=50, first_line=10_000 * number)
        for number, port in enumerate(ports)
    }
    for port, properties in ports.items():
        jobs.publish(airports, feeds[port], port, properties=properties)
    frame = delays.subscribe("in", 'airport == "JFK"', start="earliest", schema=DDL)
    table = Table(jobs, "delays")
    query = table.write(frame)
    expected = release(feeds["jfk"])
    table.await_rows(expected)

    wider = 'airport == "JFK" || airport == "LGA" || quality == "checked"'
    delays.imports["in"].set_subscription(wider).wait_applied("60s")
    expected += release(feeds["lga"]) + release(feeds["jfk"])
    table.await_rows(expected)

    sb.connect(broker.url).set_properties("airports/0/weather", {"quality": "checked"})
    expected += release(feeds["weather"])
    table.await_rows(expected)

    command = [*CLI, "set-filter", "--url", broker.url, "delays", "0", "in", "price > 20.0"]
    changing = program(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    said = changing.communicate(timeout=SECONDS)
    assert changing.returncode == 0, said

    def pinned() -> bool:
        last = committed(table.checkpoint)
        return offset(table.checkpoint, last).filter == "price > 20.0"

    until(pinned, SECONDS, "a batch with the filter")
    for feed in feeds.values():
        expected += release(feed, above=20.0)
    table.await_rows(expected)

    query.stop()
    for feed in feeds.values():
        expected += release(feed, above=20.0)
    table.write(frame)
    table.await_rows(expected)
