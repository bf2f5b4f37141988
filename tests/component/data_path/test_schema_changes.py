"""Columns that an exporter adds and widens between two runs, as importing queries meet them."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import date, datetime, timedelta
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from pe_agent.transport.flight_errors import AgentRefusedError
from streambroker import PE
from streambroker_core.model.schema import parse_ddl
from support.processes.waiting import until
from support.spark.feeds import Feed
from support.spark.session import PAUSE, SECONDS, Session, Sink, exporter_status

WIDENED = {
    "tinyint": "smallint", "smallint": "int", "int": "bigint", "float": "double",
    "date": "timestamp_ntz",
}  # fmt: skip
DAYS = ("date", "timestamp_ntz")
FIRST = ("cast(line AS int) AS line", "name")
ADDED = (*FIRST, "cast(line * 2 AS int) AS twice")
WIDER = ("line", "name", "cast(line * 2 AS int) AS twice")


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

    def read(port: str, schema: str) -> tuple[StreamingQuery, Sink]:
        frame = importer.subscribe(port, 'kind == "a"', start="earliest", schema=schema)
        return jobs.collect(frame, port)

    publish(FIRST)
    reading, old = read("old", "line int, name string")
    feed.release(1)
    old.await_rows(50)

    publish(ADDED)
    _, new = read("new", "line bigint, twice int")
    feed.release(1)
    old.await_rows(100)
    new.await_rows(100)

    publish(WIDER)
    feed.release(1)
    new.await_rows(150)
    with pytest.raises(StreamingQueryException, match=r"`line` is bigint from epoch \d+ on"):
        reading.awaitTermination(int(SECONDS))
    _, later = read("old", "line bigint, name string")
    later.await_rows(50)

    lines = [line for file in range(3) for line in feed.lines(file)]
    assert old.rows + later.rows == Counter((line, f"name {line % 11}") for line in lines)
    first = feed.lines(0)
    assert new.rows == Counter((n, None if n in first else n * 2) for n in lines)
    (stream,) = exporter_status(exporter, "out")["streams"].values()
    assert [v["version"] for v in stream["schemaVersions"]] == [1, 2, 3]


class Evolution:
    """Columns of successive runs of an exporter: each adds a column, widens one, or both."""

    def __init__(self, seed: int, runs: int) -> None:
        drawn = random.Random(seed)
        types = {"line": "int"}
        self.versions = [dict(types)]
        while len(self.versions) < runs:
            how = drawn.choice(["add", "widen", "both"])
            narrow = [name for name, kind in types.items() if kind in WIDENED]
            if how != "add" and narrow:
                name = drawn.choice(narrow)
                types[name] = WIDENED[types[name]]
            if how != "widen" or not narrow:
                types[f"c{len(self.versions)}"] = drawn.choice(sorted(WIDENED))
            self.versions.append(dict(types))

    def ddl(self, version: int) -> str:
        return ", ".join(f"{name} {kind}" for name, kind in self.versions[version].items())

    def columns(self, version: int) -> list[str]:
        """Return SQL that computes all columns from the number of a line."""
        day = "date_add(DATE'2026-01-01', int(line % 100))"
        return [
            f"CAST({'line' if name == 'line' else day if kind in DAYS else 'line % 100'}"
            f" AS {kind}) AS {name}"
            for name, kind in self.versions[version].items()
        ]

    def expected(self, lines: Mapping[int, int], names: Iterable[str]) -> list[dict[str, Any]]:
        """Return the rows of lines, each with its version; null before a column came."""
        return [
            {name: self._value(line, name, version) for name in names}
            for line, version in sorted(lines.items())
        ]

    def _value(self, line: int, name: str, version: int) -> Any:
        if name == "line":
            return line
        kind = self.versions[version].get(name)
        if kind is None:
            return None
        return date(2026, 1, 1) + timedelta(days=line % 100) if kind in DAYS else line % 100


class Reader:
    """A query that returns with the newest columns when it has stopped before wider ones."""

    def __init__(self, jobs: Session, importer: PE, port: str, ddl: str) -> None:
        self._jobs, self._importer, self._port = jobs, importer, port
        self._sinks: list[Sink] = []
        self.names = [column.name for column in parse_ddl(ddl)]
        self.start(ddl)

    def start(self, ddl: str) -> None:
        frame = self._importer.subscribe(
            self._port, 'kind == "a"', start="earliest", schema=ddl, source=True
        )
        self._query, sink = self._jobs.collect(frame, self._port)
        self._sinks.append(sink)

    def await_rows(self, count: int, newest: str) -> None:
        def there() -> bool:
            if not self._query.isActive:
                assert "SchemaWidened" in str(self._query.exception())
                self.start(newest)
            return len(self.rows) >= count

        until(there, SECONDS, f"{count} rows of {self._port}", pause_s=PAUSE)

    @property
    def rows(self) -> list[Any]:
        """The rows of each batch, in the order of their lines."""
        batches = {n: rows for sink in self._sinks for n, rows in sink.batches.items()}
        return sorted((row for rows in batches.values() for row in rows), key=itemgetter("line"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [pytest.param(n, marks=[pytest.mark.long] if n else []) for n in range(6)]
)
def test_random_evolutions_under_load_lose_double_and_cast_nothing(
    jobs: Session, tmp_path: Path, seed: int
) -> None:
    """Each run of the exporter is stopped while rows flow; a reader begins with each version."""
    evolution, feed = Evolution(seed, 5), Feed(tmp_path / "feed", rows_per_file=20)
    exporter, importer = jobs.pe("feed"), jobs.pe("alerts")
    readers = []
    for version in range(5):
        frame = jobs.files(feed).selectExpr(*evolution.columns(version))
        query = exporter.publish(
            frame, "out", properties={"kind": "a"}, checkpoint=jobs.folder / "ck-feed"
        )
        jobs.queries.append(query)
        readers.append(Reader(jobs, importer, f"in{version}", evolution.ddl(version)))
        feed.release()
        await_version(exporter, version)
        if version < 4:
            feed.release(2)
            query.stop()
    lines = [line for file in range(feed.files) for line in feed.lines(file)]
    newest = evolution.ddl(4)
    for reader in readers:
        reader.await_rows(len(lines), newest)

    firsts = first_epochs(exporter)
    epochs = {row["line"]: row["_source"]["epoch"] for row in readers[-1].rows}
    versions = {line: bisect_right(firsts, epoch) - 1 for line, epoch in epochs.items()}
    assert sorted(versions) == lines
    for reader in readers:
        found = [{name: as_day(row[name]) for name in reader.names} for row in reader.rows]
        assert found == evolution.expected(versions, reader.names)


def await_version(exporter: PE, number: int) -> None:
    """Wait until rows of a version are published, counted from 0."""
    until(lambda: len(first_epochs(exporter)) > number, SECONDS, f"rows of version {number}")


def first_epochs(exporter: PE) -> list[int]:
    """Return the first epoch of each version that was published; all are of one stream."""
    streams = exporter_status(exporter, "out")["streams"].values()
    assert len(streams) <= 1
    versions = [version for stream in streams for version in stream["schemaVersions"]]
    return [v["firstEpoch"] for v in versions if v["firstEpoch"] is not None]


def as_day(value: Any) -> Any:
    return value.date() if isinstance(value, datetime) else value


def test_columns_that_the_policy_refuses_are_refused_before_anything_changes(
    jobs: Session, tmp_path: Path
) -> None:
    feed = Feed(tmp_path / "feed", rows_per_file=50)
    exporter, importer = jobs.pe("feed"), jobs.pe("alerts")
    query = jobs.publish(exporter, feed, "out", properties={"kind": "a"})
    frame = importer.subscribe("in", 'kind == "a"', start="earliest", schema="name string")
    _, rows = jobs.collect(frame, "in")
    feed.release(1)
    rows.await_rows(50)
    query.stop()

    with pytest.raises(AgentRefusedError, match="would break: default/alerts/0/in") as refused:
        exporter.publish(jobs.files(feed).drop("name"), "out", checkpoint=jobs.folder / "ck-other")
    assert refused.value.code == "SchemaIncompatible"
    feed.release(1)
    jobs.publish(exporter, feed, "out")
    rows.await_rows(100)
    assert sum(rows.rows.values()) == 100
