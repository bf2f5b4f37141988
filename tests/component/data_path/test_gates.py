"""Queries that publish what they import: at the gate, and in a ring."""

from __future__ import annotations

from pathlib import Path

import pytest

from streambroker import PE
from support.processes.waiting import until
from support.spark.feeds import DDL, Feed
from support.spark.session import SECONDS, Session, exporter_status

CORES = 2
"""Of each session of these tests."""
SMALL = {"maxBytes": "64Ki"}
ROUND, ROUNDS = 100.0, 3
"""What each way round a ring adds to the price, which is less before; and how often a row goes."""


def gated(relay: PE) -> bool:
    """Return whether the one query of a job waits because its export is full."""
    (query,) = relay.status()["imports"]["queries"].values()
    return bool(query["gated"])


@pytest.mark.slow
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
    _, sink = jobs.hold(wanted, "in")
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
    # Tasks of a barrier run at the same time: both cores are free for what it waits for.
    frame = jobs.spark.range(0, CORES, 1, CORES)
    assert frame.mapInArrow(lambda rows: rows, "id bigint", barrier=True).count() == CORES
    assert gated(relay)
    assert exporter_status(relay, "out")["publisher"]["batch"] == at

    sink.release()
    sink.await_rows(21 * feed.rows_per_file)
    assert set(sink.rows) == {row for file in range(21) for row in feed.rows(file)}
    assert max(sink.rows.values()) == 1
    until(lambda: not gated(relay), SECONDS, "the gate is open")


def epochs(pe: PE, port: str) -> int:
    """Return how many epochs an export has published."""
    return sum(s["next"] for s in exporter_status(pe, port)["streams"].values())


@pytest.mark.long
def test_a_ring_of_two_jobs_passes_each_row_on_as_often_as_it_says_and_does_not_spin(
    jobs: Session, tmp_path: Path
) -> None:
    feed = Feed(tmp_path / "feed", rows_per_file=50)
    exporter, relay, back = jobs.pe("feed"), jobs.pe("relay"), jobs.pe("back")
    jobs.publish(exporter, feed, "out", properties={"kind": "new"})
    both = 'kind == "new" || kind == "again"'
    frame = relay.subscribe("in", both, start="earliest", schema=DDL)
    once = relay.publish(frame, "out", properties={"kind": "all"}, checkpoint=tmp_path / "ck-relay")
    frame = back.subscribe("in", 'kind == "all"', start="earliest", schema=DDL)
    again = frame.where(f"price < {ROUND * ROUNDS}").withColumn("price", frame.price + ROUND)
    kind = {"kind": "again"}
    jobs.queries += [once, back.publish(again, "out", properties=kind, checkpoint=tmp_path / "ck")]
    wanted = back.subscribe("all", 'kind == "all"', start="earliest", schema=DDL)
    _, sink = jobs.collect(wanted, "all")

    for file in range(3):
        feed.release()
        sink.await_rows((file + 1) * (ROUNDS + 1) * feed.rows_per_file)
    # Alone in the ring, a batch is an epoch; the last time round has no rows, and is none.
    assert epochs(relay, "out") == 3 * (ROUNDS + 1)
    assert epochs(back, "out") == 3 * ROUNDS
    feed.release(5)
    sink.await_rows(8 * (ROUNDS + 1) * feed.rows_per_file)
    rows = [row for file in range(8) for row in feed.rows(file)]
    rounds = range(ROUNDS + 1)
    assert sink.rows == {(n, price + ROUND * r, name): 1 for n, price, name in rows for r in rounds}
