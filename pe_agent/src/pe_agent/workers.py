"""Spark's Python workers: what costs a process something with each task."""

from __future__ import annotations

import gc

_SETTLED: set[str] = set()


def settle(kind: str) -> None:
    """Take the modules that tasks of a kind have loaded out of Python's search for cycles.

    Spark's worker collects cycles behind each task, and then looks at every object of every module:
    a quarter of all that workers did for packed rows. Only in such a worker anything is done, and
    once for each kind, when the first task ends.

    Args:
        kind: of the tasks: kinds import different modules.
    """
    from pyspark import TaskContext

    if kind in _SETTLED or TaskContext.get() is None:
        return
    _SETTLED.add(kind)
    gc.collect()
    gc.freeze()
