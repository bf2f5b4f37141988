"""Rows come out of packing in their order, in the bucket of their key, however they were cut."""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streambroker_core.control.operators.operator import Input, OperatorError
from streambroker_core.control.runtime.buckets import (
    Layout,
    assign_buckets,
    bucket_for_key,
    make_layout,
)
from streambroker_core.control.runtime.control_rows import PositionedControl, merge_batch, to_batch
from streambroker_core.control.runtime.ordering import (
    CHUNK,
    iter_by_column,
    iter_by_port,
    sort_by_position,
    sort_rows,
)
from streambroker_core.control.runtime.packing import (
    NO_BUCKET,
    PACKED,
    Packed,
    by_bucket,
    consecutive_numbers,
    merge_control,
    pack,
    pack_control,
    pack_watermark,
    sequence,
    unpack,
)
from streambroker_core.control.tuples import ControlError, ControlTuple, Delivery
from streambroker_core.errors import FormatTooNewError

KEYED = Layout(port="in", buckets=4, key=(("k", pa.int64()),))


def batch(**columns: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def control(seq: int) -> ControlTuple:
    return ControlTuple(
        type="T", id=f"e/1/{seq}", delivery=Delivery.IMMEDIATE, epoch=1, emitter="e", seq=seq
    )


def rows_of(packed: Packed) -> pa.RecordBatch:
    rows = unpack(packed).rows
    assert rows is not None
    return rows


def arrived(given: list[pa.RecordBatch], bucket: int) -> list[pa.RecordBatch]:
    packed = [one for each in given for at, one in by_bucket(each) if at == bucket]
    return [rows_of(one) for one in packed]


def test_each_row_is_in_the_bucket_of_its_key_once() -> None:
    rows = batch(k=list(range(100)), v=[str(k) for k in range(100)])
    packed = pack(rows, KEYED, 1_000)
    assert packed.schema == PACKED
    found = Counter[int]()
    for bucket, one in by_bucket(packed):
        arrival = unpack(one)
        assert (arrival.port, arrival.layout) == ("in", "mix64-1;4;k:int64")
        for seq, k, v in zip(*rows_of(one).to_pydict().values(), strict=True):
            assert bucket == bucket_for_key([k], KEYED)
            assert (seq, v) == (1_000 + k, str(k))
            found[k] += 1
        assert one.seq == rows_of(one).column(0)[0].as_py()
    assert found == Counter(range(100))


def splitmix(number: int) -> int:
    number = (number + 0x9E3779B97F4A7C15) % 2**64
    number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    number = (number ^ (number >> 27)) * 0x94D049BB133111EB % 2**64
    return number ^ (number >> 31)


@pytest.mark.parametrize(
    ("kind", "value", "number"),
    [
        (pa.int64(), 7, 7),
        (pa.int32(), -7, 2**64 - 7),
        (pa.uint64(), 2**64 - 7, 2**64 - 7),
        (pa.bool_(), True, 1),
        (pa.float64(), 1.5, int.from_bytes(struct.pack(">d", 1.5), "big")),
        (pa.string(), "IBM", zlib.crc32(b"IBM")),
        (pa.large_string(), "\u00fc", zlib.crc32("\u00fc".encode())),
        (pa.binary(), b"IBM", zlib.crc32(b"IBM")),
        (pa.decimal128(10, 2), Decimal("1.50"), zlib.crc32(b"1.50")),
        (pa.date32(), date(1970, 1, 11), 10),
        (pa.timestamp("ms", "UTC"), datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), 1_000_000),
    ],
)
def test_the_hash_is_that_of_the_format(kind: pa.DataType, value: Any, number: int) -> None:
    layout = Layout(port="in", buckets=1 << 16, key=(("k", kind),))
    rows = pa.RecordBatch.from_arrays([pa.array([value], kind)], ["k"])
    assert (
        assign_buckets(rows, layout, consecutive_numbers(0, 1))[0].as_py() == splitmix(number) >> 48
    )


def test_equal_keys_of_different_columns_meet() -> None:
    wide = Layout(port="in", buckets=1 << 16, key=(("k", pa.float64()),))
    for left, right in (
        (pa.array([1], pa.int32()), pa.array([1.0], pa.float32())),
        (pa.array([0.0]), pa.array([-0.0])),
        (pa.array([float("nan")]), pa.array([-float("nan")])),
    ):
        one, other = (
            assign_buckets(pa.RecordBatch.from_arrays([it], ["k"]), wide, consecutive_numbers(0, 1))
            for it in (left, right)
        )
        assert one.equals(other)


