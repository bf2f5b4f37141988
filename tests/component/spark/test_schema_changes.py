"""Columns that an exporter adds and widens between two runs, as importing queries meet them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from pe_agent.transport.flight_errors import AgentRefusedError
from support.spark.feeds import Feed
from support.spark.session import SECONDS, Session, Sink, exporter_status

FIRST = ("cast(line AS int) AS line", "name")
ADDED = (*FIRST, "cast(line * 2 AS int) AS twice")
WIDER = ("line", "name", "cast(line * 2 AS int) AS twice")


class Rows(Sink):
    """Collects the rows of batches whatever their columns, each batch once."""

    def __call__(self, frame: DataFrame, batch: int) -> None:
        self.rows_of[batch] = [tuple(row) for row in frame.collect()]

    @property
    def counted(self) -> Counter[tuple[Any, ...]]:
        return Counter[tuple[Any, ...]](self.rows)


def test_added_and_widened_columns_lose_double_and_cast_nothing(
    jobs: Session, tmp_path: Path
) -> None:
    feed = Feed(tmp_path / "feed", rows_per_file=50)
    exporter, importer = jobs.pe("feed"), jobs.pe("alerts")

    def publish(columns: tuple[str, ...]) -> None:
        for query in jobs.queries:
            if query.name == "published":
                query.stop()
        frame = jobs.files(feed).selectExpr(*columns)
        checkpoint = jobs.folder / "ck-feed"
        jobs.queries.append(
            exporter.publish(
                frame, "out", properties={"kind": "a"}, checkpoint=checkpoint,
                query_name="published",
            )
        )  # fmt: skip

    def read(port: str, schema: str, rows: Rows) -> Any:
        frame = importer.subscribe(port, 'kind == "a"', start="earliest", schema=schema)
        query, _ = jobs.collect(frame, port, sink=rows)
        return query

    publish(FIRST)
    old, new = Rows(), Rows()
    reading = read("old", "line int, name string", old)
    feed.release(1)
    old.await_rows(50)

    publish(ADDED)
    read("new", "line bigint, twice int", new)
    feed.release(1)
    old.await_rows(100)
    new.await_rows(100)

    publish(WIDER)
    feed.release(1)
    new.await_rows(150)
    with pytest.raises(StreamingQueryException, match=r"`line` is bigint from epoch \d+ on"):
        reading.awaitTermination(int(SECONDS))
    read("old", "line bigint, name string", old)
    old.await_rows(150)

    lines = [line for file in range(3) for line in feed.lines(file)]
    assert old.counted == Counter((line, f"name {line % 11}") for line in lines)
    first = feed.lines(0)
    assert new.counted == Counter((n, None if n in first else n * 2) for n in lines)
    (stream,) = exporter_status(exporter, "out")["streams"].values()
    assert [v["version"] for v in stream["schemaVersions"]] == [1, 2, 3]


def test_columns_that_the_policy_refuses_are_refused_before_anything_changes(
    jobs: Session, tmp_path: Path
) -> None:
    feed = Feed(tmp_path / "feed", rows_per_file=50)
    exporter, importer = jobs.pe("feed"), jobs.pe("alerts")
    query = jobs.publish(exporter, feed, "out", properties={"kind": "a"})
    frame = importer.subscribe("in", 'kind == "a"', start="earliest", schema="name string")
    rows = Rows()
    jobs.collect(frame, "in", sink=rows)
    feed.release(1)
    rows.await_rows(50)
    query.stop()

    with pytest.raises(AgentRefusedError, match="would break: default/alerts/0/in") as refused:
        exporter.publish(jobs.files(feed).drop("name"), "out", checkpoint=jobs.folder / "ck-other")
    assert refused.value.code == "SchemaIncompatible"
    feed.release(1)
    jobs.publish(exporter, feed, "out")
    rows.await_rows(100)
    assert sum(rows.counted.values()) == 100
