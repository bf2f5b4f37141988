"""Ends on Spark: of a stream, because its job says so, and of an export's patience."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from pe_agent.job.ports import QueryActiveError
from support.processes.waiting import until
from support.spark.feeds import DDL, Feed
from support.spark.session import SECONDS, Session, exporter_status, only_reader


def test_an_end_is_said_after_the_query_and_taken_back_by_the_next_rows(
    jobs: Session, tmp_path: Path
) -> None:
    feed, exporter = Feed(tmp_path / "feed"), jobs.pe("feed")
    query = jobs.publish(exporter, feed, "out", properties={"kind": "a"})
    feed.release()

    def published(batch: int) -> None:
        until(
            lambda: exporter_status(exporter, "out")["publisher"]["batch"] == batch,
            SECONDS,
            f"batch {batch} is published",
        )

    published(0)
    with pytest.raises(QueryActiveError):
        exporter.exports["out"].finish()
    assert not exporter_status(exporter, "out")["ended"]
    query.stop()
    exporter.exports["out"].finish()
    assert exporter_status(exporter, "out")["ended"]
    jobs.publish(exporter, feed, "out", properties={"kind": "a"})
    assert exporter_status(exporter, "out")["ended"]
    feed.release()
    published(1)
    assert not exporter_status(exporter, "out")["ended"]


@pytest.mark.slow
def test_an_export_with_a_wait_limit_goes_on_and_its_slow_reader_learns_what_it_lost(
    jobs: Session, tmp_path: Path
) -> None:
    feed = Feed(tmp_path / "feed")
    exporter, importer = jobs.pe("feed"), jobs.pe("alerts")
    buffer = {"maxBytes": "64Ki", "waitLimit": "1s"}
    jobs.publish(exporter, feed, "out", properties={"kind": "a"}, buffer=buffer)
    frame = importer.subscribe("in", 'kind == "a"', start="earliest", schema=DDL)
    query, sink = jobs.hold(frame, "in")
    feed.release()
    sink.await_rows(1)
    sink.hold()
    feed.release(16)
    until(
        lambda: exporter_status(exporter, "out")["publisher"]["batch"] == 16,
        SECONDS,
        "the exporter goes on",
    )
    reader = only_reader(exporter, "out")
    assert (reader["policy"], reader["turned"], reader["turns"]) == ("wait", True, 1)
    sink.release()

    def through() -> bool:
        reader = only_reader(exporter, "out")
        return list(reader["positions"].values()) == [17] and not reader["planned"]

    until(through, SECONDS, "the reader has reached the head")
    reader = only_reader(exporter, "out")
    epochs, rows = reader["dropped"]
    assert epochs > 0
    assert reader["delivered"] + rows == 17 * feed.rows_per_file
    assert sum(sink.rows.values()) == reader["delivered"]
    assert max(sink.rows.values()) == 1
    assert not reader["turned"]
    assert query.exception() is None


@pytest.mark.both_kinds
def test_a_query_ends_when_its_exports_have_ended(jobs: Session, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "feed")
    exporter, importer = jobs.pe("feed"), jobs.pe("alerts")
    publishing = jobs.publish(exporter, feed, "out", properties={"kind": "a"})
    frame = importer.subscribe("in", 'kind == "a"', start="earliest", schema=DDL, stop_at_end=True)
    query, sink = jobs.collect(frame, "in")
    feed.release(2)
    sink.await_rows(2 * feed.rows_per_file)
    publishing.processAllAvailable()
    publishing.stop()
    exporter.exports["out"].finish()

    query.awaitTermination(int(SECONDS))

    assert not query.isActive
    assert sink.rows == Counter(row for file in range(2) for row in feed.rows(file))
