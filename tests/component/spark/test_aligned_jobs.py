"""Streams with control tuples from job to job: windows, places, copies, successors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import DataFrame

from streambroker import PE
from streambroker.operators import OperatorOptions, Stream
from support.aligned.graphs import Node, Note, chain, names_of, reported, sink, turns
from support.aligned.operators import Envelopes
from support.aligned.spark import IN_ORDER, on_spark, renumbered, run, scripted, seen
from support.spark.session import Session

COLUMNS = "k bigint, v bigint, t timestamp"
SCRIPT = renumbered(turns("D1 I(a) D2 D3 E(b)", "D4 B(c)", "E(d)", "D5"))
WINDOWS = ["D1 a D2 D3 b", "c D4 d", "D5"]
"""What an importer sees: a batch ends with an epoch that has a tuple for its end."""
PASS = Node(name="pass", buckets=1, answer="forward")


def source(jobs: Session, pe: PE, name: str = "script", **more: Any) -> Stream:
    """Return the script as a stream of a PE; each turn is a micro-batch."""
    made = scripted(
        jobs.spark, jobs.folder / name, SCRIPT, **{"tasks": 1, "seed": IN_ORDER, **more}
    )
    return Stream(replace(made.plan, job=pe.context))


def published(jobs: Session, stream: Stream, port: str, **more: Any) -> None:
    """Publish a stream, and wait until all windows are."""
    settings = {"properties": {"kind": port}, "checkpoint": jobs.folder / f"ck-{port}", **more}
    jobs.queries.append(stream.publish(port, trigger={"availableNow": True}, **settings))
    jobs.queries[-1].awaitTermination()


def unchanged(stream: Stream) -> Stream:
    return stream


def mapped(stream: Stream) -> Stream:
    """Let a function on batches stand in front of whatever comes next."""
    return stream.map_batches(lambda batch: batch).where("v > 0").map_batches(lambda batch: [batch])


def seen_by(
    jobs: Session, pe: PE, port: str, change: Callable[[Stream], Stream] = unchanged, **more: Any
) -> list[str]:
    """Return what an operator of another job sees, window by window."""
    settings = {"start": "earliest", "schema": COLUMNS, **more}
    stream = pe.subscribe_stream(port, 'kind == "out"', **settings)
    folder = jobs.folder / f"seen-{port}"
    (only,) = on_spark(chain(sink()), change(stream), folder).values()
    query = run(only, jobs.folder / f"ck-{port}")
    return list(reported(seen(folder, query), names_of(SCRIPT)).values())


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        "mapped",
        *(pytest.param(how, marks=pytest.mark.long) for how in ("operator", "rows", "beside")),
    ],
)
def test_windows_of_one_job_are_windows_of_another(jobs: Session, how: str) -> None:
    exporter, importer = jobs.pe("feed"), jobs.pe("alerts")
    stream, windows, change = source(jobs, exporter), WINDOWS, unchanged
    if how in ("operator", "mapped"):
        (stream,) = on_spark(chain(PASS), stream, jobs.folder / "seen-out").values()
    if how == "mapped":
        stream, change = mapped(stream), mapped
    elif how == "beside":
        stream = stream.transform(lambda frame: frame, immediate="end")
        windows = ["D1 D2 D3 a b", *WINDOWS[1:]]
    published(jobs, stream, "out")
    assert seen_by(jobs, importer, "in", change) == windows
    filtered = [one.replace("D2 ", "") for one in windows]
    assert seen_by(jobs, importer, "some", change, filter="v != 2") == filtered
    plain = importer.subscribe("plain", 'kind == "out"', start="earliest", schema=COLUMNS)
    assert sorted(row.v for row in rows_of(jobs, plain)) == [1, 2, 3, 4, 5]


def rows_of(jobs: Session, frame: DataFrame) -> list[Any]:
    found: list[Any] = []
    query = (
        frame.writeStream.foreachBatch(lambda batch, _: found.extend(batch.collect()))
        .option("checkpointLocation", str(jobs.folder / "ck-plain"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return found


@pytest.mark.long
def test_a_successor_stream_is_delivered_in_windows_like_the_first(jobs: Session) -> None:
    exporter, importer = jobs.pe("feed"), jobs.pe("alerts")
    published(jobs, source(jobs, exporter), "out")
    assert seen_by(jobs, importer, "in") == WINDOWS
    published(jobs, source(jobs, exporter, "again"), "out", checkpoint=jobs.folder / "ck-again")
    assert seen_by(jobs, importer, "in") == WINDOWS * 2


@pytest.mark.long
def test_mergeable_tuples_end_no_window_and_of_those_in_one_the_last_holds(jobs: Session) -> None:
    exporter, importer = jobs.pe("feed"), jobs.pe("alerts")
    published(jobs, source(jobs, exporter), "out")
    assert seen_by(jobs, importer, "in", mergeable=(Note,)) == ["c D1 a D2 D3 D4 D5 d"]


@pytest.mark.slow
def test_a_tuple_keeps_its_epoch_and_its_emitter(jobs: Session) -> None:
    exporter, importer = jobs.pe("feed"), jobs.pe("alerts")
    published(jobs, source(jobs, exporter), "out")
    stream = importer.subscribe_stream("in", 'kind == "out"', start="earliest", schema=COLUMNS)
    made = stream.apply(Envelopes, schema=Envelopes.SCHEMA, options=OperatorOptions(buckets=1))
    given = [one for turn in SCRIPT for _, one in turn.control]
    assert sorted(tuple(row) for row in rows_of(jobs, made.to_df())) == sorted(
        (one.id, one.epoch, one.emitter, one.seq, one.delivery.value, one.text) for one in given
    )
