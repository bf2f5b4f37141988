"""The Spark session of a job: classic or Spark Connect, and the active one during a look-up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from streambroker_core.errors import StreambrokerError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSource


class ClassicSessionRequiredError(StreambrokerError):
    """The session is of Spark Connect, whose API lacks what was called; nothing was declared."""

    code = "ClassicSessionRequired"


def is_connect(spark: SparkSession) -> bool:
    """Return whether a session is a client of a Spark Connect server."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def sql_functions(frame: DataFrame) -> Any:
    """Return the functions that make columns for a frame.

    ``pyspark.sql.functions`` goes by an environment variable, which only some sessions of Spark
    Connect set.
    """
    if is_connect(frame.sparkSession):
        from pyspark.sql.connect import functions as remote

        return remote
    from pyspark.sql import functions

    return functions


def require_classic(spark: SparkSession, what: str, remedy: str) -> None:
    """Raise `ClassicSessionRequiredError` if the session is of Spark Connect."""
    if is_connect(spark):
        raise ClassicSessionRequiredError(
            f"{what} needs a classic Spark session, and this one is of Spark Connect. {remedy}, or"
            " run the job with spark-submit."
        )


def count_cores(spark: SparkSession) -> int:
    """Return the default number of tasks of a session: the cores of all its executors."""
    if is_connect(spark):
        return _count_remote_cores(spark)
    return spark.sparkContext.defaultParallelism


@cache
def _count_remote_cores(spark: SparkSession) -> int:
    from pyspark.sql import functions

    tasks = spark.range(1 << 20).select(functions.spark_partition_id().alias("task"))
    (row,) = tasks.agg(functions.max("task").alias("last")).collect()
    return int(row["last"]) + 1


@contextmanager
def active_session(spark: SparkSession) -> Iterator[None]:
    """Make a session the active one in this context.

    Spark looks up formats in the active session, whichever session opens the frame or starts the
    query. In a program with two sessions it would miss a format registered in the other one. A
    server of Spark Connect uses the session of the client.
    """
    if is_connect(spark):
        yield
        return
    jvm: Any = spark._jvm
    sessions = jvm.org.apache.spark.sql.classic.SparkSession
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def register_source(spark: SparkSession, source: type[DataSource]) -> None:
    """Register a format in a session, even if another one is active."""
    with active_session(spark):
        spark.dataSource.register(source)
