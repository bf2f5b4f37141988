"""The operator with side inputs as Spark's tasks make it, with tables and figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pe_agent.side.shelves import Shelves
from pe_agent.side.ticks import SideTick
from streambroker_core.control.tuples import ControlTuple
from streambroker_core.side import SideOperator, SideRefresh
from streambroker_core.side.definition import MAIN
from streambroker_core.side.joining import Function
from streambroker_core.side.shape import Shape
from streambroker_core.side.telling import stall_text
from streambroker_core.side.waiting import GROUP, Stall

FIGURES = "figures"
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


class HostedSide(SideOperator):
    """Side inputs inside Spark."""

    def __init__(
        self, shape: Shape, function: Function | None, tables: Shelves, *, figures: bool
    ) -> None:
        super().__init__(shape, function, tables)
        self._shelves, self._figures = tables, figures
        if figures:
            self.outputs = (*self.outputs, FIGURES)

    def process_control(self, port: str, control: ControlTuple) -> bool:
        """Take what is said to a side input, and ticks; everything else goes on."""
        if control.type == SideTick.__name__:
            return True
        if control.type == SideRefresh.__name__:
            return self._ask(control)
        return super().process_control(port, control)

    def _ask(self, control: ControlTuple) -> bool:
        name = str(control.payload.get("input"))
        if name not in self._shelves.folders:
            return False
        if self.window.bucket == 0:
            self._shelves.ask(name, control.id)
        return True

    def end_window(self) -> None:
        """End a window; with figures, tell them."""
        super().end_window()
        if self._figures:
            batch = pa.RecordBatch.from_pylist(self._rows(), schema=FIGURES_SCHEMA)
            self.emit(batch, FIGURES)

    def _rows(self) -> list[dict[str, Any]]:
        told, stalls, at = self.figures(), self.stalls(), self.window
        here = {"bucket": at.bucket, "window": at.number, "time": at.time}
        rows = [
            {**here, "input": name, **figures, **self._waiting_for(number, stalls)}
            for number, (name, figures) in enumerate(told["inputs"].items())
        ]
        own = self._waiting_for(GROUP, stalls)
        own["waiting_rows"] += told["unordered_rows"]
        own["waiting_bytes"] += told["unordered_bytes"]
        return [*rows, {**here, "input": MAIN, **own}]

    def _waiting_for(self, number: int, stalls: list[Stall]) -> dict[str, Any]:
        mine = [stall for stall in stalls if stall.input == number]
        texts = [stall_text(self.join, stall, self.window.time) for stall in mine]
        return {
            "waiting_rows": sum(stall.rows for stall in mine),
            "waiting_bytes": sum(stall.size for stall in mine),
            "waiting_since": min((s.since for s in mine if s.since is not None), default=None),
            "stall": " ".join(texts) or None,
        }


@dataclass(frozen=True, kw_only=True)
class MakeSide:
    """Makes the operator, for each window and bucket.

    Attributes:
        shape: the definition, checked.
        function: called with main rows and their views; None for enriching alone.
        tables: where versions of its tables lie.
        figures: tell figures in one more output.
    """

    shape: Shape
    function: Function | None
    tables: Shelves
    figures: bool = False

    def __call__(self) -> HostedSide:
        """Make one."""
        return HostedSide(self.shape, self.function, self.tables, figures=self.figures)
