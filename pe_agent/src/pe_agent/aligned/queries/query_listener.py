"""Listeners of an operator's queries: one follows them, one logs why queries failed.

Any code with the DataFrame can start a query, so this package does not see the start. Spark's
listener does, and the plan of a query contains the mark of each of its operators.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyspark import SparkContext

from pe_agent.spark.query_failure import parse_cause
from pe_agent.spark.session import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("pe_agent")


class QueryListener:
    """A listener of Spark's queries that reads only the needed parts of an event from the JVM.

    PySpark's own base class reads each event completely before it calls a listener. The progress of
    one micro-batch costs it some hundred calls into the JVM, 0.1 s of a core. With faster queries
    events pile up, and the end of a query is reported after all of them.

    Methods that are not overridden ignore their events. Events are JVM objects.
    """

    _java: Any = None

    @property
    def _jlistener(self) -> Any:  # what ``addListener`` and ``removeListener`` ask for
        if self._java is None:
            jvm: Any = SparkContext._jvm
            self._java = jvm.PythonStreamingQueryListenerWrapper(self)
        return self._java

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Called in the query's thread, before ``start`` returns."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Called in a thread of Spark's listeners, like those below."""

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Called when no micro-batch was due."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Called when the query has ended."""

    class Java:
        """The Java interface, as Py4J requires it."""

        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)


def watch_queries(
    spark: SparkSession,
    mark: str,
    *,
    on_progress: Callable[[], None],
    on_ended: Callable[[], None],
) -> None:
    """Follow the queries whose plan contains the mark of an `OperatorNode`.

    ``on_progress`` is called after windows, ``on_ended`` once when the last running query has
    ended. Both run in a thread of Spark's listeners, and have to return soon.
    """
    add_listener(spark, _MarkedQueries(spark, mark, on_progress, on_ended))


def add_listener(spark: SparkSession, listener: QueryListener) -> None:
    """Register a listener for the queries of a session."""
    streams: Any = spark.streams
    streams.addListener(listener)


def query_plan(spark: SparkSession, event: Any) -> str:
    """Return the plan of a query that is being started; it contains the marks of operators."""
    query = spark.streams.get(event.id().toString())
    return "" if query is None else str(query._jsq.streamingQuery().analyzedPlan().toString())


class _MarkedQueries(QueryListener):
    def __init__(
        self,
        spark: SparkSession,
        mark: str,
        on_progress: Callable[[], None],
        on_ended: Callable[[], None],
    ) -> None:
        self._spark, self._mark = spark, mark
        self._on_progress, self._on_ended = on_progress, on_ended
        self._runs: set[str] = set()

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        try:
            plan = query_plan(self._spark, event)
        except Exception:  # the listener of one query must not disturb another
            log.exception("the plan of query %s cannot be read", event.id().toString())
            return
        if self._mark in plan:
            self._runs.add(event.runId().toString())

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        if self._runs and event.progress().runId().toString() in self._runs:
            self._on_progress()

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        run = event.runId().toString()
        if run not in self._runs:
            return
        self._runs.discard(run)
        if not self._runs:
            self._on_ended()
            streams: Any = self._spark.streams
            streams.removeListener(self)


_LOGGED: set[SparkSession] = set()


def log_failures(spark: SparkSession) -> None:
    """Log the cause of each query of a classic session that fails, from now on."""
    if spark not in _LOGGED and not is_connect(spark):
        _LOGGED.add(spark)
        add_listener(spark, _FailureLog())


class _FailureLog(QueryListener):
    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        try:
            error = event.exception()
            if error.isDefined():
                log.error("query %s failed: %s", event.id().toString(), parse_cause(error.get()))
        except Exception:  # the listener of one query must not disturb another
            log.exception("the cause of a failure cannot be read")
