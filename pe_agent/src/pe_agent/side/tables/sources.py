"""Where tables come from: a folder of files, a query of a database, a batch DataFrame.

Each reads a table as a whole, beside the driver. ``mark`` tells cheaply whether there may be
something new; None says that only reading tells.
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
"""Folders with a log that says which files are of a table; files that are not lie beside them."""
_TYPED_FORMATS: Final = ("parquet", "arrow", "ipc", "feather", "orc")
"""Formats whose files say which types they have; of the others the first version decides."""


class TableSource(Protocol):
    """Reads a table."""

    def fingerprint(self) -> str | None:
        """Return a text that changes with the table; None if only reading tells."""

    def read(self, expected: pa.Schema | None) -> pa.Table:
        """Return the whole table.

        Args:
            expected: columns of its first version; None if this is the first.
        """


class TableUnreadable(Exception):  # noqa: N818 - told as the reason in a TableError
    """A table is not there as a whole, or not as it was."""


@dataclass(frozen=True, kw_only=True)
class FolderSource:
    """Files in a folder and those below it, read in the order of their names.

    What has a name that begins with ``_`` or ``.`` is not read, nor what is in such a folder.
    Folders named ``column=value`` give columns, as Hive and Spark write them.

    Attributes:
        path: the folder, or one file.
        format: ``parquet``, ``csv``, ``json`` or ``arrow``.
        marker: a file that has to be there, such as ``_SUCCESS``; what is written before it is
            there is not seen.
        schema: columns and types; None for those of the first file.
    """

    path: Path
    format: str = "parquet"
    marker: str | None = None
    schema: pa.Schema | None = None

    def fingerprint(self) -> str | None:
        """Return names, sizes and times of the files."""
        told = []
        for path in self._list_files():
            stat = path.stat()
            told.append(f"{path} {stat.st_size} {stat.st_mtime_ns} {stat.st_ino}")
        return "\n".join(told)

    def read(self, expected: pa.Schema | None) -> pa.Table:
        """Read all files; one that is broken is named.

        Raises:
            Unreadable: there are none, one is broken, lacks a column or has it with another type
                than the first version, or they changed meanwhile; or a log says which of them are
                of the table.
        """
        for name in TABLE_LOGS:
            if (self.path / name).exists():
                raise TableUnreadable(
                    f"{self.path} has a log, {name}, that says which of its files are of the table;"
                    " read it with what knows that log:"
                    " store.frame(…, lambda: spark.read.format(…).load(…))"
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
        """Return the columns that folders name; their types are known, or fit the values of all.

        Raises:
            Unreadable: not all files are in folders that name the same columns.
        """
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
        found: list[Path] = []
        for here, folders, files in os.walk(self.path):
            folders[:] = [
                *_visible(folders),
                *(one for one in folders if _is_partition_folder(one)),
            ]
            found += [Path(here, name) for name in _visible(files)]
        return sorted(found)


def _is_partition_folder(name: str) -> bool:
    """Return whether a folder that looks hidden names a column, as Spark has it."""
    return name.startswith("_") and "=" in name


def _visible(names: list[str]) -> list[str]:
    """Return names but those that are hidden, as Spark and Hadoop have it."""
    return [name for name in names if not name.startswith((".", "_"))]


@dataclass(frozen=True, kw_only=True)
class QuerySource:
    """What a query of a database returns.

    Attributes:
        connect: makes a connection of DB-API 2.0; it is closed after each read.
        sql: the query.
        schema: columns and types of its rows; None for those that the first rows have.
    """

    connect: Callable[[], Any]
    sql: str
    schema: pa.Schema | None = None

    def fingerprint(self) -> str | None:
        """Return None: a database does not tell."""
        return None

    def read(self, expected: pa.Schema | None) -> pa.Table:
        """Ask the database.

        Raises:
            Unreadable: a column of before is not there, or has values of another type.
        """
        with closing(self.connect()) as connection, closing(connection.cursor()) as cursor:
            cursor.execute(self.sql)
            names = [column[0] for column in cursor.description]
            rows = cursor.fetchall()
        schema = self.schema or expected
        columns = [[row[at] for row in rows] for at in range(len(names))]
        if schema is None:
            return pa.table([pa.array(one) for one in columns], names=names)
        given = {name: columns[at] for at, name in enumerate(names) if name in schema.names}
        found = pa.schema([(name, pa.infer_type(values)) for name, values in given.items()])
        declared = self.schema is not None
        problem = types.schema_problem(found, schema, accepts=types.can_convert, declared=declared)
        if problem is not None:
            raise TableUnreadable(f"the query's result: {problem}")
        arrays = [pa.array(given[one.name], one.type) for one in schema]
        return pa.Table.from_arrays(arrays, schema=schema)


@dataclass(frozen=True, kw_only=True)
class FrameSource:
    """A batch DataFrame.

    Attributes:
        make: makes it anew for each read, so that Spark looks for files anew.
    """

    make: Callable[[], DataFrame]

    def fingerprint(self) -> str | None:
        """Return None: a DataFrame does not tell."""
        return None

    def read(self, expected: pa.Schema | None) -> pa.Table:
        """Collect it."""
        del expected
        return self.make().toArrow()
