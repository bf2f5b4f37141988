"""Sources of tables: a folder of files, a database query, a batch DataFrame.

Each reads the whole table in the driver. ``fingerprint`` shows cheaply whether the table may have
changed; None means that only reading shows it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa
import pyarrow.dataset as ds

from pe_agent.side.tables import type_check as types

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


TABLE_LOGS: Final = ("_delta_log", "_spark_metadata", ".hoodie")
"""Folders with a log that lists a table's files; files of no version may be next to them."""
_TYPED_FORMATS: Final = ("parquet", "arrow", "ipc", "feather", "orc")
"""Formats whose files contain their types; for the others the first version decides."""


class TableSource(Protocol):
    """Reads a table."""

    def fingerprint(self) -> str | None:
        """Return a text that changes with the table; None if only reading shows a change."""

    def read(self, expected: pa.Schema | None) -> pa.Table:
        """Return the whole table; ``expected`` is the schema of its first version, if any."""


class TableUnreadable(Exception):  # noqa: N818 - told as the reason in a TableError
    """A table is incomplete, or has changed while it was read or in its types."""


@dataclass(frozen=True, kw_only=True)
class FolderSource:
    """Files in a folder and its subfolders, read in the order of their names.

    Files and folders with a name that begins with ``_`` or ``.`` are not read. Folders named
    ``column=value`` add columns, as Hive and Spark write them.

    Attributes:
        path: the folder, or one file.
        format: ``parquet``, ``csv``, ``json`` or ``arrow``.
        marker: a file that has to exist, such as ``_SUCCESS``; until it does, the folder is not
            read.
        schema: columns and types; None for those of the first file.
    """

    path: Path
    format: str = "parquet"
    marker: str | None = None
    schema: pa.Schema | None = None

    def fingerprint(self) -> str | None:
        """Return paths, sizes, times and inodes of the files."""
        entries = []
        for path in self._list_files():
            stat = path.stat()
            entries.append(f"{path} {stat.st_size} {stat.st_mtime_ns} {stat.st_ino}")
        return "\n".join(entries)

    def read(self, expected: pa.Schema | None) -> pa.Table:
        """Read all files; an error names the broken one.

        Raises:
            TableUnreadable: there are no files; one is broken, lacks a column or has it with
                another type than the first version; they changed meanwhile; or a log determines
                which of them belong to the table.
        """
        for name in TABLE_LOGS:
            if (self.path / name).exists():
                raise TableUnreadable(
                    f"{self.path} has a log, {name}, that determines which of its files belong to"
                    " the table; read it with the format of that log: store.frame(…, lambda:"
                    " spark.read.format(…).load(…))"
                )
        if self.marker is not None and not (self.path / self.marker).exists():
            raise TableUnreadable(f"{self.path} has no file {self.marker} yet")
        before = self.fingerprint()
        files = self._list_files()
        if not files:
            raise TableUnreadable(f"{self.path} has no files")
        tables: list[pa.Table] = []
        expected = expected or self.schema
        parts = self._partition_columns(files, expected)
        for path in files:
            tables.append(self._read_file(path, expected, parts))
            expected = expected or tables[0].schema
        if self.fingerprint() != before:
            raise TableUnreadable(f"{self.path} was changed while it was read")
        return pa.concat_tables(tables)

    def _read_file(self, path: Path, expected: pa.Schema | None, partitions: pa.Schema) -> pa.Table:
        try:
            folders = ds.partitioning(partitions, flavor="hive")
            data = self._open_dataset(path, folders)
            if expected is not None:
                declared = self.schema is not None or self.format not in _TYPED_FORMATS
                what = types.missing_column if declared else types.schema_problem
                if (problem := what(data.schema, expected)) is not None:
                    raise TableUnreadable(f"{path.name}: {problem}")
                data = self._open_dataset(path, folders, expected)
            return data.to_table()
        except (OSError, pa.ArrowException) as error:
            raise TableUnreadable(f"{path.name}: {error}") from error

    def _open_dataset(
        self, files: Path | list[str], partitioning: Any, schema: pa.Schema | None = None
    ) -> ds.Dataset:
        return ds.dataset(
            files if isinstance(files, list) else str(files),
            schema=schema,
            format=self.format,
            partitioning=partitioning,
            partition_base_dir=None if self.path.is_file() else str(self.path),
        )

    def _partition_columns(self, files: list[Path], expected: pa.Schema | None) -> pa.Schema:
        """Return the columns that folders name; raise TableUnreadable if these differ."""
        if self.path.is_file():
            return pa.schema([])
        named = {self._partition_names(path): path for path in files}
        if len(named) > 1:
            one, other = sorted(named.items())[:2]
            raise TableUnreadable(
                f"{one[1].name} is in folders for {', '.join(one[0]) or 'no column'},"
                f" {other[1].name} in folders for {', '.join(other[0])}; put all files into"
                " folders for the same columns"
            )
        [names] = named
        if expected is None and names:
            try:
                expected = self._open_dataset([str(path) for path in files], "hive").schema
            except (OSError, pa.ArrowException) as error:
                raise TableUnreadable(f"{files[0].name}: {error}") from error
        return pa.schema(
            [expected.field(one) for one in names if expected and one in expected.names]
        )

    def _partition_names(self, path: Path) -> tuple[str, ...]:
        folders = path.relative_to(self.path).parts[:-1]
        return tuple(one.partition("=")[0] for one in folders if "=" in one)

    def _list_files(self) -> list[Path]:
        if self.path.is_file():
            return [self.path]
        paths: list[Path] = []
        for directory, folders, files in os.walk(self.path):
            folders[:] = [
                *_visible(folders),
                *(one for one in folders if _is_partition_folder(one)),
            ]
            paths += [Path(directory, name) for name in _visible(files)]
        return sorted(paths)


