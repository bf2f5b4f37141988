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
    fresh = _make_fresh(folder)
    created = datetime.now(UTC).isoformat(timespec="milliseconds")
    try:
        _copy_database(database, fresh / wire.DATABASE)
    except sqlite3.Error as error:
        shutil.rmtree(fresh)
        raise StoreError(
            f"{database} cannot be saved: {error}. Give the file of a broker, as in `streambroker"
            " up --db FILE`."
        ) from error
    file = _transfer(fresh / wire.DATABASE, None)
    manifest = SnapshotManifest(
        kind="broker",
        source=str(database.resolve()),
        created=created,
        files={wire.DATABASE: file},
    )
    (fresh / wire.FILE).write_text(wire.encode(manifest))
    for path in (fresh / wire.DATABASE, fresh / wire.FILE, fresh):
        _sync(path)
    _rename(fresh, folder)
    return manifest


def _copy_database(database: Path, copy: Path) -> None:
    copy.touch(mode=0o600)
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
        _compare(folder, name, manifest, None)
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
    _check_free(manifest, target)
    fresh = _make_fresh(target)
    for name in manifest.files:
        _compare(folder, name, manifest, fresh)
    if manifest.kind == "broker":
        _rename(fresh / wire.DATABASE, target)
        fresh.rmdir()
        return manifest
    (fresh / wire.RESTORED).touch()
    for directory in [fresh, *(path for path in fresh.rglob("*") if path.is_dir())]:
        _sync(directory)
    _rename(fresh, target)
    return manifest


def _check_free(manifest: SnapshotManifest, target: Path) -> None:
    if manifest.kind == "broker":
        for suffix in ("", "-wal", "-shm"):
            if (file := target.with_name(target.name + suffix)).exists():
                raise _in_use(file, "stop the broker, and move its files away first.")
    elif target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise _in_use(target, "an agent is restored to an empty directory. Move it away first.")


def _read_manifest(folder: Path) -> SnapshotManifest:
    try:
        text = (folder / wire.FILE).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise SnapshotInvalidError(
            f"{folder} is not a complete snapshot: it has no readable {wire.FILE}, which is written"
            " last. Nothing is restored; take another snapshot."
        ) from error
    return wire.decode(text, str(folder))


def _compare(folder: Path, name: str, manifest: SnapshotManifest, fresh: Path | None) -> None:
    """Compare a file of a snapshot with its manifest; with ``fresh`` copy it into there."""
    copy = None if fresh is None else fresh / name
    try:
        found = _transfer(folder / name, copy)
    except FileNotFoundError:
        found = None
    if found != manifest.files[name]:
        raise SnapshotInvalidError(
            f"the snapshot {folder} is damaged: {name} is not as it was saved"
            f" ({'missing' if found is None else f'{found.size} bytes'}). Nothing is restored; use"
            " another snapshot, or another copy of this one."
        )


def _transfer(path: Path, copy: Path | None) -> SnapshotFile:
    """Return size and checksum of a file; copy it durably, if there is a place for it."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as source:
        if copy is not None:
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.touch(mode=0o600)
        with (copy or Path(os.devnull)).open("wb") as sink:
            while data := source.read(_CHUNK_BYTES):
                digest.update(data)
                size += sink.write(data)
    if copy is not None:
        _sync(copy)
    return SnapshotFile(size=size, sha256=digest.hexdigest())


def _make_fresh(path: Path) -> Path:
    """Make the directory that becomes ``path`` once it is whole; one that was left is deleted."""
    fresh = path.with_name(f"{path.name}.new")
    if fresh.exists():
        shutil.rmtree(fresh)
    fresh.mkdir(mode=0o700, parents=True)
    return fresh


def _in_use(path: Path, remedy: str) -> TargetInUseError:
    return TargetInUseError(f"{path} exists, and nothing was changed: {remedy}")


def _sync(path: Path) -> None:
    """Make a file, or the names in a directory, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _rename(fresh: Path, path: Path) -> None:
    fresh.rename(path)
    _sync(path.parent)
