"""Tables that are side inputs: read as a whole in the driver, version by version.

A ``TableStore`` is a folder that driver and workers see. A thread for each table reads it when it
is due, and validates it for its side inputs. Then it writes a version, and announces that to the
queries. Another thread removes versions that no query needs. If a table cannot be
read, its last version stays.
"""

from __future__ import annotations

import fcntl
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa

from pe_agent.datasource.schemas import Columns, as_arrow_schema
from pe_agent.job.arguments import seconds
from pe_agent.log.control_file import ControlFile
from pe_agent.side.errors import PinError, TableError
from pe_agent.side.tables import pins
from pe_agent.side.tables import type_check as types
from pe_agent.side.tables.announcements import (
    CONTROL_FILE,
    READERS,
    read_positions,
    version_source_plan,
)
from pe_agent.side.tables.sources import FolderSource, FrameSource, QuerySource, TableSource
from pe_agent.side.tables.versions import (
    REQUESTS,
    ReadPosition,
    Version,
    Versions,
    read_version,
    write_request,
)
from streambroker_core.control.tuples import Delivery
from streambroker_core.model.durations import Duration
from streambroker_core.side.control_messages import SideRefresh, SideVersion
from streambroker_core.side.definition import SideInput
from streambroker_core.side.errors import SideDefinitionError
from streambroker_core.side.join.static_table import build_content

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pe_agent.aligned.plan import StreamPlan

log = logging.getLogger("pe_agent")

GRACE_SECONDS = 7 * 86_400.0
POLL_SECONDS = 0.2
CLOSE_SECONDS = 10.0
"""Seconds that closing a store waits for running reads."""
_CLEAN_SECONDS = 5.0
_LOCK = "lock"
_RESERVED_NAMES = (CONTROL_FILE, READERS, _LOCK)
"""Names in the folder of a store that cannot be tables."""


@dataclass(frozen=True, kw_only=True)
class TableState:
    """State of a table.

    Attributes:
        version: the last version; it applies to rows from the next micro-batch on.
        rows: number of its rows.
        bytes: size of its file.
        at: when it was written, seconds since 1970.
        looked: when the table was last checked, seconds since 1970.
        error: why that check failed; None if it did not.
        kept: versions that are kept, the oldest first.
    """

    version: str
    rows: int
    bytes: int
    at: float
    looked: float
    error: str | None
    kept: tuple[str, ...]


