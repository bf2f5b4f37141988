"""One window of one operator, with as little around it as a test of the runner needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import pyarrow as pa

from streambroker_core.control.operators.operator import Blobs, Operator, Window
from streambroker_core.control.runtime.buckets import Layout
from streambroker_core.control.runtime.control_rows import PositionedControl
from streambroker_core.control.runtime.emitter import EmittedControl, Stage
from streambroker_core.control.runtime.packing import Packed, by_bucket, pack, pack_control
from streambroker_core.control.runtime.runner import AlignedRunner, WindowResult
from streambroker_core.control.tuples import ControlTuple, Delivery


def stage(buckets: int = 1, **more: Any) -> Stage:
    return Stage(query="q", operator="op", buckets=buckets, **more)


def window(
    number: int = 1, *, bucket: int = 0, buckets: int = 1, watermark: int | None = None
) -> Window:
    return Window(number=number, time=0, watermark=watermark, bucket=bucket, buckets=buckets)


def batch(**columns: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def rows(*values: int, port: str = "in", buckets: int = 1, seq: int = 0) -> list[Packed]:
    """Return packed rows with one column ``k``."""
    layout = Layout(port=port, buckets=buckets)
    return [one for _, one in by_bucket(pack(batch(k=list(values)), layout, seq))]


def control(seq: int = 0, **more: Any) -> ControlTuple:
    """Return a tuple of emitter ``e``, at the end of the window unless said otherwise."""
    fields: dict[str, Any] = {
        "type": "T",
        "id": f"e/1/{seq}",
        "delivery": Delivery.END_WINDOW,
        "epoch": 1,
        "emitter": "e",
        "seq": seq,
    }
    return ControlTuple(**{**fields, **more})


def sent(*given: ControlTuple | PositionedControl, port: str = "in") -> list[Packed]:
    """Return packed tuples, as the first bucket gets them."""
    placed = [one if isinstance(one, tuple) else (0, one) for one in given]
    return [one for at, one in by_bucket(pack_control(placed, port, 1)) if at == 0]


class Seeing(Operator):
    """Writes down what it sees, in a list that the class holds."""

    seen: ClassVar[list[Any]] = []

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        self.seen.append((port, batch.column(0).to_pylist()))

    def process_control(self, port: str, control: ControlTuple) -> bool:
        self.seen.append((port, control.id))
        return True


def run(
    make: Callable[[], Operator],
    packed: Iterable[Packed] = (),
    *,
    blobs: Blobs | None = None,
    at: Window | None = None,
    of: Stage | None = None,
) -> WindowResult:
    return AlignedRunner(make, of or stage()).run(at or window(), packed, blobs or {})


def emitted(outcome: WindowResult) -> list[ControlTuple]:
    return [one.control for one in outcome.emitted if isinstance(one, EmittedControl)]


def apply(blobs: dict[str, bytes], outcome: WindowResult) -> dict[str, bytes]:
    after = {**blobs, **{name: blob for name, blob in outcome.changes.items() if blob is not None}}
    for name, blob in outcome.changes.items():
        if blob is None:
            del after[name]
    return after
