"""The real source in the order in which Spark calls it, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StringType, StructType

from pe_agent.datasource.options import Options
from pe_agent.datasource.source import StreambrokerStreamReader
from support.agents.agents import AgentProcess

SCHEMA = StructType().add("n", LongType()).add("name", StringType())


class Run:
    """One run of a query that reads an import; ``at`` is the offset its checkpoint has."""

    def __init__(
        self,
        agent: AgentProcess,
        port: str = "trades",
        *,
        at: dict[str, Any] | None = None,
        schema: StructType = SCHEMA,
        **options: Any,
    ) -> None:
        self.source = StreambrokerStreamReader(
            schema, Options(port, agent.location, str(agent.address["token"]), **options)
        )
        self.at = at or self.source.initialOffset()

    def plan(self) -> dict[str, Any]:
        """Return the end of the next batch; ``at`` itself if there is none."""
        return dict(self.source.latestOffset(self.at, ReadAllAvailable()))

    def read(self, end: dict[str, Any]) -> list[int]:
        rows = [
            n
            for part in self.source.partitions(self.at, end)
            for batch in self.source.read(part)
            for n in batch.column("n").to_pylist()
        ]
        self.at = end
        return rows

    def batches(self) -> Iterator[list[int]]:
        """Yield the rows of each batch until there is none, as a run with ``availableNow``."""
        while (end := self.plan()) != self.at:
            yield self.read(end)

    def stop(self) -> None:
        self.source.stop()
