"""Streams that may be idle: one that gives no rows does not hold the time of the others.

The watermark of a query is that of its slowest stream, so a silent stream stops it. Where a
stream may be idle, each task reports the latest event time of its input to every bucket, as a note.
A bucket then takes the time of the inputs that are not idle. The notes and the clock of a
micro-batch are pinned, so a replay comes to the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from pe_agent.aligned.runtime import progress_messages as notes
from streambroker_core.control.runtime.packing import PACKED, Packed, packed_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class InputTiming:
    """How the time of an input goes on, in microseconds.

    Attributes:
        delay: how much later rows may come.
        idle_after: time without rows after which the input is idle; None for never.
    """

    delay: int
    idle_after: int | None = None


InputTimes = dict[str, list[int | None]]
"""By input: its latest event time, and when rows of it came last."""


@dataclass(frozen=True, slots=True)
class EventTimeReporter:
    """Adds to the packed rows of a task a note with its latest event time, for every bucket."""

    port: str
    buckets: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass packed rows on."""
        latest: int | None = None
        for given in batches:
            batch = _cast_packed(given)
            found = pc.max(batch.column("event_time")).value
            if found is not None and (latest is None or found > latest):
                latest = int(found)
            yield batch
        if latest is not None:
            payload = notes.encode([notes.LatestEventTime(port=self.port, at=latest)])
            note = Packed(seq=0, n=notes.PROGRESS_ROW, payload=payload)
            yield packed_rows((bucket, note) for bucket in range(notes.CLOCK_BUCKET, self.buckets))


def _cast_packed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return packed rows with the schema that notes have, too; Spark has a time zone of its own."""
    columns = zip(batch.columns, PACKED, strict=True)
    return pa.RecordBatch.from_arrays([one.cast(to.type) for one, to in columns], schema=PACKED)


def active_watermark(
    input_times: InputTimes, timings: Mapping[str, InputTiming], now: int
) -> int | None:
    """Return the time that has passed in the inputs that are not idle; None if none is idle.

    Args:
        input_times: of each input; one that gave no rows yet counts from its first window on.
        timings: of all inputs with an event time.
        now: the pinned clock.
    """
    times, idle = [], False
    for port, pace in timings.items():
        latest, came = input_times.setdefault(port, [None, now])
        if pace.idle_after is not None and came is not None and now - came >= pace.idle_after:
            idle = True
        elif latest is None:
            return None
        else:
            times.append(latest - pace.delay)
    return min(times) // 1000 * 1000 if idle and times else None


def delay_micros(spark: SparkSession, delay: str) -> int:
    """Return a delay as Spark writes it in microseconds."""
    text = delay.replace("'", "")
    [row] = spark.sql(
        f"SELECT unix_micros(timestamp_micros(0) + CAST('{text}' AS INTERVAL)) AS micros"
    ).collect()
    return int(row.micros)
