"""Two jobs that a test ends and starts again with the code of another release.

``python -m support.driver upgrade FOLDER BROKER``: job ``feed`` counts the rows of ``FOLDER/in``
by user and exports them. Job ``alerts`` imports them twice: one query looks for a pattern, the
other one adds columns of two side inputs. What each window gives goes to ``FOLDER/out``, each time.
It runs until it is killed. Only names are used that the release has, too.
"""

from __future__ import annotations

import importlib
import json
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import pe_agent
from pe_agent.aligned import (
    Blobs,
    Changes,
    ControlFile,
    ControlTuple,
    Delivery,
    TypedOperator,
    control_stream,
    handles,
)
from pe_agent.cep import pattern_processors
from pe_agent.side import TableStore, side_map

ROWS = "id bigint, t timestamp, user string, n string, currency string"
COUNTED = f"{ROWS}, number bigint, step bigint"
RULE = {
    "id": "abc",
    "version": 1,
    "pattern": {
        "within": "1h",
        "stages": [
            {"name": "a", "where": 'n == "A"'},
            {"name": "b", "where": 'n == "B"', "join": "followed_by"},
            {"name": "c", "where": 'n == "C"', "join": "followed_by"},
        ],
    },
}
LINGER = 600.0
"""Agents live until the test kills them."""


@dataclass(frozen=True)
class Step:
    """Rows get a higher ``step`` from now on."""

    by: int


class Count(TypedOperator):
    """Numbers the rows of each user, and adds the step that control tuples have come to."""

    def __init__(self) -> None:
        self._numbers, self._changed, self._step = dict[str, int](), set[str](), 0

    def restore(self, version: int, blobs: Blobs) -> None:
        found = {name: int(blob) for name, blob in blobs.items()}
        self._step = found.pop("step", 0)
        self._numbers = {name.removeprefix("user "): found[name] for name in found}

    def snapshot(self) -> Changes:
        changed = {f"user {one}": str(self._numbers[one]).encode() for one in self._changed}
        return {**changed, "step": str(self._step).encode()}

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        numbers = []
        for user in batch.column("user").to_pylist():
            self._numbers[user] = self._numbers.get(user, 0) + 1
            self._changed.add(user)
            numbers.append(self._numbers[user])
        made = {name: batch.column(name) for name in ("id", "t", "user", "n", "currency")}
        more = {"number": numbers, "step": [self._step] * len(numbers)}
        self.emit(pa.RecordBatch.from_pydict({**made, **more}))

    @handles(Step)
    def change(self, port: str, payload: Step, control: ControlTuple) -> bool:
        """Take a step; the other job is given the tuple, too."""
        self._step += payload.by
        return False


class Written:
    """Writes down what windows give; a query stands still where the test wants it to."""

    def __init__(self, folder: Path, name: str, output: str, columns: tuple[str, ...]) -> None:
        self._folder, self._name, self._output, self._columns = folder, name, output, columns

    def __call__(self, window: int, frames: dict[str, DataFrame]) -> None:
        rows = [[row[one] for one in self._columns] for row in frames[self._output].collect()]
        if rows and (self._folder / f"hold-{self._name}").exists():
            (self._folder / f"held-{self._name}").write_text(str(window))
            threading.Event().wait()
        turn = len(list((self._folder / "out").glob(f"{self._name}-{window}-*")))
        hidden = self._folder / "out" / f".{self._name}"
        hidden.write_text(json.dumps(sorted(rows), default=str))
        hidden.rename(self._folder / "out" / f"{self._name}-{window}-{turn}.json")


def feed(spark: SparkSession, folder: Path, broker: str, step: int) -> None:
    """Start the exporting job; its rows have a higher step after each start."""
    pe = start(spark, folder, broker, "feed")
    control = ControlFile(folder / "control")
    control.append(Step(step), delivery=Delivery.BEGIN)
    files = spark.readStream.schema(ROWS).option("maxFilesPerTrigger", 1)
    pe.aligned(files.parquet(str(folder / "in"))).union(control_stream(spark, control.path)).key_by(
        "user"
    ).control_aware(Count, name="count", buckets=2, schema=COUNTED).publish(
        "counted", properties={"kind": "counted"}, checkpoint=folder / "ck-count"
    )


def alerts(spark: SparkSession, folder: Path, broker: str, store: TableStore) -> None:
    pe = start(spark, folder, broker, "alerts")

    def imported(port: str) -> Any:
        wanted: dict[str, Any] = {"control": True, "start": "earliest", "schema": COUNTED}
        return pe.subscribe(port, 'kind == "counted"', **wanted)

    pattern_processors(
        imported("letters"), [RULE], key="user", event_time="t", watermark="0 seconds", buckets=2
    ).for_each_window(
        Written(folder, "matches", "matches", ("rule", "version", "events")),
        checkpoint=folder / "ck-matches",
    )
    rates = spark.readStream.schema("currency string, rate double")
    names = store.folder("names", folder / "names", every=None)
    imported("rows").with_side_inputs(
        rates=side_map(rates.parquet(str(folder / "rates")), key="currency"),
        names=side_map(names, key="user"),
    ).enrich("rates", on="currency", missing="wait").enrich(
        "names", on="user", version="version"
    ).to_stream(buckets=2).for_each_window(
        Written(folder, "rows", "out", ("id", "number", "step", "rate", "name", "version")),
        checkpoint=folder / "ck-rows",
    )


def start(spark: SparkSession, folder: Path, broker: str, job: str) -> pe_agent.PE:
    """Start the PE of a job, on the folder that it had before."""
    home = folder / f"home-{job}"
    pe: pe_agent.PE = pe_agent.start(spark, job=job, data_dir=home, broker=broker, linger=LINGER)
    return pe


def files_of(_: int) -> list[str]:
    """Return where this process has its modules from."""
    modules = ("pe_agent", "streambroker_core", "pe_agent.aligned")
    return [str(importlib.import_module(name).__file__) for name in modules]


def main(folder: Path, broker: str) -> None:
    local = importlib.import_module("pe_agent.local")
    conf = {**local.SMALL, "spark.sql.shuffle.partitions": "1"}
    spark: SparkSession = local.session("upgrade", conf=conf)
    workers = spark.sparkContext.parallelize([0], 1).flatMap(files_of).collect()
    sys.stdout.write(f"driver ready {json.dumps([*files_of(0), *workers])}\n")
    sys.stdout.flush()
    again = (folder / "control").exists()
    with TableStore(folder / "store") as store:
        feed(spark, folder, broker, 10 if again else 1)
        alerts(spark, folder, broker, store)
        spark.streams.awaitAnyTermination()
