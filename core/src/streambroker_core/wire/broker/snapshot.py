"""Manifest of a snapshot: a directory with the files of an agent, or with a broker's database.

``manifest.json`` is written last and synced, so a directory without it is incomplete.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final, Literal

from streambroker_core.errors import StreambrokerError

FILE: Final = "manifest.json"
FOLDER: Final = "snapshots"
"""Directory of an agent's snapshots in its data directory."""
RESTORED: Final = "restored"
"""Empty file in an agent's data directory, which is older than what its readers may have read."""
DATABASE: Final = "streambroker.db"
"""The broker's database in a snapshot."""

_FORMAT = 1
_KINDS: Mapping[str, Literal["agent", "broker"]] = {"agent": "agent", "broker": "broker"}
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")


class SnapshotInvalidError(StreambrokerError):
    """A snapshot is incomplete, damaged or of a newer release, or its name is invalid."""

    code = "SnapshotInvalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFile:
    """Size in bytes and SHA-256 of one file."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotManifest:
    """What a snapshot has.

    Attributes:
        kind: ``agent``, or ``broker`` of a SQLite file.
        source: PE of the agent, or path of the broker's file.
        created: time of its content, ISO 8601.
        files: by path in the snapshot.
    """

    kind: Literal["agent", "broker"]
    source: str
    created: str
    files: Mapping[str, SnapshotFile]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files.values())


def check_name(name: str) -> str:
    """Return a valid name of a snapshot.

    Raises:
        SnapshotInvalidError: it is not valid.
    """
    if not _NAME.fullmatch(name):
        raise SnapshotInvalidError(
            f"{name[:80]!r} is not the name of a snapshot: use up to 63 lower-case letters, digits,"
            " dots and hyphens, with a letter or digit at both ends."
        )
    return name


def encode(manifest: SnapshotManifest) -> str:
    """Return the text of ``manifest.json``."""
    return json.dumps({"format": _FORMAT, **asdict(manifest)}, indent=1)


def decode(text: str, where: str) -> SnapshotManifest:
    """Read ``manifest.json`` of the snapshot ``where``.

    Raises:
        SnapshotInvalidError: it is damaged, or of a newer release.
    """
    try:
        found = json.loads(text)
        version = found["format"]
        if version != _FORMAT:
            raise SnapshotInvalidError(
                f"the snapshot {where} has format {version}, this release reads format {_FORMAT}."
                " Restore it with the release that wrote it, or a newer one."
            )
        files = {
            path: SnapshotFile(size=int(one["size"]), sha256=str(one["sha256"]))
            for path, one in found["files"].items()
        }
        manifest = SnapshotManifest(
            kind=_KINDS[found["kind"]],
            source=str(found["source"]),
            created=str(found["created"]),
            files=files,
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(where, repr(error)) from error
    for path in files:
        if path.startswith("/") or ".." in path.split("/"):
            raise _damaged(where, f"{path!r} leaves the snapshot")
    return manifest


def _damaged(where: str, reason: str) -> SnapshotInvalidError:
    return SnapshotInvalidError(
        f"the manifest of the snapshot {where} is damaged: {reason}. Nothing is restored; take"
        " another snapshot."
    )
