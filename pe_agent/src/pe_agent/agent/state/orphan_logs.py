"""Log directories without a stream: not yet recorded in the store, or to be removed.

A directory is recorded before it is created, and before its stream is forgotten, so that the next
start removes what a crash leaves. Unrecorded directories are not touched: after a lost or restored
store they may be needed.
"""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

from pe_agent.agent.state.store import Store

_ADD = "INSERT OR REPLACE INTO unnamed VALUES (?, ?)"
_FORGET = "DELETE FROM unnamed WHERE owner = ? AND id = ?"


class OrphanLogs:
    """Orphan directories of one owner, all in one parent directory. Thread-safe."""

    def __init__(self, store: Store, owner: str, parent: Path) -> None:
        self._store = store
        self._owner = owner
        self._parent = parent

    def add(self, id_: str, db: sqlite3.Connection | None = None) -> None:
        """Record a directory, in the transaction ``db`` if passed."""
        if db is None:
            self._store.write(_ADD, self._owner, id_)
        else:
            db.execute(_ADD, (self._owner, id_))

    def forget(self, id_: str, db: sqlite3.Connection) -> None:
        """Delete the record: from this transaction on a stream has the directory."""
        db.execute(_FORGET, (self._owner, id_))

    def remove(self, id_: str) -> None:
        """Delete a directory; on failure the next start tries again."""
        directory = self._parent / id_
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            self._store.write(_FORGET, self._owner, id_)

    def remove_all(self) -> None:
        """Delete all recorded directories; call this before a log is opened."""
        for (id_,) in self._store.query("SELECT id FROM unnamed WHERE owner = ?", self._owner):
            self.remove(str(id_))
