"""Kill a broker's writes between any two steps, and look at what is on the disk then.

``python -m support.brokers.store_kills DIRECTORY steps|torn [EVERY]`` takes a list of commands.
Each is done on a copy of the file that the ones before left, in a child that kills itself at its
n-th step, for every n, or the first of EVERY, until the command completes. Steps are the system
calls of SQLite's file layer, replaced by its own `xSetSystemCall`, and all calls in the broker's
modules, which lie between store, board and hint. Where the SQLite library cannot be reached,
SQLite's own instructions are the steps. With ``torn`` the child is killed by the system when the
log of writes would grow beyond n bytes, so that the last write is half done.
"""

from __future__ import annotations

import _sqlite3
import asyncio
import ctypes
import json
import os
import resource
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

from streambroker_core.board import Board
from streambroker_core.diagnose import Forecast, Proposal
from streambroker_core.matching import ScanMatcher
from streambroker_core.model import PeKey, Removal, Resource
from streambroker_operator.agents.hint_sender import HintSender
from streambroker_operator.runtime.runtime import Runtime
from streambroker_operator.storage.responses import RequestKey
from streambroker_operator.storage.sqlite_store import Store
from support.core.at_once import at_once
from support.core.resources import export_of, import_of, pe, port, registration

ANSWERED, NOTIFIED = b"a", b"t"
Dump = dict[str, list[tuple[Any, ...]]]
Command = Callable[[Store, Runtime], object]
MODULES = tuple(
    f"streambroker_operator/{name}.py"
    for name in ("storage/sqlite_store", "storage/responses", "runtime/runtime")
)
TABLES = {
    "meta": "name, value",
    "resources": "*",
    "pes": "*",
    "owners": "*",
    "requests": "principal, id, digest, version",
}


# ---- what is done ------------------------------------------------------------------


def _named(store: Store, runtime: Runtime) -> None:
    store.responses.begin(RequestKey(principal="me", id="one", digest="d"))
    try:
        at_once(runtime.put(import_of(filter="price > 5.0")))
    finally:
        store.responses.end()


def _together(store: Store, runtime: Runtime) -> None:
    made: list[Resource] = [
        export_of("feed/trades", properties={"kind": "quote"}),
        import_of(subscription='kind == "quote"'),
        export_of("more/trades"),
    ]
    puts = tuple(replace(resource, uid="") for resource in made)
    gone = (Removal("Import", port("alerts/old")),)
    store.responses.begin(RequestKey(principal="me", id="set", digest="d"))
    try:
        at_once(runtime.apply(Proposal(puts=puts, deletes=gone), _check_fine))
    finally:
        store.responses.end()


def _check_fine(found: Forecast) -> None:
    assert not found.problems


def _checkpointed(store: Store, runtime: Runtime) -> None:
    store.file.db.execute("PRAGMA wal_autocheckpoint = 1")
    at_once(runtime.put(export_of(properties={"kind": "trade", "note": ["x" * 1000] * 9})))


COMMANDS: dict[str, Command] = {
    "open": lambda store, runtime: None,
    "create an export": lambda store, runtime: runtime.put(export_of()),
    "register the exporter": lambda store, runtime: runtime.register(pe("feed"), registration()),
    "register the importer, with a token": lambda store, runtime: runtime.register(
        pe("alerts"), registration("grpc+tcp://10.0.0.1:1"), "token-a"
    ),
    "create an import": lambda store, runtime: runtime.put(import_of(filter="price > 1.0")),
    "change the filter, by name": _named,
    "change nothing": lambda store, runtime: runtime.put(import_of(filter="price > 5.0")),
    "change the properties, with a checkpoint": _checkpointed,
    "create another import": lambda store, runtime: runtime.put(import_of("alerts/old")),
    "change a set at once, by name": _together,
    "move the importer": lambda store, runtime: runtime.register(
        pe("alerts"), registration("grpc+tcp://10.0.0.2:1"), "token-b"
    ),
    "move the exporter, whose importer is hinted": lambda store, runtime: runtime.register(
        pe("feed"), registration("grpc+tcp://10.0.0.3:1")
    ),
    "delete the export": lambda store, runtime: runtime.delete("Export", port("feed/trades")),
    "create it again": lambda store, runtime: runtime.put(export_of(properties={"level": 1})),
    "delete the import": lambda store, runtime: runtime.delete("Import", port("alerts/trades")),
    "delete a set at once": lambda store, runtime: runtime.apply(
        Proposal(
            deletes=tuple(Removal("Export", port(f"{job}/trades")) for job in ("feed", "more"))
        ),
        _check_fine,
    ),
    "withdraw the importer": lambda store, runtime: runtime.withdraw(pe("alerts")),
    "close": lambda store, runtime: store.close(),
}


