"""Columns that change: the stream goes on, and readers of each version get each row once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import date, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pe_agent.agent.exports.stream.block_reader import BlockReader, ReadRequest
from pe_agent.agent.exports.stream.schema_check import SchemaIncompatibleError
from pe_agent.agent.state.store import Store, StoreError
from pe_agent.transport.rows.casts import SchemaWidenedError, cast_column
from streambroker_core.ledger.plan import Plan, PlanRequest
from streambroker_core.ledger.publisher import BatchDiffersError
from streambroker_core.model.schema import parse_ddl
from support.agents.exports import IMPORT, READER, Bench, bench

EPOCH = date(2026, 1, 1)
TYPES: dict[str, pa.DataType] = {
    "tinyint": pa.int8(), "smallint": pa.int16(),
    "int": pa.int32(), "bigint": pa.int64(), "float": pa.float32(), "double": pa.float64(),
    "date": pa.date32(), "timestamp_ntz": pa.timestamp("us"), "string": pa.string(),
}  # fmt: skip
WIDER = {
    "tinyint": "smallint", "smallint": "int", "int": "bigint", "float": "double",
    "date": "timestamp_ntz",
}  # fmt: skip
NARROW = "n int, f float"
WIDE = "n bigint, f float"
MORE = "n int, f float, extra string"


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path) as one:
        one.route()
        yield one


def arrow(ddl: str) -> pa.Schema:
    return pa.schema([(c.name, TYPES[c.type]) for c in parse_ddl(ddl)])


def rows(ddl: str, first: int, count: int) -> pa.RecordBatch:
    """Return rows whose values follow from their number, whatever their type."""
    schema, numbers = arrow(ddl), range(first, first + count)
    columns = [pa.array([value(i, f.type) for i in numbers], f.type) for f in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def value(number: int, kind: pa.DataType) -> Any:
    if pa.types.is_string(kind):
        return str(number)
    if pa.types.is_temporal(kind):
        day = EPOCH + timedelta(days=number)
        return day if pa.types.is_date(kind) else datetime.combine(day, datetime.min.time())
    return number


class Reader:
    """A reader of some columns with a position, as an importer's agent and task have it."""

    def __init__(
        self, made: Bench, ddl: str, name: str = "reader", filter_: str | None = None
    ) -> None:
        self.made, self.ddl, self.name, self.filter = made, ddl, name, filter_
        self.positions: dict[str, int] = {}
        self.opened = False
        self.limit: dict[str, int] | None = None
        self.found: list[dict[str, Any]] = []

    @property
    def columns(self) -> list[str]:
        return list(arrow(self.ddl).names)

    def plan(self) -> Plan:
        ask = PlanRequest(
            **{
                **READER, "reader": self.name, "positions": self.positions,
                "has_opened": self.opened, "budget": 1 << 20, "limit": self.limit,
            }
        )  # fmt: skip
        plans = self.made.export.plans
        excluded = plans.schema_mismatches(self.filter, self.columns, self.ddl)
        (plan,) = plans.plan_all(
            [ask], filter_=self.filter, columns=self.columns, schema=self.ddl, excluded=excluded
        )
        if isinstance(plan, Exception):
            raise plan
        self.opened = True
        return plan

    def step(self) -> int:
        """Plan once, read what is planned, and return how many rows there were."""
        got: list[dict[str, Any]] = []
        for planned in self.plan().planned:
            manifests = self.made.export.state.streams[planned.stream].manifests
            epochs = range(planned.from_, planned.next)
            pieces = tuple((epoch, 0, len(manifests[epoch].blocks)) for epoch in epochs)
            if not pieces:
                self.positions[planned.stream] = planned.next
                continue
            read = ReadRequest(
                reader=self.name, stream=planned.stream, pieces=pieces, filter=self.filter,
                columns=tuple(self.columns),
            )  # fmt: skip
            schema = arrow(self.ddl)
            for batch, _ in BlockReader().read_batches(self.made.export.plans, read):
                cast = [cast_column(batch.column(f.name), f) for f in schema]
                got += pa.RecordBatch.from_arrays(cast, schema=schema).to_pylist()
            self.positions[planned.stream] = planned.next
        self.found += got
        return len(got)


