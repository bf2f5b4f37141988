"""SQLite store of a broker without Kubernetes.

- A write that was reported as done is on disk: WAL, with a flush at each commit.
- One broker per file: a lock next to the file refuses a second one.
- One counter gives every change its version, so versions only increase.
- Nobody else writes the file, so resources are read once and then cached.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from streambroker_core.board import AgentRegistered, BoardEvent, PeDeclared, Synced
from streambroker_core.diagnose import Proposal
from streambroker_core.model import Kind, PeKey, PortKey, Resource, Rule, RuleKey, kind_of
from streambroker_core.wire.broker.registration import Registration
from streambroker_core.wire.encoding.canonical import canonical
from streambroker_core.wire.manifests.ports import write_spec
from streambroker_operator.errors import RequestError, StoreError, not_declared, unknown_port
from streambroker_operator.storage.backend import (
    StoredPe,
    StoredResource,
    StoredRule,
    port_sort_key,
)
from streambroker_operator.storage.responses import ResponseStore
from streambroker_operator.storage.sqlite_rows import (
    PE_COLUMNS,
    RESOURCE_COLUMNS,
    damaged_row_error,
    read_pe,
    read_resource,
    read_row,
    row_name,
)
from streambroker_operator.storage.sqlite_rules import TABLE as RULES_TABLE
from streambroker_operator.storage.sqlite_rules import RuleTable
from streambroker_operator.storage.write_options import UNCONDITIONAL, Touched, WriteOptions

FORMAT_VERSION = 1

_SECRET_BYTES = 32
"""Size of the broker's secret, in bytes."""
_REMEDY = (
    "Jobs that run declare their ports again; resources declared only by REST or the command"
    " line are lost. If that was not intended, stop the broker and restore the file from a"
    " backup."
)

