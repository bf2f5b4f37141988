"""Joining of main rows with tables inside Spark's tasks, as the function of a ``mapInArrow``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from pe_agent.aligned.runtime.frames import conform
from pe_agent.side.metrics_reporter import SideMetricsReporter
from pe_agent.side.tables.cache import CachedTables
from pe_agent.side.tables.pins import MicroBatch, Pin, current_batch, newest_version, pin_for
from pe_agent.spark.worker import freeze_modules
from streambroker_core.control.tuples import ControlTuple
from streambroker_core.side import SideRefresh, Views
from streambroker_core.side.definition import SideInput, SideJoin
from streambroker_core.side.errors import SideVersionError
from streambroker_core.side.join.function_calls import Function
from streambroker_core.side.join.stateless import build_views, join_rows
from streambroker_core.side.state.stores import Content
from streambroker_core.wire.reports.side_status import SideStatus

_REPORTED: dict[tuple[str, str], MicroBatch] = {}
"""By query and operator: the last micro-batch that this process reported to the agent."""


@dataclass(frozen=True, kw_only=True)
class _PinnedTable:
    side: SideInput
    pin: Pin
    content: Content


class PartitionJoiner:
    """Joins batches of main rows with tables; without a function it only adds columns.

    The versions are determined with the first rows of a micro-batch, so a task without rows needs
    none. The reporter receives sizes and versions once for each micro-batch and process.
    """

    def __init__(
        self,
        *,
        join: SideJoin,
        function: Function | None,
        tables: CachedTables,
        reporter: SideMetricsReporter | None,
    ) -> None:
        self._join, self._function, self._tables, self._reporter = join, function, tables, reporter
        self._cached_views: tuple[MicroBatch | None, Views] | None = None

    def __call__(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the result for main rows.

        Raises:
            PinError: the version of the micro-batch cannot be determined.
            SideVersionError: the version no longer exists.
            SideError: the function or a view raised it.
        """
        if batch.num_rows:
            rows = conform(batch, self._join.schema, "the main stream")
            yield from join_rows(self._join, self._function, rows, self._views())

    def on_control(self, control: ControlTuple) -> None:
        """Request that a table is read now, if the control tuple is a `SideRefresh` of it."""
        if control.type == SideRefresh.__name__:
            name = str(control.payload.get("input"))
            if name in self._tables.folders:
                self._tables.request_refresh(name, control.id)

    def _views(self) -> Views:
        micro_batch = current_batch()
        if self._cached_views is None or self._cached_views[0] != micro_batch:
            pinned = [self._read_pinned(side, micro_batch) for side in self._join.inputs]
            contents = {one.side.name: (one.pin.version, one.content) for one in pinned}
            self._cached_views = (micro_batch, build_views(self._join, contents))
            if micro_batch is not None:
                self._report(micro_batch, pinned)
            freeze_modules("tables")
        return self._cached_views[1]

    def _read_pinned(self, side: SideInput, micro_batch: MicroBatch | None) -> _PinnedTable:
        folder = Path(self._tables.folders[side.name])
        pin = newest_version(folder) if micro_batch is None else pin_for(folder, micro_batch)
        try:
            return _PinnedTable(side=side, pin=pin, content=self._tables(side, pin.version))
        except SideVersionError as error:
            remedy = (
                f"The micro-batch has pinned it, see {pin.path}: stop the query and restore its"
                " file, or delete the pin, and the micro-batch uses the newest version"
            )
            raise SideVersionError(side.name, pin.version, error.why, remedy) from error

    def _report(self, micro_batch: MicroBatch, pinned: list[_PinnedTable]) -> None:
        if (
            self._reporter is None
            or _REPORTED.get((micro_batch.query, self._reporter.operator)) == micro_batch
        ):
            return
        _REPORTED[micro_batch.query, self._reporter.operator] = micro_batch
        statuses = [
            SideStatus(
                operator=self._reporter.operator,
                input=one.side.name,
                entries=len(one.content),
                size=one.content.size,
                windows=1,
                version=one.pin.version,
                version_since=round(one.pin.written * 1e6),
            )
            for one in pinned
        ]
        self._reporter(0, micro_batch.number, statuses)
