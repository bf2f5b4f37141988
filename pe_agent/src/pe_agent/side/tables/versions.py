"""The versions of a table as files in a folder that driver and workers see.

- A version is an Arrow file under its name. It is synced before it gets that name, and before it is
  announced.
- ``versions.json`` lists the kept versions, the oldest first, and where in the control file each
  was announced.
- Opening the folder removes what a crash left behind.
- For a map or multimap there is a copy of each version with its rows sorted by key. A worker maps
  it, so that not every worker has to sort.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from pe_agent.side.errors import TableError
from streambroker_core.side.definition import SideInput
from streambroker_core.side.join.static_table import sort_by_key

JOURNAL, REQUESTS, SORTED = "versions.json", "requests", "sorted"
FORMAT = 1
_SUFFIX = ".arrow"


@dataclass(frozen=True, kw_only=True)
class Version:
    """A version of a table.

    Attributes:
        name: ``v<number>-<begin of the digest>``.
        bytes: size of its file.
        digest: SHA-256 of its file, in hexadecimal.
        at: when it was written, seconds since 1970.
        announced: sequence of its announcement in the control file, by name of the side input.
    """

    name: str
    rows: int
    bytes: int
    digest: str
    at: float
    announced: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ReadPosition:
    """Position of a query in the control file.

    Attributes:
        finished: the windows with the tuples before this one are finished.
        planned: the planned window, which may be run again, has the tuples before this one; None if
            that is not known.
    """

    finished: int
    planned: int | None = None


class Versions:
    """The versions of one table; written by one process."""

    def __init__(self, folder: Path) -> None:
        """Open or create the folder; raise TableError if it is of a newer release, or damaged."""
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._journal = folder / JOURNAL
        self._last_number, self.retained = (
            read_journal(folder) if self._journal.exists() else (0, [])
        )
        known = {one.name + _SUFFIX for one in self.retained}
        for path in folder.iterdir():
            if path.is_file() and path.name not in (JOURNAL, *known):
                path.unlink()
        for path in (folder / SORTED).glob("*"):
            if path.name.rpartition(".by-")[0] + _SUFFIX not in known:
                path.unlink()

    @property
    def last(self) -> Version | None:
        """The newest version; None if there is none."""
        return self.retained[-1] if self.retained else None

    def write(
        self,
        table: pa.Table,
        now: float,
        prepare: Callable[[Version], None] = lambda version: None,
    ) -> Version | None:
        """Write a version; return None if it is the same as the last one.

        ``prepare`` is called when its file exists, before it is listed and can be used.
        """
        hidden = self.folder / f".{os.getpid()}"
        _write_table(hidden, table)
        digest, size = _sync_and_digest(hidden)
        if self.last is not None and self.last.digest == digest:
            hidden.unlink()
            return None
        self._last_number += 1
        version = Version(
            name=f"v{self._last_number}-{digest[:8]}",
            rows=table.num_rows,
            bytes=size,
            digest=digest,
            at=now,
        )
        path = version_path(self.folder, version.name)
        hidden.rename(path)
        try:
            prepare(version)
        except BaseException:
            path.unlink()
            raise
        self._write_journal([*self.retained, version])
        return version

    def write_sorted(self, version: Version, side: SideInput) -> None:
        """Write the copy of a version sorted by the keys of a side input, if it needs one."""
        path = sorted_path(self.folder, version.name, side)
        if not side.key or path.exists():
            return
        table = sort_by_key(side, read_version(self.folder, version.name))
        if table is None:
            return
        path.parent.mkdir(exist_ok=True)
        hidden = path.with_name(f".{os.getpid()}")
        _write_table(hidden, table)
        _sync_and_digest(hidden)
        hidden.rename(path)

    def record_announcement(self, version: Version, name: str, position: int) -> None:
        """Record where a version was announced to a side input."""
        self._write_journal(
            [
                replace(one, announced={**one.announced, name: position})
                if one.name == version.name
                else one
                for one in self.retained
            ]
        )

    def clean(
        self,
        positions: Collection[ReadPosition],
        names: Collection[str],
        pinned: Collection[str] = (),
    ) -> list[str]:
        """Remove the versions that no query can need any more; return their names.

        - A query can need two of each side input: that of its last window, and the last one that
          was announced in its planned window. The newest version is kept in any case.
        - ``names`` are the table's current side inputs; queries with former ones may start again.
        - ``pinned`` versions are of micro-batches that may be run again.
        """
        needed = {len(self.retained) - 1}
        needed.update(number for number, one in enumerate(self.retained) if one.name in pinned)
        for name in {*names, *(name for one in self.retained for name in one.announced)}:
            announced = {
                number: one.announced[name]
                for number, one in enumerate(self.retained)
                if name in one.announced
            }
            if announced and (positions or name in names):
                needed.add(max(announced))
            needed |= _needed_versions(announced, positions)
        removed = [one for number, one in enumerate(self.retained) if number not in needed]
        if removed:
            self._write_journal(
                [one for number, one in enumerate(self.retained) if number in needed]
            )
        for one in removed:
            version_path(self.folder, one.name).unlink(missing_ok=True)
            for path in (self.folder / SORTED).glob(f"{one.name}.by-*"):
                path.unlink(missing_ok=True)
        return [one.name for one in removed]

    def _write_journal(self, versions: list[Version]) -> None:
        fields = {
            "v": FORMAT,
            "number": self._last_number,
            "kept": [asdict(one) for one in versions],
        }
        write_atomically(self._journal, json.dumps(fields, sort_keys=True).encode())
        self.retained = versions


def read_journal(folder: Path) -> tuple[int, list[Version]]:
    """Return the number of the last version, and the kept versions, the oldest first.

    Raises:
        TableError: the list is of a newer release, or damaged.
        FileNotFoundError: there is none.
    """
    journal = folder / JOURNAL
    try:
        fields: dict[str, Any] = json.loads(journal.read_bytes())
        if fields["v"] > FORMAT:
            raise TableError(
                folder.name,
                f"{journal} has form {fields['v']}, of a newer release; this reads {FORMAT}: start"
                " that one",
            )
        return int(fields["number"]), [Version(**one) for one in fields["kept"]]
    except (KeyError, TypeError, ValueError) as error:
        raise TableError(
            folder.name, f"{journal} is damaged: {error!r}; take another folder"
        ) from error


def _needed_versions(announced: dict[int, int], positions: Collection[ReadPosition]) -> set[int]:
    """Return which versions, by the sequence of their announcement, a query may need."""
    needed: set[int] = set()
    for position in positions:
        before = [one for one, at in announced.items() if at < position.finished]
        later = [one for one, at in announced.items() if at >= position.finished]
        if position.planned is not None:
            later = [one for one in later if announced[one] < position.planned][-1:]
        needed.update(before[-1:], later)
    return needed


def write_request(folder: Path, request_id: str) -> None:
    """Request that the driver reads the table now; repeats with one id are one request."""
    requests = folder / REQUESTS
    requests.mkdir(exist_ok=True)
    (requests / hashlib.sha256(request_id.encode()).hexdigest()[:32]).touch()


def version_path(folder: Path, version: str) -> Path:
    """Return the file of a version."""
    return folder / f"{version}{_SUFFIX}"


def sorted_path(folder: Path, version: str, side: SideInput) -> Path:
    """Return the file of the copy of a version that is sorted by the keys of a side input."""
    key = hashlib.sha256(json.dumps(side.key).encode()).hexdigest()[:16]
    return folder / SORTED / f"{version}.by-{key}"


def read_version(folder: Path, version: str, side: SideInput | None = None) -> pa.Table:
    """Return a version, mapped and not copied; a copy sorted for ``side`` is preferred."""
    path = version_path(folder, version)
    if (
        side is not None
        and side.key
        and (sorted_copy := sorted_path(folder, version, side)).exists()
    ):
        path = sorted_copy
    with pa.memory_map(str(path)) as file:
        return pa.ipc.open_file(file).read_all()


def _write_table(path: Path, table: pa.Table) -> None:
    table = table.combine_chunks().replace_schema_metadata(None)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file atomically by synced data."""
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    with hidden.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    hidden.rename(path)


def _sync_and_digest(path: Path) -> tuple[str, int]:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
        os.fsync(file.fileno())
        return digest.hexdigest(), file.tell()
