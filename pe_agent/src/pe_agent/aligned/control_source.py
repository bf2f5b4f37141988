"""Spark sources of control tuples alone, for streams that are not imported, and for experiments.

A union adds them to streams of rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from pe_agent.aligned.data import ControlFrame
from pe_agent.aligned.plan import StreamPlan
from pe_agent.aligned.runtime.frames import CONTROL
from pe_agent.log.control_file import ControlFileOffsets
from pe_agent.spark.session import active_session, register_source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT = "streambroker-control-file"
_O = TypeVar("_O")


def control_source_plan(
    spark: SparkSession, source: type[DataSource], **options: Any
) -> StreamPlan:
    """Return the plan of the control tuples of a source, for ``union`` with other plans."""
    register_source(spark, source)
    with active_session(spark):
        frame = spark.readStream.format(source.name()).options(**options).load()
    return StreamPlan(spark=spark, control_frames=(ControlFrame(frame=frame),))


class ControlOffsets(Protocol[_O]):
    """Numbers the control tuples of a source; an offset is a JSON object in Spark's checkpoint."""

    def first(self) -> _O:
        """Return the offset before the first tuple."""

    def latest(self, start: _O) -> _O:
        """Return the end offset of the next window."""

    def freeze_end(self) -> None:
        """Limit reading to what there is now."""

    def read(self, start: _O, end: _O) -> list[bytes]:
        """Return the tuples between two offsets, as values of ``_control``."""


class ControlSource(DataSource, ABC):
    """A source of control tuples alone; subclasses define its format and its offsets."""

    FORMAT = ""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return cls.FORMAT

    def schema(self) -> str:
        """Return the one column, `_control`."""
        return f"{CONTROL} binary"

    @abstractmethod
    def control_offsets(self) -> ControlOffsets[Any]:
        """Return the offsets that the options name."""

    def streamReader(self, schema: Any) -> ControlReader:  # noqa: N802 - Spark's name
        """Return the reader."""
        del schema
        return ControlReader(self.control_offsets())


class ControlReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads windows of control tuples; they are part of the task, so a task needs no file."""

    def __init__(self, offsets: ControlOffsets[Any]) -> None:
        self._offsets = offsets

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the offset before the first tuple."""
        return dict(self._offsets.first())

    def latestOffset(self, start: Any, limit: Any) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the end offset of the next window."""
        del limit
        return dict(self._offsets.latest(start))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Limit reading to what there is now."""
        self._offsets.freeze_end()

    def partitions(self, start: Any, end: Any) -> list[InputPartition]:
        """Return the tuples between two offsets."""
        tuples = self._offsets.read(start, end)
        return [InputPartition(tuples)] if tuples else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the tuples of a batch."""
        yield pa.RecordBatch.from_pydict({CONTROL: pa.array(partition.value, pa.binary())})


class ControlFileSource(ControlSource):
    """``format("streambroker-control-file")``."""

    FORMAT = FORMAT

    def control_offsets(self) -> ControlFileOffsets:
        """Return the offsets of the file."""
        return ControlFileOffsets(Path(self.options["path"]))
