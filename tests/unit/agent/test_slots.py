"""The value of a slot: states of many buckets, small blobs inside of it, large ones by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import TaskContext

from pe_agent.aligned.runtime import processor
from pe_agent.aligned.runtime.frames import ROWS
from pe_agent.aligned.runtime.state_store import SMALL_BYTES, BucketState, GroupState
from pe_agent.datasource.slots import PARTITIONS_PROPERTY, add_slots, slot_keys
from streambroker_core.control.operators.operator import OperatorError, StateError
from streambroker_core.control.runtime.packing import Packed, packed_rows
from streambroker_core.control.tuples import Limits


class Map:
    """Map state as a dictionary."""

    def __init__(self) -> None:
        self.kept: dict[tuple[Any, ...], bytes] = {}

    def getValue(self, key: tuple[Any, ...]) -> tuple[bytes] | None:  # noqa: N802 - Spark's name
        return (self.kept[key],) if key in self.kept else None

    def updateValue(self, key: tuple[Any, ...], value: tuple[bytes]) -> None:  # noqa: N802
        self.kept[key] = value[0]

    def removeKey(self, key: tuple[Any, ...]) -> None:  # noqa: N802
        del self.kept[key]


def test_buckets_of_a_slot_are_read_back_each_with_its_own_state() -> None:
    group = GroupState(None, "op", None)
    group.bucket(3).wake_at = 9
    group.bucket(5).blobs["~meta"] = b"five"
    group.bucket(-1).last_watermark = 4
    data = group.changed()
    assert data is not None
    again = GroupState(data, "op", None)
    assert sorted(again.buckets()) == [-1, 3, 5]
    assert (again.wake_at(), again.due(8), again.due(9), again.due(None)) == (9, set(), {3}, set())
    assert again.bucket(5) == BucketState(blobs={"~meta": b"five"})
    assert again.bucket(7) == BucketState()
    assert GroupState(data, "op", None).changed() is None
    again.bucket(3).wake_at = None
    assert again.wake_at() is None
    changed = again.changed()
    assert changed is not None
    assert GroupState(changed, "op", None).bucket(-1).last_watermark == 4


def test_a_damaged_or_newer_slot_is_refused() -> None:
    group = GroupState(None, "op", None)
    group.bucket(3).blobs["~meta"] = b"three"
    data = group.changed()
    assert data is not None
    for damaged in (data[:-1], data + b"x", b"", b"\x05\0\0\0nojson"):
        with pytest.raises(StateError, match="state of operator op is damaged"):
            GroupState(damaged, "op", None)
    with pytest.raises(StateError, match="of a newer release"):
        GroupState(data.replace(b'"v":1', b'"v":2', 1), "op", None)


CHANGES = st.dictionaries(
    st.sampled_from(["a", "b", "c", "~meta"]),
    st.none() | st.sampled_from([1, 700, SMALL_BYTES, SMALL_BYTES + 1, 9_000]),
)


@given(windows=st.lists(st.lists(CHANGES, min_size=3, max_size=3), max_size=6), slots=st.booleans())
def test_blobs_are_those_that_were_written_whatever_their_sizes_were(
    windows: list[list[dict[str, int | None]]], slots: bool
) -> None:
    numbers = (0, 1, 2) if slots else (0,)
    values: Any = Map()
    expected: dict[int, dict[str, bytes]] = {number: {} for number in numbers}
    data: bytes | None = None
    for window, changes in enumerate(windows):
        group = GroupState(data, "op", None if slots else 0)
        for number in numbers:
            blobs = group.blobs(number, values)
            written = {
                name: None if size is None else bytes([window]) * size
                for name, size in changes[number].items()
                if size is not None or name in expected[number]
            }
            blobs.apply(written)
            for name, blob in written.items():
                if blob is None:
                    del expected[number][name]
                else:
                    expected[number][name] = blob
        changed = group.changed()
        data = data if changed is None else changed
        again = GroupState(data, "op", None if slots else 0)
        for number in numbers:
            read = again.blobs(number, values)
            for name in ("a", "b", "c", "~meta"):
                assert read.get(name) == expected[number].get(name)
            if slots:
                assert dict(read) == expected[number]
                assert [name in read for name in "abc"] == [
                    name in expected[number] for name in "abc"
                ]
    if slots:
        assert all(len(blob) > 1 for blob in values.kept.values())


def test_rows_get_the_slot_of_their_bucket_and_the_clock_has_one_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed = packed_rows((bucket, Packed(seq=0, n=1, payload=b"")) for bucket in (-1, 0, 4, 5))
    with pytest.raises(OperatorError, match="streaming queries only"):
        list(add_slots([packed]))
    task = SimpleNamespace(getLocalProperty={PARTITIONS_PROPERTY: "3"}.get)
    monkeypatch.setattr(TaskContext, "get", lambda: task)
    (found,) = add_slots([packed, packed_rows([])])
    first, second, third = slot_keys(3)
    assert found.column("slot").to_pylist() == [third, first, second, third]
    assert found.column("bucket").to_pylist() == [-1, 0, 4, 5]


def test_what_buckets_emit_is_passed_on_in_frames_of_limited_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processor, "FRAME_BYTES", 1_000)
    schema = pa.schema([("v", pa.int64())])
    config = processor.OperatorConfig(
        make=lambda: None,  # type: ignore[arg-type, return-value]
        name="op",
        buckets=9,
        order_by=None,
        limits=Limits(),
        layouts={},
        schemas={"out": schema},
        has_watermark=False,
    )
    output = processor._OutputBuffer(config)
    rows = pa.RecordBatch.from_pydict({"v": list(range(50))}, schema)
    for bucket in range(9):
        output._add_rows(bucket, "out", 0, [rows])
    frames = list(output.frames())
    assert [bucket for one in frames for bucket in one["bucket"]] == list(range(9))
    assert {tuple(one["kind"]) for one in frames} == {(ROWS,), (ROWS, ROWS)}
    assert list(processor._OutputBuffer(config).frames()) == []
