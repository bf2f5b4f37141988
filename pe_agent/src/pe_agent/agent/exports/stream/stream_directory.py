"""Directory with the logs of several streams, one subdirectory each.

A subdirectory is recorded as an orphan before it is created, and before its stream is forgotten, so
that the next start removes what a crash leaves. Unrecorded directories are not touched: after a
lost or restored store they may be needed.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from pe_agent.agent.exports.stream.export_stream import ExportStream
from pe_agent.agent.state.store import Store
from pe_agent.agent.storage.tier import StorageTier
from pe_agent.log.commit import Committer
from pe_agent.log.log import StreamLog

_ADD = "INSERT OR REPLACE INTO unnamed VALUES (?, ?)"
_FORGET = "DELETE FROM unnamed WHERE owner = ? AND id = ?"


class StreamDirectory:
    """Logs and orphans of one owner. Thread-safe."""

    def __init__(
        self,
        store: Store,
        owner: str,
        parent: Path,
        committer: Committer,
        segment_bytes: int,
        storage: StorageTier | None = None,
    ) -> None:
        self._store = store
        self._owner = owner
        self._parent = parent
        self._committer = committer
        self._segment_bytes = segment_bytes
        self._storage = storage
        self.is_required = False
        """Frames have to be in object storage before they count."""

    def open(
        self,
        id_: str,
        *,
        query: str,
        ddl: str,
        schema: pa.Schema,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> ExportStream:
        """Create or recover the log of a stream."""
        size, directory = self._segment_bytes, self._parent / id_

        def open_log(fetch: Callable[[int], None] | None) -> StreamLog:
            return StreamLog.open(
                directory,
                segment_bytes=size,
                committer=self._committer,
                progress=None if progress is None else lambda n, of: progress(id_, n, of),
                fetch=fetch,
            )

        storage = self._storage
        log = open_log(None) if storage is None else storage.open_log(id_, directory, open_log)
        if log.uploader is not None:
            log.uploader.is_required = self.is_required
        return ExportStream(
            id_,
            log=log,
            query=query,
            ddl=ddl,
            schema=schema,
            segment_bytes=size,
            objects=None if storage is None else storage.direct_objects(id_),
        )

    def add_orphan(self, id_: str, db: sqlite3.Connection | None = None) -> None:
        """Record an orphan, in the transaction ``db`` if passed."""
        if db is None:
            self._store.write(_ADD, self._owner, id_)
        else:
            db.execute(_ADD, (self._owner, id_))

    def forget_orphan(self, id_: str, db: sqlite3.Connection) -> None:
        """Delete the record: from this transaction on a stream has the directory."""
        db.execute(_FORGET, (self._owner, id_))

    def remove_orphan(self, id_: str) -> None:
        """Delete a directory; on failure the next start tries again."""
        if self._storage is not None:
            self._storage.forget(id_)
        directory = self._parent / id_
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            self._store.write(_FORGET, self._owner, id_)

    def remove_orphans(self) -> None:
        """Delete all recorded directories; call this before a log is opened."""
        for (id_,) in self._store.query("SELECT id FROM unnamed WHERE owner = ?", self._owner):
            self.remove_orphan(str(id_))
