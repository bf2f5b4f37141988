"""Stored responses, so that a repeated request is executed once.

- A caller that names its request gets the first response again when it repeats the request, also
  after a restart of the broker.
- The name is written in the transaction of the change, the response in a later one.
- If the broker dies between the two, the name records that the change was made, and its version.
"""

from __future__ import annotations

import json
import sqlite3
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass

RETENTION_S = 600.0
"""How long a response is kept, in seconds."""
MAX_BODY = 8 * 1024
"""Maximum size of a stored response, in bytes; of a larger one only the name is stored."""
MAX_BYTES = 64 * 1024 * 1024
"""Maximum size of all stored responses, in bytes; beyond it, only names are stored."""

_TABLE = """
CREATE TABLE IF NOT EXISTS requests (
  principal TEXT NOT NULL, id TEXT NOT NULL, digest TEXT NOT NULL, at REAL NOT NULL,
  version INTEGER, status INTEGER, headers TEXT, body BLOB, PRIMARY KEY (principal, id)
) WITHOUT ROWID
"""
_INDEX = "CREATE INDEX IF NOT EXISTS requests_at ON requests (at)"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestKey:
    """Name of a request.

    Attributes:
        principal: the caller; ``anonymous`` without authentication.
        id: chosen by the caller.
        digest: of everything that distinguishes the request from others.
    """

    principal: str
    id: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """Record of an earlier request.

    Attributes:
        digest: of that request.
        version: of the change it made; None if it made none.
        status: of its response; None if the response was not stored.
    """

    digest: str
    version: int | None
    status: int | None
    headers: Mapping[str, str]
    body: bytes


class ResponseStore:
    """The table of responses, in an open database in autocommit mode."""

    def __init__(self, db: sqlite3.Connection, clock: Callable[[], float]) -> None:
        self._db = db
        self._clock = clock
        self._current_key: ContextVar[RequestKey | None] = ContextVar("claimed", default=None)
        self._sizes: deque[tuple[float, int]] = deque()
        self._bytes = 0
        self._db.execute(_TABLE)
        self._db.execute(_INDEX)

    def find(self, key: RequestKey) -> StoredResponse | None:
        """Return the record of a caller's id; None if it is new or expired."""
        row = self._db.execute(
            "SELECT digest, version, status, headers, body FROM requests "
            "WHERE principal = ? AND id = ? AND at > ?",
            (key.principal, key.id, self._clock() - RETENTION_S),
        ).fetchone()
        if row is None:
            return None
        digest, version, status, headers, body = row
        return StoredResponse(
            digest=digest,
            version=version,
            status=status,
            headers=json.loads(headers or "{}"),
            body=body or b"",
        )

    def begin(self, key: RequestKey) -> None:
        """Attach a name to all changes that this task makes until `end`."""
        self._current_key.set(key)

    def end(self) -> None:
        """Detach the name from further changes of this task."""
        self._current_key.set(None)

    def record_version(self, version: int) -> None:
        """Record in the open transaction that the named request made a version."""
        key = self._current_key.get()
        if key is not None:
            self._db.execute(
                "INSERT OR REPLACE INTO requests VALUES (?, ?, ?, ?, ?, NULL, NULL, NULL)",
                (key.principal, key.id, key.digest, self._clock(), version),
            )

    def store(self, key: RequestKey, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Store a response, and delete expired ones.

        This is not flushed: a power loss may drop the response, but not the name of the change. An
        error response that is too large is not stored: nothing was changed, so it can run again.
        """
        store_body = len(body) <= MAX_BODY and self._has_room(len(body))
        if status >= 400 and not store_body:
            return
        try:
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute("DELETE FROM requests WHERE at <= ?", (self._clock() - RETENTION_S,))
            self._db.execute(
                "INSERT INTO requests VALUES (?1, ?2, ?3, ?4, NULL, ?5, ?6, ?7) "
                "ON CONFLICT (principal, id) DO UPDATE SET digest = ?3, at = ?4, status = ?5, "
                "headers = ?6, body = ?7",
                (
                    key.principal,
                    key.id,
                    key.digest,
                    self._clock(),
                    status if store_body else None,
                    json.dumps(dict(headers)) if store_body else None,
                    body if store_body else None,
                ),
            )
            self._db.execute("COMMIT")
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            self._db.execute("PRAGMA synchronous = FULL")

    def _has_room(self, size: int) -> bool:
        """Reserve space for a body; return False if those of `RETENTION_S` fill it."""
        now = self._clock()
        while self._sizes and self._sizes[0][0] <= now - RETENTION_S:
            self._bytes -= self._sizes.popleft()[1]
        if self._bytes + size > MAX_BYTES:
            return False
        self._sizes.append((now, size))
        self._bytes += size
        return True
