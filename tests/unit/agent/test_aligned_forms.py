"""Rows, packed rows and control files: what the tasks of a query make of them."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pe_agent.aligned.control_source import ControlReader
from pe_agent.aligned.runtime.frames import (
    EMITTED,
    END_POSITION,
    ROWS,
    TUPLES,
    conform,
    decode_control,
    encode_control,
    write_ipc,
)
from pe_agent.aligned.runtime.hosting import check_settings
from pe_agent.aligned.runtime.packer import AT_END, REFUSE, FramePacker, Repacker
from pe_agent.aligned.runtime.progress_messages import (
    CLOCK_BUCKET,
    PROGRESS_ROW,
    WatermarkHold,
    WatermarkUpdate,
    decode,
    encode,
)
from pe_agent.aligned.runtime.progress_messages import ProgressMessage as Notice
from pe_agent.aligned.runtime.unpacker import (
    BatchFunction,
    BatchMapper,
    OutputRowsReader,
    PackedRowsReader,
)
from pe_agent.datasource.packer import ImportPacker as PackerOfImport
from pe_agent.datasource.packer import Packing
from pe_agent.log import control_file
from pe_agent.log.control_file import ControlFileOffsets
from streambroker.operators import AlignedError, ControlFile, Limits
from streambroker_core.control.operators.operator import OperatorError
from streambroker_core.control.runtime.buckets import Layout
from streambroker_core.control.runtime.control_rows import PositionedControl, to_batch
from streambroker_core.control.runtime.packing import (
    NO_BUCKET,
    Packed,
    pack_control_row,
    sequence,
    unpack,
)
from streambroker_core.control.tuples import (
    ControlError,
    ControlLimitError,
    ControlTuple,
    Delivery,
)
from streambroker_core.errors import FormatTooNewError
from support.aligned.graphs import Note, note

V = pa.schema([("v", pa.int64())])
MIXED = pa.schema([("v", pa.int64()), ("_seq", pa.int64()), ("_control", pa.binary())])
LAYOUT = Layout(port="in", buckets=3)


def mixed(*given: tuple[int, int | bytes]) -> pa.RecordBatch:
    """Return rows and control at their places."""
    rows: list[dict[str, Any]] = [
        {"v": what, "_seq": place} if isinstance(what, int) else {"_control": what, "_seq": place}
        for place, what in given
    ]
    return pa.RecordBatch.from_pylist(rows, schema=MIXED)


def arrivals(batches: Iterable[pa.RecordBatch]) -> list[tuple[int, Any]]:
    """Return what each bucket gets: notes, placed tuples, or rows."""
    found: list[tuple[int, Any]] = []
    for batch in batches:
        for row in batch.to_pylist():
            if row["n"] == PROGRESS_ROW:
                found.append((row["bucket"], decode(row["payload"])))
            elif row["n"] or row["bucket"] != NO_BUCKET:
                one = unpack(Packed(seq=row["seq"], n=row["n"], payload=row["payload"]))
                rows = None if one.rows is None else one.rows.to_pylist()
                found.append((row["bucket"], rows if rows is not None else one.control))
    return found


TUPLE = note("a", Delivery.IMMEDIATE, 0, 1, 0)


def test_rows_are_packed_in_order_and_control_and_notes_go_to_every_bucket() -> None:
    tick = WatermarkUpdate(operator="op", watermark=7)
    given = mixed((5, 50), (3, 30), (4, encode_control(TUPLE)), (0, encode([tick])))
    packed = list(FramePacker(layout=LAYOUT)([given, mixed()]))
    found = arrivals(packed)
    rows = [row for _, what in found if isinstance(what, list) for row in what if "v" in str(row)]
    assert sorted(row["v"] for row in rows if isinstance(row, dict)) == [30, 50]
    assert [at for at, what in found if what == ((4, TUPLE),)] == [0, 1, 2]
    assert [at for at, what in found if what == [tick]] == [CLOCK_BUCKET, 0, 1, 2]
    for_no_agent = [row for batch in packed for row in batch.to_pylist() if not row["n"]]
    assert [(row["bucket"], row["event_time"]) for row in for_no_agent] == [(CLOCK_BUCKET, None)]
    assert arrivals(FramePacker(layout=LAYOUT)([mixed()])) == []


def test_rows_of_all_frames_of_a_port_get_the_same_columns_whatever_spark_makes_of_them() -> None:
    zoned = pa.field("t", pa.timestamp("us", "Europe/Berlin"), nullable=False)
    given = pa.RecordBatch.from_arrays(
        [pa.array([5], zoned.type), pa.array([1], pa.int64())],
        schema=pa.schema([zoned, ("_seq", pa.int64())]),
    )
    declared = pa.schema([("t", pa.timestamp("us", "UTC"))])
    (packed, *_) = FramePacker(layout=LAYOUT, schema=declared)([given])
    row = packed.to_pylist()[0]
    found = unpack(Packed(seq=row["seq"], n=row["n"], payload=row["payload"])).rows
    assert found is not None
    assert found.select(["t"]).schema.equals(declared)


def test_rows_without_a_place_are_numbered_by_rank_in_the_order_in_which_they_come() -> None:
    first, second = mixed((-1, 10), (-1, 11)), mixed((-2, 20), (-1, 12), (4, 5))
    found = arrivals(FramePacker(layout=Layout(port="in", buckets=1))([first, second]))
    rows = [row for _, what in found if isinstance(what, list) for row in what]
    places = {row["v"]: row["_seq"] for row in rows if isinstance(row, dict)}
    assert places == {10: 0, 11: 1, 12: 2, 5: 4, 20: sequence(rank=1)}
    twice = BatchMapper(function=lambda batch: batch, schema=V)([first, second])
    assert [(row["_seq"], row["v"]) for one in twice for row in one.to_pylist()] == [
        (-1, 10), (-1, 11), (-2, 20), (-1, 12), (4, 5),
    ]  # fmt: skip


def test_a_task_without_rows_says_nothing() -> None:
    assert arrivals(FramePacker(layout=LAYOUT)([])) == []
    assert arrivals(FramePacker(layout=LAYOUT)([mixed()])) == []


def test_the_largest_event_time_of_a_task_is_reported_and_control_rows_have_none() -> None:
    schema = pa.schema([("t", pa.timestamp("us", "UTC")), *MIXED])
    rows = [
        {"t": 5, "v": 1, "_seq": 0},
        {"t": 9, "v": 1, "_seq": 1},
        {"t": None, "v": 1, "_seq": 2},
    ]
    control = {"t": 99, "_seq": 1, "_control": encode_control(TUPLE)}
    last = [{"t": 5, "v": 1, "_seq": 3}]
    given = [pa.RecordBatch.from_pylist(some, schema=schema) for some in (rows, [control], last)]
    packed = list(FramePacker(layout=LAYOUT, event_time="t")(given))
    times = [time.value for one in packed for time in one.column("event_time") if time.is_valid]
    assert times == [9]


def test_of_rows_that_are_not_needed_only_the_time_is_reported_and_others_keep_their_places() -> (
    None
):
    schema = pa.schema([("t", pa.timestamp("us", "UTC")), *MIXED])
    rows = [{"t": t, "v": v, "_seq": -1} for t, v in ((5, 1), (9, 2), (6, None), (7, 4))]
    control = {"_seq": 1, "_control": encode_control(TUPLE)}
    given = pa.RecordBatch.from_pylist([*rows, control], schema=schema)
    layout = Layout(port="in", buckets=1)

    packed = list(FramePacker(layout=layout, event_time="t", row_filter="v == 1 || v > 3")([given]))

    found = arrivals(packed)
    kept = [row for _, what in found if isinstance(what, list) for row in what]
    assert [(row["_seq"], row["v"]) for row in kept if isinstance(row, dict)] == [(0, 1), (3, 4)]
    assert [what for _, what in found if isinstance(what, tuple)] == [((1, TUPLE),)]
    times = [time.value for one in packed for time in one.column("event_time") if time.is_valid]
    assert times == [9]


def test_a_tuple_beside_rows_that_has_no_place_is_refused_or_comes_last() -> None:
    beside = pa.RecordBatch.from_pydict({"_control": [encode_control(TUPLE)]})
    with pytest.raises(
        ControlError,
        match=r"is IMMEDIATE and does not arrive in sequence with the rows of input in",
    ):
        list(FramePacker(layout=LAYOUT, immediate=REFUSE)([beside]))
    found = arrivals(FramePacker(layout=LAYOUT, immediate=AT_END)([beside]))
    assert [what for at, what in found if at == 1] == [((END_POSITION, TUPLE),)]


def test_what_an_output_emitted_is_packed_for_the_next_and_other_outputs_are_left_out() -> None:
    rows = write_ipc(
        [pa.RecordBatch.from_pydict({"v": [1, 2]}), pa.RecordBatch.from_pydict({"v": [3]})]
    )
    hold = WatermarkHold(operator="o", bucket=2, at=None)
    emitted = pa.RecordBatch.from_pylist(
        [
            {"output": "out", "kind": "rows", "bucket": 2, "seq": 10, "n": 3, "payload": rows},
            {"output": "other", "kind": "rows", "bucket": 2, "seq": 10, "n": 3, "payload": b"?"},
            {"kind": "notes", "seq": 0, "n": -1, "payload": encode([hold])},
        ]
    )  # fmt: skip
    found = arrivals(Repacker(layout=Layout(port="in", buckets=1), output="out")([emitted]))
    data = [row for at, what in found if at == 0 for row in what if isinstance(row, dict)]
    assert data == [{"_seq": 10 + at, "v": value} for at, value in enumerate((1, 2, 3))]


ONE = Layout(port="in", buckets=1)
IMMEDIATE = [note(name, Delivery.IMMEDIATE, 0, 1, at) for at, name in enumerate("abc")]


def seen(mixed_rows: Iterable[pa.RecordBatch]) -> list[int | str]:
    """Return what the next operator sees of a mixed frame: values, and the names of tuples."""
    rows: list[tuple[int, int | str]] = []
    for _, what in arrivals(FramePacker(layout=ONE)(mixed_rows)):
        for one in what:
            if isinstance(one, dict):
                rows.append((one["_seq"], one["v"]))
            else:
                rows.append((one[0], one[1].payload["name"]))
    return [what for _, what in sorted(rows, key=lambda it: it[0])]


def emitted_by(bucket: int, *given: int | ControlTuple) -> list[dict[str, Any]]:
    """Return what Spark has of a bucket that emitted rows and tuples: tuples first."""
    place, rows, places, placed = (
        sequence(part=bucket),
        list[int](),
        list[int](),
        list[PositionedControl](),
    )
    for one in given:
        if isinstance(one, int):
            rows.append(one)
            places.append(place)
        else:
            placed.append((place, one))
        place += 1
    batch = pa.RecordBatch.from_pydict({"v": rows, "_seq": places})
    packed = pack_control_row(placed, "out")
    common = {"output": "out", "bucket": bucket}
    return [
        {**common, "kind": TUPLES, "seq": packed.seq, "n": packed.n, "payload": packed.payload},
        {**common, "kind": ROWS, "seq": places[0], "n": len(rows), "payload": write_ipc([batch])},
    ]


def many(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    return [batch, batch.slice(0, 0), batch, batch]


FUNCTIONS: list[tuple[BatchFunction, list[int | str]]] = [
    (lambda batch: batch, [1, 2, "a", "b", 3, 4]),
    (many, [1, 2, 1, 2, 1, 2, "a", "b", 3, 4, 3, 4, 3, 4]),
    (lambda batch: batch.slice(1), [2, "a", "b", 4]),
    (lambda batch: [], ["a", "b"]),
]


@pytest.mark.parametrize(("function", "expected"), FUNCTIONS)
def test_behind_an_operator_a_function_on_batches_leaves_immediate_tuples_in_their_places(
    function: BatchFunction, expected: list[int | str]
) -> None:
    a, b, c = IMMEDIATE
    rows = [*emitted_by(0, 1, 2, a, b, 3, 4), *emitted_by(1, 5, c, 6)]
    given = pa.RecordBatch.from_pylist(rows, schema=EMITTED)
    read = OutputRowsReader(output="out", schema=V)([given])
    on = BatchMapper(function=function, schema=V)
    assert seen(on(read))[: len(expected)] == expected
    read = OutputRowsReader(output="out", schema=V)([given])
    twice = seen(BatchMapper(function=lambda batch: batch, schema=V)(on(read)))
    assert twice[: len(expected)] == expected
    assert "c" in twice


@pytest.mark.parametrize(("function", "expected"), FUNCTIONS)
def test_of_an_import_it_does_so_too_also_if_its_rows_and_tuples_come_to_several_tasks(
    function: BatchFunction, expected: list[int | str]
) -> None:
    a, b, _ = IMMEDIATE
    packing = Packing(columns="v bigint", buckets=1, unpacks_rows=True)
    batch = pa.RecordBatch.from_pydict({"v": [1, 2, 3, 4]})
    epochs = [to_batch([(2, a), (2, b)])]
    tasks: list[list[pa.RecordBatch]] = []
    for cut in ([0, 4], [0, 1, 4], [0, 2, 4]):
        tasks = []
        for low, high in pairwise(cut):
            one = PackerOfImport(packing, {"part": 0, "before": [low], "rows": 4})
            rows = one.pack_rows(batch.slice(low, high - low), 0, None)
            tasks.append([*one.pack_immediate([0], epochs), *rows, *one.finish()])
        control = PackerOfImport(packing, {"part": 0, "before": [0], "rows": 4})
        tasks.append([*control.pack_control(epochs), *control.finish()])
        read, on = PackedRowsReader(schema=V), BatchMapper(function=function, schema=V)
        packed = [one for task in tasks for one in FramePacker(layout=ONE)(on(read(task)))]
        assert once(packed) == (expected if cut != [0, 1, 4] else split(expected, function, batch))


def split(
    expected: list[int | str], function: BatchFunction, batch: pa.RecordBatch
) -> list[int | str]:
    """Return what comes where the first two rows were in two tasks."""
    made: list[int | str] = []
    for at in (0, 1):
        found = function(batch.slice(at, 1))
        for one in [found] if isinstance(found, pa.RecordBatch) else found:
            made += one.column("v").to_pylist()
    return made + expected[expected.index("a") :]


def once(packed: Iterable[pa.RecordBatch]) -> list[int | str]:
    """Return what a bucket sees of what tasks packed: of copies of a tuple the first place."""
    found: dict[int | str, int] = {}
    rows: list[tuple[int, int | str]] = []
    for _, what in arrivals(packed):
        for one in what:
            if isinstance(one, dict):
                rows.append((one["_seq"], one["v"]))
            else:
                name = one[1].payload["name"]
                found[name] = min(found.get(name, one[0]), one[0])
    assert len({place for place, _ in rows}) == len(rows)
    rows += [(place, name) for name, place in found.items()]
    return [what for _, what in sorted(rows, key=lambda it: it[0])]


def test_a_function_on_batches_is_called_for_rows_of_one_part_between_two_tuples() -> None:
    one, two = sequence(part=1), sequence(part=2)
    step = 1 << 10
    given = mixed(
        (two + 2 * step, encode_control(TUPLE)),
        (two + step, 1),
        (two + 2 * step, 3),
        (one + step, 4),
    )
    sizes: list[int] = []

    def called(batch: pa.RecordBatch) -> pa.RecordBatch:
        sizes.append(batch.num_rows)
        return batch

    found = list(BatchMapper(function=called, schema=V)([given]))
    assert sizes == [1, 1, 1]
    assert [row["v"] for b in found for row in b.to_pylist()] == [None, 1, 3, 4]
    with pytest.raises(OperatorError, match="returned a int"):
        list(BatchMapper(function=lambda batch: [3], schema=V)([given]))


def test_a_control_file_takes_a_delivery_by_its_name_and_refuses_what_is_none(
    tmp_path: Path,
) -> None:
    control = ControlFile(tmp_path / "control")
    assert control.append(Note(name="a"), delivery="END_WINDOW").delivery is Delivery.END_WINDOW
    wrong: list[dict[str, Any]] = [
        {"delivery": "LATER"}, {"delivery": 1}, {"delivery": "BEGIN", "target": "op"},
        {"delivery": "AT_TIME"},
        {"delivery": "AT_TIME", "at": "noon"},
    ]  # fmt: skip
    for more in wrong:
        with pytest.raises(ControlError):
            control.append(Note(name="b"), **more)
    with pytest.raises(AlignedError, match="cannot be IMMEDIATE"):
        control.append(Note(name="b"), delivery="IMMEDIATE")
    assert [one.payload["name"] for one in control.tuples()] == ["a"]


def test_rows_that_do_not_fit_what_was_declared_are_refused_by_name() -> None:
    assert conform(pa.RecordBatch.from_pydict({"v": pa.array([1], pa.int8())}), V, "x").schema == V
    with pytest.raises(OperatorError, match="x returns the columns w, but v are declared"):
        conform(pa.RecordBatch.from_pydict({"w": [1]}), V, "x")
    with pytest.raises(OperatorError, match="x returns column v as string, but int64 is declared"):
        conform(pa.RecordBatch.from_pydict({"v": ["a"]}), V, "x")


@pytest.mark.parametrize("data", [b"{", b"3", b'{"v":1}', b"\xff"])
def test_a_control_row_that_was_changed_on_the_way_is_refused(data: bytes) -> None:
    with pytest.raises(ControlError, match="a control row contains no control tuple"):
        decode_control(data)


def test_control_and_notes_are_read_back_and_newer_ones_refused() -> None:
    assert decode_control(encode_control(TUPLE)) == TUPLE
    given: list[Notice] = [
        WatermarkUpdate(operator="a", watermark=3),
        WatermarkHold(operator="b", bucket=1, at=None),
    ]
    assert decode_control(encode(given)) == given
    with pytest.raises(OperatorError, match="is not in the format of this release"):
        decode_control(b'[["other",{}]]')
    with pytest.raises(FormatTooNewError):
        decode_control(encode_control(TUPLE).replace(b'"v":1', b'"v":2'))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.sql.streaming.stateStore.providerClass", "x.HDFSBackedStateStoreProvider"),
        ("spark.hadoop.fs.file.impl", "org.apache.hadoop.fs.RawLocalFileSystem"),
    ],
)
def test_a_session_that_cannot_keep_state_is_refused_by_the_setting(name: str, value: str) -> None:
    check_settings({})
    with pytest.raises(AlignedError, match=name):
        check_settings({name: value})


# -- control files ---------------------------------------------------------------------------


def read(reader: ControlReader, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    ids = []
    for part in reader.partitions(start, end):
        for batch in reader.read(part):
            ids += [json.loads(one)["id"] for one in batch.column("_control").to_pylist()]
    return ids


def test_a_control_file_makes_the_folder_that_it_is_in(tmp_path: Path) -> None:
    control = ControlFile(tmp_path / "jobs" / "checkpoints" / "control")
    assert ControlFile(control.path).log == control.log


def test_a_control_file_gives_each_tuple_once_and_in_a_replay_the_same(tmp_path: Path) -> None:
    control = ControlFile(tmp_path / "control")
    reader = ControlReader(ControlFileOffsets(control.path))
    begin = reader.initialOffset()
    assert reader.latestOffset(begin, None) == begin
    ids = [control.append(Note(name=name), delivery="BEGIN").id for name in "abc"]
    assert ids == [f"{control.log}/{seq}" for seq in range(3)]
    middle = reader.latestOffset(begin, None)
    ids.append(ControlFile(control.path).append(Note(name="d"), delivery="BEGIN").id)
    end = reader.latestOffset(middle, None)
    assert read(reader, begin, middle) == ids[:3]
    assert read(ControlReader(ControlFileOffsets(control.path)), begin, middle) == ids[:3]
    assert read(reader, middle, end) == ids[3:]
    assert reader.partitions(end, end) == []


def test_with_available_now_what_is_appended_later_is_left_for_the_next_run(tmp_path: Path) -> None:
    control = ControlFile(tmp_path / "control")
    control.append(Note(name="a"), delivery="BEGIN")
    reader = ControlReader(ControlFileOffsets(control.path))
    reader.prepareForTriggerAvailableNow()
    control.append(Note(name="b"), delivery="BEGIN")
    assert reader.latestOffset(reader.initialOffset(), None)["next"] == 1


@pytest.mark.parametrize("until_now", [False, True])
def test_a_window_takes_so_much_of_a_control_file_and_one_tuple_in_any_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, until_now: bool
) -> None:
    control = ControlFile(tmp_path / "control")
    ids = [
        control.append(Note(name=name), delivery="BEGIN").id
        for name in ("a", "b", "c", "d", "e" * 900, "f", "g")
    ]
    line = len(control.path.read_bytes().splitlines()[1])
    monkeypatch.setattr(control_file, "WINDOW_LIMITS", (3, 2 * line + line // 2))
    reader = ControlReader(ControlFileOffsets(control.path))
    if until_now:
        reader.prepareForTriggerAvailableNow()
    at, found = reader.initialOffset(), []
    while (end := reader.latestOffset(at, None)) != at:
        found.append(read(reader, at, end))
        at = end
    assert found == [ids[:2], ids[2:4], ids[4:5], ids[5:]]
    monkeypatch.setattr(control_file, "WINDOW_LIMITS", (3, 1 << 20))
    assert reader.latestOffset(reader.initialOffset(), None)["next"] == 3
    assert reader.latestOffset({}, None)["next"] == 7


def test_what_a_window_takes_of_a_control_file_leaves_room_for_what_comes_beside_it() -> None:
    tuples, size = control_file.WINDOW_LIMITS
    assert 0 < tuples < Limits().tuples
    assert 0 < size < Limits().bytes


def test_an_append_reads_the_end_of_the_file_and_a_window_what_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = ControlFile(tmp_path / "control")
    for _ in range(50):
        control.append(Note(name="x" * 1_000), delivery="BEGIN")
    read_bytes = 0
    open_ = Path.open

    class Counted:
        def __init__(self, file: Any) -> None:
            self._file = file

        def read(self, *size: int) -> bytes:
            nonlocal read_bytes
            data: bytes = self._file.read(*size)
            read_bytes += len(data)
            return data

        def __enter__(self) -> Counted:
            return self

        def __exit__(self, *_: object) -> None:
            self._file.close()

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

    monkeypatch.setattr(Path, "open", lambda path, mode: Counted(open_(path, mode)))
    assert control.append(Note(name="last"), delivery="BEGIN").seq == 50
    assert 0 < read_bytes < 5_000
    reader = ControlReader(ControlFileOffsets(control.path))
    assert reader.latestOffset({}, None)["next"] == 51
    read_bytes = 0
    assert reader.latestOffset({"next": 50}, None)["next"] == 51
    first, end = ({**reader.initialOffset(), "next": at} for at in (49, 51))
    assert len(read(reader, first, end)) == 2
    assert read_bytes < 2_000


@pytest.mark.parametrize("size", [1, 4_000, 4_096, 50_000, 900_000])
def test_the_next_number_is_found_behind_a_line_of_any_length(tmp_path: Path, size: int) -> None:
    control = ControlFile(tmp_path / "control")
    assert [control.append(Note(name="x" * size), delivery="BEGIN").seq for _ in range(3)] == [
        0,
        1,
        2,
    ]
    with control.path.open("ab") as file:
        file.write(b"y" * size)
    again = ControlFile(control.path)
    assert again.append(Note(name="z"), delivery="BEGIN").seq == 3
    assert [one.seq for one in again.tuples()] == [0, 1, 2, 3]
    assert [one.seq for one in again.newest_first()] == [3, 2, 1, 0]


def test_a_file_that_was_put_back_is_read_from_its_beginning(tmp_path: Path) -> None:
    control = ControlFile(tmp_path / "control")
    ids = [control.append(Note(name=name), delivery="BEGIN").id for name in "ab"]
    reader = ControlReader(ControlFileOffsets(control.path))
    begin, end = reader.initialOffset(), reader.latestOffset({}, None)
    whole = control.path.read_bytes()
    control.path.write_bytes(whole.splitlines(keepends=True)[0])
    with pytest.raises(AlignedError, match="has 0 tuples"):
        reader.latestOffset(end, None)
    control.path.write_bytes(whole)
    assert read(reader, begin, end) == ids
    assert read(pickle.loads(pickle.dumps(reader)), begin, end) == ids


def test_half_a_line_that_a_crash_left_is_not_read_and_not_kept(tmp_path: Path) -> None:
    control = ControlFile(tmp_path / "control")
    control.append(Note(name="a"), delivery="BEGIN")
    with control.path.open("ab") as file:
        file.write(b'{"half')
    reader = ControlReader(ControlFileOffsets(control.path))
    begin = reader.initialOffset()
    assert reader.latestOffset(begin, None)["next"] == 1
    control.append(Note(name="b"), delivery="BEGIN")
    assert read(reader, begin, reader.latestOffset(begin, None)) == [
        f"{control.log}/0",
        f"{control.log}/1",
    ]


def test_another_control_file_or_one_that_lost_lines_is_refused(tmp_path: Path) -> None:
    one, two = ControlFile(tmp_path / "one"), ControlFile(tmp_path / "two")
    two.append(Note(name="a"), delivery="BEGIN")
    reader = ControlReader(ControlFileOffsets(two.path))
    begin, end = reader.initialOffset(), reader.latestOffset({}, None)
    with pytest.raises(AlignedError, match="but the checkpoint has read"):
        ControlReader(ControlFileOffsets(one.path)).partitions(begin, end)
    assert ControlReader(ControlFileOffsets(one.path)).latestOffset(end, None)["log"] == one.log
    two.path.write_bytes(two.path.read_bytes().splitlines()[0] + b"\n")
    again = ControlReader(ControlFileOffsets(two.path))
    for act in (lambda: reader.partitions(begin, end), lambda: again.latestOffset(end, None)):
        with pytest.raises(AlignedError, match=r"has 0 tuples.* 1: lines have been"):
            act()
    (tmp_path / "three").write_text("something else\n")
    with pytest.raises(AlignedError, match="is not a file of control tuples"):
        ControlFile(tmp_path / "three")
    newer = tmp_path / "four"
    newer.write_text('{"v":2,"log":"x"}\n')
    with pytest.raises(AlignedError, match="of a newer release"):
        ControlFile(newer)


def test_what_a_control_file_cannot_hold_is_refused_where_it_is_appended(tmp_path: Path) -> None:
    control = ControlFile(tmp_path / "control")
    with pytest.raises(AlignedError, match="cannot be IMMEDIATE"):
        control.append(Note(name="a"), delivery=Delivery.IMMEDIATE)
    with pytest.raises(ControlError, match="has to be a dataclass"):
        control.append({"name": "a"}, delivery="BEGIN")
    with pytest.raises(ControlLimitError, match="the limit is"):
        control.append(Note(name="x" * (1 << 20)), delivery="BEGIN")
    assert control.path.read_bytes().count(b"\n") == 1
