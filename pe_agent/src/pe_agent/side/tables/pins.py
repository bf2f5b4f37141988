"""Pins: the version of a table that a micro-batch without state uses.

- A pin is the file ``pins/<query>/<batch>`` in the folder of a table.
- The first task of a micro-batch that needs the table creates it, with the newest version. All
  other tasks, and every replay, read it. A pin is complete or absent, and never changes.
- A task holds a shared lock on ``pins/lock`` while it chooses a version; cleanup holds it
  exclusively. So no version is removed between its choice and the creation of its pin.
- The modification time of ``pins/<query>/seen`` is the last time at which a task looked up a pin.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pe_agent.log.atomic_file import sync_directory
from pe_agent.side.errors import PinError
from pe_agent.side.tables.versions import read_journal

PINS, LOCK, SEEN_FILE = "pins", "lock", "seen"
FORMAT = 1
RETAINED_PINS = 2
"""Pins of a query that are kept. A micro-batch is run again until the next one begins; the one
before it may still have cancelled tasks that are running."""
_QUERY, _BATCH, _RUN = "sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id"
_ACCESS_REMEDY = (
    "let every worker see the folder of the store under this path, and write to it; or set"
    ' options(order="arrival") before the end of the chain, for an operator that only reads it'
)


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """A micro-batch of a query; the query's id is that of its checkpoint."""

    query: str
    run: str
    number: int


@dataclass(frozen=True, kw_only=True)
class Pin:
    """The version of a table that a micro-batch uses; ``written`` is in seconds since 1970."""

    version: str
    written: float
    path: Path


_PIN_CACHE: dict[tuple[str, str], tuple[MicroBatch, Pin]] = {}
"""By table and query: the last pin that this process has read."""


def current_batch() -> MicroBatch | None:
    """Return the micro-batch of this task, or None; raise PinError in a task of no query."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return None
    query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
    if query is None or batch is None:
        raise PinError(
            None,
            "its task belongs to none",
            "process the rows of foreachBatch in the thread in which it is called, or pass its"
            " properties to other threads, with pyspark.inheritable_thread_target(spark)",
        )
    return MicroBatch(query=query, run=context.getLocalProperty(_RUN) or "", number=int(batch))


def pin_for(folder: Path, batch: MicroBatch) -> Pin:
    """Return the pin of a micro-batch; creates it if there is none.

    Raises:
        PinError: the folder does not exist or is not writable, or the pin cannot be read.
        TableError: the list of versions cannot be read.
    """
    key = (str(folder), batch.query)
    cached = _PIN_CACHE.get(key)
    if cached is not None and cached[0] == batch:
        return cached[1]
    path = folder / PINS / batch.query / str(batch.number)
    try:
        pin = _read_or_create(folder, path)
    except FileNotFoundError as error:
        missing = f"{error.filename} does not exist, or this worker does not see it"
        raise PinError(folder.name, missing, _ACCESS_REMEDY) from error
    except OSError as error:
        raise PinError(
            folder.name, f"{path} cannot be loaded here: {error}", _ACCESS_REMEDY
        ) from error
    _PIN_CACHE[key] = (batch, pin)
    return pin


def newest_version(folder: Path) -> Pin:
    """Return the newest version, as a pin without a file; raise if there is none."""
    last = read_journal(folder)[1][-1]
    return Pin(version=last.name, written=last.at, path=folder)


def create_pin_folder(folder: Path) -> None:
    """Create the pin folder; tasks do not, because they may not see the store."""
    (folder / PINS).mkdir(exist_ok=True)


@contextmanager
def lock_for_cleanup(folder: Path, grace: float, now: float) -> Iterator[set[str] | None]:
    """Keep tasks from choosing versions, and remove the pins that are no longer needed.

    Yields the versions that are pinned, or None if a task is choosing one, so that none may be
    removed. A query without a look-up for ``grace`` seconds no longer counts.

    Raises:
        PinError: a pin cannot be read, so it is unknown which versions may be removed.
    """
    if not (folder / PINS).is_dir():
        yield set()
        return
    with (folder / PINS / LOCK).open("a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        needed = _clean_pins(folder / PINS, grace, now)
        yield {_read_pin(folder.name, path).version for path in needed}


def _clean_pins(folder: Path, grace: float, now: float) -> list[Path]:
    """Return the needed pins of all queries; the others are removed.

    Needed are the pins that were made last, and those with the highest batch numbers. They differ
    if a checkpoint was restored, or if an old task made a pin late.
    """
    all_needed = []
    for query in folder.iterdir():
        if not query.is_dir():
            continue
        modified = {path: path.stat().st_mtime_ns for path in query.iterdir()}
        pin_times = {path: time for path, time in modified.items() if path.name.isdigit()}
        needed = set[Path]()
        if max(modified.values(), default=0) >= (now - grace) * 1e9:
            by_number = sorted(pin_times, key=lambda path: int(path.name))
            needed = {
                *by_number[-RETAINED_PINS:],
                *sorted(pin_times, key=lambda path: pin_times[path])[-RETAINED_PINS:],
            }
        for path in modified:
            if path not in needed and (not needed or path.name != SEEN_FILE):
                path.unlink()
        if not needed:
            query.rmdir()
        all_needed += sorted(needed)
    return all_needed


def _read_or_create(folder: Path, path: Path) -> Pin:
    """Return a pin; creates it from the newest version unless it exists or another task does."""
    with (folder / PINS / LOCK).open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        path.parent.mkdir(exist_ok=True)
        (path.parent / SEEN_FILE).touch()
        if not path.exists():
            _write_pin(newest_version(folder), path)
        return _read_pin(folder.name, path)


def _write_pin(last: Pin, path: Path) -> None:
    hidden = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    fields = {"v": FORMAT, "version": last.version, "written": last.written, "at": time.time()}
    try:
        with hidden.open("wb") as file:
            file.write(json.dumps(fields, sort_keys=True).encode())
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(hidden, path)
    finally:
        hidden.unlink(missing_ok=True)
    sync_directory(path.parent)


def _read_pin(table: str, path: Path) -> Pin:
    data = path.read_bytes()
    try:
        fields = json.loads(data)
        if fields["v"] > FORMAT:
            raise PinError(
                table,
                f"{path} has form {fields['v']}, of a newer release; this reads {FORMAT}",
                "start that one",
            )
        return Pin(version=str(fields["version"]), written=float(fields["written"]), path=path)
    except (KeyError, TypeError, ValueError) as error:
        raise PinError(
            table,
            f"{path} is damaged: {error!r}",
            "stop the query and delete it, and the micro-batch uses the newest version",
        ) from error
