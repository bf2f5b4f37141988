"""Packed rows into an export and out of an import: places, buckets, types, and what is refused."""

from __future__ import annotations

import datetime as dt
import pickle
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pe_agent.datasource.columns import parse_struct
from pe_agent.datasource.options import OptionError, Options
from pe_agent.datasource.packer import (
    PACKED_DDL,
    ImportPacker,
    NotNumberedError,
    Packing,
    link_control_slices,
    read_row_numbers,
)
from pe_agent.datasource.sink import StreambrokerStreamWriter
from pe_agent.datasource.source import StreambrokerDataSource, StreambrokerStreamReader
from pe_agent.datasource.unpacker import Unpacker, merge_tasks
from pe_agent.transport.messages import Ticket
from streambroker_core.control.operators.operator import OperatorError
from streambroker_core.control.runtime.buckets import Layout
from streambroker_core.control.runtime.control_rows import to_batch
from streambroker_core.control.runtime.packing import (
    NO_BUCKET,
    PACKED,
    by_bucket,
    pack,
    pack_control,
    pack_watermark,
    sequence,
    unpack,
)
from streambroker_core.control.runtime.spacing import position_before, slot_bits, space_positions
from streambroker_core.control.tuples import (
    ControlLimitError,
    ControlTuple,
    Delivery,
    IdentityError,
    make_logged_tuple,
)
from streambroker_core.control.tuples.epoch_control import IndexedControl
from streambroker_core.errors import SchemaError

ROWS, BITS = 30, slot_bits(30)
SCHEMA = pa.schema([("k", pa.int32()), ("t", pa.timestamp("us", "UTC"))])
GIVEN = {"agent": "grpc+tcp://h:1", "import": "in", "control": "true"}


def rows(*keys: int) -> pa.RecordBatch:
    times = [dt.datetime(2020, 1, 1, 0, 0, k % 60, tzinfo=dt.UTC) for k in keys]
    return pa.RecordBatch.from_pydict({"k": list(keys), "t": times}, schema=SCHEMA)


def mark(seq: int, text: str = "1", delivery: Delivery = Delivery.IMMEDIATE) -> ControlTuple:
    return make_logged_tuple("q", seq, type_="mark", text=text, delivery=delivery)


def packer(part: int = 0, before: tuple[int, ...] = (0,), **more: Any) -> ImportPacker:
    packing = Packing(columns="k int, t timestamp", **more)
    return ImportPacker(packing, {"part": part, "before": list(before), "rows": ROWS})


def test_rows_are_numbered_by_stream_and_block_also_under_a_filter() -> None:
    one = packer(part=3, before=(7, 20), buckets=1, rank=2)
    given = [
        *one.pack_rows(rows(1, 2, 3), 0, None),
        *one.pack_rows(rows(5, 6), 1, pa.array([0, 4])),
    ]
    ((_, packed),) = [pair for batch in [*given, *one.finish()] for pair in by_bucket(batch)]
    found = unpack(packed).rows
    base = sequence(rank=2, part=3)
    assert found is not None
    places = pa.array([base + at for at in (7, 8, 9, 20, 24)])
    assert found.column("_seq").to_pylist() == space_positions(places, BITS).to_pylist()


def test_a_row_that_passes_alone_has_its_number() -> None:
    one = packer(buckets=1)
    assert list(one.pack_rows(rows(5), 0, pa.array([3]))) == []
    packed, _ = one.finish()
    ((_, row),) = by_bucket(packed)
    assert row.seq == space_positions(pa.array([3]), BITS)[0].as_py()


def test_control_goes_to_every_bucket_between_the_rows_of_its_epoch() -> None:
    one = packer(part=1, before=(0, 10), buckets=3, input="left")
    epochs = [to_batch([(4, mark(0))]), to_batch([(0, mark(1)), (2, mark(2))])]
    (packed,) = one.pack_control(epochs)
    got = {bucket: unpack(p) for bucket, p in by_bucket(packed)}
    assert sorted(got) == [0, 1, 2]
    base = sequence(part=1)
    for arrival in got.values():
        assert arrival.port == "left"
        expected = [position_before(base + at, BITS) for at in (4, 10, 12)]
        assert [at for at, _ in arrival.control] == expected


