"""Manifest of a snapshot: a directory with the files of an agent, or with a broker's database.

``manifest.json`` is written last and synced, so a directory without it is incomplete. It names all
files with their sizes and checksums.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final, Literal

from streambroker_core.errors import ManifestError, StreambrokerError
from streambroker_core.wire.encoding.fields import Fields

FILE: Final = "manifest.json"
FORMAT: Final = 1
FOLDER: Final = "snapshots"
"""Directory of an agent's snapshots in its data directory."""
RESTORED: Final = "restored"
"""Empty file in an agent's data directory, which is older than what its readers may have read."""
DATABASE: Final = "streambroker.db"
"""The broker's database in a snapshot."""

_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class SnapshotInvalidError(StreambrokerError):
    """A snapshot is incomplete, damaged or of a newer release, or its name is invalid."""

    code = "SnapshotInvalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFile:
    """Size in bytes and SHA-256 of one file."""

    bytes: int
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
    def bytes(self) -> int:
        """Size of all files."""
        return sum(file.bytes for file in self.files.values())


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
    files = {
        path: {"bytes": file.bytes, "sha256": file.sha256}
        for path, file in sorted(manifest.files.items())
    }
    head = {"format": FORMAT, "kind": manifest.kind, "source": manifest.source}
    return json.dumps({**head, "created": manifest.created, "files": files}, indent=1)


def decode(text: str, where: str) -> SnapshotManifest:
    """Read ``manifest.json`` of the snapshot ``where``.

    Raises:
        SnapshotInvalidError: it is damaged, or of a newer release.
    """
    try:
        fields = Fields(json.loads(text))
        version = fields.get("format")
        if version != FORMAT:
            raise SnapshotInvalidError(
                f"the snapshot {where} has format {version}, this release reads format {FORMAT}."
                " Restore it with the release that wrote it, or a newer one."
            )
        kind = fields.text("kind")
        if kind not in ("agent", "broker"):
            raise fields.error_at("kind", "is neither agent nor broker")
        files = dict(fields.child("files").raw())
        return SnapshotManifest(
            kind="agent" if kind == "agent" else "broker",
            source=fields.text("source", longest=4096),
            created=fields.text("created"),
            files={_check_path(path): _read_file(Fields(one)) for path, one in files.items()},
        )
    except (ManifestError, ValueError, RecursionError) as error:
        raise SnapshotInvalidError(
            f"the manifest of the snapshot {where} is damaged: {error}. Nothing is restored; take"
            " another snapshot."
        ) from error


def _read_file(fields: Fields) -> SnapshotFile:
    sha256 = fields.text(
        "sha256", check=lambda t: _SHA256.fullmatch(t) is not None, expected="64 hex digits"
    )
    return SnapshotFile(bytes=fields.integer("bytes", high=1 << 62), sha256=sha256)


def _check_path(path: str) -> str:
    """Return a path that stays inside the snapshot."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts:
        raise ManifestError(path="files", reason=f"{path!r} leaves the snapshot")
    return path
