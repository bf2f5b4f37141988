"""Rows of imports and exports in Spark's progress, as ``observedMetrics``.

Spark's own numbers count the rows of its plan: packed rows, and rows of a frame that a query reads
twice. A metric counts what the agents sent, and what an export takes.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

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
    from pyspark.sql import functions

    return frame.observe(name, (functions.count("*") if rows is None else rows).alias("rows"))


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
