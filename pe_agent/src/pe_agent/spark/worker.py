"""Spark's Python workers: what costs a process something with each task, and how it ends."""

from __future__ import annotations

import gc
import sys
import traceback
from typing import Any

_FROZEN: set[str] = set()


def freeze_modules(task_kind: str) -> None:
    """Take the modules that tasks of a kind have loaded out of Python's search for cycles.

    Spark's worker collects cycles behind each task, and then looks at every object of every module:
    a quarter of all that workers did for packed rows. Only in such a worker anything is done, and
    once for each kind, when the first task ends.

    Args:
        task_kind: of the tasks: kinds import different modules.
    """
    from pyspark import TaskContext

    if task_kind in _FROZEN or TaskContext.get() is None:
        return
    _FROZEN.add(task_kind)
    gc.collect()
    gc.freeze()


class _Traceback:
    """The module ``traceback`` for the daemon of PySpark, less errors of a closed connection."""

    def __getattr__(self, name: str) -> Any:
        return getattr(traceback, name)

    @staticmethod
    def print_exc() -> None:
        """Print the exception that is handled, unless the connection was closed."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            traceback.print_exc()


def hide_closed_connections() -> None:
    """Print no traceback if the JVM closes the connection; only in a worker of PySpark's daemon.

    The JVM closes the connection of a planning worker as soon as it has the result, and that of a
    source when its query ends. PySpark's daemon then fails to flush what is left, and prints a
    traceback that ends with ``BrokenPipeError``, although nothing is wrong.
    """
    main = sys.modules["__main__"]
    if getattr(getattr(main, "__spec__", None), "name", "") == "pyspark.daemon":
        main.__dict__["traceback"] = _Traceback()


hide_closed_connections()  # every module whose code runs in a worker imports this one
