"""The operator with side inputs as Spark's tasks make it, with tables and figures."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from pe_agent.side.metrics_reporter import SideMetricsReporter
from pe_agent.side.tables.cache import CachedTables
from streambroker_core.control.tuples import ControlTuple, SideTick
from streambroker_core.side import SideOperator, SideRefresh
from streambroker_core.side.definition import MAIN
from streambroker_core.side.describe import summarize_stall
from streambroker_core.side.join.joiner import Function
from streambroker_core.side.state.layout import StateLayout
from streambroker_core.side.state.waiting_rows import GROUP, Stall
from streambroker_core.wire.reports.side_status import (
    MAX_STALLS,
    SideStall,
    SideStatus,
    describe_side_stall,
)

log = logging.getLogger("pe_agent")

METRICS_OUTPUT = "figures"
WATERMARK_CAUSE = "for the watermark to pass their event time"
"""What rows of all inputs wait for that are taken in the order of event time."""
_WAITING_FIELDS = ("waiting_rows", "waiting_bytes", "waiting_since")
_TIME = pa.timestamp("us", "UTC")
FIGURES_SCHEMA = pa.schema(
    [
        ("bucket", pa.int32()),
        ("window", pa.int64()),
        ("time", _TIME),
        ("input", pa.string()),
        ("waiting_rows", pa.int64()),
        ("waiting_bytes", pa.int64()),
        ("waiting_since", _TIME),
        ("entries", pa.int64()),
        ("bytes", pa.int64()),
        ("windows", pa.int64()),
        ("staged", pa.int64()),
        ("rows", pa.int64()),
        ("late", pa.int64()),
        ("refused", pa.int64()),
        ("version", pa.string()),
        ("version_since", _TIME),
        ("stall", pa.string()),
    ]
)
"""Columns of the output ``figures``: a row for each side input, window and bucket that had one. In
the row of input ``main`` is what waits for the end of its window, or for its event time."""


class SparkSideOperator(SideOperator):
    """Side inputs inside Spark."""

    def __init__(
        self,
        shape: StateLayout,
        function: Function | None,
        tables: CachedTables,
        *,
        emits_metrics: bool,
        reporter: SideMetricsReporter | None = None,
    ) -> None:
        super().__init__(shape, function, tables)
        self._cached_tables, self._emits_metrics, self._reporter = tables, emits_metrics, reporter
        if emits_metrics:
            self.outputs = (*self.outputs, METRICS_OUTPUT)

    def process_control(self, port: str, control: ControlTuple) -> bool:
        """Take what is said to a side input, and ticks; everything else goes on."""
        if control.type == SideTick.__name__:
            return True
        if control.type == SideRefresh.__name__:
            return self._request_refresh(control)
        return super().process_control(port, control)

    def reject_unknown(self, control: ControlTuple) -> str:
        """Refuse it as core does, and log that in one bucket."""
        message = super().reject_unknown(control)
        if self.window.bucket == 0:
            log.warning("%s.", message)
        return message

    def _request_refresh(self, control: ControlTuple) -> bool:
        name = str(control.payload.get("input"))
        if name not in self._cached_tables.folders:
            return False
        if self.window.bucket == 0:
            self._cached_tables.request_refresh(name, control.id)
        return True

    def end_window(self) -> None:
        """End a window; with figures, tell them."""
        super().end_window()
        if not self._emits_metrics and self._reporter is None:
            return
        told, at = self._build_statuses(), self.window
        if self._reporter is not None:
            self._reporter(at.bucket, at.number, told)
        if self._emits_metrics:
            here = {"bucket": at.bucket, "window": at.number, "time": at.time}
            rows = [{**here, **_metrics_row(side, at.time)} for side in told]
            self.emit(pa.RecordBatch.from_pylist(rows, schema=FIGURES_SCHEMA), METRICS_OUTPUT)

    def _build_statuses(self) -> list[SideStatus]:
        """Return what this bucket has of each side input, and what waits for none of them."""
        figures, stalls = self.figures(), self.stalls()
        told = []
        for number, (name, of) in enumerate(figures["inputs"].items()):
            size = {"size": of.pop("bytes"), "keyed": self.join.inputs[number].keyed}
            told.append(self._build_status(name, number, stalls, **of, **size))
        main = self._build_status(MAIN, GROUP, stalls)
        if rows := figures["unordered_rows"]:
            main = replace(
                main,
                waiting_rows=main.waiting_rows + rows,
                waiting_bytes=main.waiting_bytes + figures["unordered_bytes"],
                stalls=(*main.stalls, SideStall(cause=WATERMARK_CAUSE, rows=rows)),
            )
        return [*told, main]

    def _build_status(
        self, name: str, number: int, stalls: list[Stall], **metrics: Any
    ) -> SideStatus:
        mine = [stall for stall in stalls if stall.input == number]
        most = sorted(mine, key=lambda one: (-one.rows, one.window))[:MAX_STALLS]
        return SideStatus(
            operator="" if self._reporter is None else self._reporter.operator,
            input=name,
            waiting_rows=sum(stall.rows for stall in mine),
            waiting_bytes=sum(stall.size for stall in mine),
            waiting_since=min((s.since for s in mine if s.since is not None), default=None),
            stalls=tuple(summarize_stall(self.join, stall) for stall in most),
            **metrics,
        )


def _metrics_row(side: SideStatus, now: int) -> dict[str, Any]:
    """Return a row of the output ``figures``."""
    texts = [
        describe_side_stall(stall, now) for stall in side.stalls if stall.cause != WATERMARK_CAUSE
    ]
    found = {name: getattr(side, name) for name in FIGURES_SCHEMA.names if hasattr(side, name)}
    if side.input == MAIN:  # it has no values
        found = {name: found[name] for name in ("input", *_WAITING_FIELDS)}
    return {
        **found,
        "bytes": None if side.input == MAIN else side.size,
        "stall": _join_texts(texts),
    }


def _join_texts(texts: list[str]) -> str | None:
    return " ".join(texts) or None


@dataclass(frozen=True, kw_only=True)
class SideOperatorFactory:
    """Makes the operator, for each window and bucket.

    Attributes:
        shape: the definition, checked.
        function: called with main rows and their views; None for enriching alone.
        tables: where versions of its tables lie.
        emits_metrics: tell figures in one more output.
        reporter: tell them to the agent of the job; None for not.
    """

    shape: StateLayout
    function: Function | None
    tables: CachedTables
    emits_metrics: bool = False
    reporter: SideMetricsReporter | None = None

    def __call__(self) -> SparkSideOperator:
        """Make one."""
        return SparkSideOperator(
            self.shape,
            self.function,
            self.tables,
            emits_metrics=self.emits_metrics,
            reporter=self.reporter,
        )
