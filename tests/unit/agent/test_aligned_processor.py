"""Time and state of operators inside of micro-batches: timers, holds, what is read and written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from pe_agent.aligned.runtime import processor
from pe_agent.aligned.runtime.frames import END_POSITION, encode_control
from pe_agent.aligned.runtime.processor import COUNT_COLUMNS
from pe_agent.aligned.runtime.progress_messages import CLOCK_BUCKET
from pe_agent.aligned.runtime.state_store import BucketState, read_bucket_state
from streambroker_core.control.operators.keyed_state import KeyedState
from streambroker_core.control.operators.operator import Blobs, Changes, Operator, StateError
from streambroker_core.control.operators.typed_operator import TypedOperator, handles
from streambroker_core.control.runtime.buckets import Layout
from streambroker_core.control.tuples import ControlError, ControlTuple, Delivery, make_logged_tuple
from support.aligned.batches import Batches, batches

TIME = pa.timestamp("us", "UTC")
MIXED = pa.schema([("k", pa.int64()), ("t", TIME), ("_seq", pa.int64()), ("_control", pa.binary())])


def rows(*given: tuple[int, int]) -> pa.RecordBatch:
    """Return rows of a key and an event time in milliseconds."""
    keys, times = zip(*given, strict=True)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(keys, pa.int64()),
            pa.array([time * 1000 for time in times], TIME),
            pa.array(range(len(keys)), pa.int64()),
        ],
        ["k", "t", "_seq"],
    )


class Waiting(Operator):
    """Keeps rows until their time has passed."""

    def __init__(self) -> None:
        self.kept: list[tuple[int, int]] = []

    def restore(self, version: int, blobs: Blobs) -> None:
        numbers = [int(one) for one in blobs["kept"].split()]
        self.kept = list(zip(numbers[::2], numbers[1::2], strict=True))

    def snapshot(self) -> Changes:
        return {"kept": " ".join(f"{time} {key}" for time, key in self.kept).encode()}

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        times = batch.column("t").cast(pa.int64()).to_pylist()
        self.kept = sorted([*self.kept, *zip(times, batch.column("k").to_pylist(), strict=True)])

    def advance(self, time: int) -> None:
        due = [one for one in self.kept if one[0] <= time]
        self.kept = self.kept[len(due) :]
        if due:
            times, keys = (list(column) for column in zip(*due, strict=True))
            self.emit(
                pa.RecordBatch.from_arrays(
                    [pa.array(keys, pa.int64()), pa.array(times, TIME)], ["k", "t"]
                )
            )

    def wake_at(self) -> int | None:
        return self.kept[0][0] if self.kept else None

    def held_at(self) -> int | None:
        return self.wake_at()


class Following(Operator):
    """Writes down the watermarks of its rows and of its windows, and passes rows on."""

    seen: ClassVar[list[tuple[int, int, int | None]]] = []
    ends: ClassVar[list[tuple[int, int | None]]] = []

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        window = self.window
        self.seen.append((window.number, window.bucket, window.watermark))
        self.emit(batch)

    def end_window(self) -> None:
        self.ends.append((self.window.number, self.window.watermark))


class OnTime(Waiting):
    """Takes no row that is late."""

    late: ClassVar[list[int]] = []

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        mark = self.window.watermark
        times = batch.column("t").cast(pa.int64()).to_pylist()
        self.late.extend(time for time in times if mark is not None and time <= mark)
        super().process(port, batch)


def keys(found: list[dict[str, Any]]) -> list[int]:
    return sorted(row["k"] for row in found)


def test_what_waits_for_its_time_comes_when_the_watermark_has_reached_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chain = batches(monkeypatch, Waiting)
    assert keys(chain.batch(rows((1, 10), (2, 20), (3, 30)))) == []
    assert keys(chain.batch()) == [1, 2, 3]
    assert keys(chain.batch()) == []
    assert keys(chain.batch(rows((4, 40), (5, 20)))) == []
    assert keys(chain.batch(rows((6, 30), (7, 41)))) == [4, 5, 6][:2]
    assert keys(chain.batch(rows((8, 50)))) == [6, 7]


def test_a_bucket_has_one_window_in_a_batch_also_if_its_timer_is_due_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Counting(Waiting):
        windows: ClassVar[list[tuple[int, int]]] = []

        def begin_window(self) -> None:
            self.windows.append((self.window.number, self.window.bucket))

        def wake_at(self) -> int | None:
            return 1  # says so even when it has been woken for it

    chain = batches(monkeypatch, Counting)
    for number in range(4):
        chain.batch(rows((1, 10 + number)))
    chain.batch()
    assert len(Counting.windows) == len(set(Counting.windows)) == 5


def test_what_follows_sees_a_time_before_what_is_held_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Late(Waiting):
        """Takes rows out 5 ms after their time."""

        def advance(self, time: int) -> None:
            super().advance(time - 5_000)

        def wake_at(self) -> int | None:
            return self.kept[0][0] + 5_000 if self.kept else None

        def held_at(self) -> int | None:
            return self.kept[0][0] if self.kept else None

    Following.seen.clear()
    Following.ends.clear()
    chain = batches(monkeypatch, Late, Following)
    chain.batch(rows((1, 10), (2, 14), (3, 30)))
    assert keys(chain.batch()) == [1, 2]
    assert {mark for _, _, mark in Following.seen} == {None}
    assert set(Following.ends) == {(1, 29_999)}
    assert keys(chain.batch(rows((4, 35)))) == []
    assert keys(chain.batch(rows((4, 36)))) == [3]
    assert {mark for number, _, mark in Following.seen if number == 3} == {29_999}
    assert {mark for number, mark in Following.ends if number == 3} == {34_999}


@pytest.mark.parametrize("behind", [[OnTime], [Waiting, OnTime], [Following, OnTime]])
def test_what_was_held_back_is_not_late_for_what_follows(
    monkeypatch: pytest.MonkeyPatch, behind: list[type[Operator]]
) -> None:
    """Also through a further operator; and it goes on in the batch in which it comes."""
    OnTime.late.clear()
    chain = batches(monkeypatch, Waiting, *behind)
    assert keys(chain.batch(rows((1, 10), (2, 14), (3, 30)))) == []
    assert keys(chain.batch()) == [1, 2, 3]
    assert keys(chain.batch(rows((1, 35), (2, 31), (3, 44), (4, 50)))) == []
    assert keys(chain.batch(rows((1, 60)))) == [1, 2, 3, 4]
    assert keys(chain.batch()) == [1]
    assert OnTime.late == []


def test_a_late_row_is_late_also_for_what_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    OnTime.late.clear()
    chain = batches(monkeypatch, Following, OnTime)
    chain.batch(rows((1, 30), (2, 30)))
    chain.batch()
    chain.batch(rows((1, 20), (2, 31)))
    assert OnTime.late == [20_000]


def test_the_watermark_of_what_follows_never_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A late row that is held does not take back what was said of the time before."""

    class Watching(Following):
        def advance(self, time: int) -> None:
            del time

    Following.seen.clear()
    chain = batches(monkeypatch, Waiting, Watching)
    chain.batch(rows((1, 10), (2, 20)))
    chain.batch(rows((1, 30), (2, 30)))
    chain.batch(rows((1, 5), (2, 5), (1, 40), (2, 40)))
    chain.batch()
    marks = [mark for _, _, mark in Following.seen]
    assert marks == sorted(marks, key=lambda mark: mark or 0)


