"""The data source of imports, noting what it takes of a micro-batch's time itself."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from pe_agent.datasource.options import Options
from pe_agent.datasource.slice_reader import Slice
from pe_agent.datasource.source import StreambrokerDataSource, StreambrokerStreamReader

NOTES = "BENCH_NOTES"
"""The variable with the directory of the notes: a file per import, a line of JSON per call."""


def notes(folder: Path, port: str) -> list[dict[str, Any]]:
    """Return what was noted of an import."""
    return [json.loads(line) for line in (folder / port).read_text().splitlines()]


class TimedSource(StreambrokerDataSource):
    """Takes the place of the format ``streambroker`` in a session."""

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Return the reader of one query."""
        return _TimedReader(schema, Options.read(self.options, "import"))


class _TimedReader(StreambrokerStreamReader):
    def _note(self, kind: str, **what: Any) -> None:
        with (Path(os.environ[NOTES]) / self._options.port).open("a") as file:
            file.write(json.dumps({"kind": kind, **what}) + "\n")

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        asked = time.time()
        end = super().latestOffset(start, limit)
        if end != start:
            next_ = {s: p["next"] for s, p in end["streams"].items()}
            self._note("offset", asked=asked, answered=time.time(), next=next_)
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        began = time.perf_counter()
        slices = super().partitions(start, end)
        next_ = {s: p["next"] for s, p in end["streams"].items()}
        self._note("cut", took=time.perf_counter() - began, next=next_)
        return slices

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Slice)
        took, batches = 0.0, super().read(partition)
        while True:
            began = time.perf_counter()
            batch = next(batches, None)
            took += time.perf_counter() - began
            if batch is None:
                break
            yield batch
        first = min(piece[0] for piece in partition.value["pieces"])
        self._note("read", took=took, stream=partition.value["stream"], epoch=first)