def opened(db: Path, number: int = 99) -> Store:
    """Open a store whose identities and times depend on the command's number alone."""
    uids = map(f"uid-{number}-{{}}".format, count())
    return Store(db, clock=lambda: 1000.0 + number, new_uid=lambda: next(uids))


def dump(db: Path) -> Dump:
    """Return all that has to be there or not; whoever is the last one empties the log by it."""
    connection = sqlite3.connect(db)
    try:
        return {
            table: sorted(connection.execute(f"SELECT {columns} FROM {table}").fetchall())
            for table, columns in TABLES.items()
        }
    finally:
        connection.close()


class Ear(HintSender):
    """Says on a pipe that a caller was answered, and sends nothing."""

    def __init__(self, pipe: int) -> None:
        super().__init__()
        self._pipe = pipe
        self.on = False

    def send(self, pe: PeKey, address: str, datagram: bytes) -> None:
        if self.on:
            os.write(self._pipe, NOTIFIED)


# ---- how it is killed --------------------------------------------------------------


@dataclass
class Fuse:
    """Counts steps and kills this process at one of them."""

    left: int
    burning: bool = False
    keep: list[object] = field(default_factory=list)

    def step(self) -> None:
        """Count a step; the last one is not taken."""
        if not self.burning:
            return
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def light(self) -> None:
        if not self._replace_system_calls():
            self.keep.append(self.step)
        sys.setprofile(self._profile)

    def watch(self, store: Store) -> None:
        """Count SQLite's instructions where its system calls are out of reach."""
        if self.step in self.keep:
            store.file.db.set_progress_handler(self.step, 20)

    def _profile(self, frame: FrameType, event: str, arg: object) -> None:
        if event in ("call", "c_call") and frame.f_code.co_filename.endswith(MODULES):
            self.step()

    def _replace_system_calls(self) -> bool:
        library = ctypes.CDLL(_sqlite3.__file__) if hasattr(_sqlite3, "__file__") else None
        if library is None or not hasattr(library, "sqlite3_vfs_find"):
            return False
        library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
        vfs = library.sqlite3_vfs_find(None)
        for name, arguments in _CALLS.items():
            kind = ctypes.CFUNCTYPE(ctypes.c_long, *arguments, use_errno=True)
            address = vfs.contents.xGetSystemCall(vfs, name)
            if address:
                replacement = kind(self._before(kind(address)))
                self.keep.append(replacement)
                pointer = ctypes.cast(replacement, ctypes.c_void_p)
                assert vfs.contents.xSetSystemCall(vfs, name, pointer) == 0
        return True

    def _before(self, original: Any) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            self.step()
            return int(original(*arguments))

        return call


class _Vfs(ctypes.Structure):
    """SQLite's file layer, as its header declares it."""


_void = ctypes.c_void_p
_BEFORE = """
xOpen xDelete xAccess xFullPathname xDlOpen xDlError xDlSym xDlClose xRandomness xSleep xCurrentTime
xGetLastError xCurrentTimeInt64
"""
_Vfs._fields_ = [
    ("iVersion", ctypes.c_int),
    ("szOsFile", ctypes.c_int),
    ("mxPathname", ctypes.c_int),
    ("pNext", _void),
    ("zName", ctypes.c_char_p),
    ("pAppData", _void),
    *((name, _void) for name in _BEFORE.split()),
    (
        "xSetSystemCall",
        ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Vfs), ctypes.c_char_p, _void),
    ),
    ("xGetSystemCall", ctypes.CFUNCTYPE(_void, ctypes.POINTER(_Vfs), ctypes.c_char_p)),
    ("xNextSystemCall", _void),
]
_CALLS: dict[bytes, tuple[Any, ...]] = {
    b"open": (ctypes.c_char_p, ctypes.c_int, ctypes.c_int),
    b"write": (ctypes.c_int, _void, ctypes.c_size_t),
    b"pwrite": (ctypes.c_int, _void, ctypes.c_size_t, ctypes.c_int64),
    b"pwrite64": (ctypes.c_int, _void, ctypes.c_size_t, ctypes.c_int64),
    b"ftruncate": (ctypes.c_int, ctypes.c_int64),
    b"unlink": (ctypes.c_char_p,),
    b"mmap": (_void, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64),
    b"munmap": (_void, ctypes.c_size_t),
    b"close": (ctypes.c_int,),
}


# ---- one life ----------------------------------------------------------------------


async def _live(db: Path, number: int, fuse: Fuse, pipe: int, command: Command) -> None:
    fuse.light()
    fuse.burning = number == 0
    store, ear = opened(db, number), Ear(pipe)
    fuse.watch(store)
    # A broker that is killed does not close the file; this one ends with it open.
    fuse.keep.append(store)
    runtime = Runtime(store, ear)
    runtime.feed.start()
    fuse.burning = ear.on = True
    done = command(store, runtime)
    if isinstance(done, Coroutine):
        at_once(done)
    os.write(pipe, ANSWERED)


