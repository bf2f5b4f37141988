"""Adjustments of Spark's Python workers: less garbage collection, and no tracebacks at the end."""

from __future__ import annotations

import gc
import sys
import traceback
from typing import Any

QUERY_ID = "sql.streaming.queryId"
"""Property of a task with the id of its query, which is that of the checkpoint."""
_FROZEN: set[str] = set()


def task_property(name: str) -> str | None:
    """Return a local property of the current task; None outside of a task, or if it is not set."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)


def freeze_modules(task_kind: str) -> None:
    """Exempt the modules that tasks of a kind have loaded from Python's cyclic garbage collector.

    Spark's worker runs the collector after each task, over every object of every module: a quarter
    of the workers' time for packed rows. Acts only in such a worker, once for each kind, when its
    first task ends; kinds import different modules.
    """
    from pyspark import TaskContext

    if task_kind in _FROZEN or TaskContext.get() is None:
        return
    _FROZEN.add(task_kind)
    gc.collect()
    gc.freeze()


class _Traceback:
    """The module ``traceback`` for PySpark's daemon, without errors of closed connections."""

    def __getattr__(self, name: str) -> Any:
        return getattr(traceback, name)

    @staticmethod
    def print_exc() -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            traceback.print_exc()


def hide_closed_connections() -> None:
    """Print no traceback if the JVM closes the connection; only in a worker of PySpark's daemon.

    The JVM closes the connection of a planning worker as soon as it has the result, and that of a
    source when its query ends. PySpark's daemon then fails to flush its buffer, and prints a
    traceback that ends with ``BrokenPipeError``, although nothing is wrong.
    """
    main = sys.modules["__main__"]
    if getattr(getattr(main, "__spec__", None), "name", "") == "pyspark.daemon":
        main.__dict__["traceback"] = _Traceback()


hide_closed_connections()  # every module whose code runs in a worker imports this one