def emit(made: Bench, request: str = "request") -> None:
    """Publish a control tuple from outside, in an epoch without rows."""
    made.export.control.emit(request, {"type": "set", "payload": "x"})


def test_an_added_column_is_null_before_and_the_stream_goes_on(made: Bench) -> None:
    made.publish(0, rows(NARROW, 0, 2), ddl=NARROW)
    stream = made.stream
    made.publish(1, rows(MORE, 2, 2), ddl=MORE)

    assert made.stream == stream
    reader, earlier = Reader(made, "n int, extra string"), Reader(made, "n int", "earlier")
    reader.step()
    earlier.step()
    assert reader.found == [
        {"n": 0, "extra": None}, {"n": 1, "extra": None}, {"n": 2, "extra": "2"},
        {"n": 3, "extra": "3"},
    ]  # fmt: skip
    assert [one["n"] for one in earlier.found] == [0, 1, 2, 3]


def test_epochs_before_a_column_came_have_it_as_null_also_alone(made: Bench) -> None:
    made.publish(0, rows(NARROW, 0, 1), ddl=NARROW)
    made.publish(1, rows(MORE, 1, 1), ddl=MORE)
    Reader(made, "extra string").plan()

    read = ReadRequest(
        reader="reader", stream=made.stream, pieces=((0, 0, 1),), filter=None, columns=("extra",)
    )
    ((batch, _),) = BlockReader().read_batches(made.export.plans, read)
    assert batch.to_pylist() == [{"extra": None}]


def test_a_filter_on_a_column_that_came_later_is_unknown_before(made: Bench) -> None:
    made.publish(0, rows(NARROW, 0, 3), ddl=NARROW)
    made.publish(1, rows(MORE, 3, 3), ddl=MORE)

    reader = Reader(made, "n int", filter_='extra == "4" || n == 1')
    reader.step()

    assert [one["n"] for one in reader.found] == [1, 4]


def test_a_reader_stops_before_the_first_wider_row_and_goes_on_with_the_wider_type(
    made: Bench,
) -> None:
    made.publish(0, rows(NARROW, 0, 2), ddl=NARROW)
    reader = Reader(made, NARROW)
    made.publish(1, rows(WIDE, 2, 2), ddl=WIDE)
    stream = made.stream

    assert reader.step() == 2
    with pytest.raises(SchemaWidenedError, match=r"column `n` is bigint from epoch 1 on"):
        reader.step()
    assert reader.positions == {stream: 1}

    reader.ddl = WIDE
    assert reader.step() == 2
    assert [one["n"] for one in reader.found] == [0, 1, 2, 3]


def test_a_reader_of_a_wider_type_reads_narrower_rows(made: Bench) -> None:
    made.publish(0, rows("n int, f float", 0, 2), ddl="n int, f float")
    reader = Reader(made, "n bigint, f double")
    reader.step()
    assert reader.found == [{"n": 0, "f": 0.0}, {"n": 1, "f": 1.0}]


@pytest.mark.parametrize("stored", [pa.int64(), pa.float64(), pa.timestamp("us")])
def test_a_task_never_casts_to_a_narrower_type(stored: pa.DataType) -> None:
    narrow = {pa.int64(): pa.int32(), pa.float64(): pa.float32(), pa.timestamp("us"): pa.date32()}
    field = pa.field("n", narrow[stored])
    with pytest.raises(SchemaWidenedError, match="`n`"):
        cast_column(pa.array([1], stored), field)
    assert cast_column(pa.nulls(2, stored), field).to_pylist() == [None, None]