def test_keys_are_spread_evenly() -> None:
    for layout, values in (
        (Layout(port="in", key=(("k", pa.int64()),)), list(range(64_000))),
        (Layout(port="in", key=(("k", pa.string()),)), [f"key{k}" for k in range(64_000)]),
        (Layout(port="in"), list(range(64_000))),
    ):
        found = Counter(
            assign_buckets(batch(k=values), layout, consecutive_numbers(0, 64_000)).to_pylist()
        )
        assert set(found) == set(range(64))
        assert max(found.values()) < 1_200


def test_keys_of_several_columns_are_distinguished_by_place() -> None:
    layout = Layout(port="in", buckets=1 << 16, key=(("a", pa.string()), ("b", pa.string())))
    rows = batch(a=["x", "y", "x"], b=["y", "x", "y"])
    one, other, again = assign_buckets(rows, layout, consecutive_numbers(0, 3)).to_pylist()
    assert one == again != other
    assert bucket_for_key(["x", "y"], layout) == one


def test_a_broadcast_row_is_in_every_bucket() -> None:
    packed = pack(batch(k=[1, 2]), Layout(port="side", buckets=3, broadcast=True), 0)
    found = [(at, rows_of(one).column("k").to_pylist()) for at, one in by_bucket(packed)]
    assert found == [(0, [1, 2]), (1, [1, 2]), (2, [1, 2])]