class Table:
    """A table in a store; made by its ``folder``, ``query`` and ``frame``.

    Attributes:
        name: its name in the store.
        schema: its columns, those of its first version.
        every: seconds between two checks; None to check only on request.
        folder: the folder of its versions.
    """

    def __init__(
        self, store: TableStore, name: str, source: TableSource, every: float | None
    ) -> None:
        self.store, self.name, self.every, self._source = store, name, every, source
        self.folder = store.path / name
        self._versions = Versions(self.folder)
        self._requests = self.folder / REQUESTS
        self._sides: dict[str, SideInput] = {}
        self._stateless: list[SideInput] = []
        self._poll_lock = threading.Lock()
        self._fingerprint: str | None = None
        self._error: str | None = None
        self._polled_at, self._next_poll = 0.0, 0.0
        self.schema: pa.Schema | None = None
        last = self._versions.last
        if last is not None:
            self.schema = read_version(self.folder, last.name).schema
        self.poll()
        if self._versions.last is None:
            raise TableError(name, self._error or "it was not read")

    def refresh(self) -> TableState:
        """Read the table now; queries see it from their next micro-batch on.

        Raises:
            TableError: it cannot be read, and the previous version stays; or the store is closed.
        """
        self.store.check_open(self.name)
        self._fingerprint = None
        self.poll()
        if self._error is not None:
            raise TableError(self.name, self._error)
        return self.state()

    def state(self) -> TableState:
        """Return the state of the table."""
        with self.store.lock:
            last = self._versions.last
            assert last is not None  # noqa: S101 - else it was not made
            return TableState(
                version=last.name,
                rows=last.rows,
                bytes=last.bytes,
                at=last.at,
                looked=self._polled_at,
                error=self._error,
                kept=tuple(one.name for one in self._versions.retained),
            )

    def bind(self, side: SideInput) -> None:
        """Use the table as a side input from now on; announces the last version to it.

        Raises:
            SideError: the last version cannot be used as this side input; or the store is closed.
        """
        with self.store.lock:
            last = self._check_usable(side)
            self._check_name(side)
            self._sides[side.name] = side
            self._write_sorted(last, side)
            self._announce()

    def bind_stateless(self, side: SideInput) -> None:
        """Use the table for rows without state from now on; micro-batches pin its versions.

        Raises:
            SideError: as for ``bind``.
        """
        with self.store.lock:
            last = self._check_usable(side)
            if side not in self._stateless:
                self._stateless.append(side)
            self._write_sorted(last, side)
            pins.create_pin_folder(self.folder)

    def _check_usable(self, side: SideInput) -> Version:
        self.store.check_open(self.name)
        last = self._versions.last
        assert last is not None  # noqa: S101 - else it was not made
        build_content(side, read_version(self.folder, last.name))
        return last

    def _check_name(self, side: SideInput) -> None:
        """Refuse a name that another side input uses: announcements contain only the name."""
        problem = None
        if self._sides.get(side.name, side) != side:
            problem = f"table {self.name} is a side input of this name already, with other policies"
        for other in self.store.tables():
            if other is not self and side.name in other._sides:
                problem = f"table {other.name} of the same store is a side input of this name"
        if problem is not None:
            raise SideDefinitionError(
                side.name, problem, "give one of them another name, or take another store"
            )

    def poll_if_due(self) -> None:
        """Check the table if it is due, or on request."""
        if self.is_due(time.monotonic()):
            self.poll()

    def is_due(self, now: float) -> bool:
        """Return whether a check is due or requested; ``now`` is monotonic."""
        requested = self._requests.is_dir() and any(self._requests.iterdir())
        return requested or (self.every is not None and now >= self._next_poll)

    def poll(self) -> None:
        """Read the table if it may have changed; an error is kept for ``state``."""
        with self._poll_lock:
            requests: list[Path] = []
            try:
                requests = list(self._requests.iterdir()) if self._requests.is_dir() else []
                self._read(requested=bool(requests))
                self._set_error(None)
            except Exception as error:  # the previous version stays, whatever the source raises
                self._set_error(str(error) or repr(error))
            for path in requests:
                path.unlink(missing_ok=True)
            self._polled_at = time.time()
            self._next_poll = time.monotonic() + (self.every or 0.0)

    def clean(self, positions: list[ReadPosition], grace: float, now: float) -> None:
        """Remove versions; see ``Versions.clean``, and ``pins.lock_for_cleanup`` for the times.

        Nothing is removed while a task chooses a version.
        """
        with self.store.lock, pins.lock_for_cleanup(self.folder, grace, now) as pinned:
            if pinned is not None:
                self._versions.clean(positions, self._sides, pinned)

    def _read(self, *, requested: bool) -> None:
        mark = self._source.fingerprint()
        if mark is not None and mark == self._fingerprint and not requested:
            return
        table = _cast_to_schema(self._source.read(self.schema), self.schema)
        with self.store.lock:
            self.store.check_open(self.name)  # it may have been closed while the table was read
            for side in self._all_sides():
                build_content(side, table)
            version = self._versions.write(table, time.time(), self._prepare)
            self.schema = table.schema
            if version is not None:
                log.info("table %s: version %s, %d rows", self.name, version.name, version.rows)
            self._announce()
            self._fingerprint = mark  # only now: until it is announced, a version is read again

    def _announce(self) -> None:
        version = self._versions.last
        assert version is not None  # noqa: S101 - it was written
        for name in self._sides:
            if name not in version.announced:
                message = SideVersion(input=name, version=version.name)
                seq = self.store.control.append(message, delivery=Delivery.BEGIN).seq
                self._versions.record_announcement(version, name, seq)

    def _all_sides(self) -> list[SideInput]:
        sides = list(self._sides.values())
        return [*sides, *(side for side in self._stateless if side not in sides)]

    def _prepare(self, version: Version) -> None:
        """Write the sorted copies of a version before it is announced."""
        for side in self._all_sides():
            self._write_sorted(version, side)

    def _write_sorted(self, version: Version, side: SideInput) -> None:
        """Write the sorted copy; without it each worker sorts the table."""
        try:
            self._versions.write_sorted(version, side)
        except OSError as error:
            log.warning(
                "table %s: version %s has no sorted copy: %s", self.name, version.name, error
            )

    def _set_error(self, error: str | None) -> None:
        if error is not None and error != self._error and self._versions.last is not None:
            log.warning("cannot read table %s, keeping the previous version: %s", self.name, error)
        self._error = error


