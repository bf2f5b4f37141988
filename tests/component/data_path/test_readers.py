"""Readers in Spark: triggers, restarts, several queries, lost agents, changes of schema."""

from __future__ import annotations

import json
import os
import shutil
import signal
import uuid
from contextlib import redirect_stdout
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.listener import StreamingQueryProgress

from pe_agent.agent.process import read_address
from pe_agent.spark.pushed_filters import PUSHDOWN
from support.processes.waiting import until
from support.spark.checkpoints import batches, committed, offset, planned
from support.spark.feeds import Feed
from support.spark.session import SECONDS, Session, Sink, exporter_status

SCHEMA = "line bigint, price double, name string"
WAIT_MS = 500
"""Half of what a source waits for news that has a query to itself."""


def rows_of(feed: Feed, *files: int) -> set[tuple[int, float, str]]:
    return {row for file in files for row in feed.rows(file)}


def read(jobs: Session, name: str = "in", **trigger: Any) -> tuple[Any, Sink]:
    importer = next(p for p in jobs.pes if p.key.job == "alerts")
    frame = importer.subscribe("in", 'kind == "a"', start="earliest", schema=SCHEMA)
    return jobs.collect(frame, name, **trigger)


@pytest.fixture
def feed(jobs: Session, tmp_path: Path) -> Feed:
    """One exporter whose files are published one by one, and an importing job without query."""
    feed = Feed(tmp_path / "feed", rows_per_file=50)
    jobs.publish(jobs.pe("feed"), feed, "out", properties={"kind": "a"})
    jobs.pe("alerts")
    return feed


def await_epochs(jobs: Session, count: int) -> None:
    until(
        lambda: (
            sum(s["next"] for s in exporter_status(jobs.pes[0], "out")["streams"].values()) >= count
        ),
        SECONDS,
        f"{count} epochs published",
    )


def await_commit(checkpoint: Path) -> None:
    """Wait until all that was planned is committed: what was only read is read again."""
    until(lambda: committed(checkpoint) >= planned(checkpoint) >= 0, SECONDS, "a commit")


def test_a_query_that_starts_in_the_archive_reads_what_another_has_read(
    jobs: Session, tmp_path: Path
) -> None:
    feed = Feed(tmp_path / "archived", rows_per_file=50)
    exporter, importer = jobs.pe("feed"), jobs.pe("alerts")
    settings = {"buffer": {"maxBytes": 1}, "archive": {"maxAge": timedelta(hours=1)}}
    jobs.publish(exporter, feed, "out", properties={"kind": "a"}, **settings)
    first = importer.subscribe("in", 'kind == "a"', start="earliest", schema=SCHEMA)
    _, sink = jobs.collect(first, "first")
    for file in range(2):
        feed.release(1)
        sink.await_rows(50 * (file + 1))
    again = importer.subscribe("again", 'kind == "a"', start="-1h", schema=SCHEMA)
    query, replayed = jobs.collect(again, "again", availableNow=True)
    assert query.awaitTermination(int(SECONDS))
    assert set(replayed.rows) == rows_of(feed, 0, 1)


def test_a_batch_read_has_what_the_export_keeps_and_counts_for_no_reader(
    jobs: Session, tmp_path: Path
) -> None:
    feed = Feed(tmp_path / "archived", rows_per_file=50)
    exporter, importer = jobs.pe("feed"), jobs.pe("alerts")
    archive = {"archive": {"maxAge": timedelta(hours=1)}, "buffer": {"maxBytes": 1}}
    jobs.publish(exporter, feed, "out", properties={"kind": "a"}, **archive)
    importer.subscribe("in", 'kind == "a"', schema=SCHEMA)
    feed.release(2)
    await_epochs(jobs, 2)
    frame = importer.imports["in"].read()
    assert set(frame.collect()) == rows_of(feed, 0, 1)
    feed.release(1)
    await_epochs(jobs, 3)
    assert set(frame.collect()) == rows_of(feed, 0, 1)
    assert frame.join(frame.select("line"), "line").count() == 100
    assert importer.imports["in"].read().count() == 150
    assert importer.imports["in"].read("-1h", filter="line < 0").count() == 0
    assert importer.imports["in"].read(end="-1h").count() == 0
    named = importer.imports["in"].read(schema="name string", source=True)
    assert {row["_source"]["job"] for row in named.limit(3).collect()} == {"feed"}
    status = exporter_status(exporter, "out")
    assert status["readers"] == {}
    assert status["held"] == 0