def _is_partition_folder(name: str) -> bool:
    return name.startswith("_") and "=" in name


def _visible(names: list[str]) -> list[str]:
    return [name for name in names if not name.startswith((".", "_"))]


@dataclass(frozen=True, kw_only=True)
class QuerySource:
    """The result of a database query.

    Attributes:
        connect: makes a connection of DB-API 2.0; it is closed after each read.
        sql: the query.
        schema: columns and types of its rows; None for those of the first rows.
    """

    connect: Callable[[], Any]
    sql: str
    schema: pa.Schema | None = None

    def fingerprint(self) -> str | None:
        """Return None: a database does not show changes."""
        return None

    def read(self, expected: pa.Schema | None) -> pa.Table:
        """Run the query; raise TableUnreadable if a column is missing or has another type."""
        with closing(self.connect()) as connection, closing(connection.cursor()) as cursor:
            cursor.execute(self.sql)
            names = [column[0] for column in cursor.description]
            rows = cursor.fetchall()
        schema = self.schema or expected
        columns = [[row[at] for row in rows] for at in range(len(names))]
        if schema is None:
            return pa.table([pa.array(one) for one in columns], names=names)
        values_by_name = {
            name: columns[at] for at, name in enumerate(names) if name in schema.names
        }
        actual = pa.schema(
            [(name, pa.infer_type(values)) for name, values in values_by_name.items()]
        )
        declared = self.schema is not None
        problem = types.schema_problem(actual, schema, accepts=types.can_convert, declared=declared)
        if problem is not None:
            raise TableUnreadable(f"the query's result: {problem}")
        arrays = [pa.array(values_by_name[one.name], one.type) for one in schema]
        return pa.Table.from_arrays(arrays, schema=schema)


@dataclass(frozen=True, kw_only=True)
class FrameSource:
    """A batch DataFrame, made again for each read, so that Spark lists its files again."""

    make: Callable[[], DataFrame]

    def fingerprint(self) -> str | None:
        """Return None: a DataFrame does not show changes."""
        return None

    def read(self, expected: pa.Schema | None) -> pa.Table:
        """Collect the DataFrame."""
        del expected
        return self.make().toArrow()