class TableStore:
    """A folder with the versions of tables, and the threads that read them.

    Args:
        path: a folder that the driver and all workers see; one driver at a time uses it.
        grace: how long versions are kept for a query that does not run, and for one
            without state that has no micro-batch.
    """

    def __init__(self, path: str | Path, *, grace: Duration = GRACE_SECONDS) -> None:
        """Open or create the folder; raise TableError if another driver uses it, or it is a URL."""
        if "://" in str(path):
            raise TableError(
                str(path), "a store is a folder that driver and workers see as files; mount one"
            )
        self.path = Path(path).absolute()
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock_file = _lock_folder(self.path)
        self.control = ControlFile(self.path / CONTROL_FILE)
        self.lock = threading.RLock()
        self._tables: dict[str, Table] = {}
        self._grace, self._ended = seconds(grace, "grace"), threading.Event()
        self._logged_problems: dict[str, str] = {}
        self._threads: list[threading.Thread] = []
        self._requests_read_to = next((one.seq for one in self.control.newest_first()), 0)
        self._repeat("versions", lambda: _CLEAN_SECONDS, self.clean)
        self._repeat("requests", lambda: POLL_SECONDS, self._read_requests)

    def folder(
        self,
        name: str,
        path: str | Path,
        *,
        format: str = "parquet",  # noqa: A002 - as Spark's readers say it
        marker: str | None = None,
        schema: Columns | None = None,
        every: Duration | None = 1.0,
    ) -> Table:
        """Return a folder of files as a table, with a new version whenever files change.

        Args:
            name: name of the table, fixed for the store.
            path: the folder, or one file. Files and folders with a name that begins with ``_`` or
                ``.`` are not read.
            format: ``parquet``, ``csv``, ``json`` or ``arrow``.
            marker: a file without which the folder is not read.
            schema: columns and types, as DDL, StructType or Arrow schema; None for those of the
                first file, as its format has them.
            every: a duration between two checks of names, sizes and times; None to check only on
                request.

        Raises:
            TableError: it cannot be read, and there is no earlier version.
            SchemaError: ``schema`` is no list of columns.
        """
        if "://" in str(path):
            raise TableError(
                name,
                f"{path} is not a folder of files that are visible here; read it by Spark, with"
                f" store.frame({name!r}, lambda: spark.read.…)",
            )
        declared = None if schema is None else as_arrow_schema(schema)
        source = FolderSource(path=Path(path), format=format, marker=marker, schema=declared)
        return self._add(name, source, every)

    def query(
        self,
        name: str,
        connect: Callable[[], Any],
        sql: str,
        *,
        schema: Columns | None = None,
        every: Duration | None = 60.0,
    ) -> Table:
        """Return the result of a database query as a table.

        Args:
            name: as for ``folder``.
            connect: makes a connection of DB-API 2.0.
            sql: the query; order its rows, so that equal content is recognized.
            schema: columns and types, as for ``folder``; None for those of the first rows.
            every: a duration between two reads; None to read only on request.

        Raises:
            TableError: as for ``folder``.
        """
        declared = None if schema is None else as_arrow_schema(schema)
        return self._add(name, QuerySource(connect=connect, sql=sql, schema=declared), every)

    def frame(
        self, name: str, make: Callable[[], DataFrame], *, every: Duration | None = 60.0
    ) -> Table:
        """Return a batch DataFrame as a table: of files, of JDBC, of anything Spark reads.

        Args:
            name: as for ``folder``.
            make: makes a new DataFrame for each read; order its rows, so that equal content is
                recognized.
            every: a duration between two reads; None to read only on request.

        Raises:
            TableError: as for ``folder``.
        """
        return self._add(name, FrameSource(make=make), every)

    def tables(self) -> list[Table]:
        """Return the tables of the store."""
        return list(self._tables.values())

    def version_source(self, spark: SparkSession) -> StreamPlan:
        """Return the announcements of versions; side inputs add them to their stream."""
        return version_source_plan(spark, self.path)

    def close(self) -> None:
        """Stop reading; versions stay for the running queries.

        A read that does not end in time is abandoned, and its result is dropped.
        """
        self._ended.set()
        deadline = time.monotonic() + CLOSE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        with self.lock:
            self._lock_file.close()

    def check_open(self, table: str) -> None:
        """Raise TableError if the store is closed: another driver may use its folder."""
        if self._lock_file.closed:
            raise TableError(table, f"the store {self.path} is closed; open it again")

    def __enter__(self) -> TableStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add(self, name: str, source: TableSource, every: Duration | None) -> Table:
        if not name.isidentifier() or name in (*_RESERVED_NAMES, *self._tables):
            raise TableError(name, "use a name of letters, digits and _ that is not in use yet")
        interval = None if every is None else seconds(every, "every")
        table = Table(self, name, source, interval)
        self._tables[name] = table
        self._repeat(f"table-{name}", lambda: POLL_SECONDS, table.poll_if_due)
        return table

    def _read_requests(self) -> None:
        """Pass requests of the control file on; a join without state does not read that file."""
        read_to = self._requests_read_to
        for control in self.control.newest_first():
            if control.seq <= read_to:
                break
            self._requests_read_to = max(self._requests_read_to, control.seq)
            if control.type != SideRefresh.__name__:
                continue
            for table in self.tables():
                if any(one.name == control.payload.get("input") for one in table._all_sides()):
                    write_request(table.folder, control.id)

    def _repeat(self, name: str, pause: Callable[[], float], work: Callable[[], None]) -> None:

        def run() -> None:
            while not self._ended.wait(pause()):
                try:
                    work()
                    self._logged_problems.pop(name, None)
                except Exception as error:  # such as a missing folder: the thread tries again
                    self._log_problem(name, str(error) or repr(error))

        thread = threading.Thread(target=run, name=f"side-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _log_problem(self, name: str, problem: str) -> None:
        if problem != self._logged_problems.get(name):
            log.warning("%s in %s: %s", name, self.path, problem)
        self._logged_problems[name] = problem

    def clean(self) -> None:
        """Remove the versions that no query needs any more.

        Raises:
            PinError, OSError: cleanup failed for a table; the other tables are cleaned.
        """
        problem: Exception | None = None
        with self.lock:
            now = time.time()
            positions = read_positions(self.path, self._grace, now)
            for table in self.tables():
                try:
                    table.clean(positions, self._grace, now)
                except (PinError, OSError) as error:
                    problem = error
        if problem is not None:
            raise problem


def _cast_to_schema(table: pa.Table, expected: pa.Schema | None) -> pa.Table:
    """Return a table with an expected schema; raise ValueError if a column does not fit."""
    if expected is None:
        plain = [pa.field(one.name, one.type) for one in table.schema]
        return table.cast(pa.schema(plain))
    if (problem := types.schema_problem(table.schema, expected)) is not None:
        raise ValueError(problem)
    return table.select(expected.names).cast(expected)


def _lock_folder(path: Path) -> IO[bytes]:
    file = (path / _LOCK).open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise TableError(
            path.name, f"another driver uses the store {path}; end it, or take another folder"
        ) from error
    return file
