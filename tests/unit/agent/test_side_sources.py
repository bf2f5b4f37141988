"""Where tables come from: which files are of a folder, and what is read by interval."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from pe_agent.side.tables.versions import read_version
from streambroker.side import Table, TableError, TableStore
from streambroker_core.errors import SchemaError
from support.processes.waiting import until

RATES = pa.schema([("currency", pa.string()), ("rate", pa.float64())])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TableStore]:
    with TableStore(tmp_path / "store") as made:
        yield made


def rates(**reported: float) -> pa.Table:
    return pa.table({"currency": list(reported), "rate": list(reported.values())}, schema=RATES)


def put(path: Path, **reported: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f".{path.name}")
    pq.write_table(rates(**reported), hidden)
    hidden.rename(path)


def rows_of(table: Table, *names: str) -> list[tuple[Any, ...]]:
    found = read_version(table.folder, table.state().version)
    rows = zip(*(found.column(name).to_pylist() for name in names), strict=True)
    return sorted(rows, key=str)


def content(table: Table) -> dict[str, Any]:
    found = read_version(table.folder, table.state().version)
    return dict(zip(*(column.to_pylist() for column in found.columns), strict=True))


@pytest.mark.parametrize(
    "hidden",
    ["_temporary/0/_temporary/attempt_1/part-1.parquet", ".checkpoints/part-1.parquet"],
)
def test_what_is_written_into_a_folder_just_now_is_no_part_of_it(
    store: TableStore, tmp_path: Path, hidden: str
) -> None:
    """Spark's tasks write below the folder, and what is ready is moved into it."""
    put(tmp_path / "in" / "part-0.parquet", EUR=1.0)
    put(tmp_path / "in" / "below" / "part-0.parquet", USD=2.0)
    put(tmp_path / "in" / hidden, EUR=9.0, GBP=9.0)
    table = store.folder("rates", tmp_path / "in", every=None)
    assert content(table) == {"USD": 2.0, "EUR": 1.0}


def test_folders_that_name_columns_give_them_as_hive_and_spark_write_them(
    store: TableStore, tmp_path: Path
) -> None:
    """Types fit the values of all folders, in later versions those of the first one."""
    for region, year, rate in (
        ("eu", "2024", 1.0),
        ("a%20b", "2025", 2.0),
        ("__HIVE_DEFAULT_PARTITION__", "2024", 3.0),
    ):
        put(tmp_path / "in" / f"_region={region}" / f"year={year}" / "part-0.parquet", EUR=rate)
    table = store.folder("rates", tmp_path / "in", every=None)
    expected = [("eu", 2024, 1.0), ("a b", 2025, 2.0), (None, 2024, 3.0)]
    assert table.schema is not None
    assert rows_of(table, "_region", "year", "rate") == sorted(expected, key=str)
    put(tmp_path / "in" / "_region=7" / "year=2026" / "part-0.parquet", EUR=4.0)
    table.refresh()
    assert rows_of(table, "_region", "year", "rate") == sorted(
        [*expected, ("7", 2026, 4.0)], key=str
    )
    put(tmp_path / "in" / "_region=7" / "year=first" / "part-0.parquet", EUR=5.0)
    with pytest.raises(TableError, match="first"):
        table.refresh()


def test_a_column_of_folders_has_the_type_that_is_declared(
    store: TableStore, tmp_path: Path
) -> None:
    put(tmp_path / "in" / "day=2024-02-29" / "year=007" / "part-0.parquet", EUR=1.0)
    schema = "currency string, rate double, day date, year string"
    table = store.folder("rates", tmp_path / "in", schema=schema, every=None)
    assert rows_of(table, "day", "year") == [(date(2024, 2, 29), "007")]


def test_files_that_lie_in_other_folders_than_the_rest_are_refused(
    store: TableStore, tmp_path: Path
) -> None:
    put(tmp_path / "in" / "region=eu" / "part-0.parquet", EUR=1.0)
    put(tmp_path / "in" / "part-1.parquet", EUR=1.0)
    with pytest.raises(TableError, match=r"in folders for no column, part-0.parquet in .* region;"):
        store.folder("rates", tmp_path / "in", every=None)


