"""Operators, patterns and side inputs do on Spark Connect what they do in a classic session."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streambroker.operators import Stream
from streambroker.patterns import DirectoryDiscoverer
from streambroker.side import TableStore, side_map
from support.processes.waiting import until
from support.spark.feeds import DDL, Feed, Row
from support.spark.operators import Multiply, SetFactor
from support.spark.session import SECONDS, Session
from support.spark.tables import Table

pytestmark = pytest.mark.both_kinds
TRADES = {"kind": "trade"}


class Trades:
    """A job that exports files, and the stream of a job that imports them."""

    def __init__(self, jobs: Session, folder: Path) -> None:
        self.feed = Feed(folder / "feed", rows_per_file=100)
        self.exporter, self.importer = jobs.pe("feed"), jobs.pe("alerts")
        jobs.publish(self.exporter, self.feed, "out", properties=TRADES)
        self.stream: Stream = self.importer.subscribe_stream(
            "in", 'kind == "trade"', start="earliest", schema=DDL
        )

    def release(self) -> list[Row]:
        """Release a file, and return its rows."""
        self.feed.release()
        return self.feed.rows(self.feed.files - 1)


@pytest.fixture
def trades(jobs: Session, tmp_path: Path) -> Trades:
    return Trades(jobs, tmp_path)


def test_an_operator_changes_by_a_control_tuple(jobs: Session, trades: Trades) -> None:
    cheap = trades.stream.where("price < 25").with_columns({"name": _upper()})
    table = Table(jobs, "multiplied")
    query = table.write(cheap.key_by("line").apply(Multiply, name="multiply").to_df())
    expected = Counter(_multiplied(trades.release(), 1.0))
    table.await_rows(expected)

    change = SetFactor(10.0)
    sent = trades.importer.operators.send(change, operator="multiply", delivery="BEGIN")
    sent.wait_applied("60s")
    expected += Counter(_multiplied(trades.release(), 10.0))

    table.await_rows(expected)
    assert query.isActive


def _upper() -> Any:
    from pyspark.sql import functions

    return functions.upper("name")


def _multiplied(rows: list[Row], factor: float) -> list[Row]:
    return [(line, price * factor, name.upper()) for line, price, name in rows if price < 25]


def rule(above: float, version: int) -> str:
    stages = [{"name": "dear", "where": f"price > {above}"}]
    return json.dumps([{"id": "dear", "version": version, "pattern": {"stages": stages}}])


def test_a_rule_changes_while_its_query_runs(jobs: Session, trades: Trades, tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "dear.json").write_text(rule(40.0, 1))
    found = trades.stream.match_rules(
        DirectoryDiscoverer(rules, interval=0.2),
        key="name",
        control_file=tmp_path / "checkpoint-found-rules",
    )
    table = Table(jobs, "found")
    query = table.write(_lines(found))
    expected = Counter((line, 1) for line, price, _ in trades.release() if price > 40.0)
    table.await_rows(expected)
    until(lambda: _matches(found) == {1: expected.total()}, SECONDS, "metrics of the first rule")

    (rules / "dear.json").write_text(rule(20.0, 2))
    until(lambda: _version(found) == 2, SECONDS, "the second version")
    expected += Counter((line, 2) for line, price, _ in trades.release() if price > 20.0)

    table.await_rows(expected)
    assert found.rules.running
    query.stop()
    until(lambda: not found.rules.running, SECONDS, "the thread of the rules has ended")


def _lines(found: Any) -> Any:
    return found.to_df().selectExpr("events.dear[0].line AS line", "version")


def _matches(found: Any) -> dict[int, int]:
    return {one.version: one.matches for one in found.rules.metrics()}


def _version(found: Any) -> int:
    (one,) = found.rules.current_pattern_processors()
    return int(one.version)


@pytest.mark.parametrize("stateless", [True, False])
def test_rows_are_joined_with_a_table_that_changes(
    jobs: Session, trades: Trades, tmp_path: Path, stateless: bool
) -> None:
    folder = tmp_path / "names"
    folder.mkdir()
    names = [f"name {number}" for number in range(11)]
    _write_names(folder, names, 1.0)
    store = TableStore(tmp_path / "store")
    try:
        sides = trades.stream.join_side(
            weights=side_map(store.folder("weights", folder, every=0.2), key="name")
        )
        sides = sides if stateless else sides.options(max_waiting_rows=1_000_000)
        table = Table(jobs, "joined")
        table.write(sides.enrich("weights", on="name").to_df().select("line", "weight"))
        expected = Counter((line, 1.0) for line, *_ in trades.release())
        table.await_rows(expected)

        _write_names(folder, names, 2.0)
        until(lambda: any(weight == 2.0 for _, weight in _release(table, trades)), SECONDS, "v2")
    finally:
        store.close()
    lines = Counter(line for line, _ in table.rows.elements())
    assert set(lines.values()) == {1}


def _write_names(folder: Path, names: list[str], weight: float) -> None:
    table = pa.table({"name": names, "weight": [weight] * len(names)})
    pq.write_table(table, folder / ".new")
    (folder / ".new").rename(folder / "names.parquet")


def _release(table: Table, trades: Trades) -> Counter[Any]:
    """Release a file, and return all rows when it has arrived."""
    trades.release()
    count = trades.feed.files * trades.feed.rows_per_file
    until(lambda: table.rows.total() >= count, SECONDS, f"{count} rows")
    return table.rows
