"""Idle streams: one without rows does not hold back the time of the others.

The watermark of a query is that of its slowest stream, so a silent stream stops it. If a stream may
be idle, each task sends the latest event time of its input to every bucket, as a progress row. A
bucket then uses the time of the inputs that are not idle. The progress rows and the clock of a
micro-batch are pinned, so a replay has the same result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from pe_agent.aligned.runtime import progress_messages
from streambroker_core.control.runtime.packing import PACKED, Packed, packed_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class InputTiming:
    """How the time of an input advances: allowed lateness and idle timeout in microseconds."""

    delay: int
    idle_after: int | None = None


InputTimes = dict[str, list[int | None]]
"""By input: its latest event time, and when its last rows arrived."""


@dataclass(frozen=True, slots=True)
class EventTimeReporter:
    """Adds a progress row with the latest event time to a task's packed rows, for every bucket."""

    port: str
    buckets: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Forward packed rows, then yield the progress row."""
        latest: int | None = None
        for batch_ in batches:
            batch = _cast_packed(batch_)
            newest = pc.max(batch.column("event_time")).value
            if newest is not None and (latest is None or newest > latest):
                latest = int(newest)
            yield batch
        if latest is not None:
            payload = progress_messages.encode(
                [progress_messages.LatestEventTime(port=self.port, at=latest)]
            )
            note = Packed(seq=0, n=progress_messages.PROGRESS_ROW, payload=payload)
            yield packed_rows(
                (bucket, note) for bucket in range(progress_messages.CLOCK_BUCKET, self.buckets)
            )


def _cast_packed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return packed rows with the schema of progress rows; Spark's has another time zone."""
    columns = zip(batch.columns, PACKED, strict=True)
    return pa.RecordBatch.from_arrays([one.cast(to.type) for one, to in columns], schema=PACKED)


def active_watermark(
    input_times: InputTimes, timings: Mapping[str, InputTiming], now: int
) -> int | None:
    """Return the time that has passed in the inputs that are not idle; None if none is idle.

    An input without rows so far counts from its first window on. ``now`` is the pinned clock.
    """
    times, idle = [], False
    for port, timing in timings.items():
        latest, arrived = input_times.setdefault(port, [None, now])
        if (
            timing.idle_after is not None
            and arrived is not None
            and now - arrived >= timing.idle_after
        ):
            idle = True
        elif latest is None:
            return None
        else:
            times.append(latest - timing.delay)
    return min(times) // 1000 * 1000 if idle and times else None


def delay_micros(spark: SparkSession, delay: str) -> int:
    """Return a delay that Spark formatted, in microseconds."""
    text = delay.replace("'", "")
    [row] = spark.sql(
        f"SELECT unix_micros(timestamp_micros(0) + CAST('{text}' AS INTERVAL)) AS micros"
    ).collect()
    return int(row.micros)
