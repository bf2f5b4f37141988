"""Enrich main rows with a map of 1,000 and of 1,000,000 entries; keep, change and release rows.

The peer is what one would write with pyarrow alone: a hash join of each batch with the table.
Both get the same batches one by one, as micro-batches come, and have to give the same rows. No
Spark: this is what the operator costs, in one bucket and one process.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from measure import Figures, Settings

from streambroker_core.control.operators.operator import Window
from streambroker_core.side import (
    Enrich,
    SideInput,
    SideJoin,
    SideOperator,
    SideVersion,
    TableCache,
)
from streambroker_core.side.state.layout import StateLayout, build_layout

PURPOSE = "enriching rows with a map, against a pyarrow hash join of each batch; waiting rows"
ENTRIES = {"1k": 1_000, "1M": 1_000_000}
BATCH = 100_000
CHANGED = 100
SIDE = pa.schema([("key", pa.int64()), ("rate", pa.float64()), ("name", pa.string())])
MAIN = pa.schema([("id", pa.int64()), ("key", pa.int64())])
Blobs = dict[str, bytes]


class Sink:
    """Counts what an operator emits, and keeps the last batch."""

    dead_letters = None

    def __init__(self) -> None:
        self.rows = 0
        self.last: Any = None

    def emit(self, batch: pa.RecordBatch, output: str | None) -> None:
        """Take rows."""
        del output
        self.rows, self.last = self.rows + batch.num_rows, batch

    def emit_control(self, payload: Any, **_: Any) -> Any:
        """Refuse what an operator with side inputs never does."""
        raise AssertionError(payload)


def shape(*, static: bool = False, missing: Any = "null") -> StateLayout:
    """Return an operator that adds both values of a map."""
    side = SideInput(name="rates", kind="map", schema=SIDE, key=("key",), static=static)
    enrich = Enrich(input="rates", on=("key",), missing=missing)
    return build_layout(SideJoin(schema=MAIN, inputs=(side,), enrich=(enrich,)))


def window(
    of: StateLayout,
    blobs: Blobs,
    batches: list[tuple[str, pa.RecordBatch]],
    tables: TableCache | None = None,
    version: str | None = None,
) -> tuple[Sink, int]:
    """Run one window from the state and keep the state; returns what came, and bytes written."""
    operator, sink = SideOperator(of, None, tables), Sink()
    operator.bind(Window(number=1, time=0, watermark=None, bucket=0, buckets=1), sink)
    if blobs:
        operator.restore(1, blobs)
    operator.begin_window()
    if version is not None:
        operator.apply_control(SideVersion(input="rates", version=version))
    for port, batch in batches:
        operator.process(port, batch)
    operator.end_window()
    changes = operator.snapshot()
    for name, data in changes.items():
        if data is None:
            del blobs[name]
        else:
            blobs[name] = data
    return sink, sum(len(data) for data in changes.values() if data is not None)


def side_rows(entries: int, shift: float = 0.0) -> pa.RecordBatch:
    """Return rows of the map, in no order of keys."""
    keys = [number * 7919 % entries for number in range(entries)]
    rates = [key + shift for key in keys]
    names = [f"name-{key % 1000}" for key in keys]
    return pa.record_batch([keys, pa.array(rates, pa.float64()), names], schema=SIDE)


def main_rows(count: int, entries: int) -> list[pa.RecordBatch]:
    """Return main rows whose keys are spread over all entries, in batches."""
    found = []
    for start in range(0, count, BATCH):
        ids = range(start, min(start + BATCH, count))
        keys = [(number * 104_729 + number // 3) % entries for number in ids]
        found.append(pa.record_batch([pa.array(ids), pa.array(keys)], schema=MAIN))
    return found


def timed(work: Callable[[], Any]) -> float:
    """Return how many seconds a piece of work takes."""
    gc.collect()
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def joined(batch: pa.RecordBatch, table: pa.Table) -> pa.Table:
    """Return what the peer makes of a batch."""
    left = pa.Table.from_batches([batch])
    return left.join(table, keys="key", join_type="left outer")


class Bench:
    """A map of so many entries: as a table, and as a stream with its state."""

    def __init__(self, entries: int, rows: int) -> None:
        self.rows = side_rows(entries)
        self.table = pa.Table.from_batches([self.rows])
        self.main = main_rows(rows, entries)
        self.static, self.stream = shape(static=True), shape()
        self.shelf = TableCache(lambda _, __: self.table)
        self.pinned: Blobs = {}
        window(self.static, self.pinned, [], self.shelf, "v1")
        self.state: Blobs = {}
        self.filling = timed(lambda: window(self.stream, self.state, [("rates", self.rows)]))

    def by_table(self) -> None:
        """Enrich each batch in a window of its own from a static table."""
        for batch in self.main:
            window(self.static, self.pinned, [("main", batch)], self.shelf)

    def by_stream(self) -> None:
        """Enrich each batch from the state of a stream, read anew in each window."""
        for batch in self.main:
            window(self.stream, self.state, [("main", batch)])

    def by_join(self) -> None:
        """Join each batch."""
        for batch in self.main:
            joined(batch, self.table)

    def check(self) -> None:
        """Compare what all three make of the first batch."""
        batch = self.main[0]
        expected = joined(batch, self.table).sort_by("id").combine_chunks()
        for of, blobs in ((self.static, self.pinned), (self.stream, self.state)):
            sink, _ = window(of, blobs, [("main", batch)], self.shelf)
            got = pa.Table.from_batches([sink.last]).select(expected.column_names)
            if not got.equals(expected):
                raise AssertionError("the operator and the join differ")


def run(settings: Settings) -> Figures:
    """Measure; round 0 warms up and is left out."""
    figures = Figures()
    sizes = {"1k": 1_000, "1M": 50_000} if settings.quick else ENTRIES
    for word, entries in sizes.items():
        settings.say(f"a map of {entries:,} entries")
        bench = Bench(entries, settings.rows)
        bench.check()
        for round_ in settings.turns:
            samples = _round(bench, settings.rows)
            if round_:
                figures.yardstick()
                for name, value in samples.items():
                    figures.add(f"{name}, {word}", value, "M rows/s")
        for way in ("table", "stream"):
            figures.ratio(f"{way} / hash join, {word}", f"{way}, {word}", f"hash join, {word}")
        _memory(figures, bench, word, entries)
    for _ in range(settings.rounds):
        _waiting(figures, settings.rows)
    figures.note(
        f"{settings.rows:,} main rows in micro-batches of {BATCH:,}, two columns added, one bucket,"
        " one process. `table` is a static table on the shelf, `stream` a map whose state is read"
        " in each window. The join builds its hash table for each batch, as a query does."
    )
    return figures


def _round(bench: Bench, rows: int) -> dict[str, float]:
    ways = {"table": bench.by_table, "stream": bench.by_stream, "hash join": bench.by_join}
    return {name: rows / timed(way) / 1e6 for name, way in ways.items()}


def _memory(figures: Figures, bench: Bench, word: str, entries: int) -> None:
    size = bench.shelf(bench.static.join.inputs[0], "v1").size
    figures.add(f"memory per entry, {word}", size / entries, "bytes")
    figures.add(f"state per entry, {word}", sum(map(len, bench.state.values())) / entries, "bytes")
    figures.add(f"take all rows of a map, {word}", entries / bench.filling / 1e6, "M rows/s")
    few = bench.rows.slice(0, CHANGED)
    samples: list[int] = []
    took = timed(lambda: samples.append(window(bench.stream, bench.state, [("rates", few)])[1]))
    figures.add(f"change {CHANGED} keys, {word}", took * 1e3, "ms")
    whole = sum(map(len, bench.state.values()))
    figures.add(f"state written for {CHANGED} keys, {word}", 100 * samples[0] / whole, "% of it")


def _waiting(figures: Figures, rows: int) -> None:
    """Let rows wait for their keys, and release them all."""
    of = shape(missing="wait")
    blobs: Blobs = {}
    entries = max(1_000, rows // 10)
    first = pa.record_batch([[-1], pa.array([0.0]), [""]], schema=SIDE)
    window(of, blobs, [("rates", first)])
    mains = main_rows(rows, entries)
    keep = timed(lambda: [window(of, blobs, [("main", batch)]) for batch in mains])
    sinks: list[Sink] = []
    values = side_rows(entries)
    free = timed(lambda: sinks.append(window(of, blobs, [("rates", values)])[0]))
    if sinks[0].rows != rows or pc.any(pc.is_null(sinks[0].last["rate"])).as_py():
        raise AssertionError(f"{sinks[0].rows:,} of {rows:,} rows were released")
    figures.add(f"let rows wait for {entries:,} keys", rows / keep / 1e6, "M rows/s")
    figures.add(f"release them, {entries:,} keys at once", rows / free / 1e6, "M rows/s")
