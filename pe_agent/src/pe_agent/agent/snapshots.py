"""Snapshots of a running agent: its database, routes and logs at one point in time.

All exports stand still while the database is copied and full segments, which never change, are
linked. Growing segments are copied afterwards, up to their length at that time. The manifest is
written last.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import threading
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, NamedTuple

from pe_agent.agent.exports.registry import ExportRegistry
from pe_agent.agent.state.store import Store
from pe_agent.log import index, segments
from pe_agent.log.atomic_file import replace_file, sync_directory
from pe_agent.log.log import StreamLog
from streambroker_core.errors import StreambrokerError
from streambroker_core.model import PeKey
from streambroker_core.wire.broker import snapshot as wire
from streambroker_core.wire.broker.snapshot import SnapshotFile, SnapshotManifest

log = logging.getLogger("pe_agent")

_CHUNK_BYTES = 1 << 20


class SnapshotFailedError(StreambrokerError):
    """No snapshot was taken: the disk fails, one is being taken, or a bucket has the log."""

    code = "SnapshotFailed"


class _GrowingSegment(NamedTuple):
    file: IO[bytes]
    end: int
    copy: Path


class Snapshots:
    """Snapshots of one agent, in its data directory. Thread-safe."""

    def __init__(self, pe: PeKey, home: Path, store: Store, exports: ExportRegistry) -> None:
        self._pe = pe
        self._home = home
        self._folder = home / wire.FOLDER
        self._store = store
        self._exports = exports
        self._lock = threading.Lock()
        self._running: tuple[str, threading.Thread] | None = None
        self._failures: dict[str, str] = {}

    def take(self, name: str) -> dict[str, Any]:
        """Begin a snapshot of this moment unless it exists; return its state.

        Returns:
            ``{"state": "running" | "complete", "path", "bytes", "files", "created"}``; the last
            three once it is complete.

        Raises:
            SnapshotInvalidError: the name is not valid, or its manifest cannot be read.
            SnapshotFailedError: the snapshot failed; the next call begins another one.
        """
        folder = self._folder / wire.check_name(name)
        with self._lock:
            running = self._running
            if running is not None and running[1].is_alive():
                if running[0] != name:
                    raise SnapshotFailedError(
                        f"the agent of {self._pe} is taking the snapshot {running[0]!r}: repeat"
                        " the request once that one is complete."
                    )
                return {"state": "running", "path": str(folder)}
            if failure := self._failures.pop(name, None):
                raise SnapshotFailedError(failure)
            if (folder / wire.FILE).exists():
                return _describe(folder)
            try:
                growing, created = self._capture(folder)
            except OSError as error:
                raise SnapshotFailedError(self._failure(name, error)) from error
            work = threading.Thread(
                target=self._finish, args=(folder, growing, created), daemon=True, name="snapshot"
            )
            self._running = name, work
            work.start()
        return {"state": "running", "path": str(folder)}

    def _capture(self, folder: Path) -> tuple[list[_GrowingSegment], str]:
        """Copy and link what belongs to this moment; return what is left to be copied."""
        if folder.exists():  # an agent was killed while it took this snapshot
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        growing: list[_GrowingSegment] = []
        with self._exports.held_still() as logs:
            created = datetime.now(UTC).isoformat(timespec="milliseconds")
            self._store.save_copy(folder / "state.sqlite")
            routes = self._home / "routes.json"
            if routes.exists():
                shutil.copyfile(routes, folder / routes.name)
            for one in logs:
                growing += _link_segments(one, folder / one.directory.relative_to(self._home))
        return growing, created

    def _finish(self, folder: Path, growing: list[_GrowingSegment], created: str) -> None:
        try:
            with ExitStack() as files:
                for one in growing:
                    files.enter_context(one.file)
                for one in growing:
                    _copy_segment(one)
            found = {
                path.relative_to(folder).as_posix(): _seal_file(path)
                for path in sorted(folder.rglob("*"))
                if path.is_file()
            }
            manifest = SnapshotManifest(
                kind="agent", source=str(self._pe), created=created, files=found
            )
            _write_manifest(folder, manifest)
        except OSError as error:
            self._failures[folder.name] = self._failure(folder.name, error)
            log.error("%s", self._failures[folder.name])
        else:
            log.info("snapshot %s: %d files, %d bytes", folder, len(found), manifest.size)

    def _failure(self, name: str, error: OSError) -> str:
        return (
            f"the snapshot {name!r} of {self._pe} failed: {error}. The agent continues. Free space"
            f" on the disk of {self._home}, then repeat the request."
        )


def _link_segments(one: StreamLog, place: Path) -> list[_GrowingSegment]:
    """Link full segments with their indexes; return the others, opened before one is removed."""
    place.mkdir(parents=True)
    growing = []
    for segment in one.synced_segments(0):
        if not segment.is_full:
            file, copy = segment.path.open("rb"), place / segment.path.name
            growing.append(_GrowingSegment(file, segment.end, copy))
            continue
        for path in (segment.path, index.index_path(segment.path)):
            if path.exists():
                os.link(path, place / path.name)
    return growing


def _copy_segment(growing: _GrowingSegment) -> None:
    """Copy the synced frames of a segment; the mark in its header may be that of later frames."""
    with growing.copy.open("xb") as copy:
        left = growing.end
        while left:
            data = growing.file.read(min(left, _CHUNK_BYTES))
            if not data:
                raise OSError(f"{growing.file.name} ends {left} bytes before its last frame")
            copy.write(data)
            left -= len(data)
        copy.flush()
        segments.write_mark(copy.fileno(), growing.end)


def _seal_file(path: Path) -> SnapshotFile:
    """Sync a file, and return its size and checksum."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return SnapshotFile(size=os.fstat(file.fileno()).st_size, sha256=digest)


def _write_manifest(folder: Path, manifest: SnapshotManifest) -> None:
    """Make the names of all files durable, then write the manifest, durably."""
    for directory in [*(p for p in folder.rglob("*") if p.is_dir()), folder, folder.parent]:
        sync_directory(directory)
    replace_file(folder / wire.FILE, wire.encode(manifest), durable=True)
    sync_directory(folder)


def _describe(folder: Path) -> dict[str, Any]:
    manifest = wire.decode((folder / wire.FILE).read_text(), str(folder))
    return {
        "state": "complete",
        "path": str(folder),
        "bytes": manifest.size,
        "files": len(manifest.files),
        "created": manifest.created,
    }
