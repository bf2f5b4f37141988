"""Versions of a stream's columns: a later one adds columns to the one before, and widens types."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from streambroker_core.model.schema import Schema, parse_ddl
from streambroker_core.model.schema_changes import is_readable


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaVersion:
    """Columns of a stream.

    Attributes:
        number: 1 for the first columns of a stream.
        ddl: columns as Spark DDL.
        schema: columns in Arrow.
        first_epoch: the first epoch that may have them.
        opened: seconds since 1970; 0 if unknown.
    """

    number: int
    ddl: str
    schema: pa.Schema
    first_epoch: int = 0
    opened: float = 0.0


class SchemaVersions:
    """All versions of one stream, in order. Thread-safe: entries are only appended."""

    def __init__(self, versions: Iterable[SchemaVersion]) -> None:
        self._versions = list(versions)
        self._by_ddl = {v.ddl: v for v in reversed(self._versions)}

    @property
    def newest(self) -> SchemaVersion:
        """The version in which rows are written now."""
        return self._versions[-1]

    @property
    def all(self) -> Sequence[SchemaVersion]:
        """All versions, the oldest first."""
        return tuple(self._versions)

    def published(self, next_: int) -> SchemaVersion:
        """Return the newest version of the epochs below ``next_``; the first one without epochs.

        A later one was opened for a batch that was not published.
        """
        found = [v for v in self._versions if v.first_epoch < next_]
        return found[-1] if found else self._versions[0]

    def add(self, version: SchemaVersion) -> None:
        """Append a version, which has the columns of the published ones or wider ones."""
        self._by_ddl.setdefault(version.ddl, version)
        self._versions.append(version)

    def of(self, ddl: str) -> SchemaVersion:
        """Return the version of an epoch's columns."""
        return self._by_ddl.get(ddl, self._versions[0])

    def newest_of(self, ddls: Collection[str]) -> SchemaVersion:
        """Return the latest version of some epochs' columns; the newest one without epochs."""
        found = [self.of(ddl) for ddl in ddls]
        return max(found, key=lambda v: v.number, default=self.newest)

    def find_unreadable(self, wanted: Schema) -> tuple[int, str] | None:
        """Return the first epoch whose columns are too wide for a reader, and why; else None."""
        following = [*(v.first_epoch for v in self._versions[1:]), -1]
        for version, next_ in zip(self._versions, following, strict=False):
            if version.first_epoch == next_:
                continue  # none of its epochs was published
            types = {c.name: c.type for c in parse_ddl(version.ddl)}
            for column in wanted:
                found = types.get(column.name, column.type)
                if not is_readable(found, column.type):
                    return version.first_epoch, (
                        f"column `{column.name}` is {found} from epoch {version.first_epoch} on,"
                        f" and the reader has {column.type}"
                    )
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
