"""PEs, their agents and their owners in the SQLite file of a broker without Kubernetes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from streambroker_core.model import Kind, PeKey
from streambroker_core.wire.broker.registration import Registration
from streambroker_operator.storage.backend import StoredPe
from streambroker_operator.storage.sqlite_file import SqliteFile
from streambroker_operator.storage.sqlite_ports import PortTable
from streambroker_operator.storage.sqlite_rows import PE_COLUMNS, read_pe, read_row

TABLES = (
    """
CREATE TABLE IF NOT EXISTS pes (
  namespace TEXT NOT NULL, job TEXT NOT NULL, pe INTEGER NOT NULL, version INTEGER NOT NULL,
  instance TEXT, location TEXT, hint TEXT, PRIMARY KEY (namespace, job, pe)
) WITHOUT ROWID
""",
    """
CREATE TABLE IF NOT EXISTS owners (
  namespace TEXT NOT NULL, job TEXT NOT NULL, pe INTEGER NOT NULL, token TEXT NOT NULL,
  PRIMARY KEY (namespace, job, pe)
) WITHOUT ROWID
""",
)
_WHERE_PE = "namespace = ? AND job = ? AND pe = ?"


class AgentTable:
    """Tables of PEs with their agents, and of the tokens that these are bound to."""

    def __init__(self, file: SqliteFile, ports: PortTable) -> None:
        self._file, self._db, self._ports = file, file.db, ports

    def pes(self) -> Iterator[StoredPe]:
        """Yield all known PEs."""
        rows = self._db.execute(f"SELECT {PE_COLUMNS} FROM pes")  # noqa: S608 - ours
        # Share the strings of port keys, to save memory.
        keys = (key for kind in get_args(Kind) for key in self._ports.load_all(kind))
        texts = {text: text for key in keys for text in (key.namespace, key.job)}
        for row in rows:
            shared = (*(texts.get(text, text) for text in row[:2]), *row[2:])
            yield read_row(
                self._file.path, "pes", f"PE {'/'.join(map(str, row[:3]))}", read_pe, shared
            )

    def owner(self, pe: PeKey) -> str | None:
        """Return the name of the token that a PE's agent is bound to; None if it is unbound."""
        query = f"SELECT token FROM owners WHERE {_WHERE_PE}"  # noqa: S608 - ours
        row = self._db.execute(query, pe).fetchone()
        return None if row is None else str(row[0])

    async def register(
        self, pe: PeKey, registration: Registration, owner: str | None = None
    ) -> int:
        """Store a PE's agent unless it is stored already; return the version.

        `owner` is the name of the token to bind the agent to; None keeps the binding.
        """
        query = f"SELECT {PE_COLUMNS} FROM pes WHERE {_WHERE_PE}"  # noqa: S608 - ours
        row = self._db.execute(query, pe).fetchone()
        same = row is not None and read_pe(row).registration == registration
        bound = owner is None or owner == self.owner(pe)
        if same and bound:
            return int(row[3])
        with self._file.transaction():
            if not bound:
                self._db.execute("INSERT OR REPLACE INTO owners VALUES (?, ?, ?, ?)", (*pe, owner))
            if same:
                return int(row[3])
            version = self._file.next_version()
            self._db.execute(
                "INSERT OR REPLACE INTO pes VALUES (?, ?, ?, ?, ?, ?, ?)",
                (*pe, version, registration.instance, registration.location, registration.hint),
            )
        return version

    async def withdraw(self, pe: PeKey) -> int:
        """Remove a PE; return the version of the removal."""
        with self._file.transaction():
            version = self._file.next_version()
            for table in ("pes", "owners"):
                self._db.execute(f"DELETE FROM {table} WHERE {_WHERE_PE}", pe)  # noqa: S608 - ours
        return version