_TABLES = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS resources (
  kind TEXT NOT NULL, namespace TEXT NOT NULL, job TEXT NOT NULL, pe INTEGER NOT NULL,
  port TEXT NOT NULL, uid TEXT NOT NULL UNIQUE, name TEXT NOT NULL, generation INTEGER NOT NULL,
  created REAL NOT NULL, version INTEGER NOT NULL, spec TEXT NOT NULL,
  PRIMARY KEY (kind, namespace, job, pe, port)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS pes (
  namespace TEXT NOT NULL, job TEXT NOT NULL, pe INTEGER NOT NULL, version INTEGER NOT NULL,
  instance TEXT, location TEXT, hint TEXT, PRIMARY KEY (namespace, job, pe)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS owners (
  namespace TEXT NOT NULL, job TEXT NOT NULL, pe INTEGER NOT NULL, token TEXT NOT NULL,
  PRIMARY KEY (namespace, job, pe)
) WITHOUT ROWID;
"""


class Store:
    """Persistent state of a broker.

    Args:
        path: the database file; created if missing.
        clock: seconds since 1970, for creation times.
        new_uid: returns a new uid.

    Attributes:
        is_sole_writer: True: one counter gives every change its version.
        loss_warning: warning if the file is not as the broker left it; empty otherwise.

    Raises:
        StoreError: the file is in use by another broker, of a newer release, not a database, or
            damaged.
    """

    is_sole_writer = True

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float] = time.time,
        new_uid: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self._path = path
        self._clock = clock
        self._new_uid = new_uid
        self._cache: dict[Kind, dict[PortKey, StoredResource]] = {}
        self._undo: list[tuple[Kind, PortKey, StoredResource | None]] = []
        self._lock = _lock_file(path)
        try:
            self._open()
        except (sqlite3.Error, OSError, RequestError) as error:
            os.close(self._lock)
            raise StoreError(
                f"{path} cannot be used as the broker's database: {error}. "
                "Give another file with --db."
            ) from error
        except StoreError:
            os.close(self._lock)
            raise

    def _open(self) -> None:
        # The file has the broker's secret. SQLite gives its side files the same mode.
        self._path.touch(mode=0o600)
        self._db = sqlite3.connect(self._path, isolation_level=None)
        try:
            self._prepare()
        except BaseException:
            self._db.close()
            raise

    def _prepare(self) -> None:
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version > FORMAT_VERSION:
            raise StoreError(
                f"{self._path} has format {version}, of a newer release; this one reads up to "
                f"{FORMAT_VERSION}. Start the newer release or give another file with --db."
            )
        with self.transaction():
            for statement in (*_TABLES.split(";"), RULES_TABLE):
                self._db.execute(statement)
            self._db.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
            self._db.execute(
                "INSERT OR IGNORE INTO meta VALUES ('secret', ?), ('version', 0), ('identity', ?)",
                (secrets.token_bytes(_SECRET_BYTES), secrets.token_hex(16)),
            )
            count = "SELECT 'resources', count(*) FROM resources"
            self._db.execute(f"INSERT OR IGNORE INTO meta {count}")
        self._check()
        self.secret = bytes(self._read_meta("secret"))
        self.loss_warning = self._detect_loss()
        latest = self._db.execute("SELECT max(created) FROM resources").fetchone()[0]
        self._latest_created = 0.0 if latest is None else float(latest)
        self.responses = ResponseStore(self._db, self._clock)
        self._rules = RuleTable(
            self._db, self.transaction, self._next_version, self._clock, self._new_uid
        )
        self._rules.load(self.version, self._path)

    def _check(self) -> None:
        """Read everything once, so that damage is reported at the start and by name."""
        check_result = self._db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if check_result != "ok":
            raise StoreError(f"{self._path} is damaged: {check_result}. Restore it from a backup.")
        secret, version = self._read_meta("secret"), self._read_meta("version")
        if not (isinstance(secret, bytes) and len(secret) == _SECRET_BYTES):
            raise damaged_row_error(
                self._path, "meta", "the secret", f"it is not {_SECRET_BYTES} bytes"
            )
        if not isinstance(version, int):
            raise damaged_row_error(self._path, "meta", "the version", "it is not a number")
        kinds = get_args(Kind)
        for row in self._db.execute(f"SELECT {RESOURCE_COLUMNS} FROM resources"):  # noqa: S608 - ours
            if row[0] not in kinds:
                raise damaged_row_error(self._path, "resources", row_name(row), "it has no kind")
        for kind in kinds:
            self._load_all(kind)
        for _ in self.pes():
            pass

    def _detect_loss(self) -> str:
        """Return a warning if the file was replaced or has lost rows; empty otherwise."""
        identity, last_identity = (
            str(self._read_meta("identity")),
            os.pread(self._lock, 64, 0).decode("ascii", "replace"),
        )
        has = sum(len(self._load_all(kind)) for kind in get_args(Kind))
        had = self._read_meta("resources")
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, identity.encode(), 0)
        self._db.execute("UPDATE meta SET value = ? WHERE name = 'resources'", (has,))
        if last_identity not in ("", identity):
            return (
                f"{self._path} is another database than at the last start, with {has} exports and"
                f" imports: it was emptied, deleted or replaced. {_REMEDY}"
            )
        if has != had:
            return (
                f"{self._path} has {has} exports and imports, and the broker left {had}: it was"
                f" changed by another program. {_REMEDY}"
            )
        return ""

    def _add_count(self, more: int) -> None:
        self._db.execute("UPDATE meta SET value = value + ? WHERE name = 'resources'", (more,))

    def close(self) -> None:
        """Close the file and release its lock."""
        self._db.close()
        os.close(self._lock)

    @property
    def version(self) -> int:
        """The version of the last change."""
        return int(self._read_meta("version"))

    def _read_meta(self, name: str) -> Any:
        return self._db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()[0]

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit all changes of the block, or none; a nested block joins the outer transaction.

        Raises:
            RequestError: 503, the file cannot be written; nothing is changed.
        """
        if self._db.in_transaction:
            yield
            return
        self._undo.clear()
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except BaseException as error:
            # A full disk may have ended the transaction already; a failed COMMIT has not.
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            for kind, key, stored in reversed(self._undo):
                self._cache_stored(kind, key, stored)
            if isinstance(error, sqlite3.OperationalError):
                raise _write_failed_error(self._path, error) from error
            raise

    def _next_version(self) -> int:
        version = self.version + 1
        self._db.execute("UPDATE meta SET value = ? WHERE name = 'version'", (version,))
        self.responses.record_version(version)
        return version

    def resources(self, kind: Kind) -> list[StoredResource]:
        """Return all resources of one kind, in order of their ports."""
        return sorted(self._load_all(kind).values(), key=port_sort_key)

    def unordered_resources(self, kind: Kind) -> tuple[StoredResource, ...]:
        """Return all resources of one kind, in no order."""
        return tuple(self._load_all(kind).values())

    def _load_all(self, kind: Kind) -> dict[PortKey, StoredResource]:
        cached = self._cache.get(kind)
        if cached is None:
            rows = self._db.execute(
                f"SELECT {RESOURCE_COLUMNS} FROM resources WHERE kind = ? "  # noqa: S608 - ours
                "ORDER BY namespace, job, pe, port",
                (kind,),
            )
            loaded = [
                read_row(self._path, "resources", row_name(row), read_resource, row) for row in rows
            ]
            cached = self._cache[kind] = {stored.resource.key: stored for stored in loaded}
        return cached

    def _cache_write(self, kind: Kind, key: PortKey, stored: StoredResource | None) -> None:
        """Cache what the open transaction writes to a port; a rollback restores the old entry."""
        self._undo.append((kind, key, self._load_all(kind).get(key)))
        self._cache_stored(kind, key, stored)

    def _cache_stored(self, kind: Kind, key: PortKey, stored: StoredResource | None) -> None:
        if stored is None:
            del self._load_all(kind)[key]
        else:
            self._load_all(kind)[key] = StoredResource(
                resource=stored.resource, version=stored.version
            )

    def pes(self) -> Iterator[StoredPe]:
        """Yield all known PEs."""
        rows = self._db.execute(f"SELECT {PE_COLUMNS} FROM pes")  # noqa: S608 - ours
        # Share the strings of port keys, to save memory.
        keys = (key for kind in get_args(Kind) for key in self._load_all(kind))
        texts = {text: text for key in keys for text in (key.namespace, key.job)}
        for row in rows:
            shared = (*(texts.get(text, text) for text in row[:2]), *row[2:])
            yield read_row(self._path, "pes", f"PE {'/'.join(map(str, row[:3]))}", read_pe, shared)

    def get(self, kind: Kind, key: PortKey) -> StoredResource | None:
        """Return the resource of a port."""
        return self._load_all(kind).get(key)

    def load(self) -> Iterator[BoardEvent]:
        """Yield the events that fill a board with everything on disk."""
        version = self.version
        for stored in self.pes():
            yield PeDeclared(pe=stored.pe)
            if stored.registration is not None:
                yield AgentRegistered(
                    pe=stored.pe, registration=stored.registration, version=stored.version
                )
        # Rules precede ports, so that the first views include them.
        yield self._rules.load(version, self._path)
        for kind in get_args(Kind):
            listed = ((s.resource, s.version) for s in self.resources(kind))
            yield Synced(kind=kind, listed=listed, version=version)

    async def write(
        self,
        proposal: Proposal,
        *,
        touched: Touched | None = None,
        options: WriteOptions = UNCONDITIONAL,
    ) -> list[StoredResource]:
        """Make all changes or none; return the put resources, then the removed ones.

        It never yields to other tasks, and nobody else writes the file. So preconditions that the
        caller checked still hold, and `touched` and `options` are ignored.
        """
        with self.transaction():
            written = [self.put(resource) for resource in proposal.puts]
            removed = [self.delete(kind, key) for kind, key, _ in proposal.deletes]
        return [*written, *removed]

    async def release(
        self, kind: Kind, key: PortKey, *, options: WriteOptions = UNCONDITIONAL
    ) -> StoredResource:
        """Refuse with 409 `NotDeclared`, or 404: only the broker declares what is in the file."""
        if self.get(kind, key) is None:
            raise unknown_port(kind, key)
        raise not_declared(f"{kind} {key}")

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
        with self.transaction():
            version = self._next_version()
            self._db.execute(
                "UPDATE resources SET name = ?, generation = ?, version = ?, spec = ? "
                "WHERE kind = ? AND namespace = ? AND job = ? AND pe = ? AND port = ?",
                (name, stored.generation, version, spec, *_key_columns(kind, resource.key)),
            )
            written = StoredResource(resource=stored, version=version, changed=True)
            self._cache_write(kind, resource.key, written)
        return written

    def _insert(self, kind: Kind, resource: Resource, spec: str) -> StoredResource:
        with self.transaction():
            version = self._next_version()
            created = max(self._clock(), self._latest_created + 1e-6)
            stored = replace(resource, uid=self._new_uid(), generation=1, created=created)
            self._db.execute(
                "INSERT INTO resources VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    *_key_columns(kind, resource.key),
                    stored.uid,
                    stored.name,
                    stored.generation,
                    stored.created,
                    version,
                    spec,
                ),
            )
            self._add_count(1)
            owner = resource.key.owner
            self._db.execute(
                "INSERT OR IGNORE INTO pes VALUES (?, ?, ?, ?, NULL, NULL, NULL)",
                (owner.namespace, owner.job, owner.pe, version),
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
        current = self._load_all(kind)[key]
        with self.transaction():
            version = self._next_version()
            self._db.execute(
                "DELETE FROM resources "
                "WHERE kind = ? AND namespace = ? AND job = ? AND pe = ? AND port = ?",
                _key_columns(kind, key),
            )
            self._add_count(-1)
            self._cache_write(kind, key, None)
        return StoredResource(resource=current.resource, version=version, changed=True)

    async def put_rule(
        self, rule: Rule, *, touched: Touched | None = None, options: WriteOptions = UNCONDITIONAL
    ) -> StoredRule:
        """Create or replace a rule, as `RuleTable.put` does."""
        return self._rules.put(rule)

    async def delete_rule(
        self, key: RuleKey, *, options: WriteOptions = UNCONDITIONAL
    ) -> StoredRule | None:
        """Delete a rule, as `RuleTable.delete` does."""
        return self._rules.delete(key)

    def owner(self, pe: PeKey) -> str | None:
        """Return the name of the token that a PE's agent is bound to; None if it is unbound."""
        row = self._db.execute(
            "SELECT token FROM owners WHERE namespace = ? AND job = ? AND pe = ?",
            (pe.namespace, pe.job, pe.pe),
        ).fetchone()
        return None if row is None else str(row[0])

    async def register(
        self, pe: PeKey, registration: Registration, owner: str | None = None
    ) -> int:
        """Store a PE's agent unless it is stored already; return the version.

        `owner` is the name of the token to bind the agent to; None keeps the binding.
        """
        row = self._db.execute(
            f"SELECT {PE_COLUMNS} FROM pes "  # noqa: S608 - ours
            "WHERE namespace = ? AND job = ? AND pe = ?",
            (pe.namespace, pe.job, pe.pe),
        ).fetchone()
        same = row is not None and read_pe(row).registration == registration
        bound = owner is None or owner == self.owner(pe)
        if same and bound:
            return int(row[3])
        with self.transaction():
            if not bound:
                self._db.execute(
                    "INSERT OR REPLACE INTO owners VALUES (?, ?, ?, ?)",
                    (pe.namespace, pe.job, pe.pe, owner),
                )
            if same:
                return int(row[3])
            version = self._next_version()
            self._db.execute(
                "INSERT OR REPLACE INTO pes VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    pe.namespace,
                    pe.job,
                    pe.pe,
                    version,
                    registration.instance,
                    registration.location,
                    registration.hint,
                ),
            )
        return version

    async def withdraw(self, pe: PeKey) -> int:
        """Remove a PE; return the version of the removal."""
        with self.transaction():
            version = self._next_version()
            for table in ("pes", "owners"):
                self._db.execute(
                    f"DELETE FROM {table} WHERE namespace = ? AND job = ? AND pe = ?",  # noqa: S608 - ours
                    (pe.namespace, pe.job, pe.pe),
                )
        return version


def _write_failed_error(path: Path, error: sqlite3.Error) -> RequestError:
    return RequestError(
        503,
        "StoreFailed",
        f"{path} cannot be written to: {error}. Nothing is changed, and routes stay as they are."
        " Check the disk and try again.",
        headers={"Retry-After": "5"},
    )


def _lock_file(path: Path) -> int:
    lock_path = path.with_name(path.name + ".lock")
    try:
        lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(
            f"{path} cannot be used as the broker's database: {error.strerror}. "
            "Give a file in a directory that exists and can be written to with --db."
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise StoreError(
            f"{path} is in use by another broker. Stop that one or give another file with --db."
        ) from error
    return lock


def _key_columns(kind: Kind, key: PortKey) -> tuple[str, str, str, int, str]:
    return kind, *key
