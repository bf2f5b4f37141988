"""What control tuples are for: five uses, each over several partitions and however rows arrive.

The operators are those of the examples.

Batches that begin and end, a watermark, a property that changes in the same window everywhere,
recording that starts and stops, and the end of a file; and a change at an event time, which holds
for the same rows wherever windows are cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from batch_ends import BatchBegin, BatchEnd, Sum
from new_factor import Multiply, SetFactor
from price_change import SECOND, Cash, SetPrice
from recording import Record, Recorder

from streambroker_core.control.operators.operator import Operator, Window
from streambroker_core.control.operators.typed_operator import TypedOperator, handles
from streambroker_core.control.runtime.buckets import Layout
from streambroker_core.control.runtime.control_rows import PositionedControl
from streambroker_core.control.runtime.emitter import EmittedRows, Stage
from streambroker_core.control.runtime.packing import Packed, by_bucket, pack, pack_control
from streambroker_core.control.runtime.runner import AlignedRunner, WindowResult
from streambroker_core.control.tuples import ControlTuple, Delivery
from streambroker_core.control.tuples.payloads import encode, list_mergeable
from streambroker_core.control.tuples.window_bounds import (
    count_window_epochs,
    make_control_head,
    merge_controls,
)

BUCKETS = 4


@dataclass(frozen=True)
class Watermark:
    mergeable: ClassVar[bool] = True
    time: int


@dataclass(frozen=True)
class EndOfFile:
    path: str


Rows = Sequence[tuple[int, ...]]


@dataclass
class Line:
    """Operators one behind the other, with state by bucket; the first column is the key."""

    makes: Sequence[Callable[[], Operator]]
    columns: tuple[str, ...] = ("k", "v")
    seed: int = 0
    state: dict[tuple[int, int], dict[str, bytes]] = field(default_factory=dict)
    number: int = 0

    @property
    def layout(self) -> Layout:
        return Layout(port="in", buckets=BUCKETS, key=((self.columns[0], pa.int64()),))

    def window(
        self, rows: Rows = (), *controls: ControlTuple, watermark: int | None = None
    ) -> list[dict[str, Any]]:
        """Run a window; return the rows that come out at the end."""
        self.number += 1
        random = Random(self.seed + self.number)
        values = list(zip(*rows, strict=True)) or [()] * len(self.columns)
        whole = pa.RecordBatch.from_arrays(
            [pa.array(one, pa.int64()) for one in values], list(self.columns)
        )
        cuts = sorted({0, len(rows), *random.choices(range(len(rows) + 1), k=2)})
        given = [pack(whole.slice(a, b - a), self.layout, a) for a, b in pairwise(cuts)]
        given.append(pack_control([(0, one) for one in controls], "in", BUCKETS))
        for level in range(len(self.makes)):
            random.shuffle(given)
            given = self._level(level, given, watermark)
        out = []
        for batch in given:
            out += batch.to_pylist()
        return out

    def _level(
        self, level: int, given: list[pa.RecordBatch], watermark: int | None
    ) -> list[pa.RecordBatch]:
        arrived: dict[int, list[Packed]] = {at: [] for at in range(BUCKETS)}
        for batch in given:
            for bucket, one in by_bucket(batch):
                arrived[bucket].append(one)
        stage = Stage(query="q", operator=f"op{level}", buckets=BUCKETS)
        outcomes = [
            self._bucket(level, stage, at, packed, watermark) for at, packed in arrived.items()
        ]
        emitted = [one for outcome in outcomes for one in outcome.emitted]
        rows = [one for one in emitted if isinstance(one, EmittedRows)]
        if level == len(self.makes) - 1:
            return [one.batch for one in rows]
        controls: list[PositionedControl] = [
            (one.position, one.control) for one in emitted if not isinstance(one, EmittedRows)
        ]
        return [
            *(pack(one.batch, self.layout, one.seq) for one in rows),
            pack_control(controls, "in", BUCKETS),
        ]

    def _bucket(
        self, level: int, stage: Stage, bucket: int, packed: list[Packed], watermark: int | None
    ) -> WindowResult:
        blobs = self.state.setdefault((level, bucket), {})
        window = Window(
            number=self.number, time=0, watermark=watermark, bucket=bucket, buckets=BUCKETS
        )
        outcome = AlignedRunner(self.makes[level], stage).run(window, packed, blobs)
        for name, blob in outcome.changes.items():
            if blob is None:
                del blobs[name]
            else:
                blobs[name] = blob
        return outcome


def reported(payload: object, epoch: int, seq: int = 0, **more: Any) -> ControlTuple:
    kind, text = encode(payload)
    fields: dict[str, Any] = {"delivery": Delivery.END_WINDOW, **more}
    return ControlTuple(
        type=kind,
        id=f"S/{epoch}/{seq}",
        epoch=epoch,
        emitter="S",
        seq=seq,
        text=text,
        **fields,
    )


SEEDS = pytest.mark.parametrize("seed", range(3))


@SEEDS
def test_a_batch_that_begins_and_ends_is_summed_over_several_windows(seed: int) -> None:
    line = Line([Sum], ("customer", "amount"), seed)
    rows = [(k, 1) for k in range(20)]
    assert line.window(rows) == []
    assert line.window(rows, reported(BatchBegin("b"), 2, delivery=Delivery.BEGIN)) == []
    out = line.window(rows, reported(BatchEnd("b"), 3))
    assert sum(one["sum"] for one in out) == 40
    assert {one["batch"] for one in out} == {"b"}
    out = line.window(
        rows, reported(BatchBegin("c"), 4, delivery=Delivery.BEGIN), reported(BatchEnd("c"), 4, 1)
    )
    assert sum(one["sum"] for one in out) == 20


def test_watermarks_do_not_cut_and_of_those_in_one_window_the_last_holds() -> None:
    seen: list[int] = []

    class Following(TypedOperator):
        @handles(Watermark)
        def pass_time(self, port: str, payload: Watermark, control: ControlTuple) -> bool:
            seen.append(payload.time)
            return True

    kinds = list_mergeable([Watermark, EndOfFile])
    epochs = [[reported(Watermark(10 * number), number)] for number in range(1, 4)]
    heads = [make_control_head(number, controls) for number, controls in enumerate(epochs)]
    assert count_window_epochs(heads, kinds) == 3
    line = Line([Following])
    line.window([], *merge_controls([one for controls in epochs for one in controls], kinds))
    assert seen == [30] * BUCKETS


@SEEDS
def test_a_property_changes_in_the_same_window_in_all_partitions_of_several_operators(
    seed: int,
) -> None:
    line = Line([Multiply, Multiply, Multiply], ("key", "value"), seed)
    rows = [(k, 1) for k in range(20)]
    assert {one["value"] for one in line.window(rows)} == {1}
    assert {one["value"] for one in line.window(rows, reported(SetFactor(3), 2))} == {1}
    assert {one["value"] for one in line.window(rows)} == {27}


@SEEDS
def test_recording_starts_and_stops_in_the_same_windows_everywhere(seed: int) -> None:
    line = Line([Recorder], seed=seed)
    found = []
    for number, report in enumerate([None, True, None, False, None], 1):
        controls = [] if report is None else [reported(Record(report), number)]
        out = line.window([(k, number) for k in range(20)], *controls)
        found.append(sorted((one["k"], one["v"]) for one in out))
    windows = [[], [], *([(k, number) for k in range(20)] for number in (3, 4)), []]
    assert found == windows


@dataclass
class Filing(TypedOperator):
    """Counts the rows since the last end of a file and hands out path and count when it comes."""

    count: int = 0

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        self.count += batch.num_rows

    @handles(EndOfFile)
    def close(self, port: str, payload: EndOfFile, control: ControlTuple) -> bool:
        self.emit(
            pa.RecordBatch.from_pydict(
                {"path": [payload.path], "rows": [self.count], "id": [control.id]}
            )
        )
        self.count = 0
        return True


@SEEDS
def test_a_file_ends_in_every_bucket_with_its_rows_and_under_one_identity(seed: int) -> None:
    """A sink closes the file when all buckets have said so: ``BUCKETS`` rows of one identity."""
    epochs: list[tuple[Rows, list[ControlTuple]]] = [
        ([(k, 1) for k in range(10)], []),
        ([(k, 1) for k in range(5)], [reported(EndOfFile("f1"), 1)]),
        ([(k, 1) for k in range(7)], [reported(EndOfFile("f2"), 2)]),
    ]
    line, heads = (
        Line([Filing], seed=seed),
        [make_control_head(at, it[1]) for at, it in enumerate(epochs)],
    )
    files, next_ = [], 0
    while next_ < len(epochs):
        taken = epochs[next_ : next_ + count_window_epochs(heads[next_:])]
        rows = [row for of, _ in taken for row in of]
        files.append(line.window(rows, *(one for _, controls in taken for one in controls)))
        next_ += len(taken)
    for out, path, count, id_ in zip(files, ("f1", "f2"), (15, 7), ("S/1/0", "S/2/0"), strict=True):
        assert {(one["path"], one["id"]) for one in out} == {(path, id_)}
        assert (len(out), sum(one["rows"] for one in out)) == (BUCKETS, count)


@pytest.mark.parametrize("windows", [1, 2, 5, 40])
def test_a_change_at_an_event_time_holds_for_the_same_rows_wherever_windows_are_cut(
    windows: int,
) -> None:
    random = Random(windows)
    times = list(range(40))
    rows = [(time * SECOND, 1) for time in times]
    for low in range(0, 40, 5):  # out of order, within a window's reach
        part = rows[low : low + 5]
        random.shuffle(part)
        rows[low : low + 5] = part
    change = reported(SetPrice(2), 1, delivery=Delivery.AT_TIME, at=17 * SECOND)
    line, found, passed = Line([Cash], ("time", "pieces")), dict[int, list[int]](), -1
    size = 40 // windows
    for at in range(0, 40, size):
        controls = [change] if at == 0 else []
        out = line.window(rows[at : at + size], *controls, watermark=passed if at else None)
        passed = max(passed, max(time for time, _ in rows[at : at + size]) - 5 * SECOND)
        for one in out:
            found.setdefault(one["paid"], []).append(one["second"])
    for one in line.window(watermark=100 * SECOND):
        found.setdefault(one["paid"], []).append(one["second"])
    assert {price: sorted(seconds) for price, seconds in found.items()} == {
        1: [time for time in times if time <= 17],
        2: [time for time in times if time > 17],
    }
