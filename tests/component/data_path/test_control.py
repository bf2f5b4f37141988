"""Control tuples between two Spark jobs: packed rows out of one, packed rows into the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from streambroker import PE
from streambroker_core.control.runtime.packing import Packed, unpack
from streambroker_core.model.schema import parse_ddl, to_items
from support.processes.waiting import until
from support.spark.feeds import DDL as COLUMNS
from support.spark.feeds import Feed
from support.spark.session import PAUSE, SECONDS, Session, Sink

BUCKETS = 3


@dataclass
class Note:
    text: str


class Windows:
    """What batches have given each bucket, by batch id; each run of the query has a sink."""

    def __init__(self) -> None:
        self.sinks: list[Sink] = []

    @property
    def of(self) -> dict[int, dict[int, tuple[list[int], list[Any]]]]:
        batches = {batch: rows for sink in self.sinks for batch, rows in sink.batches.items()}
        return {batch: self._unpacked(rows) for batch, rows in batches.items()}

    @staticmethod
    def _unpacked(rows: list[Any]) -> dict[int, tuple[list[int], list[Any]]]:
        found: dict[int, tuple[list[int], list[Any]]] = {}
        for row in rows:
            if row["n"] == 0:
                continue
            arrival = unpack(Packed(seq=row["seq"], n=row["n"], payload=row["payload"]))
            lines, tuples = found.setdefault(row["bucket"], ([], []))
            if arrival.rows is not None:
                lines += arrival.rows.column("line").to_pylist()
            tuples += [one.payload for _, one in arrival.control]
        return found

    @property
    def reported(self) -> list[tuple[set[int], list[Any]]]:
        """Lines and tuples of each batch that had any; tuples are the same in all buckets."""
        out = []
        for _, found in sorted(self.of.items()):
            tuples = [t for _, t in found.values()]
            if any(tuples):
                assert sorted(found) == list(range(BUCKETS))
                assert all(t == tuples[0] for t in tuples)
            lines = {n for of, _ in found.values() for n in of}
            out.append((lines, tuples[0] if tuples else []))
        return [one for one in out if one != (set(), [])]


def with_end(frame: DataFrame) -> DataFrame:
    """Pack a frame, and end each window with a tuple that every task emits."""

    def packed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from streambroker_core.control.runtime.buckets import Layout
        from streambroker_core.control.runtime.packing import pack, pack_control
        from streambroker_core.control.tuples import Delivery, make_logged_tuple

        number, last = 0, None
        for batch in batches:
            yield pack(batch, Layout(port="out", buckets=2), number)
            number, last = number + batch.num_rows, batch.column("line")[-1].as_py()
        if last is not None:
            end = make_logged_tuple(
                "q.op.*", last, type_="end", text=str(last), delivery=Delivery.END_WINDOW
            )
            yield pack_control([(number, end)], "out", 2)

    schema = "bucket int, seq bigint, n int, event_time timestamp, payload binary"
    return frame.mapInArrow(packed, schema)


def publish_packed(jobs: Session, pe: PE, feed: Feed, port: str) -> None:
    schema = to_items(parse_ddl(COLUMNS))
    pe.context.declare(
        "export", port, {"properties": {"kind": "a"}}, redeclare=False, schema=schema
    )
    query = (
        with_end(jobs.files(feed))
        .writeStream.format("streambroker")
        .options(export=port, control="true", columns=COLUMNS, **pe.context.agent_options())
        .option("checkpointLocation", str(jobs.folder / "ck-out"))
        .start()
    )
    jobs.queries.append(query)


def read_packed(jobs: Session, pe: PE, windows: Windows, **more: str) -> Any:
    pe.subscribe("in", 'kind == "a"', start="earliest", schema=COLUMNS)
    frame = (
        jobs.spark.readStream.format("streambroker")
        .options(control="true", columns=COLUMNS, buckets=str(BUCKETS), key="name", **more)
        .options(**{"import": "in"}, **pe.context.agent_options())
        .load()
    )
    query, sink = jobs.collect(frame, "in")
    windows.sinks.append(sink)
    return query


def await_reported(windows: Windows, what: Any) -> None:
    until(
        lambda: any(what in t for _, t in windows.reported),
        SECONDS,
        f"tuple {what!r}",
        pause_s=PAUSE,
    )


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    return Feed(tmp_path / "feed", rows_per_file=50)


def test_tuples_go_from_job_to_job_and_come_from_outside(jobs: Session, feed: Feed) -> None:
    exporter, importer = jobs.pe("feed"), jobs.pe("alerts")
    publish_packed(jobs, exporter, feed, "out")
    windows = Windows()
    query = read_packed(jobs, importer, windows, controlLog="true")
    lines = []
    for file in range(3):  # of files that are there together Spark may take any first
        feed.release(1)
        lines.append({row[0] for row in feed.rows(file)})
        await_reported(windows, max(lines[file]))
    assert windows.reported == [(of, [max(of)]) for of in lines]

    sent = exporter.exports["out"].send(Note("to all"), delivery="BEGIN")
    await_reported(windows, {"text": "to all"})
    own = importer.operators.send(Note("to us"), delivery="BEGIN", operator="any")
    await_reported(windows, {"text": "to us"})
    sent.wait_applied(SECONDS)
    own.wait_applied(SECONDS)

    query.stop()
    before = windows.reported
    again = importer.operators.send(Note("later"), delivery="BEGIN")
    feed.release(1)
    read_packed(jobs, importer, windows, controlLog="true")
    await_reported(windows, max(row[0] for row in feed.rows(3)))
    await_reported(windows, {"text": "later"})
    assert windows.reported[: len(before)] == before
    again.wait_applied(SECONDS)
    every = [what for _, tuples in windows.reported for what in tuples]
    assert len(every) == 7
