"""Cases of side inputs through `AlignedRunner`: packed, spread by its hash, restored each window.

What is said by control comes at the end of a window, or at the beginning of the next, which is the
same place in the feed. By arrival, the rows of all inputs are merged by their places in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from streambroker_core.control.tuples import ControlTuple, Delivery
from streambroker_core.side import SideComplete, SideOperator, SideVersion
from streambroker_core.side.windows import SECOND
from support.aligned.runner import Through, rows_of
from support.sides.cases import PLACE, Case, Feed, Rows, Run, batch_of, control_of, schema_at

_KINDS = {"complete": SideComplete, "version": SideVersion}


class ThroughRunner:
    """An operator over windows and buckets; takes feeds as `support.sides.cases.Runner` does."""

    def __init__(
        self, make: Callable[[], SideOperator], buckets: int, case: Case, *, seed: int = 0
    ) -> None:
        order = PLACE if case.get("order", "arrival") == "arrival" else None
        self._through = Through(make, buckets, order_by=order, seed=seed)
        self._join, self._late = make().join, bool(seed % 2)
        self._control: list[ControlTuple] = []
        self._settings: dict[str, Any] = {}
        self._count = 0
        self.run = Run()

    def window(self, feed: Feed, *, watermark: float | None, now: float, at: int = 0) -> Rows:
        """Run as many windows as entries need: control stands between two of them."""
        before = len(self.run.out["out"])
        self._settings = {
            "watermark": None if watermark is None else round(watermark * SECOND),
            "clock": round(now * SECOND),
        }
        rows: Feed = []
        for entry in feed:
            if entry[0] in _KINDS:
                self._say(entry, rows, at)
                rows = []
            elif rows and (entry[1].get(PLACE) is None) != (rows[-1][1].get(PLACE) is None):
                self._window(rows, at)
                rows = [entry]
            else:
                rows.append(entry)
        self._window(rows, at)
        return self.run.out["out"][before:]

    def _say(self, entry: list[Any], rows: Feed, at: int) -> None:
        self._count += 1
        delivery = Delivery.BEGIN if self._late else Delivery.END_WINDOW
        control = control_of(_KINDS[entry[0]](**entry[1]), self._count, delivery)
        if self._late:
            self._window(rows, at)
            self._control.append(control)
        else:
            self._window(rows, at, [control])

    def _window(self, rows: Feed, at: int, control: list[ControlTuple] | None = None) -> None:
        said, self._control = [*self._control, *(control or [])], []
        outcomes = self._through.window(self._batches(rows), said, **self._settings)
        for outcome in outcomes:
            for output, batch in rows_of(outcome):
                self.run.out[output] += [{**row, "at": at} for row in batch.to_pylist()]
        self.run.note(self._through.last)

    def _batches(self, rows: Feed) -> list[tuple[str, pa.RecordBatch]]:
        ports: dict[str, list[dict[str, Any]]] = {}
        for port, row, *_ in rows:
            ports.setdefault(port, []).append(row)
        given = []
        for port, each in ports.items():
            schema = schema_at(self._join, port)
            if PLACE not in schema.names:
                schema = schema.append(pa.field(PLACE, pa.int64()))
            given.append((port, batch_of(each, schema)))
        return given