def life(db: Path, number: int, fuse: Fuse, *, limit: int | None = None) -> tuple[bool, bytes]:
    """Do one command in a child; say whether it lived, and which pipe messages it sent."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            if limit is not None:
                signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            asyncio.run(_live(db, number, fuse, writing, list(COMMANDS.values())[number]))
            sys.setprofile(None)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        sent = pipe.read()
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGKILL, signal.SIGXFSZ)
    assert killed or status == 0, f"command {number} failed by itself: {status}"
    return not killed, sent


# ---- what has to hold then -----------------------------------------------------------


def examine(db: Path, sent: bytes, before: Dump | None, after: Dump) -> None:
    """Open the file again: it is as before or as after the command, and it can go on."""
    store = opened(db)
    found = dump(db)
    if before is None:
        found, after = _without_random(found), _without_random(after)
    assert found in (before, after) or before is None
    if ANSWERED in sent or NOTIFIED in sent:
        assert found == after, f"the answer ({sent!r}) has what is not on the disk"
    _assert_goes_on(store)
    store.close()


RANDOM = ("secret", "identity")
"""What a new file has at random."""


def _without_random(found: Dump) -> Dump:
    return {**found, "meta": [row for row in found["meta"] if row[0] not in RANDOM]}


def _assert_goes_on(store: Store) -> None:
    reading, writing = os.pipe()
    runtime = Runtime(store, Ear(writing))
    runtime.feed.start()
    version = store.file.version
    held = [*store.unordered_resources("Export"), *store.unordered_resources("Import")]
    assert all(stored.version <= version for stored in held)
    assert runtime.board.point == (version, version)
    by_scan = Board(ScanMatcher())
    Runtime(store, Ear(writing), by_scan).feed.start()
    assert runtime.board.routes() == by_scan.reader.routes()
    assert sorted(runtime.board.versions()) == sorted(by_scan.reader.versions())
    assert store.ports.put(export_of("next/p")).version == version + 1
    os.close(reading)
    os.close(writing)


# ---- the sweep -----------------------------------------------------------------------


@dataclass
class Sweep:
    place: Path
    kills: dict[str, int] = field(default_factory=dict)

    def run(self, *, torn: bool, every: int) -> None:
        for number, name, base in self._bases():
            before = dump(self._copy(base, "look")) if number else None
            done = self._copy(base, "done")
            assert life(done, number, Fuse(left=0))[0]
            after = dump(self._copy(done, "look"))
            steps = self._sizes(base, done) if torn else iter(range(1, 100_000, every))
            self.kills[name] = self._kill(base, number, steps, before, after, torn=torn)

    def _kill(
        self,
        base: Path,
        number: int,
        steps: Iterator[int],
        before: Dump | None,
        after: Dump,
        *,
        torn: bool,
    ) -> int:
        kills = 0
        for step in steps:
            db = self._copy(base, "try")
            fuse = Fuse(left=0 if torn else step)
            lived, sent = life(db, number, fuse, limit=step if torn else None)
            kills += not lived
            try:
                examine(db, sent, before, after)
            except AssertionError as error:
                name = list(COMMANDS)[number]
                raise AssertionError(f"{name}, killed at step {step}: {error}") from error
            if lived and not torn:
                break
        return kills

    def _bases(self) -> Iterator[tuple[int, str, Path]]:
        """Yield each command with the file that those before it left, as a killed broker does."""
        base = self.place / "base" / "broker.db"
        base.parent.mkdir()
        for number, name in enumerate(COMMANDS):
            yield number, name, base
            lived, _ = life(base, number, Fuse(left=0))
            assert lived

    def _sizes(self, base: Path, done: Path) -> Iterator[int]:
        """Yield where to stop the growth of the write-ahead log, in the middle of pages, too."""
        was, now = (_size(db.with_name(db.name + "-wal")) for db in (base, done))
        yield from range(max(was, 1), now + 1, 509)

    def _copy(self, base: Path, name: str) -> Path:
        to = self.place / name
        if to.exists():
            shutil.rmtree(to)
        shutil.copytree(base.parent, to)
        return to / base.name


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def main() -> None:
    """Sweep; print how many deaths there were by command, as JSON."""
    sweep = Sweep(Path(sys.argv[1]))
    sweep.run(torn=sys.argv[2] == "torn", every=int((sys.argv[3:] or ["1"])[0]))
    sys.stdout.write(json.dumps(sweep.kills) + "\n")


if __name__ == "__main__":
    main()
