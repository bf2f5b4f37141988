"""Descriptions of a slice for messages, and the columns and ids that a task adds."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from streambroker_core.ledger.offset import Offset, ranges


def current_query() -> str | None:
    """Return the id of the query that this task belongs to; None outside of a task."""
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty("sql.streaming.queryId")


def build_source_column(
    type_: pa.DataType, rows: int, ticket: dict[str, Any], meta: dict[str, Any]
) -> pa.Array:
    """Return the `_source` column."""
    _, job, _, port = ticket["export"].split("/")
    value = {"job": job, "port": port, "stream": ticket["stream"], "epoch": meta["epoch"]}
    return pa.array([value] * rows, type=type_)


def describe_planned(start: dict[str, Any], end: dict[str, Any]) -> str:
    """Return the epochs that a batch reads, as text for messages."""
    planned = ranges(Offset.decode(start), Offset.decode(end))
    return ", ".join(f"epochs {f} to {n - 1} of stream {s}" for s, (f, n) in planned.items())


def describe_epochs(ticket: dict[str, Any]) -> str:
    """Return the range of epochs of a ticket, as text for messages."""
    numbers = [p[0] for p in ticket["pieces"]]
    return f"{min(numbers)} to {max(numbers)}"
