"""What queries have written to folders, read without Spark."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from support.processes.waiting import until
from support.spark.session import SECONDS, Session


class Table:
    """The rows that a query has written to a folder, once for each committed batch."""

    def __init__(self, jobs: Session, name: str) -> None:
        self._jobs, self._name = jobs, name
        self._folder = jobs.folder / name

    def write(self, frame: DataFrame) -> StreamingQuery:
        """Write a stream, from the checkpoint of the table on."""
        checkpoint = str(self._jobs.folder / f"checkpoint-{self._name}")
        writer = frame.writeStream.format("parquet").option("checkpointLocation", checkpoint)
        query = writer.start(str(self._folder))
        self._jobs.queries.append(query)
        return query

    @property
    def rows(self) -> Counter[tuple[Any, ...]]:
        names = set[str]()
        for log in (self._folder / "_spark_metadata").glob("[0-9]*"):
            names |= {json.loads(line)["path"] for line in log.read_text().splitlines()[1:]}
        tables = [pq.read_table(Path(name.removeprefix("file://"))) for name in names]
        return Counter(tuple(r.values()) for table in tables for r in table.to_pylist())

    def await_rows(self, expected: Counter[Any]) -> None:
        until(lambda: self.rows >= expected, SECONDS, f"{expected.total()} rows")
        assert self.rows == expected