def test_null_keys_are_refused_or_in_the_first_bucket() -> None:
    rows = batch(k=[1, None])
    with pytest.raises(OperatorError, match="column k of input in is null in 1 rows"):
        pack(rows, KEYED, 0)
    layout = Layout(port="in", buckets=64, key=(("k", pa.int64()),), nulls=True)
    assert assign_buckets(rows, layout, consecutive_numbers(0, 2))[1].as_py() == 0


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (batch(v=[1]), "rows of input in have no column k, which is its key; they have v"),
        (batch(k=["x"]), "column k of input in is string and cannot be cast to int64"),
        (batch(k=[1], _seq=[1]), "have a column _seq: names that begin with _control"),
    ],
)
def test_rows_that_do_not_fit_are_refused(rows: pa.RecordBatch, message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        pack(rows, KEYED, 0)


def test_a_sequence_has_to_rise() -> None:
    for wrong in ([1, 1], [2, 1], [1, None]):
        with pytest.raises(OperatorError, match="does not increase from row to row"):
            pack(batch(k=[1, 2]), KEYED, pa.array(wrong, pa.int64()))
    (one,) = pack(batch(k=[1]), KEYED, pa.array([7], pa.int64())).to_pylist()
    assert (one["seq"], one["n"]) == (7, 1)


def test_the_layout_of_an_input_takes_the_types_of_its_key_from_the_rows() -> None:
    schema = pa.schema([("k", pa.int32()), ("v", pa.string())])
    keyed = make_layout(Input(name="in", key=("v", "k")), schema, 8, nulls=True)
    assert keyed.text() == "mix64-1;8;v:string,k:int32"
    assert keyed.nulls
    assert make_layout(Input(broadcast=True), schema, 8).text() == "mix64-1;8;broadcast"
    with pytest.raises(OperatorError, match="has the key k, x, and its rows have no column x"):
        make_layout(Input(key=("k", "x")), schema, 8)


def test_layouts_that_cannot_be_are_refused() -> None:
    with pytest.raises(OperatorError, match="0 buckets"):
        Layout(port="in", buckets=0)
    with pytest.raises(OperatorError, match="has a key and is broadcast"):
        Layout(port="in", key=(("k", pa.int64()),), broadcast=True)
    nested = Layout(port="in", key=(("k", pa.list_(pa.int64())),))
    with pytest.raises(OperatorError, match=r"a key of type list.*: a key can be a text"):
        pack(batch(k=[[1]]), nested, 0)
    with pytest.raises(ControlError, match="has 2 values; input in has k"):
        bucket_for_key([1, 2], KEYED)
    with pytest.raises(ControlError, match="does not fit column k of input in, which is int64"):
        bucket_for_key(["x"], KEYED)


def test_parts_of_a_sequence_do_not_overflow() -> None:
    assert sequence(rank=127, part=65_535, number=(1 << 40) - 1) == (1 << 63) - 1
    assert sequence(part=1) > sequence(part=0, number=(1 << 40) - 1)
    for wrong in ({"rank": 128}, {"part": 65_536}, {"number": 1 << 40}):
        with pytest.raises(OperatorError, match="is out of range for"):
            sequence(**wrong)


def test_a_watermark_row_has_a_time_and_no_payload_and_is_for_no_bucket() -> None:
    rows = pack_watermark(5)
    assert rows.schema == PACKED
    assert rows.column("bucket").to_pylist() == [NO_BUCKET]
    assert rows.column("event_time").cast(pa.int64()).to_pylist() == [5]
    assert list(by_bucket(rows)) == []


def test_data_rows_have_no_event_time_so_that_nobody_takes_them_for_late() -> None:
    rows = pack(batch(k=[1, 2, 3]), KEYED, 0)
    assert rows.column("event_time").null_count == rows.num_rows


def test_control_goes_to_every_bucket_each_identity_once_at_its_first_place() -> None:
    packed = pack_control([(5, control(0)), (3, control(1)), (4, control(0))], "in", 3)
    found = [(at, unpack(one)) for at, one in by_bucket(packed)]
    assert [at for at, _ in found] == [0, 1, 2]
    for _, arrival in found:
        assert arrival.port == "in"
        assert arrival.control == ((3, control(1)), (4, control(0)))
    assert pack_control([], "in", 3).num_rows == 0


def test_copies_are_joined_at_their_first_place_wherever_it_is_read() -> None:
    merged: dict[str, PositionedControl] = {}
    for placed in ([(5, control(0)), (7, control(1))], [(3, control(1)), (9, control(0))]):
        for _, one in by_bucket(pack_control(placed, "in", 1)):
            merge_control(one, merged)
    assert merged == {"e/1/0": (5, control(0)), "e/1/1": (3, control(1))}
    whole = to_batch([(4, control(2)), (2, control(2))])
    merge_batch(whole, merged)
    assert merged["e/1/2"] == (2, control(2))
    with pytest.raises(ControlError, match="are not control tuples"):
        merge_batch(whole.replace_schema_metadata(None), merged)


def test_payloads_that_are_none_are_refused() -> None:
    good = next(one for _, one in by_bucket(pack(batch(k=[1]), KEYED, 0)))
    for payload in (b"", b"nonsense", good.payload[:-200]):
        with pytest.raises(ControlError, match="a payload is not a packed row"):
            unpack(Packed(seq=0, n=1, payload=payload))
    with pytest.raises(ControlError, match="a payload has 1 rows, but its packed row declares 2"):
        unpack(Packed(seq=0, n=2, payload=good.payload))
    for meta, error in (
        ({"streambroker.packed": "2", "streambroker.port": "in"}, FormatTooNewError),
        ({"streambroker.packed": "1"}, ControlError),
        ({"streambroker.port": "in"}, ControlError),
    ):
        sink = pa.BufferOutputStream()
        whole = to_batch([(0, control(0))]).replace_schema_metadata(meta)
        with pa.ipc.new_stream(sink, whole.schema) as writer:
            writer.write_batch(whole)
        with pytest.raises(error):
            unpack(Packed(seq=0, n=1, payload=sink.getvalue().to_pybytes()))


def test_control_that_looks_alike_is_not_taken_for_what_was_read_before() -> None:
    given = [
        [one for _, one in by_bucket(pack_control([(0, control(n))], "in", 1))] for n in (0, 1)
    ]
    assert len({len(one.payload) for (one,) in given}) == 1
    found = [unpack(one).control[0][1].seq for (one,) in [*given, *given]]
    assert found == [0, 1, 0, 1]


def test_control_of_a_new_list_is_written_again() -> None:
    for seqs in ([0, 1], [2, 3], [0, 1]):
        rows = to_batch([(at, control(seq)) for at, seq in enumerate(seqs)])
        assert rows.column("seq").to_pylist() == seqs


def test_many_tuples_of_one_emitter_take_little_room() -> None:
    placed = [(seq, control(seq)) for seq in range(1_000)]
    ((_, one),) = by_bucket(pack_control(placed, "in", 1))
    assert len(one.payload) < to_batch(placed).nbytes / 2
    assert [control.seq for _, control in unpack(one).control] == list(range(1_000))


def steps(
    batches: list[pa.RecordBatch], placed: list[PositionedControl], bucket: int = 0
) -> list[list[int] | str]:
    found = arrived(batches, bucket)
    tables = {"in": sort_rows("in", found)} if found else {}
    return [
        one.id if isinstance(one, ControlTuple) else one.column("k").to_pylist()
        for _, one in iter_by_port(tables, {"in": sort_by_position(placed)}, ["in"])
    ]


ONE = Layout(port="in", buckets=1)


@settings(max_examples=40)
@given(data=st.data(), count=st.integers(0, 30))
def test_order_is_restored_whatever_the_cuts_and_the_arrival(
    data: st.DataObject, count: int
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, count), max_size=4)))
    rows = batch(k=list(range(count)))
    parts = [
        pack(rows.slice(low, high - low), ONE, low)
        for low, high in zip([0, *cuts], [*cuts, count], strict=True)
    ]
    places = data.draw(st.lists(st.integers(0, count), max_size=3))
    placed = [(place, control(seq)) for seq, place in enumerate(places)]
    expected: list[list[int] | str] = []
    first = 0
    for place, one in sorted(placed, key=lambda it: (it[0], it[1].seq)):
        expected += [list(range(first, place))] if place > first else []
        expected.append(one.id)
        first = place
    expected += [list(range(first, count))] if count > first else []
    assert steps(data.draw(st.permutations(parts)), placed) == expected


