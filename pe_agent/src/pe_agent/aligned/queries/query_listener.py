"""The life of an operator's queries, for what stands beside a driver while they run.

A query is started by whoever has its DataFrame, so nobody here sees it start. Spark's listener
does, and the plan of a query has the mark of each of its operators.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyspark import SparkContext

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("pe_agent")


class QueryListener:
    """A listener of Spark's queries that reads of an event what it asks the JVM for.

    PySpark's own base class reads each event whole before it calls anybody. The progress of one
    micro-batch takes it some hundred calls into the JVM, 0.1 s of a core: a query that is quicker
    leaves more and more events behind, and its end is heard of after all of them.

    What is not overridden passes over its events. They are objects of the JVM.
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
        """No micro-batch was due."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """The query has ended."""

    class Java:
        """What Py4J asks for."""

        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)


def watch_queries(
    spark: SparkSession,
    mark: str,
    *,
    on_progress: Callable[[], None],
    on_ended: Callable[[], None],
) -> None:
    """Follow the queries with a mark; functions are called in a thread of Spark's listeners.

    Args:
        spark: the session that runs them.
        mark: of `operators.Node`.
        on_progress: is called after windows; has to return soon.
        on_ended: is called once, when queries ran and none does any more; has to return soon.
    """
    add_listener(spark, _MarkedQueries(spark, mark, on_progress, on_ended))


def add_listener(spark: SparkSession, listener: QueryListener) -> None:
    """Let a listener hear of the queries of a session."""
    streams: Any = spark.streams
    streams.addListener(listener)


def query_plan(spark: SparkSession, event: Any) -> str:
    """Return the plan of a query that is being started, in which operators have their marks."""
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
        """Note a query with the mark."""
        try:
            plan = query_plan(self._spark, event)
        except Exception:  # the listener of one query must not disturb another
            log.exception("the plan of query %s cannot be read", event.id().toString())
            return
        if self._mark in plan:
            self._runs.add(event.runId().toString())

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Call, if it is one of them."""
        if self._runs and event.progress().runId().toString() in self._runs:
            self._on_progress()

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Call, if it was the last."""
        run = event.runId().toString()
        if run not in self._runs:
            return
        self._runs.discard(run)
        if not self._runs:
            self._on_ended()
            streams: Any = self._spark.streams
            streams.removeListener(self)