def test_control_of_a_stream_keeps_the_order_of_its_emission_also_at_one_place() -> None:
    end = Delivery.END_WINDOW
    first = [(4, mark(9)), (4, mark(1)), (5, mark(8, delivery=end)), (5, mark(3, delivery=end))]
    one = packer(part=1, before=(0, 5), buckets=1)
    (packed,) = one.pack_control([to_batch(first), to_batch([(0, mark(0, delivery=end))])])
    ((_, row),) = by_bucket(packed)
    for delivery, seqs in ((Delivery.IMMEDIATE, [9, 1]), (end, [8, 3, 0])):
        found = [(at, c.seq) for at, c in unpack(row).control if c.delivery is delivery]
        assert [seq for _, seq in sorted(found)] == seqs
        assert len({at for at, _ in found}) == len(seqs)


def test_where_rows_are_taken_apart_each_task_has_the_immediate_tuples_between_its_rows() -> None:
    control: Ticket = {"control": True, "stream": "s", "before": [0, 5]}
    log: Ticket = {"control": True, "tuples": [], "part": 0}
    slices: list[Ticket] = [
        {"stream": "s", "before": [2, 7]},
        {"stream": "t", "before": [0]},
        control,
        log,
    ]
    first, *others = link_control_slices(slices)
    assert first == {**slices[0], "marks": control}
    assert others == slices[1:]
    one = packer(before=tuple(first["before"]), buckets=1)
    end = mark(7, delivery=Delivery.END_WINDOW)
    epochs = [to_batch([(2, mark(0)), (3, mark(1)), (3, end)]), to_batch([(4, mark(2))])]
    (packed,) = one.pack_immediate(first["marks"]["before"], epochs)
    ((_, row),) = by_bucket(packed)
    assert unpack(row).control == (
        (position_before(3, BITS), mark(1)),
        (position_before(9, BITS), mark(2)),
    )


def test_of_mergeable_tuples_the_last_of_the_batch_is_given() -> None:
    ends = [to_batch([(0, mark(n, str(n), Delivery.END_WINDOW))]) for n in range(3)]
    (packed,) = packer(before=(0, 1, 2), mergeable=("mark",), buckets=1).pack_control(ends)
    ((_, one),) = by_bucket(packed)
    assert [c.text for _, c in unpack(one).control] == ["2"]


def test_each_task_has_a_row_for_no_bucket_with_its_largest_event_time() -> None:
    one = packer(before=(0, 3), event_time="t")
    for number, batch in enumerate((rows(5, 30), rows(9))):
        one.note_time(batch, {})
        list(one.pack_rows(batch, number, None))
    _, row = one.finish()
    assert row.schema == PACKED
    (time,) = row.column("event_time").to_pylist()
    assert (row.num_rows, time.second) == (1, 30)
    (row,) = packer().finish()
    assert row.to_pylist() == [
        {"bucket": NO_BUCKET, "seq": 0, "n": 0, "event_time": None, "payload": b""}
    ]


def test_a_key_is_cast_to_its_declared_type() -> None:
    wide = rows(1, 2, 3, 4).set_column(0, "k", pa.array([1, 2, 3, 4], pa.int64()))
    found = []
    for batch, key in ((rows(1, 2, 3, 4), "k bigint"), (wide, "k bigint"), (wide, "k")):
        one = packer(key=key)
        packed, _ = [*one.pack_rows(batch, 0, None), *one.finish()]
        found.append([bucket for bucket, _ in by_bucket(packed)])
    assert found[0] == found[1] == found[2]
    assert Packing(key="k int, t").key_types is not None
    with pytest.raises(OperatorError, match="no column x"):
        list(packer(key="x").pack_rows(rows(1), 0, None))
    with pytest.raises(OperatorError, match="no column x"):
        list(packer(key="x bigint").pack_rows(rows(1), 0, None))


