"""Spark sessions: which one is active where a data source is looked up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource


@contextmanager
def active_session(spark: SparkSession) -> Iterator[None]:
    """Make a session the active one for a while.

    Spark looks a format up in the active session, whichever session opens the frame or starts the
    query; in a program with two it would not find what is registered in the other.
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
    """Make a format known to a session, whichever is the active one."""
    with active_session(spark):
        spark.dataSource.register(source)
