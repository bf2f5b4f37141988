"""PEs and queries of several jobs in one Spark session, with sinks that can be held up."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

import streambroker as sb
from streambroker import PE
from support.processes.waiting import until
from support.spark.checkpoints import written
from support.spark.feeds import DDL, Feed

SECONDS = 240.0
PAUSE = 0.05
"""Seconds between two looks at files of rows, which takes longer than a look at a value."""


class Sink:
    """Files of Parquet with the rows of a query, read without Spark; each batch once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self, writer: DataStreamWriter) -> StreamingQuery:
        """Start a query that writes here."""
        return writer.format("parquet").start(str(self.folder))

    @property
    def batches(self) -> dict[int, list[dict[str, Any]]]:
        """The rows of each batch, by column."""
        return written(self.folder)

    @property
    def rows_of(self) -> dict[int, list[tuple[Any, ...]]]:
        """The rows of each batch."""
        return {n: [tuple(r.values()) for r in rows] for n, rows in self.batches.items()}

    @property
    def rows(self) -> Counter[tuple[Any, ...]]:
        return Counter(row for rows in self.rows_of.values() for row in rows)

    def await_rows(self, count: int) -> None:
        def there() -> bool:
            return sum(map(len, self.batches.values())) >= count

        until(there, SECONDS, f"{count} rows", pause_s=PAUSE)


class HeldSink(Sink):
    """A sink that can be made to wait, without a task.

    A server of Spark Connect calls a copy of it, so all that it knows is in its folder.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        folder.mkdir()
        self._held, self._entered = folder / "held", folder / "entered"

    def start(self, writer: DataStreamWriter) -> StreamingQuery:
        """Start a query, again if a server has waited in vain for its Python process: for 10 s."""

        def started() -> StreamingQuery | None:
            try:
                return writer.foreachBatch(self).start()
            except PySparkException as error:
                if "failed to connect back" not in str(error):
                    raise
                return None

        return until(started, SECONDS, "the query has started")

    def hold(self) -> None:
        self._entered.unlink(missing_ok=True)
        self._held.touch()

    def release(self) -> None:
        self._held.unlink(missing_ok=True)

    @property
    def entered(self) -> bool:
        """Whether a batch has come since the last `hold`."""
        return self._entered.exists()

    def __call__(self, frame: DataFrame, batch: int) -> None:
        rows = [row.asDict() for row in frame.collect()]
        self._entered.touch()
        until(lambda: not self._held.exists(), SECONDS, "the sink is released")
        hidden = self.folder / f".{batch}"
        hidden.write_bytes(pickle.dumps(rows))
        hidden.rename(self.folder / f"{batch}.rows")

    @property
    def batches(self) -> dict[int, list[dict[str, Any]]]:
        return {int(f.stem): pickle.loads(f.read_bytes()) for f in self.folder.glob("*.rows")}


class Session:
    def __init__(self, spark: SparkSession, folder: Path, broker: str | None) -> None:
        self.spark, self.folder, self.broker = spark, folder, broker
        self.pes: list[PE] = []
        self.queries: list[StreamingQuery] = []
        self._held: list[HeldSink] = []

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

    def collect(self, frame: DataFrame, name: str, **trigger: Any) -> tuple[StreamingQuery, Sink]:
        """Start a query from the checkpoint of a name, into a sink of its own."""
        sink = Sink(self.folder / f"sink-{len(self.queries)}")
        return self._write(frame, name, sink, trigger), sink

    def hold(self, frame: DataFrame, name: str) -> tuple[StreamingQuery, HeldSink]:
        """Start a query whose sink can be made to wait."""
        sink = HeldSink(self.folder / f"sink-{len(self.queries)}")
        self._held.append(sink)
        return self._write(frame, name, sink, {}), sink

    def _write(
        self, frame: DataFrame, name: str, sink: Sink, trigger: dict[str, Any]
    ) -> StreamingQuery:
        writer = frame.writeStream.option("checkpointLocation", str(self.folder / f"ck-{name}"))
        query = sink.start(writer.trigger(**trigger) if trigger else writer)
        self.queries.append(query)
        return query

    def end(self) -> None:
        for sink in self._held:
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
