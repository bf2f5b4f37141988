"""Manifest of a snapshot: a directory with the files of an agent, or with a broker's database.

``manifest.json`` is written last and synced, so a directory without it is incomplete.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

import msgspec

from streambroker_core.errors import StreambrokerError

FILE: Final = "manifest.json"
FOLDER: Final = "snapshots"
"""Directory of an agent's snapshots in its data directory."""
RESTORED: Final = "restored"
"""Empty file in an agent's data directory, which is older than what its readers may have read."""
DATABASE: Final = "streambroker.db"
"""The broker's database in a snapshot."""

_FORMAT = 1
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")


class SnapshotInvalidError(StreambrokerError):
    """A snapshot is incomplete, damaged or of a newer release, or its name is invalid."""

    code = "SnapshotInvalid"


class SnapshotFile(msgspec.Struct, frozen=True, kw_only=True):
    """Size in bytes and SHA-256 of one file."""

    size: Annotated[int, msgspec.Meta(ge=0)]
    sha256: str


class SnapshotManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a snapshot has.

    Attributes:
        kind: ``agent``, or ``broker`` of a SQLite file.
        source: PE of the agent, or path of the broker's file.
        created: time of its content, ISO 8601.
        files: by path in the snapshot.
    """

    format: int = _FORMAT
    kind: Literal["agent", "broker"]
    source: str
    created: str
    files: dict[str, SnapshotFile]

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
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1).decode()


def decode(text: str, where: str) -> SnapshotManifest:
    """Read ``manifest.json`` of the snapshot ``where``.

    Raises:
        SnapshotInvalidError: it is damaged, or of a newer release.
    """
    try:
        manifest = msgspec.json.decode(text, type=SnapshotManifest)
    except msgspec.DecodeError as error:
        raise _damaged(where, str(error)) from error
    if manifest.format != _FORMAT:
        raise SnapshotInvalidError(
            f"the snapshot {where} has format {manifest.format}, this release reads format"
            f" {_FORMAT}. Restore it with the release that wrote it, or a newer one."
        )
    for path in manifest.files:
        if path.startswith("/") or ".." in path.split("/"):
            raise _damaged(where, f"{path!r} leaves the snapshot")
    return manifest


def _damaged(where: str, reason: str) -> SnapshotInvalidError:
    return SnapshotInvalidError(
        f"the manifest of the snapshot {where} is damaged: {reason}. Nothing is restored; take"
        " another snapshot."
    )
