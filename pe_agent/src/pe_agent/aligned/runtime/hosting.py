"""Hosting of an operator in Spark: inputs are packed, shuffled by slot, and run with state."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import StructType

from pe_agent.aligned.runtime.frames import EMITTED_DDL, NOW
from pe_agent.aligned.runtime.idleness import EventTimeReporter
from pe_agent.aligned.runtime.lazy_operator import LazyOperator
from pe_agent.aligned.runtime.packer import FramePacker, Repacker
from pe_agent.aligned.runtime.processor import OperatorConfig
from pe_agent.datasource.columns import parse_struct
from pe_agent.datasource.schemas import (
    Columns,
    as_nullable,
    as_spark_schema,
    check_ddl,
)
from pe_agent.datasource.slots import SLOT, PackStep, PackSteps, packed_ddl
from pe_agent.spark.session import count_cores, is_connect
from streambroker_core.errors import AlignedError, SchemaError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("pe_agent")

STATE_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
LOCAL_FILES = "spark.hadoop.fs.file.impl"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
"""A window's commit writes only changes; files of the whole state are written in the background."""

SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
"""Number of tasks that run an operator's buckets; a checkpoint keeps the number it began with."""
MANY_TASKS = 8
"""Tasks of an operator for each core from which on their number is a mistake."""
BROADCAST_THRESHOLD = "spark.broadcast.UDFCompressionThreshold"
"""Spark sends larger functions as a broadcast, which the process that asks for an operator's states
cannot read."""
FRAME_BYTES = 16 << 10
"""Maximum bytes that pickling adds around an operator."""


@dataclass(frozen=True, kw_only=True)
class Feed:
    """A frame that feeds a port: rows, emitted rows of an operator, or packed rows.

    Attributes:
        frame: the frame.
        pack: function that packs the frame inside a task; None if it is already packed.
        delay: delay of its watermark in Spark's format; None for a frame without event time.
        port: name of the input.
        slotted: the frame is packed and has slots.
    """

    frame: DataFrame
    pack: FramePacker | Repacker | None = None
    delay: str | None = None
    port: str = ""
    slotted: bool = False


@dataclass(frozen=True, kw_only=True)
class Hop:
    """A shuffle and what follows it: one operator, or several in a chain.

    Attributes:
        operators: the operators in their order.
        feeds: what feeds it.
        marks: aliases of the operators in the plans of queries.
    """

    operators: tuple[OperatorConfig, ...]
    feeds: tuple[Feed, ...]
    marks: tuple[str, ...]

    def extend(self, config: OperatorConfig, output: str, mark: str) -> Hop:
        """Return the hop with one more operator, which reads an output of the last one."""
        operators = (*self.operators, replace(config, reads=output))
        return replace(self, operators=operators, marks=(*self.marks, mark))

    def run(self) -> DataFrame:
        """Return what its last operator emits."""
        frame = run_operators(self.operators, self.feeds)
        return reduce(lambda marked, mark: marked.alias(mark), self.marks, frame)


def prepare_session(spark: SparkSession) -> None:
    """Set what operators need; optional settings are set only if the session has no value.

    On one machine an operator gets as many tasks as there are cores. Spark's default of 200 starts
    200 Python workers for each micro-batch, which takes longer than any time limit.

    Raises:
        AlignedError: the package protobuf is missing, or the session uses another state store.
    """
    if importlib.util.find_spec("google") is None or (
        importlib.util.find_spec("google.protobuf") is None
    ):
        raise AlignedError(
            "Spark's state for Python needs the package protobuf, on the driver and on executors:"
            " pip install 'pe-agent[spark]'."
        )
    settings = spark.conf.getAll
    check_settings(settings)
    spark.conf.set(STATE_PROVIDER, ROCKSDB)
    if CHANGELOG not in settings:
        spark.conf.set(CHANGELOG, "true")
    cores = count_cores(spark)
    if SHUFFLE_PARTITIONS not in settings and settings.get("spark.master", "").startswith("local"):
        spark.conf.set(SHUFFLE_PARTITIONS, str(cores))
    partitions = int(str(spark.conf.get(SHUFFLE_PARTITIONS)))
    if partitions > MANY_TASKS * cores:
        _warn_of_many_tasks(partitions, cores)


