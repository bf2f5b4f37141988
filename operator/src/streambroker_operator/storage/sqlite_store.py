"""SQLite store of a broker without Kubernetes.

- A write that was reported as done is on disk: WAL, with a flush at each commit.
- One broker per file: a lock next to the file refuses a second one.
- One counter gives every change its version, so versions only increase.
- Nobody else writes the file, so resources are read once and then cached.
"""

from __future__ import annotations

import os
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

from streambroker_core.board import AgentRegistered, BoardEvent, PeDeclared, Synced
from streambroker_core.diagnose import Proposal
from streambroker_core.model import Kind, PortKey
from streambroker_operator.errors import RequestError, StoreError, not_declared, unknown_port
from streambroker_operator.storage.backend import StoredResource, port_sort_key
from streambroker_operator.storage.sqlite_agents import TABLES as AGENT_TABLES
from streambroker_operator.storage.sqlite_agents import AgentTable
from streambroker_operator.storage.sqlite_file import SECRET_BYTES, SqliteFile
from streambroker_operator.storage.sqlite_ports import TABLE as PORTS_TABLE
from streambroker_operator.storage.sqlite_ports import PortTable
from streambroker_operator.storage.sqlite_rows import damaged_row_error
from streambroker_operator.storage.sqlite_rules import TABLE as RULES_TABLE
from streambroker_operator.storage.sqlite_rules import RuleTable
from streambroker_operator.storage.write_options import UNCONDITIONAL, Touched, WriteOptions

_REMEDY = (
    "Jobs that run declare their ports again; resources declared only by REST or the command"
    " line are lost. If that was not intended, stop the broker and restore the file from a"
    " backup."
)


class Store:
    """Persistent state of a broker.

    Args:
        path: the database file; created if missing.
        clock: seconds since 1970, for creation times.
        new_uid: returns a new uid.

    Attributes:
        is_sole_writer: True: one counter gives every change its version.
        file: the database file.
        ports: its Exports and Imports.
        agents: its PEs and their agents.
        rules: its pattern rules.
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
        try:
            self.file = SqliteFile(path, clock, (PORTS_TABLE, *AGENT_TABLES, RULES_TABLE))
            try:
                self._read(new_uid)
            except BaseException:
                self.close()
                raise
        except (sqlite3.Error, OSError, RequestError) as error:
            raise StoreError(
                f"{path} cannot be used as the broker's database: {error}. "
                "Give another file with --db."
            ) from error

    def _read(self, new_uid: Callable[[], str]) -> None:
        """Read everything once, so that damage is reported at the start and by name."""
        secret, version = self.file.meta("secret"), self.file.meta("version")
        path = self.file.path
        if not (isinstance(secret, bytes) and len(secret) == SECRET_BYTES):
            raise damaged_row_error(path, "meta", "the secret", f"it is not {SECRET_BYTES} bytes")
        if not isinstance(version, int):
            raise damaged_row_error(path, "meta", "the version", "it is not a number")
        self.secret, self.responses = secret, self.file.responses
        self.ports = PortTable(self.file, new_uid)
        count = self.ports.check()
        self.agents = AgentTable(self.file, self.ports)
        for _ in self.agents.pes():
            pass
        self.loss_warning = self._detect_loss(count)
        self.rules = RuleTable(self.file, new_uid)
        self.rules.load()
        self.put_rule, self.delete_rule = self.rules.put, self.rules.delete
        self.register, self.withdraw = self.agents.register, self.agents.withdraw
        self.get, self.owner = self.ports.get, self.agents.owner
        self.unordered_resources = self.ports.unordered_resources

    def _detect_loss(self, has: int) -> str:
        """Return a warning if the file was replaced or has lost rows; empty otherwise."""
        identity, last_identity = (
            str(self.file.meta("identity")),
            os.pread(self.file.lock, 64, 0).decode("ascii", "replace"),
        )
        had = self.file.meta("resources")
        os.ftruncate(self.file.lock, 0)
        os.pwrite(self.file.lock, identity.encode(), 0)
        self.file.db.execute("UPDATE meta SET value = ? WHERE name = 'resources'", (has,))
        if last_identity not in ("", identity):
            return (
                f"{self.file.path} is another database than at the last start, with {has} exports"
                f" and imports: it was emptied, deleted or replaced. {_REMEDY}"
            )
        if has != had:
            return (
                f"{self.file.path} has {has} exports and imports, and the broker left {had}: it was"
                f" changed by another program. {_REMEDY}"
            )
        return ""

    def close(self) -> None:
        """Close the file and release its lock."""
        self.file.close()

    def load(self) -> Iterator[BoardEvent]:
        """Yield the events that fill a board with everything on disk."""
        version = self.file.version
        for stored in self.agents.pes():
            yield PeDeclared(pe=stored.pe)
            if stored.registration is not None:
                yield AgentRegistered(
                    pe=stored.pe, registration=stored.registration, version=stored.version
                )
        # Rules precede ports, so that the first views include them.
        yield self.rules.load()
        for kind in get_args(Kind):
            ordered = sorted(self.ports.unordered_resources(kind), key=port_sort_key)
            listed = ((one.resource, one.version) for one in ordered)
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
        with self.file.transaction():
            written = [self.ports.put(resource) for resource in proposal.puts]
            removed = [self.ports.delete(kind, key) for kind, key, _ in proposal.deletes]
        return [*written, *removed]

    async def release(
        self, kind: Kind, key: PortKey, *, options: WriteOptions = UNCONDITIONAL
    ) -> StoredResource:
        """Refuse with 409 `NotDeclared`, or 404: only the broker declares what is in the file."""
        if self.ports.get(kind, key) is None:
            raise unknown_port(kind, key)
        raise not_declared(f"{kind} {key}")
