"""Runs of Spark queries as figures: what a micro-batch of a query takes."""

from __future__ import annotations

import statistics
from itertools import pairwise
from typing import Any

import rows
from measure import Figures
from processes import App

WARM = 2
"""The first batches of a query start its Python workers; they are left out."""
FILL = 6
"""Batches left out where the log of an export is new and grows to what it keeps."""
PARTS = (
    "triggerExecution",
    "addBatch",
    "latestOffset",
    "queryPlanning",
    "walCommit",
    "commitOffsets",
)


def batches(
    app: App,
    source: dict[str, Any],
    sink: dict[str, Any],
    checkpoint: str,
    *,
    count: int,
    **more: Any,
) -> list[dict[str, Any]]:
    """Run a query and return ``count`` batches that had rows, after the warm-up."""
    ran = app.run(source=source, sink=sink, checkpoint=checkpoint, batches=count + WARM, **more)
    return [b for b in ran if b["rows"]][WARM:][:count]


def add(figures: Figures, name: str, ran: list[dict[str, Any]], batch_rows: int) -> float:
    """Add a round's figures of a query; return its seconds per 1 M rows.

    Seconds are from the end of one batch to the end of the next, in the median: what the query
    sustains, all of Spark's own work included.
    """
    ends = [b["began"] + b["ms"]["triggerExecution"] / 1e3 for b in ran]
    steps = [b - a for a, b in pairwise(ends)]
    seconds = statistics.median(steps)
    rate = batch_rows / seconds
    figures.add(f"{name}: rows", rate / 1e6, "M rows/s")
    figures.add(f"{name}: MB", rows.megabytes(rate), "MB/s")
    for part in ("addBatch", "triggerExecution"):
        figures.add(f"{name}: {part}", statistics.median(b["ms"].get(part, 0) for b in ran), "ms")
    return float(seconds * 1e6 / batch_rows)


def done(ran: list[dict[str, Any]], at: float) -> float:
    """Return how many rows a query had done at a time; a batch does its rows evenly."""
    total = 0.0
    for batch in ran:
        seconds = batch["ms"]["triggerExecution"] / 1e3
        share = (at - batch["began"]) / seconds if seconds else 1.0
        total += batch["rows"] * min(1.0, max(0.0, share))
    return total


def ended(ran: list[dict[str, Any]], total: float) -> float:
    """Return when a query had done so many rows; a batch does its rows evenly.

    Raises:
        RuntimeError: it has not done so many.
    """
    before = 0.0
    for batch in ran:
        if batch["rows"] and before + batch["rows"] >= total:
            share = (total - before) / batch["rows"]
            return float(batch["began"] + share * batch["ms"]["triggerExecution"] / 1e3)
        before += batch["rows"]
    raise RuntimeError(f"only {before:,.0f} rows came, not {total:,.0f}")