@cache
def _warn_of_many_tasks(partitions: int, cores: int) -> None:
    log.warning(
        "%s is %d and the session has %d cores: each micro-batch of an operator runs so many tasks,"
        " each in a Python worker. Set it to %d, one for each core, before the first start of the"
        " query; a checkpoint keeps the number that it began with.",
        SHUFFLE_PARTITIONS,
        partitions,
        cores,
        cores,
    )


def check_settings(settings: Mapping[str, str]) -> None:
    """Raise AlignedError if the session's state store or local file system cannot keep state."""
    provider = settings.get(STATE_PROVIDER, ROCKSDB)
    if not provider.endswith("RocksDBStateStoreProvider"):
        raise AlignedError(
            f"the session keeps state with {provider}, which cannot keep that of operators. Leave"
            f" {STATE_PROVIDER} unset, or set it to {ROCKSDB}."
        )
    if settings.get(LOCAL_FILES, "").endswith("RawLocalFileSystem"):
        raise AlignedError(
            f"the session has {LOCAL_FILES} set to {settings[LOCAL_FILES]}, with which Spark's"
            " RocksDB cannot write checkpoints. Leave it unset."
        )


def parse_columns(schema: Columns) -> StructType:
    """Return columns as nullable; raise AlignedError or SchemaError if they cannot be read."""
    if isinstance(schema, StructType | pa.Schema):
        return as_nullable(as_spark_schema(schema))
    schema = check_ddl(schema)
    try:
        return as_nullable(parse_struct(schema))
    except SchemaError as error:
        raise AlignedError(f"the columns {schema!r} cannot be read: {error}") from error


def make_lazy_operator(operators: Sequence[OperatorConfig], spark: SparkSession) -> LazyOperator:
    """Return a hop for Spark's plan; raise AlignedError if it is too large to send."""
    lazy = LazyOperator(*operators)
    if is_connect(spark):  # its server sends functions of any size with the task
        return lazy
    context: Any = spark.sparkContext
    limit = int(context._jvm.PythonUtils.getBroadcastThreshold(context._jsc))
    if lazy.size() + FRAME_BYTES > limit:
        names = [one.name for one in operators]
        raise AlignedError(
            f"operator {', '.join(names)} has {lazy.size()} bytes with all that it refers to, and"
            f" Spark accepts {limit - FRAME_BYTES}. Read large data from a file in begin_window,"
            f" or set {BROADCAST_THRESHOLD} to more, such as 64m, when the session is created."
        )
    return lazy


def run_operators(operators: Sequence[OperatorConfig], feeds: Sequence[Feed]) -> DataFrame:
    """Return the emitted rows of the last operator of a hop, for all of its outputs."""
    from pyspark.sql import functions

    config, lazy = operators[0], make_lazy_operator(operators, feeds[0].frame.sparkSession)
    frames: list[DataFrame] = []
    # A union has the event time of its first frame.
    for feed in sorted(feeds, key=lambda one: one.delay is None):
        frame = feed.frame
        steps: list[PackStep] = [] if feed.pack is None else [feed.pack]
        if feed.port in config.timings and feed.delay is not None:
            steps.append(EventTimeReporter(feed.port, config.buckets))
        if steps or (config.slots and not feed.slotted):
            pack = PackSteps(steps=tuple(steps), slots=config.slots)
            frame = frame.mapInArrow(pack, packed_ddl(slots=config.slots))
        if feed.delay is not None:
            frame = frame.withWatermark("event_time", feed.delay)
        frames.append(frame)
    packed = reduce(lambda one, other: one.unionByName(other), frames)
    packed = packed.withColumn(NOW, functions.unix_micros(functions.current_timestamp()))
    return packed.groupBy(SLOT if config.slots else "bucket").transformWithStateInPandas(
        lazy,
        EMITTED_DDL,
        "append",
        "EventTime" if config.has_watermark else "None",
    )
