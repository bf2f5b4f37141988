"""Directories of logs that no stream has yet, or any more.

Each is noted before it is made, and before its stream is forgotten, so that what a crash leaves
is removed at the next start. A directory that nobody noted is left alone: whoever lost the store,
or has put an older one in its place, may want it back.
"""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

from pe_agent.agent.state.store import Store

_ADD = "INSERT OR REPLACE INTO unnamed VALUES (?, ?)"
_FORGET = "DELETE FROM unnamed WHERE owner = ? AND id = ?"


class OrphanLogs:
    """Those of one owner, all in one directory. Safe from any thread."""

    def __init__(self, store: Store, owner: str, parent: Path) -> None:
        self._store = store
        self._owner = owner
        self._parent = parent

    def add(self, id_: str, db: sqlite3.Connection | None = None) -> None:
        """Note a directory, in the transaction ``db`` if there is one."""
        if db is None:
            self._store.write(_ADD, self._owner, id_)
        else:
            db.execute(_ADD, (self._owner, id_))

    def forget(self, id_: str, db: sqlite3.Connection) -> None:
        """A stream has it from this transaction on."""
        db.execute(_FORGET, (self._owner, id_))

    def remove(self, id_: str) -> None:
        """Give back its disk; what cannot be removed now is tried again at the next start."""
        directory = self._parent / id_
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            self._store.write(_FORGET, self._owner, id_)

    def remove_all(self) -> None:
        """Give back the disk of all that are noted; to be called before a log is opened."""
        for (id_,) in self._store.query("SELECT id FROM unnamed WHERE owner = ?", self._owner):
            self.remove(str(id_))
