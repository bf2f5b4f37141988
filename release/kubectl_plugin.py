"""Build the plugin of kubectl into ``dist/``: ``python kubectl_plugin.py``.

The plugin is one file that needs nothing but Python: the command line, and PyYAML without its
compiled part. It is archived with its licences, as krew installs it. With the variable
``REPOSITORY`` krew's manifest is written, too. The same source gives the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import os
import sys
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import distribution
from pathlib import Path

import yaml
from version import DIST, ROOT, read_version

NAME = "kubectl-streambroker"
SOURCES = (
    "core/src/streambroker_core",
    "core/src/streambroker_client",
    "core/src/streambroker_telemetry",
)
OPERATOR = "operator/src/streambroker_operator"
PARTS = ("__init__.py", "errors.py", "cli")
"""What the command line needs of the operator's package."""
_TIME = (1980, 1, 1, 0, 0, 0)
_START = """\
import sys

from streambroker_operator.cli.kubectl_plugin import run_plugin

sys.exit(run_plugin())
"""
_METADATA = "Metadata-Version: 2.1\nName: streambroker-operator\nVersion: {}\n"
_MANIFEST = """\
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: streambroker
spec:
  version: v{version}
  homepage: {repository}
  shortDescription: Connect streams of jobs by subscription
  description: |
    Runs the command line of streambroker against the broker in a cluster. It forwards a local port
    to the broker, and creates a token for a service account.
  caveats: |
    Needs Python 3.11 or later as `python3`.
  platforms:
    - selector:
        matchExpressions:
          - {{key: os, operator: In, values: [linux, darwin]}}
      uri: {repository}/releases/download/v{version}/{archive}
      sha256: {digest}
      bin: {name}
"""


def list_files() -> Iterator[tuple[str, bytes]]:
    """Yield path and content of each file of the plugin."""
    yield "__main__.py", _START.encode()
    metadata = f"streambroker_operator-{read_version()}.dist-info/METADATA"
    yield metadata, _METADATA.format(read_version()).encode()
    packages = [ROOT / path for path in SOURCES] + [Path(yaml.__file__).parent]
    files = [(file, package.parent) for package in packages for file in package.rglob("*.py")]
    operator = ROOT / OPERATOR
    for part in PARTS:
        path = operator / part
        found = path.rglob("*.py") if path.is_dir() else [path]
        files += [(file, operator.parent) for file in found]
    for file, base in files:
        yield file.relative_to(base).as_posix(), file.read_bytes()


def pack(files: Iterable[tuple[str, bytes]], start: bytes = b"") -> bytes:
    """Return a zip file behind ``start``; files without a suffix can be run."""
    packed = io.BytesIO(start)
    packed.seek(0, io.SEEK_END)
    with zipfile.ZipFile(packed, "a", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files:
            entry = zipfile.ZipInfo(path, _TIME)
            entry.external_attr = (0o644 if Path(path).suffix else 0o755) << 16
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def build_archive() -> bytes:
    """Return program and licences, as krew unpacks them."""
    licence = next(f for f in distribution("pyyaml").files or () if f.name == "LICENSE")
    return pack(
        [
            (NAME, pack(sorted(list_files()), b"#!/usr/bin/env python3\n")),
            ("LICENSE.txt", (ROOT / "LICENSE").read_bytes()),
            ("LICENSE.pyyaml.txt", licence.read_binary()),
        ]
    )


def main() -> int:
    """Write the archive, and the manifest if the repository is known; return the exit code."""
    DIST.mkdir(exist_ok=True)
    packed = build_archive()
    archive = DIST / f"{NAME}-{read_version()}.zip"
    archive.write_bytes(packed)
    written = [archive]
    if repository := os.environ.get("REPOSITORY", "").rstrip("/"):
        manifest = DIST / "streambroker.krew.yaml"
        manifest.write_text(
            _MANIFEST.format(
                version=read_version(),
                repository=repository,
                archive=archive.name,
                digest=hashlib.sha256(packed).hexdigest(),
                name=NAME,
            )
        )
        written.append(manifest)
    sys.stdout.write("".join(f"dist/{file.name}\n" for file in written))
    return 0


if __name__ == "__main__":
    sys.exit(main())
