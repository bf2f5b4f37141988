"""Rows of imports and exports in Spark's progress, in sessions of both kinds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from pe_agent.streams import subscribe
from streambroker import PE
from support.processes.waiting import until
from support.spark.feeds import DDL, Feed
from support.spark.operators import Multiply, SetFactor
from support.spark.session import SECONDS, Session
from support.spark.tables import Table

pytestmark = pytest.mark.both_kinds
TRADES = {"kind": "trade"}
FILES, ROWS = 3, 100
TOTAL = FILES * ROWS


def observed(query: StreamingQuery) -> Counter[str]:
    """Return the rows of all metrics, added up over the batches of a query."""
    found = Counter[str]()
    for progress in query.recentProgress:
        for name, row in progress["observedMetrics"].items():
            # PySpark's client of Spark Connect makes a row of the fields of a row
            found[name] += row["values"][0] if "values" in row else row["rows"]
    return found


def input_rows(query: StreamingQuery) -> int:
    return sum(s["numInputRows"] for one in query.recentProgress for s in one["sources"])


def await_observed(query: StreamingQuery, expected: dict[str, int]) -> None:
    def seen() -> bool:
        found = observed(query)
        return all(found[name] >= rows for name, rows in expected.items())

    until(seen, SECONDS, f"{expected} in the progress")
    assert observed(query) == expected


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    return Feed(tmp_path / "feed", rows_per_file=ROWS)


@pytest.fixture
def exporting(jobs: Session, feed: Feed) -> StreamingQuery:
    """Publish files as trades; the agent of the job that imports has started, too."""
    return jobs.publish(jobs.pe("feed"), feed, "out", properties=TRADES)


@pytest.fixture
def importer(jobs: Session, exporting: StreamingQuery) -> PE:
    return jobs.pe("alerts")


def trades(pe: PE, port: str = "in") -> DataFrame:
    frame: DataFrame = pe.subscribe(port, 'kind == "trade"', start="earliest", schema=DDL)
    return frame


def test_the_progress_has_the_rows_of_each_import_and_export(
    jobs: Session, feed: Feed, exporting: StreamingQuery, importer: PE, tmp_path: Path
) -> None:
    both = trades(importer, "low").where("price < 25").union(trades(importer, "high"))
    query = importer.publish(both, "all", properties={}, checkpoint=tmp_path / "ck")
    jobs.queries.append(query)
    feed.release(FILES)
    low = sum(price < 25 for file in range(FILES) for _, price, _ in feed.rows(file))

    await_observed(exporting, {"streambroker.export.out": TOTAL})
    await_observed(
        query,
        {
            "streambroker.import.low": TOTAL,
            "streambroker.import.high": TOTAL,
            "streambroker.export.all": low + TOTAL,
        },
    )


def test_a_packed_import_counts_its_rows_and_no_control_tuples(
    jobs: Session, feed: Feed, importer: PE, tmp_path: Path
) -> None:
    stream: Any = importer.subscribe_stream("in", 'kind == "trade"', start="earliest", schema=DDL)
    rows = stream.map_batches(lambda batch: batch).publish(
        "rows", properties={}, checkpoint=tmp_path / "ck-rows"
    )
    found = stream.key_by("line").apply(Multiply, name="multiply")
    emitted = found.publish("emitted", properties={}, checkpoint=tmp_path / "ck-emitted")
    jobs.queries += [rows, emitted]
    counted = {"streambroker.import.in.2": TOTAL, "streambroker.export.emitted": TOTAL}
    feed.release(FILES)
    await_observed(rows, {"streambroker.import.in": TOTAL, "streambroker.export.rows": TOTAL})
    await_observed(emitted, counted)

    packed = input_rows(emitted)
    importer.operators.send(SetFactor(2.0), operator="multiply", delivery="BEGIN")
    until(lambda: input_rows(emitted) > packed, SECONDS, "the tuple is in each bucket")
    await_observed(emitted, counted)


def test_a_query_may_read_a_frame_twice_and_an_import_by_two_frames(
    jobs: Session, feed: Feed, importer: PE
) -> None:
    frame = trades(importer)
    twice = Table(jobs, "twice").write(frame.union(frame.where("price < 0")))
    joined = frame.alias("a").join(frame.alias("b"), "line")
    by_two = Table(jobs, "by-two").write(joined.select("line").union(frame.select("line")))
    two = Table(jobs, "two").write(frame.union(trades(importer)))
    feed.release(FILES)

    await_observed(twice, {"streambroker.import.in": TOTAL})
    await_observed(by_two, {"streambroker.import.in": TOTAL})
    await_observed(two, {"streambroker.import.in": TOTAL, "streambroker.import.in.2": TOTAL})


def test_a_checkpoint_of_a_query_without_the_metric_is_continued(
    jobs: Session, feed: Feed, importer: PE, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write() -> StreamingQuery:
        frame = trades(importer).dropDuplicates(["line"])
        return Table(jobs, "lines").write(frame)

    table = Table(jobs, "lines")
    with monkeypatch.context() as patched:
        patched.setattr(subscribe, "observe_rows", lambda frame, *_: frame)
        before = write()
    feed.release()
    table.await_rows(Counter(feed.rows(0)))
    assert not observed(before)
    before.stop()
    after = write()
    feed.release()

    await_observed(after, {"streambroker.import.in.2": ROWS})
    table.await_rows(Counter(feed.rows(0) + feed.rows(1)))
