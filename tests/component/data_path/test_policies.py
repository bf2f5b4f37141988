"""What a slow importer does to an exporter, under ``wait`` and under ``drop``."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from streambroker import PE
from support.processes.waiting import until
from support.spark.checkpoints import committed, offset
from support.spark.feeds import DDL, Feed
from support.spark.session import SECONDS, HeldSink, Session, exporter_status, only_reader

SMALL = {"maxBytes": "64Ki"}


class Waiting(NamedTuple):
    """An exporter that waits, what it is fed with, and the sink it waits for."""

    feed: Feed
    exporter: PE
    sink: HeldSink


def all_rows(feed: Feed) -> set[tuple[int, float, str]]:
    return {row for file in range(feed.files) for row in feed.rows(file)}


def test_under_drop_every_row_is_delivered_filtered_or_dropped(
    jobs: Session, tmp_path: Path
) -> None:
    """A reader that is slower than the log is long loses its oldest epochs and is told how many."""
    feed = Feed(tmp_path / "feed")
    exporter, importer = jobs.pe("feed"), jobs.pe("alerts")
    jobs.publish(
        exporter, feed, "out", properties={"kind": "a"}, congestion_policy="drop", buffer=SMALL
    )
    frame = importer.subscribe(
        "in",
        'kind == "a"',
        filter="price > 20.0",
        start="earliest",
        schema=DDL,
    )
    query, sink = jobs.hold(frame, "in")
    feed.release()
    sink.await_rows(1)
    sink.hold()
    feed.release()
    until(lambda: sink.entered, SECONDS, "a batch is held")
    feed.release(14)
    until(
        lambda: exporter_status(exporter, "out")["publisher"]["batch"] == 15,
        SECONDS,
        "the exporter went on without its reader",
    )
    sink.release()
    checkpoint = jobs.folder / "ck-in"

    def through() -> bool:
        reader = only_reader(exporter, "out")
        return list(reader["positions"].values()) == [16] and not reader["planned"]

    until(through, SECONDS, "the reader has reached the head")

    reader = only_reader(exporter, "out")
    published = sum(s["rows"] for s in exporter_status(exporter, "out")["streams"].values())
    epochs, rows = reader["dropped"]
    assert epochs > 0
    assert rows == epochs * feed.rows_per_file
    assert published == 16 * feed.rows_per_file
    assert published == reader["delivered"] + reader["filtered"] + rows
    assert sum(sink.rows.values()) == reader["delivered"]
    assert set(sink.rows) < {r for r in all_rows(feed) if r[1] > 20.0}
    assert max(sink.rows.values()) == 1
    pinned = offset(checkpoint, committed(checkpoint)).dropped
    assert list(pinned.values()) == [(epochs, rows)]
    assert query.exception() is None


@pytest.fixture
def waiting(jobs: Session, tmp_path: Path) -> Waiting:
    """An exporter under ``wait`` that waits for its one importer, whose sink is held up."""
    feed = Feed(tmp_path / "feed")
    exporter, importer = jobs.pe("feed"), jobs.pe("alerts")
    jobs.publish(exporter, feed, "out", properties={"kind": "a"}, buffer=SMALL)
    frame = importer.subscribe("in", 'kind == "a"', start="earliest", schema=DDL)
    _, sink = jobs.hold(frame, "in")
    feed.release()
    sink.await_rows(1)
    sink.hold()
    feed.release(16)
    until(lambda: exporter_status(exporter, "out")["waiting_for"], SECONDS, "the exporter waits")
    return Waiting(feed, exporter, sink)


def test_under_wait_the_exporter_waits_names_the_reader_and_loses_nothing(
    waiting: Waiting,
) -> None:
    status = exporter_status(waiting.exporter, "out")
    assert status["waiting_for"] == ["default/alerts/0/in"]
    assert status["publisher"]["batch"] < 16

    waiting.sink.release()
    waiting.sink.await_rows(17 * waiting.feed.rows_per_file)

    assert set(waiting.sink.rows) == all_rows(waiting.feed)
    assert max(waiting.sink.rows.values()) == 1
    assert only_reader(waiting.exporter, "out")["dropped"] == [0, 0]


@pytest.mark.long
def test_a_query_whose_tasks_wait_for_room_stops_without_room(
    jobs: Session, waiting: Waiting
) -> None:
    query = jobs.queries[0]
    assert query.status["isTriggerActive"]
    query.stop()

    assert exporter_status(waiting.exporter, "out")["waiting_for"] == ["default/alerts/0/in"]


@pytest.mark.long
def test_a_change_to_drop_frees_a_waiting_exporter(waiting: Waiting) -> None:
    waiting.exporter.exports["out"].set_congestion_policy("drop").wait_applied(10)

    until(
        lambda: exporter_status(waiting.exporter, "out")["publisher"]["batch"] == 16,
        SECONDS,
        "the exporter goes on",
    )
