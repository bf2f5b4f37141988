"""Main rows meet tables inside Spark's tasks, as the function of a ``mapInArrow``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from pe_agent.aligned.runtime.frames import fitting
from pe_agent.side.metrics_reporter import ToAgent
from pe_agent.side.tables.cache import Shelves
from pe_agent.side.tables.pins import Batch, Pin, newest, pin_of, this_batch
from pe_agent.spark.worker import settle
from streambroker_core.side import Views
from streambroker_core.side.definition import SideInput, SideJoin
from streambroker_core.side.errors import SideVersionError
from streambroker_core.side.join.joiner import Function
from streambroker_core.side.join.stateless import meet, views_of
from streambroker_core.side.state.input_state import Content
from streambroker_core.wire.reports.side_status import ToldSide

_TOLD: dict[tuple[str, str], Batch] = {}
"""The last micro-batch of which this process has told the agent, of each query and operator."""


@dataclass(frozen=True, kw_only=True)
class _Held:
    """A version that holds in a micro-batch, and its content."""

    side: SideInput
    pin: Pin
    content: Content


class Meeting:
    """What main rows meet; called with each of their batches.

    The versions are looked up with the first rows of a micro-batch, so a task without rows asks
    for none.

    Args:
        join: the definition, checked.
        function: called with main rows and their views; None for enriching alone.
        tables: where versions lie.
        agent: tell it sizes and versions, once for each micro-batch and process; None for not.
    """

    def __init__(
        self, *, join: SideJoin, function: Function | None, tables: Shelves, agent: ToAgent | None
    ) -> None:
        self._join, self._function, self._tables, self._agent = join, function, tables, agent
        self._seen: tuple[Batch | None, Views] | None = None

    def __call__(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Give what becomes of main rows.

        Raises:
            PinError: the version of the micro-batch cannot be told.
            SideVersionError: it is not there any more.
            SideError: as the function or a view has it.
        """
        if batch.num_rows:
            rows = fitting(batch, self._join.schema, "the main stream")
            yield from meet(self._join, self._function, rows, self._views())

    def _views(self) -> Views:
        now = this_batch()
        if self._seen is None or self._seen[0] != now:
            every = [self._held(side, now) for side in self._join.inputs]
            contents = {one.side.name: (one.pin.version, one.content) for one in every}
            self._seen = (now, views_of(self._join, contents))
            if now is not None:
                self._tell(now, every)
            settle("tables")
        return self._seen[1]

    def _held(self, side: SideInput, now: Batch | None) -> _Held:
        folder = Path(self._tables.folders[side.name])
        pin = newest(folder) if now is None else pin_of(folder, now)
        try:
            return _Held(side=side, pin=pin, content=self._tables(side, pin.version))
        except SideVersionError as error:
            remedy = (
                f"The micro-batch has begun with it, as {pin.path} says: stop the query and put its"
                " file back, or remove the pin, and the micro-batch has the newest version"
            )
            raise SideVersionError(side.name, pin.version, error.why, remedy) from error

    def _tell(self, now: Batch, every: list[_Held]) -> None:
        """Tell the agent sizes and versions; those of one micro-batch are the same in all tasks."""
        if self._agent is None or _TOLD.get((now.query, self._agent.operator)) == now:
            return
        _TOLD[now.query, self._agent.operator] = now
        told = [
            ToldSide(
                operator=self._agent.operator,
                input=one.side.name,
                entries=len(one.content),
                size=one.content.size,
                windows=1,
                version=one.pin.version,
                version_since=round(one.pin.written * 1e6),
            )
            for one in every
        ]
        self._agent(0, now.number, told)
