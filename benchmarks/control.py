"""Packing rows for their buckets, putting them in order again, and running windows over them.

The peer is what any hop between processes has to do: write the same batches as Arrow IPC streams
and read them back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from measure import Figures, Settings, turns
from rows import batches

from streambroker_core.control.operators.operator import Operator, Window
from streambroker_core.control.runtime.arrivals import collect
from streambroker_core.control.runtime.buckets import Layout
from streambroker_core.control.runtime.emitter import Stage
from streambroker_core.control.runtime.packing import Packed, by_bucket, pack, pack_control
from streambroker_core.control.runtime.runner import AlignedRunner
from streambroker_core.control.tuples import ControlTuple, Delivery

PURPOSE = (
    "rows packed for 64 buckets, put in order, run through an operator, against bare Arrow IPC"
)
BUCKETS = 64
TUPLES = 10_000
PIECE = 50_000
"""Rows of an Arrow batch."""

STAGE = Stage(query="q", operator="op", buckets=BUCKETS)
Arrived = dict[int, list[Packed]]


class Passing(Operator):
    """Passes rows on and takes control tuples, which is the least that an operator can do."""

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        """Pass rows on."""
        self.emit(batch)

    def process_control(self, port: str, control: ControlTuple) -> bool:
        """Let a tuple go on."""
        return False


def layout(column: str, kind: pa.DataType) -> Layout:
    """Return rows spread by a column."""
    return Layout(port="in", buckets=BUCKETS, key=((column, kind),))


def packed(given: Sequence[pa.RecordBatch], how: Layout) -> Arrived:
    """Pack batches one after the other."""
    arrived: Arrived = {bucket: [] for bucket in range(BUCKETS)}
    seq = 0
    for batch in given:
        for bucket, one in by_bucket(pack(batch, how, seq)):
            arrived[bucket].append(one)
        seq += batch.num_rows
    return arrived


def ordered(arrived: Arrived) -> int:
    """Unpack all buckets and put their rows in order."""
    return sum(collect(one, STAGE, ["in"]).rows for one in arrived.values())


def driven(arrived: Arrived, make: Callable[[], Operator] = Passing) -> int:
    """Run a window of each bucket."""
    runner, rows = AlignedRunner(make, STAGE), 0
    for bucket, one in arrived.items():
        window = Window(number=1, time=0, watermark=None, bucket=bucket, buckets=BUCKETS)
        rows += runner.run(window, one, {}).rows_out
    return rows


def streamed(given: Sequence[pa.RecordBatch]) -> int:
    """Write each batch as a stream, and read it."""
    rows = 0
    for batch in given:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        with pa.ipc.open_stream(sink.getvalue().to_pybytes()) as reader:
            rows += reader.read_next_batch().num_rows
    return rows


def tuples(rows: int) -> Arrived:
    """Return 10,000 tuples spread over the rows."""
    placed = [
        (
            number * rows // TUPLES,
            ControlTuple(
                type="Mark",
                id=f"S/1/{number}",
                delivery=Delivery.IMMEDIATE,
                epoch=1,
                emitter="S",
                seq=number,
                text='{"x":1}',
            ),
        )
        for number in range(TUPLES)
    ]
    return {bucket: [one] for bucket, one in by_bucket(pack_control(placed, "in", BUCKETS))}


def run(settings: Settings) -> Figures:
    """Measure; round 0 warms up and is left out."""
    figures = Figures()
    given = (
        pa.Table.from_batches(batches(settings.rows))
        .combine_chunks()
        .to_batches(max_chunksize=PIECE)
    )
    number, text = layout("d", pa.int64()), layout("name", pa.string())
    arrived = packed(given, number)
    marks = tuples(settings.rows)
    marked = {bucket: [*one, *marks[bucket]] for bucket, one in arrived.items()}
    works: dict[str, Callable[[], Any]] = {
        "written and read as Arrow IPC": lambda: streamed(given),
        "packed, key bigint, 1,000 different": lambda: packed(given, number),
        "packed, key text, all different": lambda: packed(given, text),
        "put in order": lambda: ordered(arrived),
        "run through an operator": lambda: driven(arrived),
        "the same with 10,000 tuples": lambda: driven(marked),
    }
    for round_ in settings.turns:
        if round_:
            figures.yardstick()
        for name in turns(list(works), round_):
            began = time.perf_counter()
            works[name]()
            took = time.perf_counter() - began
            if round_:
                figures.add(name, settings.rows / took / 1e6, "M rows/s")
    for name in list(works)[1:]:
        figures.ratio(f"{name} / Arrow IPC", name, "written and read as Arrow IPC")
    figures.note(f"One process; batches of {PIECE:,} rows; no state; tuples are IMMEDIATE.")
    return figures