@pytest.mark.parametrize(
    ("policy", "before", "after", "refused"),
    [
        ("backward", NARROW, MORE, None),
        ("backward", NARROW, WIDE, None),
        ("backward", MORE, NARROW, "removes `extra` string"),
        ("backward", WIDE, NARROW, "`n` bigint becomes int"),
        ("backward", NARROW, "n string, f float", "`n` int becomes string"),
        ("forward", NARROW, MORE, None),
        ("forward", MORE, NARROW, None),
        ("forward", WIDE, NARROW, None),
        ("forward", NARROW, WIDE, "`n` int becomes bigint"),
        ("full", MORE, "n int, f float, other int", None),
        ("full", NARROW, WIDE, "`n` int becomes bigint"),
        ("full", WIDE, NARROW, "`n` bigint becomes int"),
        ("none", NARROW, "n string", None),
    ],
)
def test_a_policy_says_which_changes_are_made(
    made: Bench, policy: Any, before: str, after: str, refused: str | None
) -> None:
    made.export.set_schema_policy(policy)
    made.publish(0, rows(before, 0, 1), ddl=before)
    if refused is None:
        assert made.publish(1, rows(after, 1, 1), ddl=after)["published"]
        return
    with pytest.raises(SchemaIncompatibleError, match=refused):
        made.admit(1, ddl=after)
    assert made.publish(1, rows(before, 1, 1), ddl=before)["published"], "nothing has changed"
    made.reopen()
    with pytest.raises(SchemaIncompatibleError, match=refused):
        made.admit(2, ddl=after)


@pytest.mark.parametrize("policy", ["forward", "full"])
def test_a_column_that_an_importer_reads_is_not_removed(made: Bench, policy: Any) -> None:
    made.export.set_schema_policy(policy)
    made.publish(0, rows(MORE, 0, 1), ddl=MORE)
    Reader(made, NARROW, "other").step()
    made.admit(1, ddl=NARROW)
    Reader(made, "extra string").step()
    with pytest.raises(SchemaIncompatibleError, match=f"would break: {IMPORT}"):
        made.admit(1, ddl=NARROW)


def test_versions_are_there_after_a_restart_and_an_older_release_refuses_the_store(
    made: Bench,
) -> None:
    made.publish(0, rows(NARROW, 0, 1), ddl=NARROW)
    assert made.store.get("format") == "1"
    made.publish(1, rows(WIDE, 1, 1), ddl=WIDE)
    made.reopen()
    assert made.store.get("format") == "2"

    (stream,) = made.export.state.streams.values()
    versions = [(v.number, v.ddl, v.first_epoch) for v in stream.versions.all]
    assert versions == [(1, NARROW, 0), (2, WIDE, 1)]
    assert [v.schema for v in stream.versions.all] == [arrow(NARROW), arrow(WIDE)]
    made.store.set("format", "3")
    with pytest.raises(StoreError, match="format 3"):
        Store(made.directory / "state.sqlite")


def test_columns_of_a_batch_that_was_not_published_do_not_count(made: Bench) -> None:
    made.publish(0, rows(NARROW, 0, 1), ddl=NARROW)
    made.admit(1, ddl=WIDE)
    made.stage(1, rows(WIDE, 1, 1), ddl=WIDE)
    reader = Reader(made, NARROW)
    assert [reader.step(), reader.step()] == [1, 0], "no wider row was published"
    made.reopen()

    made.publish(1, rows(NARROW, 1, 1), ddl=NARROW, run="again")

    assert reader.step() == 1
    assert len(made.export.state.streams) == 1
    made.publish(2, rows(WIDE, 2, 1), ddl=WIDE, run="again")
    with pytest.raises(SchemaWidenedError, match="from epoch 2 on"):
        reader.step()


def test_columns_that_come_back_after_a_batch_without_them_are_the_newest(made: Bench) -> None:
    wide, other = "f double, extra string", "f float, extra string"
    made.publish(0, rows("f float", 0, 1), ddl="f float")
    made.admit(1, ddl=wide)
    made.export.publisher.abort(
        query="q", run="r", batch=1, stages=[made.stage(1, rows(wide, 1, 1), ddl=wide)["stage"]]
    )
    made.publish(1, rows(other, 1, 1), ddl=other, run="again")
    last = pa.RecordBatch.from_arrays([pa.array([0.1]), pa.array(["x"])], schema=arrow(wide))
    made.publish(2, last, ddl=wide, run="again")

    reader = Reader(made, wide)
    reader.step()
    assert [one["f"] for one in reader.found] == [0.0, 1.0, 0.1]


def test_a_reader_of_rows_is_stopped_also_behind_an_epoch_without_rows(made: Bench) -> None:
    made.publish(0, rows(NARROW, 0, 1), ddl=NARROW)
    reader = Reader(made, NARROW)
    reader.step()
    emit(made)
    made.publish(1, rows(WIDE, 1, 1), ddl=WIDE)
    with pytest.raises(SchemaWidenedError):
        reader.step()


