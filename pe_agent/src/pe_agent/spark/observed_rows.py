"""Rows of imports and exports in Spark's progress, as ``observedMetrics``.

Spark's own numbers count the rows of its plan: packed rows, and rows of a frame that a query reads
twice. A metric counts what the agents sent, and what an export takes.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from pe_agent.spark.session import sql_functions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_users: dict[str, list[threading.Event]] = {}
_lock = threading.Lock()


def observe_rows(frame: DataFrame, name: str, rows: Column | None = None) -> DataFrame:
    """Return a frame whose queries report a number of rows as ``observedMetrics[name].rows``.

    Args:
        frame: a streaming frame.
        name: no other frame of a query may have it.
        rows: an aggregate of the frame's rows; None for their number.
    """
    count = sql_functions(frame).count("*") if rows is None else rows
    return frame.observe(name, count.alias("rows"))


def count_packed_rows(frame: DataFrame) -> Column:
    """Return the number of rows that the tasks of a packed frame have read, as an aggregate.

    Their watermark rows have it. The other packed rows have control tuples, too, and each row of a
    broadcast input once for each bucket.
    """
    functions = sql_functions(frame)
    packed = functions.when(functions.col("n") == 0, functions.col("seq"))
    count: Column = functions.coalesce(functions.sum(packed), functions.lit(0))
    return count


def import_metric(port: str, stopped: threading.Event) -> str:
    """Return the name of the metric of a new frame of an import.

    Spark refuses a query with two frames of one name. So a further frame has a number, also one of
    another PE of the program. The number is free again once ``stopped`` of the PE is set.
    """
    with _lock:
        users = _users.setdefault(port, [])
        number = next((at for at, one in enumerate(users) if one.is_set()), len(users))
        users[number : number + 1] = [stopped]
    return f"streambroker.import.{port}" + (f".{number + 1}" if number else "")


def export_metric(port: str) -> str:
    """Return the name of the metric of an export."""
    return f"streambroker.export.{port}"
