"""What queries have written to folders, read without Spark."""

from __future__ import annotations

from collections import Counter
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from support.processes.waiting import until
from support.spark.checkpoints import written
from support.spark.session import PAUSE, SECONDS, Session


class Table:
    """The rows that a query has written to a folder, once for each committed batch."""

    def __init__(self, jobs: Session, name: str) -> None:
        self._jobs = jobs
        self._folder, self.checkpoint = jobs.folder / name, jobs.folder / f"checkpoint-{name}"

    def write(self, frame: DataFrame) -> StreamingQuery:
        """Write a stream, from the checkpoint of the table on."""
        writer = frame.writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        query = writer.start(str(self._folder))
        self._jobs.queries.append(query)
        return query

    @property
    def rows(self) -> Counter[tuple[Any, ...]]:
        batches = written(self._folder).values()
        return Counter(tuple(row.values()) for rows in batches for row in rows)

    def await_rows(self, expected: Counter[Any]) -> None:
        until(lambda: self.rows >= expected, SECONDS, f"{expected.total()} rows", pause_s=PAUSE)
        assert self.rows == expected
