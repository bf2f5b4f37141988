"""A query that publishes what it imports waits at its gate, and not in its tasks."""

from __future__ import annotations

from pathlib import Path

from pe_agent import PE
from support.feeds import DDL, Feed
from support.session import SECONDS, Session, exporter_status
from support.waiting import until

SMALL = {"maxBytes": "64Ki"}


def gated(relay: PE) -> bool:
    """Return whether the one query of a job waits because its export is full."""
    (query,) = relay.status()["imports"]["queries"].values()
    return bool(query["gated"])


def test_while_its_export_is_full_a_relay_holds_no_task_and_loses_nothing(
    jobs: Session, tmp_path: Path
) -> None:
    feed = Feed(tmp_path / "feed")
    exporter, relay, importer = jobs.pe("feed"), jobs.pe("relay"), jobs.pe("alerts")
    jobs.publish(exporter, feed, "out", properties={"kind": "a"})
    frame = relay.subscribe("in", 'kind == "a"', start="earliest", schema=DDL)
    kind = {"kind": "b"}
    jobs.queries.append(
        relay.publish(frame, "out", properties=kind, buffer=SMALL, checkpoint=tmp_path / "ck-relay")
    )
    wanted = importer.subscribe("in", 'kind == "b"', start="earliest", schema=DDL)
    _, sink = jobs.collect(wanted, "in")
    feed.release()
    sink.await_rows(1)
    sink.hold()
    feed.release(16)
    until(lambda: gated(relay), SECONDS, "the relay waits at its gate")
    at = exporter_status(relay, "out")["publisher"]["batch"]
    assert exporter_status(relay, "out")["waiting_for"] == ["default/alerts/0/in"]
    feed.release(4)
    until(
        lambda: exporter_status(exporter, "out")["publisher"]["batch"] == 20,
        SECONDS,
        "the export before it goes on",
    )
    # All cores are free for whom it waits for: the tasks of the others have ended.
    tracker = jobs.spark.sparkContext.statusTracker()
    until(lambda: not tracker.getActiveStageIds(), SECONDS, "no task runs")
    assert gated(relay)
    assert exporter_status(relay, "out")["publisher"]["batch"] == at

    sink.release()
    sink.await_rows(21 * feed.rows_per_file)
    assert set(sink.rows) == {row for file in range(21) for row in feed.rows(file)}
    assert max(sink.rows.values()) == 1
    until(lambda: not gated(relay), SECONDS, "the gate is open")
