"""The code of a release, taken out of the history of this repository, for processes that run it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SOURCES = ("core/src", "operator/src", "pe_agent/src")
CHART = "charts/streambroker"
PACKAGES = ("streambroker_core", "streambroker_operator", "pe_agent")
LIST = f"""
import importlib, json
print(json.dumps([importlib.import_module(name).__file__ for name in {PACKAGES}]))
"""


class NoHistoryError(Exception):
    """This is no clone with the commit of the release."""


@dataclass(frozen=True, kw_only=True)
class Release:
    """The sources of a release in a folder."""

    version: str
    folder: Path

    @property
    def chart(self) -> Path:
        """The folder of its chart."""
        return self.folder / CHART

    @property
    def search_path(self) -> str:
        """Where a process looks for modules before it looks at what is installed."""
        return os.pathsep.join(str(self.folder / name) for name in SOURCES)

    def has(self, file: str) -> bool:
        """Whether a module's file is one of this release."""
        return Path(file).is_relative_to(self.folder)


def unpack(folder: Path) -> Release:
    """Unpack the last release."""
    line = (ROOT / "tests/fixtures/release").read_text().splitlines()[-1]
    version, commit = line.split()
    packed = subprocess.run(
        ["git", "-C", str(ROOT), "archive", commit, *SOURCES, CHART],
        capture_output=True,
        check=False,
    )
    if packed.returncode != 0:
        raise NoHistoryError(packed.stderr.decode(errors="replace").strip())
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    made = Release(version=version, folder=folder)
    listed = subprocess.run(
        [sys.executable, "-c", LIST],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": made.search_path},
    )
    assert all(made.has(file) for file in json.loads(listed.stdout)), listed.stdout
    return made
