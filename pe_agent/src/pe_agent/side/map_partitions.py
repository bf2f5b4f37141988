"""Main rows meet tables inside Spark's tasks, as the function of a ``mapInArrow``."""

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
from streambroker_core.side import Views
from streambroker_core.side.definition import SideInput, SideJoin
from streambroker_core.side.errors import SideVersionError
from streambroker_core.side.join.joiner import Function
from streambroker_core.side.join.stateless import build_views, join_rows
from streambroker_core.side.state.input_state import Content
from streambroker_core.wire.reports.side_status import SideStatus

_REPORTED: dict[tuple[str, str], MicroBatch] = {}
"""The last micro-batch of which this process has told the agent, of each query and operator."""


@dataclass(frozen=True, kw_only=True)
class _PinnedTable:
    """A version that holds in a micro-batch, and its content."""

    side: SideInput
    pin: Pin
    content: Content


class PartitionJoiner:
    """What main rows meet; called with each of their batches.

    The versions are looked up with the first rows of a micro-batch, so a task without rows asks
    for none.

    Args:
        join: the definition, checked.
        function: called with main rows and their views; None for enriching alone.
        tables: where versions lie.
        reporter: tell it sizes and versions, once for each micro-batch and process; None for not.
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
        """Give what becomes of main rows.

        Raises:
            PinError: the version of the micro-batch cannot be told.
            SideVersionError: it is not there any more.
            SideError: as the function or a view has it.
        """
        if batch.num_rows:
            rows = conform(batch, self._join.schema, "the main stream")
            yield from join_rows(self._join, self._function, rows, self._views())

    def _views(self) -> Views:
        now = current_batch()
        if self._cached_views is None or self._cached_views[0] != now:
            every = [self._read_pinned(side, now) for side in self._join.inputs]
            contents = {one.side.name: (one.pin.version, one.content) for one in every}
            self._cached_views = (now, build_views(self._join, contents))
            if now is not None:
                self._report(now, every)
            freeze_modules("tables")
        return self._cached_views[1]

    def _read_pinned(self, side: SideInput, micro_batch: MicroBatch | None) -> _PinnedTable:
        folder = Path(self._tables.folders[side.name])
        pin = newest_version(folder) if micro_batch is None else pin_for(folder, micro_batch)
        try:
            return _PinnedTable(side=side, pin=pin, content=self._tables(side, pin.version))
        except SideVersionError as error:
            remedy = (
                f"The micro-batch has begun with it, as {pin.path} says: stop the query and put its"
                " file back, or remove the pin, and the micro-batch has the newest version"
            )
            raise SideVersionError(side.name, pin.version, error.why, remedy) from error

    def _report(self, micro_batch: MicroBatch, pinned: list[_PinnedTable]) -> None:
        """Tell the agent sizes and versions; those of one micro-batch are the same in all tasks."""
        if (
            self._reporter is None
            or _REPORTED.get((micro_batch.query, self._reporter.operator)) == micro_batch
        ):
            return
        _REPORTED[micro_batch.query, self._reporter.operator] = micro_batch
        told = [
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
        self._reporter(0, micro_batch.number, told)
