"""Two jobs whose agents run; tasks are those of the source and sink classes.

Only Spark itself is missing: tasks are called one after the other, as its Python workers do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pe_agent.datasource.options import Options
from pe_agent.datasource.sink import Staged, StreambrokerStreamWriter
from pe_agent.datasource.slice_reader import Slice
from pe_agent.datasource.source import StreambrokerStreamReader
from pe_agent.transport.messages import Ticket
from support.agents.agents import AgentProcess, Pair, Reading
from support.agents.exports import rows

STRUCT = StructType([StructField("n", LongType()), StructField("name", StringType())])
FAR = 60.0


@contextlib.contextmanager
def in_task(query: str, run: str, batch: int, partition: int) -> Iterator[None]:
    """Do something as a task of a query does it."""
    context = TaskContext._getOrCreate()
    context._partitionId = partition
    context._localProperties = {
        "streaming.sql.batchId": str(batch),
        "sql.streaming.queryId": query,
        "spark.jobGroup.id": run,
    }
    try:
        yield
    finally:
        TaskContext._setTaskContext(None)


def wide(first: int, count: int, size: int = 10) -> pa.RecordBatch:
    """Return rows ``n`` = first, first + 1, … with ``size`` characters each."""
    return rows(first, count, size)


def options_of(agent: AgentProcess, port: str, reconnect: float) -> Options:
    found = agent.address
    return Options(port, found["location"], found["token"], reconnect=reconnect)


@dataclass
class Writing:
    """A query that publishes to a port by the sink's own class."""

    pair: Pair
    port: str
    run: str = "run-1"
    reconnect: float = FAR

    def writer(self) -> StreambrokerStreamWriter:
        options = options_of(self.pair.exporter, self.port, self.reconnect)
        return StreambrokerStreamWriter(STRUCT, options, overwrite=False)

    def task(self, batch: int, partition: int, rows: Iterator[pa.RecordBatch]) -> Staged:
        with in_task(f"query of {self.port}", self.run, batch, partition):
            staged = self.writer().write(rows)
        assert isinstance(staged, Staged)
        return staged

    def stage(self, batch: int, partitions: int, count: int, size: int = 10) -> list[Staged]:
        """Run all tasks of a batch; partition ``p`` has rows in batches of ``count``, two each."""
        first = batch * partitions * count * 2
        staged = []
        for p in range(partitions):
            at = first + p * count * 2
            rows = iter([wide(at, count, size), wide(at + count, count, size)])
            staged.append(self.task(batch, p, rows))
        return staged

    def commit(self, batch: int, staged: Sequence[Staged]) -> None:
        self.writer().commit(list(staged), batch)

    def publish(self, batch: int, partitions: int = 3, count: int = 5, size: int = 10) -> None:
        self.commit(batch, self.stage(batch, partitions, count, size))


@dataclass
class Tasks:
    """A query that reads an import, whose tasks are those of the source's own class."""

    pair: Pair
    port: str
    reconnect: float = FAR

    def __post_init__(self) -> None:
        self.reading = Reading(self.pair.importer, port=self.port)

    def tickets(self, start: dict[str, Any] | None, end: dict[str, Any]) -> list[dict[str, Any]]:
        return self.reading.slices(start, end)

    def read(
        self, ticket: dict[str, Any], arrived: Callable[[int], None] = lambda _: None
    ) -> list[int]:
        """Run one task; ``arrived`` is called with the number of each batch that arrived."""
        options = options_of(self.pair.importer, self.port, self.reconnect)
        reader = StreambrokerStreamReader(STRUCT, options)
        found: list[int] = []
        for number, batch in enumerate(reader.read(Slice(cast(Ticket, ticket), options.trust()))):
            found += batch.column("n").to_pylist()
            arrived(number)
        return found

    def all(self, start: dict[str, Any] | None, end: dict[str, Any]) -> list[int]:
        return sorted(n for ticket in self.tickets(start, end) for n in self.read(ticket))

    def follow(self, epochs: int) -> tuple[list[int], dict[str, Any]]:
        """Read until so many epochs are read; return the rows in order, and the last offset."""
        rows: list[int] = []
        start: dict[str, Any] | None = None
        while sum(p["next"] for p in (start or {}).get("streams", {}).values()) < epochs:
            end = self.reading.end(start)
            rows += self.all(start, end)
            start = end
        return sorted(rows), start or {}