def test_interleaved_batches_are_merged_by_sequence() -> None:
    low = pack(batch(k=[0, 2, 4]), ONE, pa.array([0, 2, 4], pa.int64()))
    high = pack(batch(k=[1, 3]), ONE, pa.array([1, 3], pa.int64()))
    assert steps([high, low], [(2, control(0))]) == [[0, 1], "e/1/0", [2, 3, 4]]


def test_two_rows_with_one_sequence_are_refused() -> None:
    for first, second in ((0, 0), (0, 1)):
        given = [pack(batch(k=[1, 2]), ONE, first), pack(batch(k=[3, 4]), ONE, second)]
        with pytest.raises(
            OperatorError, match=f"input in has the duplicate sequence number {second}"
        ):
            sort_rows("in", arrived(given, 0))


def test_rows_with_other_columns_are_refused() -> None:
    given = [pack(batch(k=[1]), ONE, 0), pack(batch(v=[1]), ONE, 1)]
    with pytest.raises(OperatorError, match="arrive with the columns k int64 and with v int64"):
        sort_rows("in", arrived(given, 0))


def test_long_runs_are_cut_at_the_same_rows_however_they_arrived() -> None:
    rows = batch(k=list(range(CHUNK + 10)))
    for cut in (1, CHUNK, CHUNK + 5):
        given = [pack(rows.slice(0, cut), ONE, 0), pack(rows.slice(cut), ONE, cut)]
        assert [len(step) for step in steps(given, [])] == [CHUNK, 10]


def test_inputs_are_merged_by_a_column_side_first_at_ties_nulls_last() -> None:
    tables = {
        "main": sort_rows(
            "main", arrived([pack(batch(t=[3, None, 1, 2], v=[1, 2, 3, 4]), ONE, 0)], 0)
        ),
        "side": sort_rows("side", arrived([pack(batch(t=[2, 5, 2], v=[7, 8, 9]), ONE, 0)], 0)),
    }
    found = [
        (port, one.column("v").to_pylist())
        for port, one in iter_by_column(tables, "t", ["side", "main"])
        if not isinstance(one, ControlTuple)
    ]
    assert found == [
        ("main", [3]),
        ("side", [7, 9]),
        ("main", [4, 1]),
        ("side", [8]),
        ("main", [2]),
    ]


def test_a_column_to_merge_by_has_to_be_there_with_one_type() -> None:
    one = sort_rows("x", arrived([pack(batch(t=[1]), ONE, 0)], 0))
    for rows, message in (
        (batch(u=[1]), "rows of input y have no column t"),
        (batch(t=["1"]), "is int64 in x, string in y: cast it to one type"),
    ):
        other = sort_rows("y", arrived([pack(rows, ONE, 0)], 0))
        with pytest.raises(OperatorError, match=message):
            list(iter_by_column({"x": one, "y": other}, "t", ["x", "y"]))
    assert list(iter_by_column({}, "t", ["x"])) == []


def walked(table: pa.Table, *places: int) -> list[list[int] | str]:
    placed = [(place, control(seq)) for seq, place in enumerate(places)]
    return [
        one.id if isinstance(one, ControlTuple) else one.column("k").to_pylist()
        for _, one in iter_by_port({"in": table}, {"in": sort_by_position(placed)}, ["in"])
    ]


def table_of(*chunks: list[int]) -> pa.Table:
    batches = [
        pa.RecordBatch.from_arrays([pa.array(one, pa.int64())] * 2, ["_seq", "k"]) for one in chunks
    ]
    return pa.Table.from_batches(batches)


def test_places_are_found_in_a_table_that_is_a_part_of_another() -> None:
    part = table_of([0, 1, 2, 3, 4, 5]).slice(2, 3)
    assert walked(part, 3, 5) == [[2], "e/1/0", [3, 4], "e/1/1"]


def test_columns_that_are_too_long_for_one_batch_are_walked_batch_by_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "streambroker_core.control.runtime.ordering._drop_sequence",
        lambda table: table.drop_columns(["_seq"]).to_batches(),
    )
    table = table_of([0, 1, 2], [3], [4, 5])
    assert walked(table, 0, 2, 3, 5) == [
        "e/1/0",
        [0, 1],
        "e/1/1",
        [2],
        "e/1/2",
        [3],
        [4],
        "e/1/3",
        [5],
    ]
