"""Which version of a table a micro-batch has, where no state says it: a pin.

A pin is the file ``pins/<query>/<batch>`` in the folder of a table. The first task of a micro-batch
that needs the table makes it, with the version that is the newest then; all others read it, and so
does every replay. It is there whole or not at all, and never changes. Who chooses a version holds
``pins/lock`` in common, and who removes versions alone: so no version goes between the moment in
which a task finds that it is the newest and the one in which its pin says so. Beside the pins of a
query, ``seen`` has the time at which a process last asked for one.
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
before it may have tasks that were given up and are not gone yet."""
_QUERY, _BATCH, _RUN = "sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id"
_ACCESS_REMEDY = "let every worker see the folder of the store under this path, and write to it"


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """A micro-batch of a query.

    Attributes:
        query: id of the query, which is that of its checkpoint.
        run: id of this run of the query.
        number: of the micro-batch.
    """

    query: str
    run: str
    number: int


@dataclass(frozen=True, kw_only=True)
class Pin:
    """The version that a micro-batch has of a table.

    Attributes:
        version: its name.
        written: when it was written, seconds since 1970.
        path: where the pin is.
    """

    version: str
    written: float
    path: Path


_PIN_CACHE: dict[tuple[str, str], tuple[MicroBatch, Pin]] = {}
"""The last pin that this process has seen, of each table and query."""


def current_batch() -> MicroBatch | None:
    """Return the micro-batch whose task this is; None outside of tasks.

    Raises:
        PinError: the task is of no query.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return None
    query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
    if query is None or batch is None:
        raise PinError(
            None,
            "its task belongs to none",
            "run the rows of foreachBatch in the thread in which it is called, or give others"
            " its properties, with pyspark.inheritable_thread_target(spark)",
        )
    return MicroBatch(query=query, run=context.getLocalProperty(_RUN) or "", number=int(batch))


def pin_for(folder: Path, batch: MicroBatch) -> Pin:
    """Return the pin of a micro-batch; made if there is none.

    Args:
        folder: of the table.
        batch: whose task this is.

    Raises:
        PinError: the folder is not there or cannot be written, or the pin cannot be read.
        TableError: the list of versions cannot be read.
    """
    place = (str(folder), batch.query)
    known = _PIN_CACHE.get(place)
    if known is not None and known[0] == batch:
        return known[1]
    path = folder / PINS / batch.query / str(batch.number)
    try:
        pin = _read_or_create(folder, path)
    except FileNotFoundError as error:
        away = f"{error.filename} is not there, or this worker does not see it"
        raise PinError(folder.name, away, _ACCESS_REMEDY) from error
    except OSError as error:
        raise PinError(
            folder.name, f"{path} cannot be had here: {error}", _ACCESS_REMEDY
        ) from error
    _PIN_CACHE[place] = (batch, pin)
    return pin


def newest_version(folder: Path) -> Pin:
    """Return the newest version, as a pin that is nowhere.

    Raises:
        TableError: the list of versions cannot be read.
        FileNotFoundError: there is none.
    """
    last = read_journal(folder)[1][-1]
    return Pin(version=last.name, written=last.at, path=folder)


def create_pin_folder(folder: Path) -> None:
    """Let tasks make pins of a table: they make no folder where they do not see the store."""
    (folder / PINS).mkdir(exist_ok=True)


@contextmanager
def lock_for_cleanup(folder: Path, grace: float, now: float) -> Iterator[set[str] | None]:
    """Keep tasks from choosing versions, and remove the pins that none asks for any more.

    Args:
        folder: of the table.
        grace: seconds after which a query that has asked for no pin does not count.
        now: seconds since 1970.

    Returns:
        The versions that are pinned. None if a task is choosing one, so that none may be removed.

    Raises:
        PinError: a pin cannot be read, so nobody knows which may be removed.
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
        kept = _clean_pins(folder / PINS, grace, now)
        yield {_read_pin(folder.name, path).version for path in kept}


def _clean_pins(folder: Path, grace: float, now: float) -> list[Path]:
    """Return the pins of all queries that are needed; the others are removed.

    Those are needed that were made last, and those of the last micro-batches: they differ when
    somebody has put a checkpoint back, or when a task of long ago made one.
    """
    found = []
    for query in folder.iterdir():
        if not query.is_dir():
            continue
        made = {path: path.stat().st_mtime_ns for path in query.iterdir()}
        at = {path: time for path, time in made.items() if path.name.isdigit()}
        needed = set[Path]()
        if max(made.values(), default=0) >= (now - grace) * 1e9:
            by_number = sorted(at, key=lambda path: int(path.name))
            needed = {
                *by_number[-RETAINED_PINS:],
                *sorted(at, key=lambda path: at[path])[-RETAINED_PINS:],
            }
        for path in made:
            if path not in needed and (not needed or path.name != SEEN_FILE):
                path.unlink()
        if not needed:
            query.rmdir()
        found += sorted(needed)
    return found


def _read_or_create(folder: Path, path: Path) -> Pin:
    """Return a pin; made of the newest version, if there is none and nobody else makes one now."""
    with (folder / PINS / LOCK).open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        path.parent.mkdir(exist_ok=True)
        (path.parent / SEEN_FILE).touch()
        if not path.exists():
            _write_pin(newest_version(folder), path)
        return _read_pin(folder.name, path)


def _write_pin(last: Pin, path: Path) -> None:
    hidden = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    told = {"v": FORMAT, "version": last.version, "written": last.written, "at": time.time()}
    try:
        with hidden.open("wb") as made:
            made.write(json.dumps(told, sort_keys=True).encode())
            made.flush()
            os.fsync(made.fileno())
        with suppress(FileExistsError):
            os.link(hidden, path)
    finally:
        hidden.unlink(missing_ok=True)
    sync_directory(path.parent)


def _read_pin(table: str, path: Path) -> Pin:
    data = path.read_bytes()
    try:
        told = json.loads(data)
        if told["v"] > FORMAT:
            raise PinError(
                table,
                f"{path} has form {told['v']}, of a newer release; this reads {FORMAT}",
                "start that one",
            )
        return Pin(version=str(told["version"]), written=float(told["written"]), path=path)
    except (KeyError, TypeError, ValueError) as error:
        raise PinError(
            table,
            f"{path} is damaged: {error!r}",
            "stop the query, remove it, and the micro-batch has the newest version",
        ) from error
