"""Tables that are side inputs: what becomes a version, what does not, and what is kept."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pe_agent.aligned.control_source import ControlReader
from pe_agent.log import control_file
from pe_agent.side.tables.announcements import (
    CONTROL_FILE,
    READERS,
    VersionOffsets,
    drop_hidden_versions,
)
from pe_agent.side.tables.cache import CachedTables
from pe_agent.side.tables.versions import (
    JOURNAL,
    SORTED,
    ReadPosition,
    Versions,
    read_version,
    sorted_path,
    version_path,
)
from streambroker.side import SideVersion, Table, TableError, TableStore
from streambroker_core.control.tuples import Delivery
from streambroker_core.side import SideInput
from streambroker_core.side.errors import SideDefinitionError, SideError
from streambroker_core.side.join.static_table import build_content, sort_by_key
from streambroker_core.side.state.pages import PagedMap
from streambroker_core.side.state.stores import Content
from support.processes.waiting import until

RATES = pa.schema([("currency", pa.string()), ("rate", pa.float64())])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TableStore]:
    with TableStore(tmp_path / "store") as made:
        yield made


def put(folder: Path, name: str = "a.parquet", **rates: float) -> None:
    folder.mkdir(exist_ok=True)
    table = pa.table({"currency": list(rates), "rate": list(rates.values())}, schema=RATES)
    hidden = folder / f".{name}"
    pq.write_table(table, hidden)
    hidden.rename(folder / name)


def rates(name: str = "rates", **reported: Any) -> SideInput:
    return SideInput(
        name=name, kind="map", key=("currency",), schema=RATES, static=True, **reported
    )


def content(table: Table, version: str | None = None) -> dict[str, float]:
    found = read_version(table.folder, version or table.state().version)
    return dict(zip(*(column.to_pylist() for column in found.columns), strict=True))


def folder(store: TableStore, path: Path, **reported: Any) -> Table:
    return store.folder("rates", path, **{"every": None, **reported})


# -- what becomes a version ------------------------------------------------------------------


def test_a_folder_is_read_as_a_whole_and_equal_content_is_no_new_version(
    store: TableStore, tmp_path: Path
) -> None:
    put(tmp_path / "in", EUR=1.0)
    put(tmp_path / "in", "b.parquet", USD=2.0)
    (tmp_path / "in" / "_SUCCESS").touch()
    table = folder(store, tmp_path / "in")
    first = table.state()
    assert (content(table), first.rows, first.error) == ({"EUR": 1.0, "USD": 2.0}, 2, None)
    put(tmp_path / "in", EUR=1.0)
    assert table.refresh().kept == (first.version,)
    put(tmp_path / "in", EUR=9.0)
    assert content(table, table.refresh().version) == {"EUR": 9.0, "USD": 2.0}
    assert content(table, first.version) == {"EUR": 1.0, "USD": 2.0}


def test_a_change_is_found_without_being_asked_for(store: TableStore, tmp_path: Path) -> None:
    put(tmp_path / "in", EUR=1.0)
    table = folder(store, tmp_path / "in", every=0.1)
    put(tmp_path / "in", EUR=2.0)
    until(lambda: content(table) == {"EUR": 2.0}, 20.0, "the new version")


def test_a_folder_without_its_marker_is_not_read(store: TableStore, tmp_path: Path) -> None:
    put(tmp_path / "in", EUR=1.0)
    with pytest.raises(TableError, match="has no file _DONE yet"):
        folder(store, tmp_path / "in", marker="_DONE")
    (tmp_path / "in" / "_DONE").touch()
    assert content(store.folder("again", tmp_path / "in", marker="_DONE")) == {"EUR": 1.0}


def test_csv_files_have_the_types_of_the_first_version(store: TableStore, tmp_path: Path) -> None:
    path = tmp_path / "rates.csv"
    path.write_text("currency,rate\nEUR,1.5\n")
    table = folder(store, path, format="csv")
    path.write_text("currency,rate,more\nEUR,2,x\n")
    table.refresh()
    assert (content(table), table.schema) == ({"EUR": 2.0}, RATES)


def test_a_database_is_asked_by_its_own_connection(store: TableStore, tmp_path: Path) -> None:
    path = str(tmp_path / "db")
    with closing(sqlite3.connect(path)) as base, base:
        base.execute("create table rates (currency text, rate real)")
        base.execute("insert into rates values ('EUR', 1.5)")
    query = "select currency, rate from rates order by currency"
    table = store.query("rates", lambda: sqlite3.connect(path), query, schema=RATES, every=None)
    with closing(sqlite3.connect(path)) as base, base:
        base.execute("insert into rates values ('USD', null)")
    table.refresh()
    assert content(table) == {"EUR": 1.5, "USD": None}


# -- what does not ---------------------------------------------------------------------------


OTHER_TYPES: list[tuple[list[Any], pa.DataType, str]] = [
    (["7"], pa.string(), "string"),
    ([3.0], pa.float64(), "double"),
    ([True], pa.bool_(), "bool"),
    ([0], pa.timestamp("us"), r"timestamp\[us\]"),
]


@pytest.mark.parametrize(("values", "type_", "name"), OTHER_TYPES, ids=[r[2] for r in OTHER_TYPES])
def test_a_column_that_has_another_type_changes_nothing_whatever_its_values_are(
    store: TableStore, tmp_path: Path, values: list[Any], type_: pa.DataType, name: str
) -> None:
    def write(given: pa.Array) -> None:
        pq.write_table(pa.table({"currency": ["EUR"], "rate": given}), tmp_path / "rates.parquet")

    write(pa.array([1], pa.int64()))
    table = folder(store, tmp_path / "rates.parquet")
    write(pa.array(values, type_))
    says = f"column rate is {name}, and the first version of the table has int64 there; cast it"
    with pytest.raises(TableError, match=says):
        table.refresh()
    assert content(table) == {"EUR": 1}


@pytest.mark.parametrize(("value", "name"), [(2.5, "double"), (3.0, "double"), ("7", "string")])
def test_a_query_whose_values_have_another_type_changes_nothing(
    store: TableStore, tmp_path: Path, value: object, name: str
) -> None:
    path = str(tmp_path / "db")
    with closing(sqlite3.connect(path)) as base, base:
        base.execute("create table rates (currency text, rate)")
        base.execute("insert into rates values ('EUR', 1)")
    connect = partial(sqlite3.connect, path)
    table = store.query("rates", connect, "select * from rates", every=None)
    with closing(sqlite3.connect(path)) as base, base:
        base.execute("update rates set rate = ?", (value,))
    with pytest.raises(
        TableError,
        match=f"column rate is {name}, and the first version of the table has int64 there",
    ):
        table.refresh()
    assert content(table) == {"EUR": 1}
    with closing(sqlite3.connect(path)) as base, base:
        base.execute("update rates set rate = null")
    table.refresh()
    assert content(table) == {"EUR": None}


def test_a_column_of_fewer_bits_says_the_same(store: TableStore, tmp_path: Path) -> None:
    path = tmp_path / "rates.parquet"
    pq.write_table(pa.table({"currency": ["EUR"], "rate": pa.array([1], pa.int64())}), path)
    table = folder(store, path)
    narrow = pa.array(["USD"]).dictionary_encode()
    pq.write_table(pa.table({"currency": narrow, "rate": pa.array([2], pa.int16())}), path)
    table.refresh()
    assert content(table) == {"USD": 2}


def test_types_that_were_declared_are_what_files_are_read_as(
    store: TableStore, tmp_path: Path
) -> None:
    path = tmp_path / "rates.parquet"
    pq.write_table(pa.table({"currency": ["EUR"], "rate": pa.array([1], pa.int64())}), path)
    table = folder(store, path, schema=RATES)
    pq.write_table(pa.table({"currency": ["EUR"], "rate": pa.array([2], pa.int32())}), path)
    table.refresh()
    assert (content(table), table.schema) == ({"EUR": 2.0}, RATES)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda path: (path / "b.parquet").write_text("no"), "b.parquet: .*Parquet"),
        (
            lambda path: pq.write_table(pa.table({"currency": ["EUR"]}), path / "a.parquet"),
            "a.parquet: there is no column rate",
        ),
        (
            lambda path: pq.write_table(
                pa.table({"currency": ["EUR"], "rate": ["much"]}), path / "a.parquet"
            ),
            "column rate is string, and the first version of the table has double there",
        ),
        (lambda path: put(path, "b.parquet", EUR=2.0), "a table with several rows for one value"),
        (lambda path: (path / "a.parquet").unlink(), "has no files"),
    ],
    ids=["broken", "column", "type", "twice", "empty"],
)
def test_what_cannot_be_used_leaves_the_version_before_and_says_why(
    store: TableStore, tmp_path: Path, spoil: Any, why: str
) -> None:
    put(tmp_path / "in", EUR=1.0)
    table = folder(store, tmp_path / "in")
    table.bind(rates(update="refuse"))
    before = table.state()
    spoil(tmp_path / "in")
    with pytest.raises(TableError, match=why):
        table.refresh()
    after = table.state()
    assert after.error is not None
    assert (after.version, after.kept, content(table)) == (
        before.version,
        before.kept,
        {"EUR": 1.0},
    )
    put(tmp_path / "in", EUR=3.0)
    (tmp_path / "in" / "b.parquet").unlink(missing_ok=True)
    assert table.refresh().error is None
    assert content(table) == {"EUR": 3.0}


def test_a_table_that_was_never_read_is_refused_where_it_is_made(store: TableStore) -> None:
    def connect() -> Any:
        raise ConnectionError("nobody at db:5432")

    with pytest.raises(TableError, match="Table `rates`: nobody at db:5432"):
        store.query("rates", connect, "select 1")


def test_a_table_that_does_not_fit_a_side_input_is_refused_where_it_is_said(
    store: TableStore, tmp_path: Path
) -> None:
    table = store.query(
        "rates", lambda: sqlite3.connect(":memory:"), "select null as currency, 1.0 as rate",
        schema=RATES,
    )  # fmt: skip
    with pytest.raises(SideError, match="is null"):
        table.bind(rates())
    assert not (store.path / CONTROL_FILE).read_bytes().splitlines()[1:]


def test_one_driver_uses_a_store(store: TableStore) -> None:
    with pytest.raises(TableError, match="another driver uses the store"):
        TableStore(store.path)


def test_one_side_input_of_a_name_has_one_definition(store: TableStore, tmp_path: Path) -> None:
    put(tmp_path / "in", EUR=1.0)
    table = folder(store, tmp_path / "in")
    table.bind(rates())
    table.bind(rates())
    with pytest.raises(SideDefinitionError, match="give one of them another name"):
        table.bind(rates(update="refuse"))


# -- what is announced -----------------------------------------------------------------------


def announced(store: TableStore) -> list[tuple[str, str]]:
    lines = (store.path / CONTROL_FILE).read_bytes().splitlines()[1:]
    said = [json.loads(line)["payload"] for line in lines]
    return [(one["input"], one["version"]) for one in said]


def test_a_version_is_announced_once_to_each_side_input_and_is_there_before(
    tmp_path: Path,
) -> None:
    put(tmp_path / "in", EUR=1.0)
    with TableStore(tmp_path / "store") as store:
        table = folder(store, tmp_path / "in")
        table.bind(rates())
        first = table.state().version
        put(tmp_path / "in", EUR=2.0)
        second = table.refresh().version
        table.bind(rates("other"))
        expected = [("rates", first), ("rates", second), ("other", second)]
        assert announced(store) == expected
        assert all(version_path(table.folder, version).exists() for _, version in expected)
    with TableStore(tmp_path / "store") as store:
        table = folder(store, tmp_path / "in")
        table.bind(rates())
        assert announced(store) == expected


def test_a_store_that_starts_again_goes_on_with_its_last_version(tmp_path: Path) -> None:
    put(tmp_path / "in", EUR=1.0)
    with TableStore(tmp_path / "store") as store:
        before = folder(store, tmp_path / "in").state()
    (tmp_path / "in" / "a.parquet").write_text("broken")
    (tmp_path / "store" / "rates" / ".123").touch()
    (tmp_path / "store" / "rates" / "v9-lost.arrow").touch()
    with TableStore(tmp_path / "store") as store:
        table = folder(store, tmp_path / "in")
        assert (table.state().version, table.schema) == (before.version, RATES)
        assert "a.parquet" in (table.state().error or "")
        files = {path.name for path in table.folder.iterdir()}
        assert files == {JOURNAL, f"{before.version}.arrow"}


def test_a_query_hears_of_each_side_input_its_last_version_alone(tmp_path: Path) -> None:
    with TableStore(tmp_path / "store") as store:
        for version in ("v1", "v2"):
            for name in ("a", "b"):
                store.control.append(SideVersion(input=name, version=version))
        store.control.append(SideVersion(input="a", version="v3", at=5))
        store.control.append(SideVersion(input="a", version="v4"), delivery=Delivery.END_WINDOW)
        reader = ControlReader(VersionOffsets(store.path / CONTROL_FILE))
        start = reader.initialOffset()
        end = reader.latestOffset(start, None)
        (part,) = reader.partitions(start, end)
    said = [json.loads(line)["payload"] for line in part.value]
    assert [(one["input"], one["version"]) for one in said] == [
        ("a", "v2"),
        ("b", "v2"),
        ("a", "v3"),
        ("a", "v4"),
    ]
    assert drop_hidden_versions(part.value) == part.value


def test_a_query_that_is_far_behind_hears_of_no_version_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_file, "WINDOW_LIMITS", (3, 1 << 20))
    put(tmp_path / "in", EUR=0.0)
    with TableStore(tmp_path / "store") as store:
        table = folder(store, tmp_path / "in")
        table.bind(rates())
        behind = ControlReader(VersionOffsets(store.path / CONTROL_FILE))
        offset = behind.latestOffset(behind.initialOffset(), None)
        for value in range(1, 11):
            put(tmp_path / "in", EUR=float(value))
            table.refresh()
            store.clean()
        last = table.state().version
        new = ControlReader(VersionOffsets(store.path / CONTROL_FILE))
        for reader, start in ((behind, offset), (new, new.initialOffset())):
            end = reader.latestOffset(start, None)
            (part,) = reader.partitions(start, end)
            assert [json.loads(line)["payload"]["version"] for line in part.value] == [last]
            assert reader.latestOffset(end, None) == end
        assert content(table, last) == {"EUR": 10.0}


# -- what is kept ----------------------------------------------------------------------------


def test_versions_are_kept_until_every_query_has_passed_them(tmp_path: Path) -> None:
    put(tmp_path / "in", EUR=1.0)
    with TableStore(tmp_path / "store", grace=60.0) as store:
        table = folder(store, tmp_path / "in")
        table.bind(rates())
        names = [table.state().version]
        slow, fast = (ControlReader(VersionOffsets(store.path / CONTROL_FILE)) for _ in range(2))
        at = {one: one.initialOffset() for one in (slow, fast)}
        at = {one: one.latestOffset(start, None) for one, start in at.items()}  # the first one
        for value in (2.0, 3.0):
            put(tmp_path / "in", EUR=value)
            names.append(table.refresh().version)
        for _ in range(2):
            at[fast] = fast.latestOffset(at[fast], None)  # it has read all
        slow.latestOffset(at[slow], None)  # it has finished the first, and its window has the rest
        store.clean()
        assert table.state().kept == (names[0], names[-1])
        (old,) = (
            path for path in (store.path / READERS).iterdir() if path.stem == at[slow]["reader"]
        )
        os.utime(old, (0, time.time() - 61.0))
        store.clean()
        assert table.state().kept == (names[-1],)
        assert [path.name for path in table.folder.glob("*.arrow")] == [f"{names[-1]}.arrow"]


def test_without_queries_the_last_version_is_kept(tmp_path: Path) -> None:
    versions = Versions(tmp_path)
    for value in (1.0, 2.0):
        versions.write(pa.table({"v": [value]}), 0.0)
    first, second = (one.name for one in versions.retained)
    assert versions.clean([], ["x"]) == [first]
    assert [one.name for one in Versions(tmp_path).retained] == [second]


# -- in the order of keys --------------------------------------------------------------------


def keys_and_values(made: Content) -> tuple[list[Any], list[Any]]:
    assert isinstance(made, PagedMap)
    level = made.read_all()
    return level.keys.to_pylist(), level.values.to_pylist()


def test_workers_take_rows_in_the_order_of_keys_where_they_lie(
    store: TableStore, tmp_path: Path
) -> None:
    put(tmp_path / "in", USD=2.0, EUR=1.0, CHF=3.0)
    table = folder(store, tmp_path / "in")
    side = rates()
    first = table.state().version
    assert read_version(table.folder, first, side)["currency"].to_pylist() == ["USD", "EUR", "CHF"]
    table.bind(side)
    before = pa.total_allocated_bytes()
    found = read_version(table.folder, first, side)
    assert found["currency"].to_pylist() == ["CHF", "EUR", "USD"]
    assert pa.total_allocated_bytes() == before, "mapped, and not copied"
    shelf = CachedTables(folders={"rates": str(table.folder)})
    assert keys_and_values(shelf(side, first))[0] == ["CHF", "EUR", "USD"]
    assert content(table) == {"USD": 2.0, "EUR": 1.0, "CHF": 3.0}
    put(tmp_path / "in", EUR=1.0, CHF=4.0)
    second = table.refresh().version
    assert read_version(table.folder, second, side)["rate"].to_pylist() == [4.0, 1.0]


def test_rows_of_one_key_stay_in_their_order() -> None:
    side = SideInput(name="rates", kind="multimap", key=("currency",), schema=RATES, static=True)
    given = pa.table({"currency": ["b", "a", "b", "a"], "rate": [1.0, 2.0, 3.0, 4.0]})
    found = sort_by_key(side, given)
    assert found is not None
    assert found["rate"].to_pylist() == [2.0, 4.0, 1.0, 3.0]
    assert sort_by_key(side, found) is None
    assert keys_and_values(build_content(side, found)) == keys_and_values(
        build_content(side, given)
    )


def test_a_sorted_copy_goes_with_its_version_and_is_not_needed(
    store: TableStore, tmp_path: Path
) -> None:
    put(tmp_path / "in", USD=2.0, EUR=1.0)
    table = folder(store, tmp_path / "in")
    side, first = rates(), table.state().version
    table.bind(side)
    copy = sorted_path(table.folder, first, side)
    assert copy.exists()
    copy.unlink()
    assert read_version(table.folder, first, side)["currency"].to_pylist() == ["USD", "EUR"]
    put(tmp_path / "in", USD=2.0, CHF=1.0)
    table.refresh()
    reopened = Versions(table.folder)
    assert len(list((table.folder / SORTED).iterdir())) == 1
    (table.folder / SORTED / f"{first}.by-0").touch()
    (table.folder / SORTED / "v9-0.by-0").touch()
    reopened = Versions(table.folder)
    assert not (table.folder / SORTED / "v9-0.by-0").exists()
    reopened.clean([ReadPosition(10**6)], ["rates"])
    assert [path.name.partition(".")[0] for path in (table.folder / SORTED).iterdir()] == [
        table.state().version
    ]


def test_a_table_without_room_for_the_copy_is_announced_all_the_same(
    store: TableStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError("no space left")

    put(tmp_path / "in", USD=2.0, EUR=1.0)
    table = folder(store, tmp_path / "in")
    monkeypatch.setattr(Versions, "write_sorted", full)
    table.bind(rates())
    said = [SideVersion(**one.payload) for one in store.control.tuples()]
    assert [one.version for one in said] == [table.state().version]


def test_a_table_whose_first_version_had_no_value_in_a_column_says_so_to_the_next(
    store: TableStore, tmp_path: Path
) -> None:
    path = tmp_path / "rates.parquet"
    pq.write_table(pa.table({"currency": ["EUR"], "note": pa.nulls(1)}), path)
    declared = store.folder("declared", path, schema="currency string, note string", every=None)
    bare = store.folder("bare", path, every=None)
    pq.write_table(pa.table({"currency": ["EUR"], "note": ["x"]}), path)
    assert declared.refresh().rows == 1
    with pytest.raises(TableError, match=r"only nulls there, so no type; .* schema="):
        bare.refresh()


def test_a_type_that_was_declared_is_named_as_declared(store: TableStore) -> None:
    sql = "select 'EUR' as currency, 'much' as rate"
    with pytest.raises(
        TableError, match="rate is string, and double is declared; declare its type"
    ):
        store.query("rates", lambda: sqlite3.connect(":memory:"), sql, schema=RATES)


def test_a_table_that_was_never_read_speaks_of_no_version_before(
    store: TableStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(TableError, match="has no files"):
        store.folder("rates", tmp_path / "none")
    assert "previous version" not in caplog.text
