"""The active Spark session during the look-up of a data source."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource


@contextmanager
def active_session(spark: SparkSession) -> Iterator[None]:
    """Make a session the active one in this context.

    Spark looks up formats in the active session, whichever session opens the frame or starts the
    query. In a program with two sessions it would miss a format registered in the other one.
    """
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