@pytest.mark.parametrize("pushes", [False, True])
def test_conditions_of_a_batch_read_are_evaluated_by_its_exporters(
    jobs: Session, tmp_path: Path, pushes: bool
) -> None:
    feed = Feed(tmp_path / "archived", rows_per_file=50)
    exporter, importer = jobs.pe("feed"), jobs.pe("alerts")
    archive = {"archive": {"maxAge": timedelta(hours=1)}}
    jobs.publish(exporter, feed, "out", properties={"kind": "a"}, **archive)
    importer.subscribe("in", 'kind == "a"', schema=SCHEMA)
    importer.imports["in"].set_filter("line >= 10")
    feed.release(1)
    await_epochs(jobs, 1)
    wanted = {one for one in rows_of(feed, 0) if 10 <= one[0] < 20 and one[1] > 5 and "1" in one[2]}

    jobs.spark.conf.set(PUSHDOWN, str(pushes).lower())
    try:
        frame = importer.imports["in"].read()
        chosen = frame.where("line < 20 AND price > 5 AND name LIKE '%1%'")
        assert set(chosen.collect()) == wanted
        with redirect_stdout(StringIO()) as plan:
            chosen.explain()
    finally:
        jobs.spark.conf.unset(PUSHDOWN)

    assert wanted
    filtered = next(line for line in plan.getvalue().splitlines() if "Filter" in line)
    assert ("line" in filtered, "price" in filtered) == (not pushes, True)


def test_available_now_reads_to_the_head_and_ends_and_goes_on_next_time(
    jobs: Session, feed: Feed
) -> None:
    feed.release(2)
    await_epochs(jobs, 2)
    query, sink = read(jobs, availableNow=True)
    assert query.awaitTermination(int(SECONDS))
    assert set(sink.rows) == rows_of(feed, 0, 1)

    feed.release(1)
    await_epochs(jobs, 3)
    query, again = read(jobs, availableNow=True)
    assert query.awaitTermination(int(SECONDS))

    assert set(again.rows) == rows_of(feed, 2)


def test_a_stopped_query_goes_on_from_its_checkpoint_without_waiting_for_its_lease(
    jobs: Session, feed: Feed
) -> None:
    feed.release(1)
    query, sink = read(jobs)
    sink.await_rows(50)
    await_commit(jobs.folder / "ck-in")
    query.stop()
    feed.release(2)
    _, again = read(jobs)
    again.await_rows(100)

    assert set(again.rows) == rows_of(feed, 1, 2)


def test_two_queries_on_one_import_are_two_readers(jobs: Session, feed: Feed) -> None:
    importer = jobs.pes[1]
    frame = importer.subscribe("in", 'kind == "a"', start="earliest", schema=SCHEMA)
    _, one = jobs.collect(frame, "one")
    _, two = jobs.collect(frame, "two")
    feed.release(3)
    one.await_rows(150)
    two.await_rows(150)

    assert set(one.rows) == set(two.rows) == rows_of(feed, 0, 1, 2)
    readers = exporter_status(jobs.pes[0], "out")["readers"]
    assert len(readers) == 2


