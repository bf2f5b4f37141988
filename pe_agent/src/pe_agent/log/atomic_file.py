"""Small files that are written whole, and read again when they have changed."""

from __future__ import annotations

import os
from pathlib import Path


def replace_file(path: Path, text: str, *, private: bool = False, durable: bool = False) -> None:
    """Write a file so that whoever reads it finds all of it, or what was there before.

    Args:
        path: its place.
        text: what it is to hold.
        private: nobody but its user may read it.
        durable: it is on the disk when this returns.

    Raises:
        OSError: it cannot be written; what was there stays.
    """
    fresh = path.with_suffix(".new")
    mode = 0o600 if private else 0o666
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "w") as file:
        if private:
            os.fchmod(descriptor, mode)
        file.write(text)
        if durable:
            file.flush()
            os.fsync(descriptor)
    fresh.replace(path)


def sync_directory(directory: Path) -> None:
    """Make created, renamed and unlinked names of a directory safe."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def file_state(path: Path) -> tuple[int, ...]:
    """Return what differs once a file has been written or replaced."""
    found = path.stat()
    return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