class Keys(Operator):
    """Counts rows by key in a state of many blobs."""

    def __init__(self) -> None:
        self._state = KeyedState("keys")

    def restore(self, version: int, blobs: Blobs) -> None:
        self._state = KeyedState("keys", blobs)

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        for key in batch.column("k").to_pylist():
            name = key.to_bytes(8, "big")
            count = int(self._state.get(name) or b"0")
            self._state.put(name, str(count + 1).encode())

    def snapshot(self) -> Changes:
        return self._state.changes()


def test_a_window_reads_and_writes_the_blobs_of_the_keys_that_it_touches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fill(chain: Batches, count: int) -> list[tuple[str, str]]:
        chain.batch(rows(*((key, 10) for key in range(count))))
        chain.stages[0].calls.clear()
        chain.batch(rows((7, 11)))
        return chain.stages[0].calls

    few = fill(batches(monkeypatch, Keys, slots=False), 1_000)
    many = fill(batches(monkeypatch, Keys, slots=False), 20_000)
    assert [kind for kind, _ in few] == [kind for kind, _ in many] == ["get", "get", "put"]
    slot = fill(batches(monkeypatch, Keys), 20_000)
    assert slot == many
    assert fill(batches(monkeypatch, Keys), 1_000) == few[1:]  # the list of blobs is small
    assert fill(batches(monkeypatch, Keys), 10) == []


