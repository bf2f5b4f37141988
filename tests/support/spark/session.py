"""PEs and queries of several jobs in one Spark session, with sinks that can be held up."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import streambroker as sb
from streambroker import PE
from support.processes.waiting import until
from support.spark.feeds import DDL, Feed, Row

SECONDS = 240.0


class Sink:
    """Collects batches on the driver, exactly once by batch id; can be made to wait."""

    def __init__(self) -> None:
        self.rows_of: dict[int, list[Row]] = {}
        self.entered = threading.Event()
        self._open = threading.Event()
        self._open.set()

    def hold(self) -> None:
        self.entered.clear()
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    def __call__(self, frame: DataFrame, batch: int) -> None:
        rows = [(r["line"], r["price"], r["name"]) for r in frame.collect()]
        self.entered.set()
        self._open.wait(SECONDS)
        self.rows_of[batch] = rows

    @property
    def rows(self) -> Counter[Row]:
        return Counter(row for rows in list(self.rows_of.values()) for row in rows)

    def await_rows(self, count: int) -> None:
        until(lambda: sum(self.rows.values()) >= count, SECONDS, f"{count} rows")


class Session:
    def __init__(self, spark: SparkSession, folder: Path, broker: str | None) -> None:
        self.spark, self.folder, self.broker = spark, folder, broker
        self.pes: list[PE] = []
        self.queries: list[StreamingQuery] = []
        self.sinks: list[Sink] = []

    def pe(self, job: str, **settings: Any) -> PE:
        pe = sb.start(
            self.spark,
            job=job,
            **{
                "broker": self.broker,
                "data_dir": self.folder / f"home-{job}",
                "linger": 20.0,
                **settings,
            },
        )
        self.pes.append(pe)
        return pe

    def files(self, feed: Feed) -> DataFrame:
        reader = self.spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(feed.folder))

    def publish(self, pe: PE, feed: Feed, port: str, **settings: Any) -> StreamingQuery:
        settings.setdefault("checkpoint", self.folder / f"ck-{pe.key.job}-{port}")
        query = pe.publish(self.files(feed), port, **settings)
        self.queries.append(query)
        return query

    def collect(
        self, frame: DataFrame, name: str, *, sink: Sink | None = None, **trigger: Any
    ) -> tuple[StreamingQuery, Sink]:
        sink = sink or Sink()
        self.sinks.append(sink)
        place = str(self.folder / f"ck-{name}")
        writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", place)
        query = (writer.trigger(**trigger) if trigger else writer).start()
        self.queries.append(query)
        return query, sink

    def end(self) -> None:
        for sink in self.sinks:
            sink.release()
        for query in self.queries:
            query.stop()
        for pe in self.pes:
            pe.stop(end_agent=True)


def exporter_status(pe: PE, port: str) -> dict[str, Any]:
    status: dict[str, Any] = pe.status()["exports"][f"{pe.key}/{port}"]
    return status


def only_reader(pe: PE, port: str) -> dict[str, Any]:
    (reader,) = exporter_status(pe, port)["readers"].values()
    return dict(reader)
