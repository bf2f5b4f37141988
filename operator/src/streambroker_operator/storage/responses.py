"""Answers that are kept, so that a request can be sent twice and be done once.

A caller that names its request gets the first answer again when it repeats it,
over a restart of the broker, too. The name is written in the transaction of the
change itself; the answer follows in one of its own. Where the broker died between
the two, the name says that the change was done, and at which version.
"""

from __future__ import annotations

import json
import sqlite3
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass

RETENTION_S = 600.0
"""How long an answer is kept, in seconds."""
MAX_BODY = 8 * 1024
"""Bytes of an answer that is kept; of a larger one only that it was done."""
MAX_BYTES = 64 * 1024 * 1024
"""Bytes of all answers that are kept at a time; beyond, only that they were done."""

_TABLE = """
CREATE TABLE IF NOT EXISTS requests (
  principal TEXT NOT NULL, id TEXT NOT NULL, digest TEXT NOT NULL, at REAL NOT NULL,
  version INTEGER, status INTEGER, headers TEXT, body BLOB, PRIMARY KEY (principal, id)
) WITHOUT ROWID
"""
_INDEX = "CREATE INDEX IF NOT EXISTS requests_at ON requests (at)"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestKey:
    """Who calls a request what.

    Attributes:
        principal: the caller; empty where nobody has to say.
        id: the caller's own word for it.
        digest: of all that makes it this request and no other.
    """

    principal: str
    id: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """What is known of a request that came before.

    Attributes:
        digest: of that request.
        version: of the change it made; None if it made none.
        status: of its answer; None where the answer was not kept.
    """

    digest: str
    version: int | None
    status: int | None
    headers: Mapping[str, str]
    body: bytes


class ResponseStore:
    """The table of answers.

    Args:
        db: the open database, in autocommit.
        clock: seconds since 1970.
    """

    def __init__(self, db: sqlite3.Connection, clock: Callable[[], float]) -> None:
        self._db = db
        self._clock = clock
        self._current_key: ContextVar[RequestKey | None] = ContextVar("claimed", default=None)
        self._sizes: deque[tuple[float, int]] = deque()
        self._bytes = 0
        self._db.execute(_TABLE)
        self._db.execute(_INDEX)

    def find(self, key: RequestKey) -> StoredResponse | None:
        """Return what is known of a caller's id; None where it is new, or long ago."""
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
        """Give a name to all changes that this task makes until `end`."""
        self._current_key.set(key)

    def end(self) -> None:
        """Let the changes of this task have no name any more."""
        self._current_key.set(None)

    def record_version(self, version: int) -> None:
        """Note in the transaction that is open that the named request made a version."""
        name = self._current_key.get()
        if name is not None:
            self._db.execute(
                "INSERT OR REPLACE INTO requests VALUES (?, ?, ?, ?, ?, NULL, NULL, NULL)",
                (name.principal, name.id, name.digest, self._clock(), version),
            )

    def store(self, key: RequestKey, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Keep an answer, and forget the old ones.

        This is not flushed: after a loss of power the change has its name, without the answer.
        Of a refusal that is too long nothing is kept: nothing was done, so it is asked anew.
        """
        kept = len(body) <= MAX_BODY and self._has_room(len(body))
        if status >= 400 and not kept:
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
                    status if kept else None,
                    json.dumps(dict(headers)) if kept else None,
                    body if kept else None,
                ),
            )
            self._db.execute("COMMIT")
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            self._db.execute("PRAGMA synchronous = FULL")

    def _has_room(self, size: int) -> bool:
        """Count the bodies of the last `RETENTION_S` seconds; False where there are too many."""
        now = self._clock()
        while self._sizes and self._sizes[0][0] <= now - RETENTION_S:
            self._bytes -= self._sizes.popleft()[1]
        if self._bytes + size > MAX_BYTES:
            return False
        self._sizes.append((now, size))
        self._bytes += size
        return True
