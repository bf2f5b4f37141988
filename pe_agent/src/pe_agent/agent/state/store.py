"""Agent's SQLite store: streams, cursors, publishers, readers of its own imports.

Epochs are in the log; the store has claims and positions. Writes survive the end of the process,
not a power failure. A power failure may lose only what the log has (published epochs) or what a
reader's next call sends again (positions and plans).
"""

from __future__ import annotations

import contextlib
import json
import secrets
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from streambroker_core.errors import StreambrokerError

T = TypeVar("T")

FORMAT = 1
EVOLVED_FORMAT = 2
"""Format of a store with a stream of several schemas, which release 0.1.0 would misread."""

GROWING, SEALED, FORGOTTEN, REMOVED = range(4)
"""States of a stream (column ``sealed``). A removed stream has no log any more; it is forgotten
once all readers have finished it."""

FIRST_SEQ = "first_seq"
"""Name of the first number of control tuples since a snapshot was restored."""
BRANCH_NUMBERS = 1_000_000_000
"""Numbers of control tuples that are left out for those sent after the snapshot."""

_SECRETS = "('token', 'key', 'instance', 'port')"
"""Values of this process and its job; they stay on this machine."""

_TABLES = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS streams (
    id TEXT PRIMARY KEY, export TEXT NOT NULL, ord INTEGER NOT NULL, ddl TEXT NOT NULL,
    arrow BLOB NOT NULL, sealed INTEGER NOT NULL, next INTEGER NOT NULL, rows INTEGER NOT NULL,
    query TEXT NOT NULL);
-- columns of a stream after its first ones, which the table streams has
CREATE TABLE IF NOT EXISTS stream_schemas (
    stream TEXT, number INTEGER, ddl TEXT NOT NULL, arrow BLOB NOT NULL,
    first_epoch INTEGER, opened REAL NOT NULL, PRIMARY KEY (stream, number));
