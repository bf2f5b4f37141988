"""What tests of side inputs in a query share: streams of files, and what the query gives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from streambroker.operators import OperatorStream, stream
from support.spark.feeds import put_file

SECONDS = 240.0
TRADES = "id string, currency string"


class Feed:
    """Files of a stream, put there one by one."""

    def __init__(self, spark: SparkSession, folder: Path, ddl: str) -> None:
        self._folder = folder
        folder.mkdir()
        files = spark.readStream.schema(ddl).option("maxFilesPerTrigger", 1)
        self.stream = stream(files.parquet(str(folder)))

    def put(self, **columns: Any) -> None:
        number = len(list(self._folder.iterdir()))
        put_file(self._folder, f"{number}", pa.table(columns), order=number)


class Rows:
    """What a query gives, by output."""

    def __init__(self) -> None:
        self.of: dict[str, list[dict[str, Any]]] = {}

    def __call__(self, frames: dict[str, DataFrame], window: int) -> None:
        for tag, frame in frames.items():
            rows = [row.asDict() for row in frame.collect()]
            self.of.setdefault(tag, []).extend(rows)

    def out(self, *names: str) -> list[tuple[Any, ...]]:
        return sorted((tuple(row[n] for n in names) for row in self.of.get("out", [])), key=str)


@contextmanager
def running(made: OperatorStream, rows: Rows, checkpoint: Path) -> Iterator[StreamingQuery]:
    query = made.foreach_batch(rows, checkpoint=checkpoint)
    try:
        yield query
    finally:
        query.stop()