def test_an_epoch_without_rows_makes_no_version(made: Bench) -> None:
    made.publish(0, rows(NARROW, 0, 1), ddl=NARROW)
    reader = Reader(made, NARROW)
    made.admit(1, ddl=WIDE)
    made.stage(1, rows(WIDE, 1, 1), ddl=WIDE)
    emit(made)
    reader.step()
    assert reader.step() == 0
    assert made.publish(1, rows(NARROW, 1, 1), ddl=NARROW, run="again")["published"]
    assert reader.step() == 1


def test_an_export_that_was_never_narrower_stops_no_reader_and_says_why(made: Bench) -> None:
    made.publish(0, rows(WIDE, 0, 1), ddl=WIDE)
    reader = Reader(made, NARROW)
    assert [reader.step(), reader.step()] == [0, 0]
    plans = made.export.plans
    (why,) = plans.list_misfits("reader", {}, plans.find_too_wide(NARROW))
    assert why == "column `n` is bigint from epoch 0 on, and the reader has int"


def test_a_run_that_ends_where_the_wider_rows_begin_is_not_stopped(made: Bench) -> None:
    made.publish(0, rows(NARROW, 0, 1), ddl=NARROW)
    reader = Reader(made, NARROW)
    made.publish(1, rows(WIDE, 1, 1), ddl=WIDE)
    reader.limit = {made.stream: 1}
    assert [reader.step(), reader.step()] == [1, 0]


def test_a_stage_of_another_query_does_not_switch_the_policy_off(made: Bench) -> None:
    made.publish(0, rows(NARROW, 0, 1), ddl=NARROW)
    made.now += 100
    made.admit(0, query="other", run="o", ddl=NARROW)
    made.stage(0, rows(NARROW, 0, 1), query="other", run="o", ddl=NARROW)
    assert len(made.export.state.streams) == 2
    with pytest.raises(SchemaIncompatibleError):
        made.admit(0, query="other", run="o2", ddl="n string, f float")


def test_another_query_waits_for_the_lease_before_its_columns_are_checked(made: Bench) -> None:
    made.publish(0, rows(NARROW, 0, 1), ddl=NARROW)
    assert "occupied" in made.admit(0, query="other", run="o", ddl="n string")


@pytest.mark.parametrize("policy", ["forward", "full"])
def test_a_column_that_an_importer_filters_by_is_not_removed(made: Bench, policy: Any) -> None:
    made.export.set_schema_policy(policy)
    made.publish(0, rows(MORE, 0, 1), ddl=MORE)
    Reader(made, "n int", filter_='extra != ""').step()
    with pytest.raises(SchemaIncompatibleError, match=f"would break: {IMPORT}"):
        made.admit(1, ddl=NARROW)
    made.now += 10_000
    assert made.admit(1, ddl=NARROW)["admitted"], "the importer is away for longer than grace"


def test_a_batch_that_is_repeated_with_more_columns_is_published_already(made: Bench) -> None:
    made.publish(0, rows(NARROW, 0, 2), ddl=NARROW)
    again = made.publish(0, rows(MORE, 0, 2), ddl=MORE)
    assert not again["published"]
    assert made.admit(0, ddl=NARROW, run="back")["admitted"]
    stage = made.stage(0, rows(MORE, 0, 3), ddl=MORE, run="back")
    with pytest.raises(BatchDiffersError):
        made.commit(0, stage, ddl=MORE, run="back")


@st.composite
def histories(draw: st.DrawFn) -> list[str]:
    """Return columns of successive batches; each adds columns, widens types, or changes nothing."""
    columns = {"n": draw(st.sampled_from(["tinyint", "int"])), "d": "date"}
    found = []
    for number in range(draw(st.integers(2, 7))):
        kind = draw(st.sampled_from(["same", "add", "widen"]))
        if kind == "add":
            columns[f"c{number}"] = draw(st.sampled_from(sorted(WIDER)))
        narrow = [name for name, type_ in columns.items() if type_ in WIDER]
        if kind == "widen" and narrow:
            name = draw(st.sampled_from(narrow))
            columns[name] = WIDER[columns[name]]
        found.append(", ".join(f"{name} {type_}" for name, type_ in columns.items()))
    return found


