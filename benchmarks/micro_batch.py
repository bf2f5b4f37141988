"""The fixed cost of a micro-batch: operators on few rows, against what plain Spark takes for it.

All queries run in one application, one after the other, on the same rate source into ``noop``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from measure import Figures, Settings, quantile, turns
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from side_ways import side_files

import streambroker as sb
from pe_agent.aligned.runtime import hosting
from pe_agent.spark.local_session import session
from streambroker.side import Table, TableStore, side_map

PURPOSE = "ms of a micro-batch with few rows through operators, against plain Spark"
PEER = "dropDuplicates"
"""Of operators; that of side inputs is Spark's broadcast join."""
RATES = (1, 1_000)
"""Rows a second."""
WARM, COUNTED = 6, 10
"""Micro-batches of a query before those that count, and those."""


class Pass(sb.Operator):
    """Passes rows on, which is the least that an operator does."""

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        """Pass rows on."""
        self.emit(batch)


class Stay(Pass):
    """Does the same, and lets the next operator share its hop."""

    stays_in_bucket = True


def run(settings: Settings) -> Figures:
    """Measure; the queries take turns."""
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # workers import the operator
    figures, spark = Figures(), session("micro-batch")
    rates = RATES[1:] if settings.quick else RATES
    names = [f"{rate}/s: {way}" for rate in rates for way in (*WAYS, *SIDE)]
    try:
        for round_ in settings.turns:
            figures.yardstick() if round_ else None
            for name in turns(names, round_):
                took = _took(spark, name, settings, round_)
                settings.say(f"{name}: p50 {quantile(took, 0.5):.0f} ms")
                if round_:
                    figures.add(f"{name}: p50", quantile(took, 0.5), "ms")
                    figures.add(f"{name}: p90", quantile(took, 0.9), "ms")
    finally:
        spark.stop()
    for rate in rates:
        for way in (*WAYS, *SIDE):
            peer = JOIN if way in SIDE else PEER
            if way != peer:
                over, under = f"{rate}/s: {way}: p50", f"{rate}/s: {peer}: p50"
                figures.ratio(f"{rate}/s: {way} / {peer}", over, under)
    figures.note(
        f"local[2], two partitions behind the shuffle; p50 of {COUNTED} micro-batches after {WARM}"
        " for each round; an operator has the default settings unless buckets are named."
    )
    return figures


def _took(spark: SparkSession, name: str, settings: Settings, round_: int) -> list[float]:
    """Return the milliseconds of the micro-batches that count of one query."""
    rate, _, way = name.partition("/s: ")
    rows = spark.readStream.format("rate").option("rowsPerSecond", rate).load()
    data = rows.selectExpr("value % 1000 AS k", "value AS v", "timestamp AS t")
    frame = SIDE[way](data, settings.place) if way in SIDE else WAYS[way](data)
    place = settings.place / f"checkpoint-{round_}-{name.replace('/', '-')}"
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(place))
    query = writer.start()
    took: dict[int, float] = {}
    try:
        while len(took) < WARM + COUNTED:
            if query.exception() is not None or not query.isActive:
                raise RuntimeError(f"{name} has ended: {query.exception()}")
            query.awaitTermination(1)
            for one in query.recentProgress:
                if one.numInputRows and "addBatch" in one.durationMs:
                    took[one.batchId] = float(one.durationMs["triggerExecution"])
    finally:
        query.stop()
    return [took[number] for number in sorted(took)][WARM:]


def _operators(
    rows: DataFrame, *, count: int = 1, buckets: int | None = None, kind: type[Pass] = Pass
) -> DataFrame:
    stream: Any = sb.stream(rows)
    for number in range(count):
        options = sb.OperatorOptions(buckets=buckets)
        stream = stream.key_by("k").apply(kind, name=f"pass-{number}", options=options)
    frame: DataFrame = stream.to_df()
    return frame


def _same(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


class Hop(StatefulProcessor):
    """Reads and writes one value of 1 kB, which is the least that an operator with state does."""

    def init(self, handle: Any) -> None:
        """Open the state."""
        self._value = handle.getValueState("value", "blob binary")

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: Any,  # noqa: N803 - Spark's name
    ) -> Iterator[Any]:
        """Count the rows of a group."""
        import pandas as pd

        count = sum(len(frame) for frame in rows)
        self._value.get()
        self._value.update((bytes(1_000),))
        yield pd.DataFrame({"k": [key[0]], "n": [count]})

    def close(self) -> None:
        """Nothing is open."""


def _hop(rows: DataFrame) -> DataFrame:
    """Return a bare hop with two groups; it lacks what brings rows to it and out again."""
    hosting.prepare_session(rows.sparkSession)
    groups = rows.withColumn("k", rows.k % 2).groupBy("k")
    return groups.transformWithStateInPandas(Hop(), "k bigint, n bigint", "append", "None")


def _hop_between(rows: DataFrame) -> DataFrame:
    """Return the bare hop with what every operator has: Python that packs and unpacks rows."""
    hop = _hop(rows.mapInArrow(_same, rows.schema))
    return hop.mapInArrow(_same, hop.schema)


def _entries(place: Path) -> Path:
    """Return the folder of a table of 1,000 entries."""
    if not (place / "entries").is_dir():
        side_files(place / "entries", 1_000, 0, 0)
    return place / "entries"


def _table(rows: DataFrame, place: Path, *, with_state: bool = False) -> DataFrame:
    """Add both values of the table as a side input."""
    if place not in _TABLES:
        _TABLES[place] = TableStore(place / "store").folder("rates", _entries(place), every=None)
    side = side_map(_TABLES[place], key="k", value=("rate", "label"))
    sides = sb.stream(rows).join_side(rates=side)
    sides = sides.options(order="arrival") if with_state else sides
    frame: DataFrame = sides.enrich("rates", on="k").to_df()
    return frame


def _broadcast(rows: DataFrame, place: Path) -> DataFrame:
    entries = rows.sparkSession.read.parquet(str(_entries(place))).select("k", "rate", "label")
    return rows.join(functions.broadcast(entries), "k", "left")


_TABLES: dict[Path, Table] = {}
WAYS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "mapInArrow": lambda rows: rows.mapInArrow(_same, rows.schema),
    PEER: lambda rows: rows.dropDuplicates(["k", "v"]),
    "bare hop with state": _hop,
    "bare hop between two mapInArrow": _hop_between,
    "operator": _operators,
    "operator, 8 buckets": partial(_operators, buckets=8),
    "2 operators": partial(_operators, count=2),
    "4 operators": partial(_operators, count=4),
    "4 operators in one hop": partial(_operators, count=4, kind=Stay),
}
JOIN = "broadcast join"
SIDE: dict[str, Callable[[DataFrame, Path], DataFrame]] = {
    JOIN: _broadcast,
    "table as side input": _table,
    "table as side input, with state": partial(_table, with_state=True),
}
