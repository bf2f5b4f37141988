"""Spark sources of control tuples alone, for streams that are not imported, and for experiments.

A union adds them to streams of rows.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

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


def control_source_plan(
    spark: SparkSession, source: type[DataSource], **options: Any
) -> StreamPlan:
    """Return the plan of the control tuples of a source, for ``union`` with other plans."""
    register_source(spark, source)
    with active_session(spark):
        frame = spark.readStream.format(source.name()).options(**options).load()
    return StreamPlan(spark=spark, control_frames=(ControlFrame(frame=frame),))


class ControlSource(DataSource, ABC):
    """A source of control tuples alone; subclasses define its format and reader."""

    FORMAT = ""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return cls.FORMAT

    def schema(self) -> str:
        """Return the one column, `_control`."""
        return f"{CONTROL} binary"


class ControlFileSource(ControlSource):
    """``format("streambroker-control-file")``."""

    FORMAT = FORMAT

    def streamReader(self, schema: Any) -> ControlFileReader:  # noqa: N802 - Spark's name
        """Return the reader of the file."""
        del schema
        return ControlFileReader(Path(self.options["path"]))


class ControlFileReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads windows of a control file."""

    def __init__(self, path: Path) -> None:
        self._file = ControlFileOffsets(path)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the offset before the first tuple."""
        return self._file.first()

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: Mapping[str, Any], limit: Any
    ) -> dict[str, Any]:
        """Return the end offset of the next window; raise AlignedError if lines are lost."""
        del limit
        return self._file.latest(start)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Limit reading to the current end of the file."""
        self._file.freeze_end()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        """Return the tuples between two offsets; raise AlignedError if the file does not fit."""
        lines = self._file.read(start, end)
        return [InputPartition(lines)] if lines else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the tuples of a batch; they are part of the task, so it needs no file."""
        return read_control(partition)


def read_control(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the tuples of a partition as rows."""
    yield pa.RecordBatch.from_arrays(
        [pa.array(partition.value, pa.binary())], schema=pa.schema([(CONTROL, pa.binary())])
    )
