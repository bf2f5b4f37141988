"""A tick for rows that wait for a time by the clock.

Spark wakes an operator by event time or by the clock, not by both. An operator with side inputs
therefore gets a source of ticks. Each tick is a control tuple that gives every bucket a window.
Its time is in the checkpoint; the time that counts is the pinned clock of its micro-batch. Where
there is no time limit the source is silent, so that setting one later adds no source.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from pe_agent.aligned.forms import CONTROL, control_text
from pe_agent.aligned.streams import Beside, Stream
from pe_agent.sessions import register
from streambroker_core.control.payloads import encode
from streambroker_core.control.tuples import Delivery, logged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT = "streambroker-side-ticks"
SHORTEST = 0.5
PARTS = 4
"""How many ticks a timeout has."""


@dataclass(frozen=True)
class SideTick:
    """Time has gone on."""

    number: int


def seconds_for(timeout: float) -> float:
    """Return how long a tick is, so that a row waits at most a quarter longer than its timeout."""
    return max(SHORTEST, timeout / PARTS)


def tick_stream(spark: SparkSession, seconds: float) -> Stream:
    """Return ticks as a stream of control tuples, to be put beside others by ``union``.

    Args:
        spark: the session.
        seconds: how long a tick is; 0 for no ticks.
    """
    register(spark, TickSource)
    frame = spark.readStream.format(FORMAT).option("seconds", str(seconds)).load()
    return Stream(spark=spark, beside=(Beside(frame=frame),))


class TickSource(DataSource):
    """``format("streambroker-side-ticks")``."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> str:
        """Return its one column."""
        return f"{CONTROL} binary"

    def streamReader(self, schema: Any) -> TickReader:  # noqa: N802 - Spark's name
        """Return the reader."""
        del schema
        return TickReader(float(self.options["seconds"]))


class TickReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Gives one tuple for each micro-batch in which a tick has come."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until: int | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return the offset before any tick."""
        return {"tick": 0}

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: Mapping[str, int], limit: Any
    ) -> dict[str, int]:
        """Return the tick that it is; a clock that was put back gives none."""
        del limit
        if not self._seconds:
            return dict(start)
        now = self._now() if self._until is None else self._until
        return {"tick": max(now, start["tick"])}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Give one tick, and no more."""
        self._until = self._now() if self._seconds else None

    def partitions(self, start: Mapping[str, int], end: Mapping[str, int]) -> list[InputPartition]:
        """Return one part if a tick has come."""
        return [InputPartition(end["tick"])] if end != start else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Give the tick."""
        number = int(partition.value)
        kind, text = encode(SideTick(number))
        tick = logged("side-ticks", number, type_=kind, text=text, delivery=Delivery.BEGIN)
        yield pa.RecordBatch.from_pydict({CONTROL: pa.array([control_text(tick)], pa.binary())})

    def _now(self) -> int:
        """Return when the last tick was, in milliseconds: so it rises though ticks get longer."""
        step = round(self._seconds * 1000)
        return int(time.time() * 1000) // step * step
