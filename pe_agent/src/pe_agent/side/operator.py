"""The operator with side inputs as Spark's tasks create it, with tables and metrics."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from pe_agent.side.metrics_reporter import SideMetricsReporter
from pe_agent.side.tables.cache import CachedTables
from streambroker_core.control.tuples import ControlTuple, SideTick, UndeliverableError
from streambroker_core.side import SideOperator, SideRefresh
from streambroker_core.side.definition import MAIN
from streambroker_core.side.describe import summarize_stall
from streambroker_core.side.join.function_calls import Function
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
"""Cause of waiting for rows of any input that are processed in event time order."""
_WAITING_FIELDS = ("waiting_rows", "waiting_bytes", "waiting_since")
_TIME = pa.timestamp("us", "UTC")
METRICS_SCHEMA = pa.schema(
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
"""Columns of the output ``figures``: a row for each side input, window and bucket that had one. The
row of input ``main`` counts rows that wait for the end of their window, or for their event time."""


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
        """Handle control tuples for a side input, and ticks; forward all others."""
        if control.type == SideTick.__name__:
            return True
        if control.type == SideRefresh.__name__:
            return self._request_refresh(control)
        return super().process_control(port, control)

    def reject_unknown(self, control: ControlTuple) -> str:
        """Reject as core does, and log that in one bucket."""
        message = super().reject_unknown(control)
        if self.window.bucket == 0:
            log.warning("%s.", message)
        return message

    def _request_refresh(self, control: ControlTuple) -> bool:
        if not isinstance(control.payload, Mapping):
            raise UndeliverableError(f"control tuple {control.id} is no SideRefresh.")
        name = str(control.payload.get("input"))
        if name not in self._cached_tables.folders:
            return False
        if self.window.bucket == 0:
            self._cached_tables.request_refresh(name, control.id)
        return True

    def end_window(self) -> None:
        """End a window, and report its metrics if that is enabled."""
        super().end_window()
        if not self._emits_metrics and self._reporter is None:
            return
        statuses, window = self._build_statuses(), self.window
        if self._reporter is not None:
            self._reporter(window.bucket, window.number, statuses)
        if self._emits_metrics:
            common = {"bucket": window.bucket, "window": window.number, "time": window.time}
            rows = [{**common, **_metrics_row(side, window.time)} for side in statuses]
            self.emit(pa.RecordBatch.from_pylist(rows, schema=METRICS_SCHEMA), METRICS_OUTPUT)

    def _build_statuses(self) -> list[SideStatus]:
        sizes, stalls = self.metrics(), self.stalls()
        statuses = []
        for number, (name, input_metrics) in enumerate(sizes["inputs"].items()):
            size = {"size": input_metrics.pop("bytes"), "keyed": self.join.inputs[number].keyed}
            statuses.append(self._build_status(name, number, stalls, **input_metrics, **size))
        main = self._build_status(MAIN, GROUP, stalls)
        if rows := sizes["unordered_rows"]:
            main = replace(
                main,
                waiting_rows=main.waiting_rows + rows,
                waiting_bytes=main.waiting_bytes + sizes["unordered_bytes"],
                stalls=(*main.stalls, SideStall(cause=WATERMARK_CAUSE, rows=rows)),
            )
        return [*statuses, main]

    def _build_status(
        self, name: str, number: int, stalls: list[Stall], **metrics: Any
    ) -> SideStatus:
        own_stalls = [stall for stall in stalls if stall.input == number]
        largest = sorted(own_stalls, key=lambda one: (-one.rows, one.window))[:MAX_STALLS]
        return SideStatus(
            operator="" if self._reporter is None else self._reporter.operator,
            input=name,
            waiting_rows=sum(stall.rows for stall in own_stalls),
            waiting_bytes=sum(stall.size for stall in own_stalls),
            waiting_since=min((s.since for s in own_stalls if s.since is not None), default=None),
            stalls=tuple(summarize_stall(self.join, stall) for stall in largest),
            **metrics,
        )


def _metrics_row(side: SideStatus, now: int) -> dict[str, Any]:
    texts = [
        describe_side_stall(stall, now) for stall in side.stalls if stall.cause != WATERMARK_CAUSE
    ]
    fields = {name: getattr(side, name) for name in METRICS_SCHEMA.names if hasattr(side, name)}
    if side.input == MAIN:  # the main input has no values
        fields = {name: fields[name] for name in ("input", *_WAITING_FIELDS)}
    return {
        **fields,
        "bytes": None if side.input == MAIN else side.size,
        "stall": _join_texts(texts),
    }


def _join_texts(texts: list[str]) -> str | None:
    return " ".join(texts) or None


@dataclass(frozen=True, kw_only=True)
class SideOperatorFactory:
    """Makes the operator, for each window and bucket; see `SparkSideOperator`."""

    shape: StateLayout
    function: Function | None
    tables: CachedTables
    emits_metrics: bool = False
    reporter: SideMetricsReporter | None = None

    def __call__(self) -> SparkSideOperator:
        """Make one operator."""
        return SparkSideOperator(
            self.shape,
            self.function,
            self.tables,
            emits_metrics=self.emits_metrics,
            reporter=self.reporter,
        )