def expected(history: Sequence[str], wanted: str) -> list[dict[str, Any]]:
    """Return the rows of batches of one row each, up to the first with a type too wide."""
    found: list[dict[str, Any]] = []
    for number, ddl in enumerate(history):
        types = {c.name: c.type for c in parse_ddl(ddl)}
        pairs = [(types.get(c.name, c.type), c.type) for c in parse_ddl(wanted)]
        if any(not _holds(narrow, wide) for narrow, wide in pairs):
            return found
        row = rows(ddl, number, 1)
        schema = arrow(wanted)
        arrays = [
            row.column(f.name).cast(f.type) if f.name in row.schema.names else pa.nulls(1, f.type)
            for f in schema
        ]
        found += pa.RecordBatch.from_arrays(arrays, schema=schema).to_pylist()
    return found


def _holds(narrow: str, wide: str) -> bool:
    """Return whether a type is another one, or wider."""
    return narrow == wide or (narrow in WIDER and _holds(WIDER[narrow], wide))


def published(history: Sequence[str], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return columns of batches of one row each, whatever their types; null before they came."""
    found = []
    for number, ddl in enumerate(history):
        (row,) = rows(ddl, number, 1).to_pylist()
        found.append({name: _day(row.get(name)) for name in names})
    return found


def _day(value: Any) -> Any:
    return value.date() if isinstance(value, datetime) else value


class Readers:
    """Readers of all versions: of each, one that stops before wider rows, and one that returns."""

    def __init__(self) -> None:
        self.stopping: list[tuple[Reader, str]] = []
        self.returning: list[tuple[Reader, list[str]]] = []

    def begin(self, made: Bench, ddl: str) -> None:
        """Add two readers of these columns."""
        number = len(self.stopping)
        self.stopping.append((Reader(made, ddl, f"stopping-{number}"), ddl))
        reader = Reader(made, ddl, f"returning-{number}")
        self.returning.append((reader, reader.columns))

    def step(self, newest: str, reads: Callable[[], bool]) -> None:
        """Let those read that are to; one that is stopped may return with the newest columns."""
        for reader, _ in self.stopping:
            if reads():
                with suppress(SchemaWidenedError):
                    reader.step()
        for reader, _ in self.returning:
            if reads():
                try:
                    reader.step()
                except SchemaWidenedError:
                    reader.ddl = newest

    def check(self, history: Sequence[str]) -> None:
        """Compare what all have read with what was published, row by row."""
        for reader, wanted in self.stopping:
            assert reader.found == expected(history, wanted)
        for reader, names in self.returning:
            found = [{name: _day(row[name]) for name in names} for row in reader.found]
            assert found == published(history, names)


@settings(deadline=None, max_examples=60)
@given(history=histories(), data=st.data())
def test_any_evolution_loses_doubles_and_casts_nothing(history: list[str], data: Any) -> None:
    with TemporaryDirectory() as directory, bench(Path(directory)) as made:
        made.route()
        readers = Readers()
        for number, ddl in enumerate(history):
            if number:
                _disturb(made, number, ddl, data)
            made.publish(number, rows(ddl, number, 1), ddl=ddl, run=f"{number} again")
            if data.draw(st.booleans(), label="readers of this version"):
                readers.begin(made, ddl)
            if data.draw(st.booleans(), label="restart"):
                made.reopen()
            readers.step(ddl, lambda: bool(data.draw(st.booleans(), label="reads")))
        for _ in range(4 * len(history)):
            readers.step(history[-1], lambda: True)
        assert len(made.export.state.streams) == 1
        readers.check(history)


def _disturb(made: Bench, number: int, ddl: str, data: Any) -> None:
    """Stage a batch with wider columns that is not published, emit a tuple, both or neither."""
    if data.draw(st.booleans(), label="a batch that is not published before"):
        wide = ", ".join(f"{c.name} {WIDER.get(c.type, c.type)}" for c in parse_ddl(ddl))
        made.admit(number, ddl=wide, run=f"{number}")
        made.stage(number, rows(wide, number, 1), ddl=wide, run=f"{number}")
    if data.draw(st.booleans(), label="an epoch without rows before"):
        emit(made, f"{number}")