def test_a_window_that_fails_leaves_state_and_timers_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Failing(Waiting):
        fails: ClassVar[bool] = False

        def end_window(self) -> None:
            if self.fails:
                raise ValueError("as was asked for")

    chain = batches(monkeypatch, Failing)
    chain.batch(rows((1, 10)))
    Failing.fails = True
    with pytest.raises(ValueError, match="as was asked for"):
        chain.batch(rows((2, 20)))
    Failing.fails = False
    assert keys(chain.batch()) == [1]


@dataclass
class Known:
    name: str


class Strict(TypedOperator):
    strict = True

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        self.emit(batch.select(["k", "t"]))

    @handles(Known)
    def take(self, port: str, payload: Known, control: ControlTuple) -> bool:
        return True


def test_a_tuple_that_an_operator_is_to_pass_by_is_reported_once_in_a_task(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    given = reported((Delivery.BEGIN, None))
    strict = batches(monkeypatch, Strict)
    with pytest.raises(ControlError, match="type Note, which is not known"):
        strict.batch(given)
    chain = batches(monkeypatch, Strict, pass_invalid=True, counts="counts")
    chain.batch(given)
    (warning,) = [one.message for one in caplog.records if "passed" in one.message]
    assert "a control tuple has passed an operator: control tuple S/0 has type Note" in warning
    counts = [one["refused"] for one in chain.batch(reported((Delivery.BEGIN, None)), "counts")]
    assert counts == [1, 1]


class Counting(Operator):
    """Counts rows, and keeps the number as text."""

    read: ClassVar[list[int]] = []
    count = 0

    def restore(self, version: int, blobs: Blobs) -> None:
        self.read.append(version)
        self.count = int(blobs["count"])

    def snapshot(self) -> Changes:
        return {"count": str(self.count).encode()}

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        self.count += batch.num_rows
        times = pa.array([self.count * 1000], TIME)
        self.emit(pa.RecordBatch.from_arrays([batch.column("k")[:1], times], ["k", "t"]))


class NewerCounting(Counting):
    """Keeps it as bytes, under another name, and reads what the older one kept."""

    state_version = 2

    def restore(self, version: int, blobs: Blobs) -> None:
        if version < 2:
            super().restore(version, blobs)
            return
        self.read.append(version)
        self.count = int.from_bytes(blobs["number"], "big")

    def snapshot(self) -> Changes:
        return {"number": self.count.to_bytes(8, "big"), "count": None}


@pytest.mark.parametrize(("slots", "in_map"), [(True, set()), (False, {"blobs/number"})])
def test_a_newer_operator_reads_the_state_of_an_older_one_and_keeps_its_own(
    monkeypatch: pytest.MonkeyPatch, slots: bool, in_map: set[str]
) -> None:
    Counting.read.clear()
    older = batches(monkeypatch, Counting, slots=slots)
    older.batch(rows((1, 10), (1, 11)))
    newer = batches(monkeypatch, NewerCounting, slots=slots)
    newer.stages[0].state, newer.number = older.stages[0].state, older.number
    (found,) = newer.batch(rows((1, 12)))
    assert found["t"].microsecond == 3_000
    (found,) = newer.batch(rows((1, 13)))
    assert found["t"].microsecond == 4_000
    assert Counting.read == [1, 2]
    names = {name for _, name in newer.stages[0].state if name.startswith("blobs/")}
    assert names == in_map


def spread(buckets: int, key: str, kind: pa.DataType) -> dict[str, Layout]:
    return {"in": Layout(port="in", buckets=buckets, key=((key, kind),))}


@pytest.mark.parametrize("slots", [True, False])
@pytest.mark.parametrize(
    "more",
    [
        {"buckets": 4, "layouts": spread(4, "k", pa.int64())},
        {"layouts": spread(2, "t", TIME)},
        {"name": "other"},
    ],
)
def test_state_of_another_operator_is_refused_in_the_first_batch_whichever_bucket_it_touches(
    monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], slots: bool
) -> None:
    chain = batches(monkeypatch, Following, slots=slots)
    chain.batch(rows((1, 10)))
    clock = chain.stages[0].group_of(CLOCK_BUCKET)
    other = batches(monkeypatch, Following, slots=slots, **more)
    kept = {at: blob for at, blob in chain.stages[0].state.items() if at[0] == clock}
    other.stages[0].state = dict(kept)
    other.number = chain.number
    with pytest.raises(StateError, match="Nothing was overwritten"):
        other.batch(rows((2, 11)))
    assert other.stages[0].state == kept


