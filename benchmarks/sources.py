"""The peers inside Spark: the same rows from memory, to a local file, at a steady rate."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import rows
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

STEADY_DDL = "line bigint, available double"


class _Part(InputPartition):
    def __init__(self, value: list[int]) -> None:
        self.value = value


class MemorySource(DataSource):
    """``bench_memory``: batches of ``rows`` rows in ``slices`` tasks, always available."""

    @classmethod
    def name(cls) -> str:
        """Return the word for ``format``."""
        return "bench_memory"

    def schema(self) -> str:
        """Return the columns."""
        return rows.DDL

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Return the source's reader."""
        return _MemoryReader(int(self.options["rows"]), int(self.options["slices"]))


class _MemoryReader(DataSourceStreamReader):
    def __init__(self, count: int, slices: int) -> None:
        self._rows, self._slices, self._batch = count, slices, 0

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"batch": 0}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]  # noqa: N802
        self._batch += 1
        return {"batch": self._batch}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        share = self._rows // rows.BATCH_ROWS * (end["batch"] - start["batch"])
        cuts = [share * n // self._slices for n in range(self._slices + 1)]
        return [_Part([b - a]) for a, b in pairwise(cuts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batch = rows.batch(0, rows.BATCH_ROWS)
        for _ in range(partition.value[0]):
            yield batch


class SteadySource(DataSource):
    """``bench_steady``: ``rate`` rows per second since ``since``, each with its time."""

    @classmethod
    def name(cls) -> str:
        """Return the word for ``format``."""
        return "bench_steady"

    def schema(self) -> str:
        """Return the columns."""
        return STEADY_DDL

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Return the source's reader."""
        return _SteadyReader(float(self.options["since"]), float(self.options["rate"]))


class _SteadyReader(DataSourceStreamReader):
    def __init__(self, since: float, rate: float) -> None:
        self._since, self._rate = since, rate

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"line": 0}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]  # noqa: N802
        return {"line": max(0, int((time.time() - self._since) * self._rate))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [_Part([start["line"], end["line"]])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        lines = np.arange(*partition.value)
        available = self._since + (lines + 1) / self._rate
        yield pa.RecordBatch.from_pydict({"line": lines, "available": available})


class FileSink(DataSource):
    """``bench_file``: each task writes an Arrow IPC file into ``path`` and makes it durable."""

    @classmethod
    def name(cls) -> str:
        """Return the word for ``format``."""
        return "bench_file"

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        """Return the sink's writer."""
        return _FileWriter(Path(self.options["path"]))


@dataclass
class _Wrote(WriterCommitMessage):
    file: str


class _FileWriter(DataSourceStreamArrowWriter):
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{time.monotonic_ns()}-{os.getpid()}.arrow"
        with path.open("wb", buffering=0) as file:
            writer = None
            for batch in iterator:
                writer = writer or pa.ipc.new_stream(file, batch.schema)
                writer.write_batch(batch)
            if writer is not None:
                writer.close()
            os.fsync(file.fileno())
        return _Wrote(str(path))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Keep the last batches, as an agent's log does."""
        files = sorted(self._folder.iterdir(), key=lambda path: int(path.stem.partition("-")[0]))
        for path in files[: -rows.KEPT * len(messages)]:
            path.unlink()

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Delete what the tasks wrote."""
        for message in messages:
            if isinstance(message, _Wrote):
                Path(message.file).unlink()


class HandOver(DataSource):
    """``bench_hand_over``: as little as a way from query to query can be, a file with a number.

    The sink notes in ``path`` up to which line it has committed; the source gives the lines up to
    there, made anew as ``bench_steady`` makes them.
    """

    @classmethod
    def name(cls) -> str:
        """Return the word for ``format``."""
        return "bench_hand_over"

    def schema(self) -> str:
        """Return the columns."""
        return STEADY_DDL

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Return the source's reader."""
        return _HandOverReader(self.options["path"], self.options["since"], self.options["rate"])

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        """Return the sink's writer."""
        return _HandOverWriter(Path(self.options["path"]))


class _HandOverReader(_SteadyReader):
    def __init__(self, path: str, since: str, rate: str) -> None:
        super().__init__(float(since), float(rate))
        self._path = Path(path)

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]  # noqa: N802
        return {"line": int(self._path.read_text()) if self._path.exists() else 0}


@dataclass
class _UpTo(WriterCommitMessage):
    line: int


class _HandOverWriter(DataSourceStreamArrowWriter):
    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        lines = [batch.column("line")[-1].as_py() + 1 for batch in iterator if batch.num_rows]
        return _UpTo(max(lines, default=0))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Say up to which line there are rows now."""
        line = max(m.line for m in messages if isinstance(m, _UpTo))
        if line:
            new = self._path.with_suffix(".new")
            new.write_text(str(line))
            new.replace(self._path)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing was handed over."""


class RecordSink(DataSource):
    """``bench_record``: notes in ``path`` when which rows came, and when they were committed."""

    @classmethod
    def name(cls) -> str:
        """Return the word for ``format``."""
        return "bench_record"

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        """Return the sink's writer."""
        return _RecordWriter(Path(self.options["path"]))


@dataclass
class _Came(WriterCommitMessage):
    lines: list[int]
    available: list[float]
    seen: float


class _RecordWriter(DataSourceStreamArrowWriter):
    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        lines: list[int] = []
        available: list[float] = []
        for batch in iterator:
            lines += batch.column("line").to_pylist()
            available += batch.column("available").to_pylist()
        return _Came(lines, available, time.time())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        now = time.time()
        came = [m for m in messages if isinstance(m, _Came) and m.lines]
        with self._path.open("a") as file:
            for m in came:
                note = {
                    "committed": now,
                    "seen": m.seen,
                    "lines": m.lines,
                    "available": m.available,
                }
                file.write(json.dumps(note) + "\n")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing was noted."""


ALL = (MemorySource, SteadySource, FileSink, HandOver, RecordSink)
