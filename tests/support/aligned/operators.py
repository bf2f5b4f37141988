"""Operators of the tests on Spark: those that count, change, fail, and are killed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final

import new_factor
import pyarrow as pa
from new_factor import SetFactor

from streambroker_core.control.operators.operator import Blobs, Changes, Operator
from streambroker_core.control.tuples import ControlTuple
from support.driver.process import kill_once


@dataclass(frozen=True)
class Handle:
    file: object


class Multiply(new_factor.Multiply):
    """Multiplies ``v`` by a factor that control tuples set, and says so with the window."""

    SCHEMA: ClassVar[str] = "k bigint, v bigint, window bigint"
    strict = True

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        rows = batch.num_rows
        values = [value * self.factor for value in batch.column("v").to_pylist()]
        made = {"k": batch.column("k"), "v": values, "window": [self.window.number] * rows}
        self.emit(pa.RecordBatch.from_pydict(made))


class NewerMultiply(Multiply):
    state_version = 2


class Failing(Multiply):
    """Does something that is refused, in window 1."""

    def __init__(self, way: str) -> None:
        self._way = way

    def end_window(self) -> None:
        if self.window.number != 1:
            return
        if self._way == "payload":
            self.emit_control(Handle(file=object()))
        elif self._way == "limit":
            for number in range(20):
                self.emit_control(SetFactor(number))
        elif self._way == "thread":
            with ThreadPoolExecutor(1) as other:
                other.submit(self.emit_control, SetFactor(1)).result()
            raise AssertionError("another thread may emit")


class Killing(Multiply):
    """Kills the driver in the middle of some windows, or at some values of ``v``, once at each."""

    def __init__(
        self, folder: Path, *, windows: Sequence[int] = (), values: Sequence[int] = ()
    ) -> None:
        self._folder, self._windows, self._values = folder, windows, values

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        super().process(port, batch)
        due = {self.window.number} & {*self._windows}
        for each in due | ({*batch.column("v").to_pylist()} & {*self._values}):
            kill_once(self._folder, str(each))


@dataclass
class Passing(Operator):
    """Passes each row on once; a window that runs again has to find the state from before it."""

    stays_in_bucket = True

    passed: list[int] = field(default_factory=list)

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        values = batch.column("v").to_pylist()
        assert not set(values) & set(self.passed)
        self.passed += values
        self.emit(batch)


@dataclass
class KillingCalls(Operator):
    """Changes declared fields in each callback, and kills the driver in the middle of windows."""

    SCHEMA: ClassVar[str] = "bucket int, calls string"

    folder: Final[Path]
    windows: Final[Sequence[int]]
    calls: dict[str, int] = field(default_factory=dict)
    order: list[tuple[int, str]] = field(default_factory=list)

    def _called(self, name: str) -> None:
        self.calls[name] = self.calls.get(name, 0) + 1
        self.order.append((self.window.number, name))

    def begin_window(self) -> None:
        self._called("begin")

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        self._called("process")
        if self.window.number in self.windows:
            kill_once(self.folder, str(self.window.number))

    def process_control(self, port: str, control: ControlTuple) -> bool:
        self._called("control")
        return False

    def end_window(self) -> None:
        self._called("end")
        found = json.dumps([self.calls, self.order])
        self.emit(pa.RecordBatch.from_pydict({"bucket": [self.window.bucket], "calls": [found]}))


class Totals(Operator):
    """Keeps a sum per bucket, and hands it out with each window; rows that are odd go elsewhere."""

    SCHEMAS: ClassVar[dict[str, str]] = {
        "sums": "bucket int, sum bigint",
        "odd": "k bigint, v bigint",
    }
    outputs = ("sums", "odd")
    total = 0

    def restore(self, version: int, blobs: Blobs) -> None:
        self.total = int(blobs["total"])

    def snapshot(self) -> Changes:
        return {"total": str(self.total).encode()}

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        values = batch.column("v").to_pylist()
        self.total += sum(values)
        odd = [at for at, value in enumerate(values) if value % 2]
        if odd:
            self.emit(batch.take(odd).select(["k", "v"]), "odd")

    def end_window(self) -> None:
        sums = {"bucket": [self.window.bucket], "sum": [self.total]}
        self.emit(pa.RecordBatch.from_pydict(sums), "sums")


class NewerTotals(Totals):
    """Keeps how many rows the sum is of, too, in another form, and reads what ``Totals`` wrote.

    Rows have the version of the state that the window began with, 0 if there was none.
    """

    SCHEMAS: ClassVar[dict[str, str]] = {
        "sums": "bucket int, sum bigint, rows bigint, read int",
        "odd": "k bigint, v bigint",
    }
    state_version = 2
    rows = read = 0

    def restore(self, version: int, blobs: Blobs) -> None:
        self.read = version
        if version == 1:
            super().restore(version, blobs)
        else:
            self.total, self.rows = json.loads(blobs["sum"])

    def snapshot(self) -> Changes:
        gone = {"total": None} if self.read == 1 else {}
        return {"sum": json.dumps([self.total, self.rows]).encode(), **gone}

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        self.total += sum(batch.column("v").to_pylist())
        self.rows += batch.num_rows

    def end_window(self) -> None:
        columns = {"bucket": self.window.bucket, "sum": self.total, "rows": self.rows}
        self.emit(pa.RecordBatch.from_pylist([{**columns, "read": self.read}]), "sums")


class Talkative(Operator):
    """Hands rows on, and emits many control tuples in each window that has some."""

    def __init__(self, count: int) -> None:
        self._count, self._rows = count, 0

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        self._rows += batch.num_rows
        self.emit(batch)

    def end_window(self) -> None:
        for number in range(self._count if self._rows else 0):
            self.emit_control(SetFactor(number))


class Envelopes(Operator):
    """Hands out what control tuples say of themselves."""

    SCHEMA: ClassVar[str] = (
        "id string, epoch bigint, emitter string, seq bigint, delivery string, text string"
    )

    def process_control(self, port: str, control: ControlTuple) -> bool:
        row = {name: [getattr(control, name)] for name in ("id", "epoch", "emitter", "seq")}
        more = {"delivery": [control.delivery.value], "text": [control.text]}
        self.emit(pa.RecordBatch.from_pydict({**row, **more}))
        return True
