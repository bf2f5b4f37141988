"""How many queries an operator may run in: one for each frame that was given out.

Spark lets a DataFrame be started as often as somebody likes, and each time its operators have a
state of their own. Spark's listener hears of a start in the thread in which the query will run, and
puts a word into that thread's properties; the operator's tasks find it there, and the query fails.
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
    """Queries of one operator.

    Attributes:
        allowed: how many there may be.
        queries: ids of those that were started; one that is started again is the same.
    """

    allowed: int = 0
    queries: set[str] = field(default_factory=set)

    def start(self, query: str) -> bool:
        """Note a start; False if it is one query too many."""
        if query not in self.queries and len(self.queries) >= self.allowed:
            return False
        self.queries.add(query)
        return True


_LISTENERS: dict[SparkSession, _StartListener] = {}


def allow_query(spark: SparkSession, mark: str) -> None:
    """Let an operator run in one query more.

    Args:
        spark: the session of its streams.
        mark: of `operators.Node`.
    """
    listener = _LISTENERS.get(spark)
    if listener is None:
        listener = _LISTENERS[spark] = _StartListener(spark)
        add_listener(spark, listener)
    listener.starts.setdefault(mark, QueryStarts()).allowed += 1


def find_refused(starts: Mapping[str, QueryStarts], plan: str, query: str) -> str | None:
    """Note the start of a query; return the mark of an operator that may not run in it."""
    found = [mark for mark, one in starts.items() if mark in plan and not one.start(query)]
    return found[0] if found else None


class _StartListener(QueryListener):
    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self.starts: dict[str, QueryStarts] = {}

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Refuse a query too many."""
        try:
            query = event.id().toString()
            mark = find_refused(self.starts, query_plan(self._spark, event), query)
            if mark is not None:
                self._spark.sparkContext.setLocalProperty(REFUSED_PROPERTY, mark)
        except Exception:  # the listener of one query must not disturb another
            log.exception("the plan of a query cannot be read")

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Log the cause of a failure, behind all that Spark has logged of it."""
        try:
            error = event.exception()
            if error.isDefined():
                log.error("query %s failed: %s", event.id().toString(), parse_cause(error.get()))
        except Exception:  # the listener of one query must not disturb another
            log.exception("the cause of a failure cannot be read")