def reported(*given: tuple[Delivery, int | None]) -> pa.RecordBatch:
    """Return control rows, as they are among those of ``rows``."""
    found = []
    for seq, (delivery, at) in enumerate(given):
        one = make_logged_tuple("S", seq, type_="Note", text="{}", delivery=delivery, at=at)
        found.append({"_seq": END_POSITION, "_control": encode_control(one)})
    return pa.RecordBatch.from_pylist(found, schema=MIXED)


def test_control_tuples_are_counted_by_bucket_window_and_delivery_and_rows_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Keeping(Following):
        def process_control(self, port: str, control: ControlTuple) -> bool:
            return control.delivery is Delivery.BEGIN

    chain = batches(monkeypatch, Keeping, counts="counts", report="report")
    data = rows((1, 10), (1, 11), (1, 12))
    mixed = data.append_column("_control", pa.nulls(3, pa.binary()))
    given = reported((Delivery.BEGIN, None), (Delivery.END_WINDOW, None), (Delivery.AT_TIME, 5_000))
    whole = pa.Table.from_batches([mixed.cast(MIXED), given]).combine_chunks().to_batches()[0]
    chain.batch(rows((2, 1)))
    found = {(one["bucket"], one["delivery"]): one for one in chain.batch(whole, "counts")}
    zero = dict.fromkeys(COUNT_COLUMNS, 0)
    (of_rows,) = (bucket for bucket, delivery in found if delivery is None)
    for bucket in range(2):
        for delivery, more in (
            ("BEGIN", {"received": 1, "delivered": 1}),
            ("END_WINDOW", {"received": 1, "delivered": 1, "emitted": 1}),
            ("AT_TIME", {"received": 1, "waiting": 1}),
        ):
            named = {"operator": "op0", "bucket": bucket, "window": 1, "delivery": delivery}
            assert found.pop((bucket, delivery)) == {**named, **zero, **more}
    named = {"operator": "op0", "bucket": of_rows, "window": 1, "delivery": None}
    assert found == {
        (of_rows, None): {**named, **zero, "received": 3, "delivered": 3, "emitted": 3}
    }


def test_what_the_runtime_keeps_is_read_back_and_damage_is_refused() -> None:
    own = BucketState(
        wake_at=5,
        held_at=None,
        last_watermark=3,
        watermarks={"a": 1},
        holds={"a.1": 4},
        blobs={"~m": b"xyz"},
    )
    assert read_bucket_state(own.write(), "op") == own
    for damaged in (own.write()[:-1], own.write() + b"x", b"", b"\x05\0\0\0nojson"):
        with pytest.raises(StateError, match="state of operator op is damaged"):
            read_bucket_state(damaged, "op")
    newer = own.write().replace(b'"v":1', b'"v":2')
    with pytest.raises(StateError, match="of a newer release"):
        read_bucket_state(newer, "op")


@pytest.mark.parametrize(
    ("known", "passed", "before_and_behind"),
    [
        (None, None, (None, None)),
        (None, 5, (None, 5)),
        (3, 5, (3, 5)),
        (5, 5, (5, None)),
        (5, 3, (3, None)),  # what comes with the window holds time back
    ],
)
def test_time_passes_behind_the_rows_only_if_it_goes_on(
    known: int | None, passed: int | None, before_and_behind: tuple[int | None, int | None]
) -> None:
    assert processor._split_watermark(known, passed) == before_and_behind


def test_an_attribute_that_is_lost_with_the_window_is_logged_once_by_class_and_name(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Forgetful(Operator):
        count = 0

        def process(self, port: str, batch: pa.RecordBatch) -> None:
            self.count += batch.num_rows
            self.emit(batch)

    chain = batches(monkeypatch, Forgetful)
    for time in (10, 20):
        chain.batch(rows((1, time), (2, time)))
    (message,) = [one.message for one in caplog.records if "Forgetful" in one.message]
    assert "Forgetful.count, and the next window does not see it: declare it as a field" in message


def test_reports_are_cut_into_batches_of_limited_size(monkeypatch: pytest.MonkeyPatch) -> None:
    class Taking(Following):
        def process_control(self, port: str, control: ControlTuple) -> bool:
            return True

    monkeypatch.setattr(processor, "REPORT_ROWS", 1)
    chain = batches(monkeypatch, Taking, report="report")
    chain.batch(rows((2, 1)))
    given = reported(*[(Delivery.END_WINDOW, None)] * 3)
    found = chain.batch(given, "report")
    assert len(found) == 6
    assert {(one["bucket"], one["id"]) for one in found} == {
        (bucket, f"S/{seq}") for bucket in range(2) for seq in range(3)
    }
