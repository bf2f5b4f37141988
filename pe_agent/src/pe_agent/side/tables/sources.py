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


LOGS: Final = ("_delta_log", "_spark_metadata", ".hoodie")
"""Folders with a log that says which files are of a table; files that are not lie beside them."""
_TYPED: Final = ("parquet", "arrow", "ipc", "feather", "orc")
"""Formats whose files say which types they have; of the others the first version decides."""


class TableSource(Protocol):
    """Reads a table."""

    def mark(self) -> str | None:
        """Return a text that changes with the table; None if only reading tells."""

    def read(self, known: pa.Schema | None) -> pa.Table:
        """Return the whole table.

        Args:
            known: columns of its first version; None if this is the first.
        """


class Unreadable(Exception):  # noqa: N818 - told as the reason in a TableError
    """A table is not there as a whole, or not as it was."""


@dataclass(frozen=True, kw_only=True)
class Folder:
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

    def mark(self) -> str | None:
        """Return names, sizes and times of the files."""
        told = []
        for path in self._files():
            stat = path.stat()
            told.append(f"{path} {stat.st_size} {stat.st_mtime_ns} {stat.st_ino}")
        return "\n".join(told)

    def read(self, known: pa.Schema | None) -> pa.Table:
        """Read all files; one that is broken is named.

        Raises:
            Unreadable: there are none, one is broken, lacks a column or has it with another type
                than the first version, or they changed meanwhile; or a log says which of them are
                of the table.
        """
        for name in LOGS:
            if (self.path / name).exists():
                raise Unreadable(
                    f"{self.path} has a log, {name}, that says which of its files are of the table;"
                    " read it with what knows that log:"
                    " store.frame(…, lambda: spark.read.format(…).load(…))"
                )
        if self.marker is not None and not (self.path / self.marker).exists():
            raise Unreadable(f"{self.path} has no file {self.marker} yet")
        before = self.mark()
        files = self._files()
        if not files:
            raise Unreadable(f"{self.path} has no files")
        tables: list[pa.Table] = []
        known = known or self.schema
        parts = self._partitions(files, known)
        for path in files:
            tables.append(self._one(path, known, parts))
            known = known or tables[0].schema
        if self.mark() != before:
            raise Unreadable(f"{self.path} was changed while it was read")
        return pa.concat_tables(tables)

    def _one(self, path: Path, known: pa.Schema | None, parts: pa.Schema) -> pa.Table:
        try:
            folders = ds.partitioning(parts, flavor="hive")
            data = self._data(path, folders)
            if known is not None:
                declared = self.schema is not None or self.format not in _TYPED
                what = types.missing if declared else types.changed
                if (problem := what(data.schema, known)) is not None:
                    raise Unreadable(f"{path.name}: {problem}")
                data = self._data(path, folders, known)
            return data.to_table()
        except (OSError, pa.ArrowException) as error:
            raise Unreadable(f"{path.name}: {error}") from error

    def _data(
        self, files: Path | list[str], folders: Any, schema: pa.Schema | None = None
    ) -> ds.Dataset:
        return ds.dataset(
            files if isinstance(files, list) else str(files),
            schema=schema,
            format=self.format,
            partitioning=folders,
            partition_base_dir=None if self.path.is_file() else str(self.path),
        )

    def _partitions(self, files: list[Path], known: pa.Schema | None) -> pa.Schema:
        """Return the columns that folders name; their types are known, or fit the values of all.

        Raises:
            Unreadable: not all files are in folders that name the same columns.
        """
        if self.path.is_file():
            return pa.schema([])
        named = {self._named(path): path for path in files}
        if len(named) > 1:
            one, other = sorted(named.items())[:2]
            raise Unreadable(
                f"{one[1].name} is in folders for {', '.join(one[0]) or 'no column'},"
                f" {other[1].name} in folders for {', '.join(other[0])}; put all files into"
                " folders for the same columns"
            )
        [names] = named
        if known is None and names:
            try:
                known = self._data([str(path) for path in files], "hive").schema
            except (OSError, pa.ArrowException) as error:
                raise Unreadable(f"{files[0].name}: {error}") from error
        return pa.schema([known.field(one) for one in names if known and one in known.names])

    def _named(self, path: Path) -> tuple[str, ...]:
        folders = path.relative_to(self.path).parts[:-1]
        return tuple(one.partition("=")[0] for one in folders if "=" in one)

    def _files(self) -> list[Path]:
        if self.path.is_file():
            return [self.path]
        found: list[Path] = []
        for here, folders, files in os.walk(self.path):
            folders[:] = [*_seen(folders), *(one for one in folders if _hive(one))]
            found += [Path(here, name) for name in _seen(files)]
        return sorted(found)


def _hive(name: str) -> bool:
    """Return whether a folder that looks hidden names a column, as Spark has it."""
    return name.startswith("_") and "=" in name


def _seen(names: list[str]) -> list[str]:
    """Return names but those that are hidden, as Spark and Hadoop have it."""
    return [name for name in names if not name.startswith((".", "_"))]


@dataclass(frozen=True, kw_only=True)
class Query:
    """What a query of a database returns.

    Attributes:
        connect: makes a connection of DB-API 2.0; it is closed after each read.
        sql: the query.
        schema: columns and types of its rows; None for those that the first rows have.
    """

    connect: Callable[[], Any]
    sql: str
    schema: pa.Schema | None = None

    def mark(self) -> str | None:
        """Return None: a database does not tell."""
        return None

    def read(self, known: pa.Schema | None) -> pa.Table:
        """Ask the database.

        Raises:
            Unreadable: a column of before is not there, or has values of another type.
        """
        with closing(self.connect()) as connection, closing(connection.cursor()) as cursor:
            cursor.execute(self.sql)
            names = [column[0] for column in cursor.description]
            rows = cursor.fetchall()
        schema = self.schema or known
        columns = [[row[at] for row in rows] for at in range(len(names))]
        if schema is None:
            return pa.table([pa.array(one) for one in columns], names=names)
        given = {name: columns[at] for at, name in enumerate(names) if name in schema.names}
        found = pa.schema([(name, pa.infer_type(values)) for name, values in given.items()])
        declared = self.schema is not None
        problem = types.changed(found, schema, takes=types.takes, declared=declared)
        if problem is not None:
            raise Unreadable(f"the query's result: {problem}")
        arrays = [pa.array(given[one.name], one.type) for one in schema]
        return pa.Table.from_arrays(arrays, schema=schema)


@dataclass(frozen=True, kw_only=True)
class Frame:
    """A batch DataFrame.

    Attributes:
        make: makes it anew for each read, so that Spark looks for files anew.
    """

    make: Callable[[], DataFrame]

    def mark(self) -> str | None:
        """Return None: a DataFrame does not tell."""
        return None

    def read(self, known: pa.Schema | None) -> pa.Table:
        """Collect it."""
        del known
        return self.make().toArrow()
