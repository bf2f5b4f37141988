"""The life of an operator's queries, for what stands beside a driver while they run.

A query is started by whoever has its DataFrame, so nobody here sees it start. Spark's listener
does, and the plan of a query has the mark of each of its operators.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("pe_agent")


def follow(
    spark: SparkSession,
    mark: str,
    *,
    progressed: Callable[[], None],
    ended: Callable[[], None],
) -> None:
    """Follow the queries with a mark; functions are called in a thread of Spark's listeners.

    Args:
        spark: the session that runs them.
        mark: of `operators.Node`.
        progressed: is called after windows; has to return soon.
        ended: is called once, when queries ran and none does any more; has to return soon.
    """
    spark.streams.addListener(_Followed(spark, mark, progressed, ended))


def plan_of(spark: SparkSession, event: Any) -> str:
    """Return the plan of a query that is being started, in which operators have their marks."""
    query = spark.streams.get(str(event.id))
    return "" if query is None else str(query._jsq.streamingQuery().analyzedPlan().toString())


class _Followed(StreamingQueryListener):
    def __init__(
        self,
        spark: SparkSession,
        mark: str,
        progressed: Callable[[], None],
        ended: Callable[[], None],
    ) -> None:
        self._spark, self._mark = spark, mark
        self._progressed, self._ended = progressed, ended
        self._runs: set[str] = set()

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Note a query with the mark; called before ``start`` returns."""
        try:
            plan = plan_of(self._spark, event)
        except Exception:  # the listener of one query must not disturb another
            log.exception("the plan of query %s cannot be read", event.id)
            return
        if self._mark in plan:
            self._runs.add(str(event.runId))

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Call, if it is one of them."""
        if str(event.progress.runId) in self._runs:
            self._progressed()

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Pass over it."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Call, if it was the last."""
        if str(event.runId) not in self._runs:
            return
        self._runs.discard(str(event.runId))
        if not self._runs:
            self._ended()
            self._spark.streams.removeListener(self)
