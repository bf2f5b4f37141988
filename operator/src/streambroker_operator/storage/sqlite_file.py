"""The SQLite file of a broker without Kubernetes: its lock, format, transactions and versions."""

from __future__ import annotations

import fcntl
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from streambroker_operator.errors import RequestError, StoreError
from streambroker_operator.storage.responses import ResponseStore

FORMAT_VERSION = 1
SECRET_BYTES = 32
"""Size of the broker's secret, in bytes."""

_META = "CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID"


class SqliteFile:
    """An open database file, which this process has locked.

    Attributes:
        clock: seconds since 1970.
        lock: descriptor of the lock file, which has the identity of the last database.
        responses: stored responses.
        undo: what to call after a rollback, last first.
    """

    def __init__(self, path: Path, clock: Callable[[], float], tables: Iterable[str]) -> None:
        self.path, self.clock = path, clock
        self.undo: list[Callable[[], None]] = []
        self.lock = _lock_file(path)
        try:
            self._open(tables)
        except BaseException:
            os.close(self.lock)
            raise

    def _open(self, tables: Iterable[str]) -> None:
        # The file has the broker's secret. SQLite gives its side files the same mode.
        self.path.touch(mode=0o600)
        self.db = sqlite3.connect(self.path, isolation_level=None)
        try:
            self._prepare(tables)
        except BaseException:
            self.db.close()
            raise

    def _prepare(self, tables: Iterable[str]) -> None:
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.execute("PRAGMA synchronous = FULL")
        version = self.db.execute("PRAGMA user_version").fetchone()[0]
        if version > FORMAT_VERSION:
            raise StoreError(
                f"{self.path} has format {version}, of a newer release; this one reads up to "
                f"{FORMAT_VERSION}. Start the newer release or give another file with --db."
            )
        with self.transaction():
            for statement in (_META, *tables):
                self.db.execute(statement)
            self.db.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
            self.db.execute(
                "INSERT OR IGNORE INTO meta VALUES ('secret', ?), ('version', 0), ('identity', ?)",
                (secrets.token_bytes(SECRET_BYTES), secrets.token_hex(16)),
            )
            count = "SELECT 'resources', count(*) FROM resources"
            self.db.execute(f"INSERT OR IGNORE INTO meta {count}")
        result = self.db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if result != "ok":
            raise StoreError(f"{self.path} is damaged: {result}. Restore it from a backup.")
        self.responses = ResponseStore(self.db, self.clock)

    def close(self) -> None:
        """Close the file and release its lock."""
        self.db.close()
        os.close(self.lock)

    def meta(self, name: str) -> Any:
        """Return a value of the table `meta`."""
        return self.db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()[0]

    @property
    def version(self) -> int:
        """The version of the last change."""
        return int(self.meta("version"))

    def next_version(self) -> int:
        """Return the version of a change in the open transaction."""
        version = self.version + 1
        self.db.execute("UPDATE meta SET value = ? WHERE name = 'version'", (version,))
        self.responses.record_version(version)
        return version

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit all changes of the block, or none; a nested block joins the outer transaction.

        Raises:
            RequestError: 503, the file cannot be written; nothing is changed.
        """
        if self.db.in_transaction:
            yield
            return
        self.undo.clear()
        try:
            self.db.execute("BEGIN IMMEDIATE")
            yield
            self.db.execute("COMMIT")
        except BaseException as error:
            # A full disk may have ended the transaction already; a failed COMMIT has not.
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
            for revert in reversed(self.undo):
                revert()
            if isinstance(error, sqlite3.OperationalError):
                raise _write_failed_error(self.path, error) from error
            raise


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
