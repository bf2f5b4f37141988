"""Exports and Imports in the SQLite file of a broker without Kubernetes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import get_args

from streambroker_core.model import Kind, PortKey, Resource, kind_of
from streambroker_core.wire.encoding.canonical import canonical
from streambroker_core.wire.manifests.ports import write_spec
from streambroker_operator.storage.backend import StoredResource
from streambroker_operator.storage.sqlite_file import SqliteFile
from streambroker_operator.storage.sqlite_rows import (
    RESOURCE_COLUMNS,
    damaged_row_error,
    read_resource,
    read_row,
    row_name,
)

TABLE = """
CREATE TABLE IF NOT EXISTS resources (
  kind TEXT NOT NULL, namespace TEXT NOT NULL, job TEXT NOT NULL, pe INTEGER NOT NULL,
  port TEXT NOT NULL, uid TEXT NOT NULL UNIQUE, name TEXT NOT NULL, generation INTEGER NOT NULL,
  created REAL NOT NULL, version INTEGER NOT NULL, spec TEXT NOT NULL,
  PRIMARY KEY (kind, namespace, job, pe, port)
) WITHOUT ROWID
"""
_WHERE_KEY = "kind = ? AND namespace = ? AND job = ? AND pe = ? AND port = ?"


class PortTable:
    """Table of Exports and Imports, one row each; read once and then cached."""

    def __init__(self, file: SqliteFile, new_uid: Callable[[], str]) -> None:
        self._file, self._db, self._new_uid = file, file.db, new_uid
        self._cache: dict[Kind, dict[PortKey, StoredResource]] = {}
        self._latest_created = 0.0

    def check(self) -> int:
        """Read all rows, which comes before everything else; return their number.

        Raises:
            StoreError: a row is damaged.
        """
        kinds = get_args(Kind)
        for row in self._db.execute(f"SELECT {RESOURCE_COLUMNS} FROM resources"):  # noqa: S608 - ours
            if row[0] not in kinds:
                raise damaged_row_error(
                    self._file.path, "resources", row_name(row), "it has no kind"
                )
        created = [one.resource.created for kind in kinds for one in self.load_all(kind).values()]
        self._latest_created = max(created, default=0.0)
        return len(created)

    def unordered_resources(self, kind: Kind) -> tuple[StoredResource, ...]:
        """Return all resources of one kind, in no order."""
        return tuple(self.load_all(kind).values())

    def load_all(self, kind: Kind) -> dict[PortKey, StoredResource]:
        """Return all resources of one kind by port."""
        cached = self._cache.get(kind)
        if cached is None:
            rows = self._db.execute(
                f"SELECT {RESOURCE_COLUMNS} FROM resources WHERE kind = ? "  # noqa: S608 - ours
                "ORDER BY namespace, job, pe, port",
                (kind,),
            )
            loaded = [
                read_row(self._file.path, "resources", row_name(row), read_resource, row)
                for row in rows
            ]
            cached = self._cache[kind] = {stored.resource.key: stored for stored in loaded}
        return cached

    def get(self, kind: Kind, key: PortKey) -> StoredResource | None:
        """Return the resource of a port."""
        return self.load_all(kind).get(key)

    def put(self, resource: Resource) -> StoredResource:
        """Create or replace the resource of a port.

        Uid and creation time are assigned here. The generation increases if the spec changes. An
        equal resource is not written again.
        """
        kind = kind_of(resource)
        current = self.get(kind, resource.key)
        spec = canonical(write_spec(resource)).decode()
        if current is None:
            return self._insert(kind, resource, spec)
        name = resource.name or current.resource.name
        same = spec == canonical(write_spec(current.resource)).decode()
        if same and name == current.resource.name:
            return current
        stored = replace(
            resource,
            uid=current.resource.uid,
            created=current.resource.created,
            generation=current.resource.generation + (not same),
            name=name,
        )
        with self._file.transaction():
            version = self._file.next_version()
            self._db.execute(
                "UPDATE resources SET name = ?, generation = ?, version = ?, spec = ?"  # noqa: S608 - ours
                f" WHERE {_WHERE_KEY}",
                (name, stored.generation, version, spec, kind, *resource.key),
            )
            written = StoredResource(resource=stored, version=version, changed=True)
            self._cache_write(kind, resource.key, written)
        return written

    def _insert(self, kind: Kind, resource: Resource, spec: str) -> StoredResource:
        with self._file.transaction():
            version = self._file.next_version()
            created = max(self._file.clock(), self._latest_created + 1e-6)
            stored = replace(resource, uid=self._new_uid(), generation=1, created=created)
            values = stored.uid, stored.name, stored.generation, stored.created, version, spec
            self._db.execute(
                "INSERT INTO resources VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (kind, *resource.key, *values),
            )
            self._add_count(1)
            owner = resource.key.owner
            self._db.execute(
                "INSERT OR IGNORE INTO pes VALUES (?, ?, ?, ?, NULL, NULL, NULL)",
                (*owner, version),
            )
            written = StoredResource(resource=stored, version=version, created=True, changed=True)
            self._cache_write(kind, resource.key, written)
            self._latest_created = created
        return written

    def delete(self, kind: Kind, key: PortKey) -> StoredResource:
        """Delete the resource of a port; return it at the version of the deletion.

        Raises:
            KeyError: there is none.
        """
        current = self.load_all(kind)[key]
        with self._file.transaction():
            version = self._file.next_version()
            self._db.execute(
                f"DELETE FROM resources WHERE {_WHERE_KEY}",  # noqa: S608 - ours
                (kind, *key),
            )
            self._add_count(-1)
            self._cache_write(kind, key, None)
        return StoredResource(resource=current.resource, version=version, changed=True)

    def _add_count(self, more: int) -> None:
        self._db.execute("UPDATE meta SET value = value + ? WHERE name = 'resources'", (more,))

    def _cache_write(self, kind: Kind, key: PortKey, stored: StoredResource | None) -> None:
        """Cache what the open transaction writes to a port; a rollback restores the old entry."""
        before = self.get(kind, key)
        self._file.undo.append(lambda: self._cache_stored(kind, key, before))
        self._cache_stored(kind, key, stored)

    def _cache_stored(self, kind: Kind, key: PortKey, stored: StoredResource | None) -> None:
        if stored is None:
            del self.load_all(kind)[key]
        else:
            self.load_all(kind)[key] = StoredResource(
                resource=stored.resource, version=stored.version
            )
