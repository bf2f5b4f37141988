"""Snapshots on disk: of a broker's database, and the restore of those of brokers and agents."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from streambroker_core.errors import StreambrokerError
from streambroker_core.wire.broker import snapshot as wire
from streambroker_core.wire.broker.snapshot import (
    SnapshotFile,
    SnapshotInvalidError,
    SnapshotManifest,
)
from streambroker_operator.errors import StoreError
from streambroker_operator.storage.sqlite_file import FORMAT_VERSION

_CHUNK_BYTES = 1 << 20
_NEW = ".new"


class TargetInUseError(StreambrokerError):
    """A snapshot is saved or restored to a new place only; nothing was changed."""

    code = "TargetInUse"


def save_broker(database: Path, folder: Path) -> SnapshotManifest:
    """Save a broker's database, also while the broker writes it, as the snapshot ``folder``.

    Raises:
        TargetInUseError: the folder exists.
        StoreError: the file is not a broker's database, or is damaged.
    """
    if folder.exists():
        raise _in_use(folder, "a snapshot needs a new directory. Give another one, or delete it.")
    fresh = folder.with_name(folder.name + _NEW)
    _remove(fresh)
    fresh.mkdir(mode=0o700, parents=True)
    copy = fresh / wire.DATABASE
    created = datetime.now(UTC).isoformat(timespec="milliseconds")
    try:
        _copy_database(database, copy)
    except sqlite3.Error as error:
        _remove(fresh)
        raise StoreError(
            f"{database} cannot be saved: {error}. Give the file of a broker, as in `streambroker"
            " up --db FILE`."
        ) from error
    copy.chmod(0o600)
    found = SnapshotManifest(
        kind="broker",
        source=str(database.resolve()),
        created=created,
        files={wire.DATABASE: _sync(copy)},
    )
    (fresh / wire.FILE).write_text(wire.encode(found))
    _sync(fresh / wire.FILE)
    _rename(fresh, folder)
    return found


def _copy_database(database: Path, copy: Path) -> None:
    with (
        closing(sqlite3.connect(f"{database.resolve().as_uri()}?mode=rw", uri=True)) as source,
        closing(sqlite3.connect(copy)) as target,
    ):
        source.execute("SELECT value FROM meta WHERE name = 'secret'").fetchone()
        version = source.execute("PRAGMA user_version").fetchone()[0]
        if version > FORMAT_VERSION:
            raise sqlite3.DatabaseError(f"its format {version} is of a newer release")
        source.backup(target)
        target.execute("PRAGMA journal_mode = DELETE")
        result = target.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if result != "ok":
            raise sqlite3.DatabaseError(f"it is damaged: {result}")


def check(folder: Path) -> SnapshotManifest:
    """Read a whole snapshot and return its manifest.

    Raises:
        SnapshotInvalidError: it is incomplete, damaged or of a newer release.
    """
    manifest = _read_manifest(folder)
    for name in manifest.files:
        _transfer(folder, name, manifest, None)
    return manifest


def restore(folder: Path, target: Path) -> SnapshotManifest:
    """Restore a snapshot to a new directory of an agent, or a new file of a broker.

    ``target`` appears whole or not at all. A restore that was killed can be repeated.

    Raises:
        TargetInUseError: there is something at the target.
        SnapshotInvalidError: see `check`.
        OSError: the disk is full or fails.
    """
    manifest = _read_manifest(folder)
    fresh = target.with_name(target.name + _NEW)
    if manifest.kind == "agent":
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise _in_use(target, "an agent is restored to an empty directory. Move it away first.")
    elif found := [one for one in _database_files(target) if one.exists()]:
        raise _in_use(found[0], "stop the broker, and move its files away first.")
    _remove(fresh)
    fresh.mkdir(mode=0o700, parents=True)
    for name in manifest.files:
        _transfer(folder, name, manifest, fresh)
    if manifest.kind == "broker":
        _rename(fresh / wire.DATABASE, target)
        fresh.rmdir()
        return manifest
    (fresh / wire.RESTORED).touch()
    for directory in [fresh, *(path for path in fresh.rglob("*") if path.is_dir())]:
        _sync_directory(directory)
    _rename(fresh, target)
    return manifest


def _read_manifest(folder: Path) -> SnapshotManifest:
    try:
        text = (folder / wire.FILE).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise SnapshotInvalidError(
            f"{folder} is not a complete snapshot: it has no readable {wire.FILE}, which is written"
            " last. Nothing is restored; take another snapshot."
        ) from error
    return wire.decode(text, str(folder))


def _transfer(folder: Path, name: str, manifest: SnapshotManifest, fresh: Path | None) -> None:
    """Compare a file of a snapshot with its manifest; with ``fresh`` copy it into there."""
    wanted, digest, size = manifest.files[name], hashlib.sha256(), 0
    copy = None if fresh is None else fresh / name
    if copy is not None:
        copy.parent.mkdir(parents=True, exist_ok=True)
    try:
        with (folder / name).open("rb") as source, (copy or Path(os.devnull)).open("wb") as sink:
            while data := source.read(_CHUNK_BYTES):
                digest.update(data)
                size += sink.write(data)
            if copy is not None:
                sink.flush()
                os.fsync(sink.fileno())
                copy.chmod(0o600)
    except FileNotFoundError as error:
        raise _damaged(folder, name, "is missing") from error
    if size != wanted.bytes or digest.hexdigest() != wanted.sha256:
        raise _damaged(folder, name, f"has {size} bytes, and differs from the {wanted.bytes} saved")


def _damaged(folder: Path, name: str, what: str) -> SnapshotInvalidError:
    return SnapshotInvalidError(
        f"the snapshot {folder} is damaged: {name} {what}. Nothing is restored; use another"
        " snapshot, or another copy of this one."
    )


def _in_use(path: Path, remedy: str) -> TargetInUseError:
    return TargetInUseError(f"{path} exists, and nothing was changed: {remedy}")


def _database_files(target: Path) -> list[Path]:
    return [target.with_name(target.name + suffix) for suffix in ("", "-wal", "-shm")]


def _sync(path: Path) -> SnapshotFile:
    """Sync a file, and return its size and checksum."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return SnapshotFile(bytes=os.fstat(file.fileno()).st_size, sha256=digest)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _rename(fresh: Path, path: Path) -> None:
    """Let ``path`` appear whole, durably."""
    _sync_directory(fresh if fresh.is_dir() else fresh.parent)
    fresh.rename(path)
    _sync_directory(path.parent)


def _remove(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)
