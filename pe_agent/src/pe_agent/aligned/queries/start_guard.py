"""Guard against running an operator in more queries than frames were handed out.

Spark can start a DataFrame any number of times, and each time its operators have a state of their
own. Spark calls the listener of a start in the thread in which the query will run. The listener
sets a local property of that thread; the operator's tasks read it, and the query fails.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pe_agent.aligned.queries.query_listener import QueryListener, add_listener, query_plan
from pe_agent.spark.query_failure import parse_cause

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

log = logging.getLogger("pe_agent")

REFUSED_PROPERTY = "streambroker.refused"
"""Local property of tasks: the mark of an operator that may not run in their query."""


@dataclass(slots=True)
class QueryStarts:
    """Queries of one operator: their maximum number, and the ids, which a restart keeps."""

    allowed: int = 0
    queries: set[str] = field(default_factory=set)

    def start(self, query: str) -> bool:
        """Record a start; return False if it is one query too many."""
        if query not in self.queries and len(self.queries) >= self.allowed:
            return False
        self.queries.add(query)
        return True


_LISTENERS: dict[SparkSession, _StartListener] = {}


def allow_query(spark: SparkSession, mark: str) -> None:
    """Allow the operator with a mark to run in one more query."""
    listener = _LISTENERS.get(spark)
    if listener is None:
        listener = _LISTENERS[spark] = _StartListener(spark)
        add_listener(spark, listener)
    listener.starts.setdefault(mark, QueryStarts()).allowed += 1


def find_refused(starts: Mapping[str, QueryStarts], plan: str, query: str) -> str | None:
    """Record the start of a query; return the mark of an operator that may not run in it."""
    refused = [mark for mark, one in starts.items() if mark in plan and not one.start(query)]
    return refused[0] if refused else None


class _StartListener(QueryListener):
    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self.starts: dict[str, QueryStarts] = {}

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        try:
            query = event.id().toString()
            mark = find_refused(self.starts, query_plan(self._spark, event), query)
            if mark is not None:
                self._spark.sparkContext.setLocalProperty(REFUSED_PROPERTY, mark)
        except Exception:  # the listener of one query must not disturb another
            log.exception("the plan of a query cannot be read")

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        try:
            error = event.exception()
            if error.isDefined():
                log.error("query %s failed: %s", event.id().toString(), parse_cause(error.get()))
        except Exception:  # the listener of one query must not disturb another
            log.exception("the cause of a failure cannot be read")