def test_a_copied_checkpoint_does_not_run_beside_the_original(
    jobs: Session, feed: Feed, tmp_path: Path
) -> None:
    feed.release(1)
    _, sink = read(jobs)
    sink.await_rows(50)
    await_commit(jobs.folder / "ck-in")
    # Spark refuses a file whose checksum is of another text, where it has left one beside it.
    shutil.copytree(
        jobs.folder / "ck-in", jobs.folder / "ck-copy", ignore=shutil.ignore_patterns("*.crc")
    )
    # With the same query id Spark would take the copy for a restart and stop the original.
    (jobs.folder / "ck-copy" / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
    copy, _ = read(jobs, "copy")

    with pytest.raises(StreamingQueryException, match="in use by another active query"):
        copy.awaitTermination(int(SECONDS))


def test_source_and_columns_say_whence_a_row_came(jobs: Session, feed: Feed) -> None:
    importer = jobs.pes[1]
    frame = importer.subscribe(
        "in", 'kind == "a"', start="earliest", schema=SCHEMA, columns=["line"], source=True
    )
    assert frame.columns == ["line", "_source"]
    _, sink = jobs.collect(frame, "source")
    feed.release(2)
    sink.await_rows(100)

    seen = [
        (line, source["job"], source["port"], source["epoch"])
        for rows in sink.rows_of.values()
        for line, source in rows
    ]
    assert sorted(seen) == [(line, "feed", "out", line // 50) for line in range(100)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "which",
    [
        pytest.param(0, id="exporter"),
        pytest.param(1, id="importer", marks=pytest.mark.long),
    ],
)
def test_an_agent_that_is_killed_comes_back_and_nothing_is_lost(
    jobs: Session, feed: Feed, which: int
) -> None:
    feed.release(1)
    _, sink = read(jobs)
    sink.await_rows(50)
    home = jobs.folder / ("home-feed", "home-alerts")[which]
    before = read_address(home)
    assert before is not None
    os.kill(before["pid"], signal.SIGKILL)

    def is_new() -> bool:
        address = read_address(home)
        return address is None or address["pid"] != before["pid"]

    until(is_new, SECONDS, "a new agent")
    feed.release(2)
    sink.await_rows(150)

    after = read_address(home)
    assert after is not None
    assert after["location"] == before["location"]
    assert set(sink.rows) == rows_of(feed, 0, 1, 2)
    assert max(sink.rows.values()) == 1


def test_an_exporter_with_a_new_checkpoint_opens_a_successor_that_is_read_from_its_first_epoch(
    jobs: Session, feed: Feed
) -> None:
    feed.release(1)
    _, sink = read(jobs)
    sink.await_rows(50)
    jobs.queries[0].stop()
    feed.release(1)
    jobs.publish(jobs.pes[0], feed, "out", checkpoint=jobs.folder / "ck-second")
    sink.await_rows(150)

    assert {r: n for r, n in sink.rows.items() if n > 1} == dict.fromkeys(rows_of(feed, 0), 2)
    assert set(sink.rows) == rows_of(feed, 0, 1)
    end = offset(jobs.folder / "ck-in", committed(jobs.folder / "ck-in"))
    assert len(end.streams) == 2


def test_an_import_beside_another_source_does_not_hold_it_up(
    jobs: Session, feed: Feed, tmp_path: Path
) -> None:
    importer = jobs.pes[1]
    frame = importer.subscribe("in", 'kind == "a"', start="earliest", schema=SCHEMA)
    other = Feed(tmp_path / "other", rows_per_file=50, first_line=10_000)
    both = frame.union(jobs.files(other))
    published = importer.publish(
        both, "all", properties={"kind": "all"}, checkpoint=jobs.folder / "ck-all"
    )
    jobs.queries.append(published)

    def await_rows(count: int) -> None:
        def there() -> bool:
            streams = exporter_status(importer, "all")["streams"].values()
            return bool(sum(s["rows"] for s in streams) == count)

        until(there, SECONDS, f"{count} rows of both sources")

    feed.release(1)
    other.release(1)
    await_rows(100)
    for file in range(3):
        other.release(1)
        await_rows(150 + 50 * file)

    (query,) = importer.status()["imports"]["queries"].values()
    assert query == {"exports": ["all"], "imports": 1, "foreign": True, "gated": False}

    def progress() -> list[StreamingQueryProgress]:
        return list(published.recentProgress)

    until(lambda: progress()[-1].batchId >= 3, SECONDS, "the progress of the last batch")
    asked = [p.durationMs["latestOffset"] for p in progress()[-3:]]
    assert min(asked) < WAIT_MS, asked


def test_an_idle_import_is_one_batch_and_no_more(jobs: Session, feed: Feed) -> None:
    _, sink = read(jobs)
    until(lambda: committed(jobs.folder / "ck-in") >= 0, SECONDS, "the first batch")
    last = jobs.queries[-1]
    until(
        lambda: (
            last.status["message"].startswith("Waiting for data")
            or not last.status["isTriggerActive"]
            or last.lastProgress is not None
        ),
        SECONDS,
        "idle",
    )
    numbers = [b.number for b in batches(jobs.folder / "ck-in")]
    feed.release(1)
    sink.await_rows(50)

    assert len(numbers) <= 2
    assert [b.ranges for b in batches(jobs.folder / "ck-in")][: len(numbers)] == [{}] * len(numbers)