@pytest.mark.parametrize(
    "schema",
    [
        "code string, note string",
        StructType([StructField("code", StringType()), StructField("note", StringType())]),
        pa.schema([("code", pa.string()), ("note", pa.string())]),
    ],
    ids=["DDL", "StructType", "Arrow"],
)
def test_columns_are_declared_as_ddl_spark_type_or_arrow_schema(
    store: TableStore, tmp_path: Path, schema: Any
) -> None:
    path = tmp_path / "airports.csv"
    path.write_text("code,note\n007,\n")
    assert content(store.folder("a", path, format="csv", schema=schema, every=None)) == {"007": ""}
    sql = "select '007' as code, null as note"
    table = store.query("b", lambda: sqlite3.connect(":memory:"), sql, schema=schema, every=None)
    assert content(table) == {"007": None}


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (["code"], "schema is list; give DDL such as 'id string, price double', a StructType or"),
        ("code strin", "strin"),
    ],
)
def test_what_is_no_schema_is_refused(
    store: TableStore, tmp_path: Path, schema: Any, says: str
) -> None:
    with pytest.raises(SchemaError, match=says):
        store.folder("a", tmp_path, schema=schema)


@pytest.mark.parametrize("log", ["_delta_log", "_spark_metadata", ".hoodie"])
def test_a_folder_with_a_log_of_its_files_is_refused_with_the_way_to_read_it(
    store: TableStore, tmp_path: Path, log: str
) -> None:
    """A file that an update has replaced is still there: reading all files gives both rows."""
    put(tmp_path / "in" / "part-0.parquet", EUR=1.0)
    put(tmp_path / "in" / "part-1.parquet", EUR=2.0)
    (tmp_path / "in" / log).mkdir()
    (tmp_path / "in" / log / "0.json").write_text("{}")
    with pytest.raises(TableError, match=rf"has a log, {log}, .* store.frame\(…, lambda: spark"):
        store.folder("rates", tmp_path / "in", every=None)


class Frame:
    """A batch DataFrame, as far as a table asks one."""

    def __init__(self, given: pa.Table) -> None:
        self._given = given

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
        return self._given


def test_a_frame_is_made_again_for_each_read_and_read_by_interval(store: TableStore) -> None:
    there = [rates(EUR=1.0)]
    made: list[int] = []

    def make() -> Any:
        made.append(len(made))
        return Frame(there[-1])

    table = store.frame("rates", make, every=0.1)
    assert content(table) == {"EUR": 1.0}
    first = table.state().version
    until(lambda: len(made) > 3, 20.0, "more reads")
    assert table.state().kept == (first,), "equal content is no version"
    there.append(rates(EUR=2.0))
    until(lambda: content(table) == {"EUR": 2.0}, 20.0, "the new version")


def test_a_frame_that_fails_leaves_the_version_before(store: TableStore) -> None:
    there: list[Any] = [Frame(rates(EUR=1.0))]
    table = store.frame("rates", lambda: there[-1], every=None)
    there.append(None)
    with pytest.raises(TableError, match="toArrow"):
        table.refresh()
    assert content(table) == {"EUR": 1.0}


def test_a_database_is_asked_again_by_interval(store: TableStore, tmp_path: Path) -> None:
    path = str(tmp_path / "db")

    def run(sql: str) -> None:
        with closing(sqlite3.connect(path)) as base, base:
            base.execute(sql)

    run("create table rates (currency text, rate real)")
    run("insert into rates values ('EUR', 1.5)")
    query = "select currency, rate from rates"
    table = store.query("rates", lambda: sqlite3.connect(path), query, schema=RATES, every=0.1)
    run("update rates set rate = 2.5")
    until(lambda: content(table) == {"EUR": 2.5}, 20.0, "the new version")


def test_columns_of_files_without_types_can_be_said(store: TableStore, tmp_path: Path) -> None:
    """A code of digits is a number to CSV, and a column without values is of no type."""
    path = tmp_path / "airports.csv"
    path.write_text("code,note\n007,\n")
    schema = pa.schema([("code", pa.string()), ("note", pa.string())])
    table = store.folder("airports", path, format="csv", schema=schema, every=None)
    assert content(table) == {"007": ""}
    path.write_text("code,note\n007,closed\n")
    table.refresh()
    assert content(table) == {"007": "closed"}
