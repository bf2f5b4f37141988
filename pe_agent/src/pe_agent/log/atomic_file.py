"""Atomic replacement and change detection of small files."""

from __future__ import annotations

import os
from pathlib import Path


def replace_file(path: Path, text: str, *, private: bool = False, durable: bool = False) -> None:
    """Replace a file atomically; ``durable`` syncs it, ``private`` restricts it to its user.

    Raises:
        OSError: it cannot be written; the old content stays.
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
    """Make created, renamed and unlinked names of a directory durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def file_state(path: Path) -> tuple[int, ...]:
    """Return a value that changes when the file is written or replaced."""
    stat = path.stat()
    return (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
