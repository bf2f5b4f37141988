"""Checkpoints that go back: batches come again, at the importer and at the exporter."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from streambroker import PE
from support.processes.waiting import until
from support.spark.checkpoints import batches, committed, offset, planned
from support.spark.feeds import DDL, Feed
from support.spark.session import SECONDS, Session, Sink, exporter_status, only_reader

pytestmark = pytest.mark.long
ROWS = 50


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    return Feed(tmp_path / "feed", rows_per_file=ROWS)


def import_all(jobs: Session, importer: PE, *, lossy: bool = False) -> Sink:
    """Read everything, from the checkpoint if there is one."""
    frame = importer.subscribe(
        "in", 'kind == "a"', start="earliest", schema=DDL, fail_on_data_loss=not lossy
    )
    return jobs.collect(frame, "in")[1]


def go_back(checkpoint: Path, batch: int, *, planned: bool = False) -> None:
    """Restore a checkpoint to where ``batch`` was the last committed one.

    With ``planned`` the offsets of the next batch are left, as a crash before its commit does.
    """
    for log, last in (("offsets", batch + planned), ("commits", batch)):
        for entry in (checkpoint / log).iterdir():
            number = entry.name.strip(".").removesuffix(".crc")
            if number.isdigit() and int(number) > last:
                entry.unlink()


def read_one_by_one(jobs: Session, feed: Feed, sink: Sink, files: int) -> None:
    """Let each file be an epoch and a batch of its own, committed."""
    checkpoint = jobs.folder / "ck-in"
    for _ in range(files):
        feed.release()
        sink.await_rows(feed.files * ROWS)
        until(lambda: committed(checkpoint) >= planned(checkpoint) >= 0, SECONDS, "a commit")


def batch_of(checkpoint: Path, epoch: int) -> int:
    """Return the number of the batch that has read an epoch."""
    (found,) = (
        b.number
        for b in batches(checkpoint)
        for first, next_ in b.ranges.values()
        if first <= epoch < next_
    )
    return found


def rows_of(feed: Feed, *files: int) -> set[tuple[int, float, str]]:
    return {row for file in files for row in feed.rows(file)}


@pytest.mark.parametrize("planned", [False, True], ids=["committed", "planned"])
def test_an_importer_from_an_older_checkpoint_reads_again_what_is_retained(
    jobs: Session, feed: Feed, planned: bool
) -> None:
    exporter, importer = jobs.pe("feed"), jobs.pe("alerts")
    jobs.publish(exporter, feed, "out", properties={"kind": "a"})
    read_one_by_one(jobs, feed, import_all(jobs, importer), 4)
    checkpoint = jobs.folder / "ck-in"
    before = [b.ranges for b in batches(checkpoint)]
    jobs.queries[-1].stop()
    third = batch_of(checkpoint, 2)
    go_back(checkpoint, third - 1, planned=planned)

    again = import_all(jobs, importer)
    again.await_rows(2 * ROWS)
    feed.release()
    again.await_rows(3 * ROWS)

    assert set(again.rows) == rows_of(feed, 2, 3, 4)
    assert max(again.rows.values()) == 1
    if planned:
        assert set(again.rows_of[third]) == rows_of(feed, 2)
        assert [b.ranges for b in batches(checkpoint)][: third + 1] == before[: third + 1]
    until(lambda: not only_reader(exporter, "out")["planned"], SECONDS, "acknowledged")
    reader = only_reader(exporter, "out")
    assert reader["delivered"] == 5 * ROWS, "a replay counts once"


def test_an_importer_from_an_older_checkpoint_stops_where_epochs_are_gone_or_counts_them(
    jobs: Session, feed: Feed
) -> None:
    """It stops, and goes on with ``fail_on_data_loss=False``, which says how much was gone."""
    exporter, importer = jobs.pe("feed"), jobs.pe("alerts")
    jobs.publish(exporter, feed, "out", properties={"kind": "a"}, buffer={"maxBytes": "4Ki"})
    read_one_by_one(jobs, feed, import_all(jobs, importer), 6)
    jobs.queries[-1].stop()
    checkpoint = jobs.folder / "ck-in"
    (stream,) = offset(checkpoint, committed(checkpoint)).streams
    reported = exporter_status(exporter, "out")["streams"][stream]
    last_gone = reported["next"] - reported["retained"] - 1
    assert last_gone > 1
    go_back(checkpoint, batch_of(checkpoint, 0))

    again = import_all(jobs, importer)
    with pytest.raises(StreamingQueryException) as stopped:
        jobs.queries[-1].awaitTermination(int(SECONDS))

    assert f"epochs 1 to {last_gone} of stream {stream} are gone: " in str(stopped.value)
    assert not again.rows
    jobs.queries.pop()

    lossy = import_all(jobs, importer, lossy=True)
    lossy.await_rows((6 - last_gone - 1) * ROWS)
    feed.release()
    lossy.await_rows((7 - last_gone - 1) * ROWS)

    assert set(lossy.rows) == rows_of(feed, *range(last_gone + 1, 7))
    assert max(lossy.rows.values()) == 1
    until(lambda: committed(checkpoint) >= planned(checkpoint), SECONDS, "a commit")
    assert list(offset(checkpoint, committed(checkpoint)).lost.values()) == [
        (last_gone, last_gone * ROWS)
    ]
    assert jobs.queries[-1].exception() is None


def test_a_batch_that_the_exporter_commits_again_is_one_epoch(jobs: Session, feed: Feed) -> None:
    exporter, importer = jobs.pe("feed"), jobs.pe("alerts")
    query = jobs.publish(exporter, feed, "out", properties={"kind": "a"})
    sink = import_all(jobs, importer)
    read_one_by_one(jobs, feed, sink, 3)
    checkpoint = jobs.folder / "ck-feed-out"
    until(lambda: committed(checkpoint) == 2, SECONDS, "the exporter's third commit")
    query.stop()
    go_back(checkpoint, 1, planned=True)

    jobs.publish(exporter, feed, "out", properties={"kind": "a"})
    feed.release()
    sink.await_rows(4 * ROWS)

    (stream,) = exporter_status(exporter, "out")["streams"].values()
    assert (stream["next"], stream["rows"]) == (4, 4 * ROWS)
    assert set(sink.rows) == rows_of(feed, 0, 1, 2, 3)
    assert max(sink.rows.values()) == 1