def test_rows_of_an_older_exporter_cannot_be_placed_under_a_filter() -> None:
    assert read_row_numbers(rows(1), filtered=False) is None
    with pytest.raises(NotNumberedError, match="update it"):
        read_row_numbers(rows(1), filtered=True)


LAYOUT = Layout(port="out", buckets=4, key=(("k", pa.int32()),))


def unpacked(
    *packed: pa.RecordBatch,
) -> tuple[list[int], list[tuple[int | None, ControlTuple]]]:
    one = Unpacker(SCHEMA, "batch 0", "q")
    found = [k for batch in one.unpack_rows(packed) for k in batch.column("k").to_pylist()]
    return found, [(at, control) for at, _, control in one.collect_control()]


def test_a_tuple_finds_its_place_between_the_rows_of_its_bucket() -> None:
    one = Layout(port="out", buckets=1)
    control = pack_control([(0, mark(0)), (2, mark(1)), (4, mark(2)), (9, mark(3))], "out", 1)
    found, given_ = unpacked(control, pack(rows(0, 1, 2), one, 0), pack(rows(3, 4), one, 3))
    assert found == [0, 1, 2, 3, 4]
    assert [at for at, _ in given_] == [0, 2, 4, 5]


def test_buckets_without_rows_say_nothing_of_places() -> None:
    keys = [1, 2, 3, 4, 5, 6]
    control = pack_control([(3, mark(0))], "out", 64)
    layout = Layout(port="out", buckets=64, key=(("k", pa.int32()),))
    found, ((at, _),) = unpacked(pack(rows(*keys), layout, 0), control)
    firsts = [place for place, k in enumerate(found) if k >= 4]
    assert at is not None
    assert at <= min(firsts)
    assert unpacked(control)[1] == [(None, mark(0))]
    assert merge_tasks([(4, []), (3, [(None, 0, mark(0))])]) == [(7, mark(0))]
    assert merge_tasks([(4, [(None, 0, mark(0))]), (3, [(1, 0, mark(0))])]) == [(5, mark(0))]


def test_an_epoch_keeps_the_order_in_which_tuples_were_emitted() -> None:
    ends = [mark(seq, delivery=Delivery.END_WINDOW) for seq in range(3)]
    one, other = [(None, 5, ends[2]), (None, 9, ends[0])], [(None, 9, ends[0]), (None, 7, ends[1])]
    assert merge_tasks([(4, one), (3, other)]) == [(7, ends[2]), (7, ends[1]), (7, ends[0])]
    marks = [(2, 8, mark(1)), (2, 7, mark(4))]
    assert merge_tasks([(4, marks)]) == [(2, mark(4)), (2, mark(1))]
    with pytest.raises(IdentityError):
        merge_tasks([(0, [(None, 0, mark(0))]), (0, [(None, 0, mark(0, "2"))])])


def test_watermarks_are_no_rows_and_copies_that_differ_are_refused() -> None:
    assert unpacked(pack_watermark(5)) == ([], [])
    with pytest.raises(IdentityError):
        unpacked(pack_control([(0, mark(0))], "a", 1), pack_control([(0, mark(0, "2"))], "a", 1))


def test_a_task_stops_at_more_tuples_than_an_epoch_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("streambroker_core.control.tuples.epoch_control.MAX_TUPLES", 2)
    marks = [(0, mark(n)) for n in range(3)]
    assert len(unpacked(pack_control(marks, "out", 1))[1]) == 3, "its query passes them on"
    new = [(at, replace(one, emitter="q.op.0")) for at, one in marks]
    with pytest.raises(ControlLimitError, match="batch 0 has 3 new"):
        unpacked(pack_control(new, "out", 1))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 9), max_size=12),
    st.lists(st.integers(0, 12), max_size=4),
    st.integers(0, 11),
)
def test_in_one_bucket_what_is_packed_and_unpacked_keeps_its_order(
    keys: list[int], places: list[int], cut: int
) -> None:
    one = Layout(port="out", buckets=1)
    placed: list[IndexedControl] = [(at, mark(n)) for n, at in enumerate(places)]
    parts = [pack(rows(*keys[:cut]), one, 0), pack(rows(*keys[cut:]), one, min(cut, len(keys)))]
    found, given_ = unpacked(parts[0], pack_control(placed, "out", 1), parts[1])
    assert found == keys
    expected = {f"q/{n}": min(at, len(keys)) if keys else None for n, at in enumerate(places)}
    assert {c.id: at for at, c in given_} == expected