CREATE TABLE IF NOT EXISTS publishers (export TEXT PRIMARY KEY, state TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS readers (export TEXT, id TEXT, state TEXT NOT NULL,
    PRIMARY KEY (export, id));
-- directories of logs that no stream has yet, or any more
CREATE TABLE IF NOT EXISTS unnamed (owner TEXT, id TEXT, PRIMARY KEY (owner, id));
CREATE TABLE IF NOT EXISTS own_readers (id TEXT PRIMARY KEY, state TEXT NOT NULL);
-- control tuples from outside to the importers of an export; epoch is null while they are in none
CREATE TABLE IF NOT EXISTS emitted (
    export TEXT, seq INTEGER, request TEXT NOT NULL, what TEXT NOT NULL, stream TEXT, epoch INTEGER,
    PRIMARY KEY (export, seq), UNIQUE (export, request));
CREATE TABLE IF NOT EXISTS control_log (
    seq INTEGER PRIMARY KEY, request TEXT NOT NULL UNIQUE, what TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS control_readers (reader TEXT PRIMARY KEY, next INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS schemas (import TEXT PRIMARY KEY, ddl TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS declarations (port TEXT PRIMARY KEY, state TEXT NOT NULL);
"""


class StoreError(StreambrokerError):
    """The store file is unusable; it is not changed."""

    code = "StoreUnusable"


class Store:
    """One SQLite file; thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.RLock()
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        try:
            self._open(path)
        except sqlite3.DatabaseError as error:
            self._db.close()
            raise StoreError(
                f"{path} cannot be used ({error}). Restore the data directory from its backup, or"
                " start the agent with a new one."
            ) from error
        except StoreError:
            self._db.close()
            raise

    def _open(self, path: Path) -> None:
        known = self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchall()
        version = self.get("format") if known else None
        if version is not None and version not in (str(FORMAT), str(EVOLVED_FORMAT)):
            raise StoreError(
                f"{path} was written in format {version}; this release reads formats {FORMAT} and"
                f" {EVOLVED_FORMAT}."
                " Start the agent of the release that wrote it, or a newer one."
            )
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.executescript(_TABLES)
        if version is None:
            self.set("format", str(FORMAT))

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    @contextmanager
    def transaction(self, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        """Yield the connection; the block is written atomically.

        With ``durable`` it survives a power failure, as do all earlier writes.
        """
        with self._lock:
            if durable:
                self._db.execute("PRAGMA synchronous=FULL")
            try:
                self._db.execute("BEGIN")
                try:
                    yield self._db
                except BaseException:
                    self._db.execute("ROLLBACK")
                    raise
                self._db.execute("COMMIT")
            finally:
                self._db.execute("PRAGMA synchronous=NORMAL")

    def query(self, sql: str, *args: Any) -> list[tuple[Any, ...]]:
        """Return all rows of a query.

        Raises:
            StoreError: the file is damaged.
        """
        with self._lock:
            try:
                return self._db.execute(sql, args).fetchall()
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError):
                    raise
                raise self._damaged_error(
                    f"what {' '.join(sql.split())!r} asks for", error
                ) from error

    @contextmanager
    def reading_row(self, table: str, key: str) -> Iterator[None]:
        """Translate decoding errors of a row within the block.

        Raises:
            StoreError: the row is damaged; names file, table and row.
        """
        try:
            yield
        except (ValueError, LookupError, TypeError, AttributeError, pa.ArrowException) as error:
            raise self._damaged_error(f"row {key!r} of its table {table}", error) from error

    def _damaged_error(self, what: str, error: Exception) -> StoreError:
        return StoreError(
            f"{self._path} is damaged: {what} cannot be read ({error!r:.200}). Restore the data"
            " directory from its backup, or start the agent with a new one."
        )

    @property
    def changes(self) -> int:
        """Return a number that grows with each change."""
        with self._lock:
            return self._db.total_changes

    def snapshot(self) -> bytes:
        """Return the content of the file without secrets and what belongs to this process."""
        with tempfile.TemporaryDirectory(dir=self._path.parent) as place:
            path = Path(place) / "copy"
            self.save_copy(path)
            return path.read_bytes()

    def save_copy(self, path: Path) -> None:
        """Write the content of `snapshot` to a file; it is not synced."""
        with contextlib.closing(sqlite3.connect(path)) as copy:
            with self._lock:
                self._db.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE")
            copy.execute(f"DELETE FROM meta WHERE name IN {_SECRETS}")  # noqa: S608 - ours
            copy.commit()
            copy.execute("VACUUM")

    def branch(self) -> None:
        """Make what follows distinct from what an agent may have written after this state.

        The next epochs open successor streams, and control tuples get numbers far above. Durable.
        """
        with self.transaction(durable=True) as db:
            db.execute("UPDATE streams SET sealed = ? WHERE sealed = ?", (SEALED, GROWING))
            (last,) = db.execute(
                "SELECT MAX(seq) FROM (SELECT seq FROM control_log UNION ALL"
                " SELECT seq FROM emitted UNION ALL"
                " SELECT CAST(value AS INTEGER) FROM meta WHERE name = ?)",
                (FIRST_SEQ,),
            ).fetchone()
            first = str((last or 0) + BRANCH_NUMBERS)
            db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (FIRST_SEQ, first))

    def next_seq(self, sql: str, *args: Any) -> int:
        """Return the number after the greatest one that a query finds, or the first of a branch."""
        greatest = self.query(sql, *args)[0][0]
        return max(0 if greatest is None else int(greatest) + 1, self.value(FIRST_SEQ, int, 0))

    def secrets(self) -> dict[str, str]:
        """Return the values that `snapshot` leaves out."""
        return dict(self.query(f"SELECT name, value FROM meta WHERE name IN {_SECRETS}"))  # noqa: S608 - ours

    def write(self, sql: str, *args: Any) -> None:
        """Execute one statement; it survives the end of the process."""
        with self._lock:
            self._db.execute(sql, args)

    def write_all(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Execute one statement for each row, as `write` does."""
        with self._lock:
            self._db.executemany(sql, rows)

    def get(self, name: str) -> str | None:
        """Return a named value, None if not set."""
        rows = self.query("SELECT value FROM meta WHERE name = ?", name)
        return rows[0][0] if rows else None

    def set(self, name: str, value: str) -> None:
        """Set a named value."""
        self.write("INSERT OR REPLACE INTO meta VALUES (?, ?)", name, value)

    def identity(self, name: str, first: str = "") -> str:
        """Return an id that stays with the data directory: ``first``, or a random one."""
        value = self.get(name)
        if value is None:
            value = first or secrets.token_hex(16)
            self.set(name, value)
        return value

    def states(self, table: str, key: str) -> dict[str, Any]:
        """Return ``{id: state}`` of a table with JSON states."""
        result = {}
        for name, state in self.query(f"SELECT {key}, state FROM {table}"):  # noqa: S608 - table names are ours
            with self.reading_row(table, name):
                result[name] = json.loads(state)
        return result

    def value(self, name: str, parse: Callable[[str], T], default: T) -> T:
        """Return a named value, parsed; ``default`` if not set."""
        text = self.get(name)
        with self.reading_row("meta", name):
            return default if text is None else parse(text)
