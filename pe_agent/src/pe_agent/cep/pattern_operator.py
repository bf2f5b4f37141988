"""The pattern operator as Spark's tasks make it: with masks, and a way for metrics."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import pyarrow as pa

from pe_agent.filters import compile_filter
from pe_agent.spark.worker import QUERY_ID, task_property
from streambroker_core.cep.engine.condition_masks import row_by_row
from streambroker_core.cep.engine.metrics import WindowMetrics
from streambroker_core.cep.operator import PatternOperator
from streambroker_core.errors import FilterError
from streambroker_core.expression import Expression


class WindowSink(Protocol):
    """Takes the metrics of windows from tasks: an accumulator, or a reporter to the agent."""

    def add(self, windows: list[WindowMetrics], /) -> None:
        """Pass them to the program."""


def make_operator(sink: WindowSink, make: Callable[..., PatternOperator]) -> PatternOperator:
    """Return the operator of a window; called in Spark tasks.

    ``make`` is the class with its settings, but for what a task adds.
    """

    def watch(window: WindowMetrics) -> None:
        sink.add([replace(window, query=task_property(QUERY_ID) or "")])

    return make(maker=_make_mask, watch=watch, clock=time.perf_counter_ns)


def _make_mask(expression: Expression, schema: pa.Schema) -> Any:
    """Return the mask of a condition; evaluate row by row if no column type fits it."""
    try:
        return compile_filter(expression, schema).mask
    except FilterError:
        return row_by_row(expression, schema)
