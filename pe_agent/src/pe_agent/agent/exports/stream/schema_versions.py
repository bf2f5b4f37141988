"""Versions of a stream's columns: a later one adds columns to the one before, and widens types."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa

from streambroker_core.errors import StreambrokerError
from streambroker_core.model.schema import parse_ddl
from streambroker_core.model.schema_changes import is_readable


class VersionUnknownError(StreambrokerError):
    """The agent does not know the columns of an epoch, so its rows cannot be read."""

    code = "LogCorrupt"


@dataclass(slots=True, kw_only=True)
class SchemaVersion:
    """Columns of a stream.

    Attributes:
        number: 1 for the first columns of a stream.
        ddl: columns as Spark DDL.
        schema: columns in Arrow.
        first_epoch: the first epoch with rows of it; None before.
        opened: seconds since 1970; 0 if unknown.
    """

    number: int
    ddl: str
    schema: pa.Schema
    first_epoch: int | None = None
    opened: float = 0.0


class SchemaVersions:
    """All versions of one stream, in order. Thread-safe: entries are only appended."""

    def __init__(self, ddl: str, schema: pa.Schema) -> None:
        first = SchemaVersion(number=1, ddl=ddl, schema=schema)
        self._versions = [first]
        self._by_ddl = {ddl: first}

    @property
    def newest(self) -> SchemaVersion:
        """The version in which rows are written now."""
        return self._versions[-1]

    @property
    def all(self) -> Sequence[SchemaVersion]:
        """All versions, the oldest first."""
        return tuple(self._versions)

    @property
    def published(self) -> SchemaVersion:
        """The newest version with rows that were published; the first one without any."""
        found = [v for v in self._versions if v.first_epoch is not None]
        return found[-1] if found else self._versions[0]

    def add(self, version: SchemaVersion) -> SchemaVersion:
        """Append and return a version, which has the columns of the published ones or wider ones.

        Columns that come back keep their Arrow schema.
        """
        if version.ddl in self._by_ddl:
            version.schema = self._by_ddl[version.ddl].schema
        self._by_ddl[version.ddl] = version
        self._versions.append(version)
        return version

    def change(self, change: Callable[[SchemaVersion], SchemaVersion]) -> SchemaVersions:
        """Return these versions changed one by one; epochs are still found by the former DDL."""
        changed, known = copy(self), self.all
        changed._versions = [change(version) for version in known]
        pairs = zip(known, changed._versions, strict=True)
        changed._by_ddl = {version.ddl: new for version, new in pairs}
        return changed

    def note_rows(self, ddl: str, epoch: int) -> SchemaVersion | None:
        """Record that an epoch has rows of a version; return the version if it is the first."""
        version = self._by_ddl.get(ddl)
        if version is None or version.first_epoch is not None:
            return None
        version.first_epoch = epoch
        return version

    def of(self, ddl: str) -> SchemaVersion:
        """Return the version of an epoch's columns.

        Raises:
            VersionUnknownError: there is none.
        """
        version = self._by_ddl.get(ddl)
        if version is None:
            raise VersionUnknownError(
                f"rows have the columns {ddl}, which the agent's store does not know. Restore"
                " `state.sqlite` of the data directory, or start the exporter with a new directory."
            )
        return version

    def newest_of(self, ddls: Collection[str]) -> SchemaVersion:
        """Return the latest version of some epochs' columns; the newest one without epochs."""
        found = [self.of(ddl) for ddl in ddls]
        return max(found, key=lambda v: v.number, default=self.newest)

    def find_unreadable(self, wanted: str) -> tuple[int, str] | None:
        """Return the first epoch too wide for a reader of columns as DDL, and why; else None."""
        for version in self._versions:
            epoch = version.first_epoch
            found = None if epoch is None else _find_too_wide(version.ddl, wanted)
            if epoch is not None and found is not None:
                name, exported, read = found
                why = f"column `{name}` is {exported} from epoch {epoch} on"
                return epoch, f"{why}, and the reader has {read}"
        return None


@lru_cache(maxsize=1024)
def _find_too_wide(ddl: str, wanted: str) -> tuple[str, str, str] | None:
    """Return the first column that is too wide for a reader, its type, and that of the reader."""
    types = {c.name: c.type for c in parse_ddl(ddl)}
    for column in parse_ddl(wanted):
        found = types.get(column.name, column.type)
        if not is_readable(found, column.type):
            return column.name, found, column.type
    return None


def adapt(batch: pa.RecordBatch, schema: pa.Schema | None) -> pa.RecordBatch:
    """Return rows in the columns of a later version, if any; columns that they lack are null."""
    if schema is None or batch.schema.equals(schema):
        return batch
    known = set(batch.schema.names)
    if known.issuperset(schema.names):
        batch = batch.select(schema.names)
        if batch.schema.equals(schema):
            return batch
    columns = []
    for field in schema:
        if field.name not in known:
            columns.append(pa.nulls(batch.num_rows, field.type))
            continue
        column = batch.column(field.name)
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