@pytest.mark.parametrize(
    "ddl",
    [
        "a tinyint, b smallint, c int, d bigint, e float, f double, g string, h boolean",
        "a binary, b date, c timestamp, d timestamp_ntz, e decimal(12,3)",
        "a array<struct<x:int,`odd name`:array<string>>>, b map<string,decimal(5,2)>",
        "m map<map<int,string>,array<map<string,int>>>",
    ],
)
def test_columns_from_ddl_are_those_that_spark_makes_of_it(ddl: str) -> None:
    made = parse_struct(ddl)
    again = ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in made.fields)
    assert again.replace("odd name", "`odd name`") == ddl
    to_arrow_schema(made, timezone="UTC")


def test_columns_that_cannot_be_packed_are_named() -> None:
    with pytest.raises(SchemaError, match="interval"):
        parse_struct("a interval")


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"buckets": "0"}, "from 1 to 65536"),
        ({"rank": "128"}, "from 0 to 127"),
        ({"buckets": "many"}, "whole number"),
        ({"broadcast": "perhaps"}, "true or false"),
        ({"control": "false", "key": "k"}, "`key` is for rows that are packed"),
        ({"control": "false", "controllog": "true"}, "`controllog` is for"),
    ],
)
def test_wrong_options_are_refused(more: dict[str, str], why: str) -> None:
    with pytest.raises(OptionError, match=why):
        Options.read({**GIVEN, **more}, "import")


def test_options_say_how_rows_are_packed() -> None:
    asked = {"columns": "k int", "key": "k", "mergeable": "wm, tick", "eventTime": "t",
             "controlLog": "true", "rank": "3", "input": "left"}  # fmt: skip
    packing = Options.read({**GIVEN, **asked}, "import").packing
    assert packing == Packing(
        columns="k int",
        key="k",
        mergeable=("wm", "tick"),
        event_time="t",
        log=True,
        rank=3,
        input="left",
    )
    assert Options.read({**GIVEN, "control": "false"}, "import").packing is None


def test_an_import_with_control_has_the_packed_schema_and_no_other() -> None:
    source = StreambrokerDataSource({**GIVEN, "columns": "k int"})
    assert source.schema() == PACKED_DDL
    reader = source.streamReader(parse_struct(PACKED_DDL))
    assert isinstance(reader, StreambrokerStreamReader)
    again = pickle.loads(pickle.dumps(reader))
    assert again._columns == StructType(parse_struct("k int").fields)
    for wrong, why in (
        ({"key": "x"}, "no column x"),
        ({"eventtime": "k"}, "no timestamp column"),
        ({"eventtime": "x"}, "no timestamp column"),
    ):
        asked = StreambrokerDataSource({**GIVEN, "columns": "k int", **wrong})
        with pytest.raises(OperatorError, match=why):
            asked.streamReader(parse_struct(PACKED_DDL))
    with pytest.raises(OptionError, match="option `columns`"):
        source.streamReader(parse_struct("k int"))


def test_a_packed_frame_is_published_with_the_columns_of_its_rows() -> None:
    given_ = {"agent": "grpc+tcp://h:1", "export": "out", "control": "true"}
    options = Options.read({**given_, "columns": "k int"}, "export")
    StreambrokerStreamWriter(parse_struct(PACKED_DDL), options, False)
    for schema, more in ((PACKED_DDL, {}), ("k int", {"columns": "k int"})):
        asked = Options.read({**given_, **more}, "export")
        with pytest.raises(OptionError, match="packed rows of an operator"):
            StreambrokerStreamWriter(parse_struct(schema), asked, False)
    taken = Options.read({**given_, "columns": "_seq int"}, "export")
    with pytest.raises(OptionError, match="reserved name"):
        StreambrokerStreamWriter(parse_struct(PACKED_DDL), taken, False)
