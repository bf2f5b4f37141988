"""The wheel of the broker: with the page where it was built, and whole without it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = "streambroker_operator/ui/dist/"


@pytest.mark.parametrize("built", [True, False])
def test_the_wheel_has_the_page_if_it_was_built(tmp_path: Path, built: bool) -> None:
    shutil.copy(ROOT / ".gitignore", tmp_path)
    (tmp_path / ".git").mkdir()
    source = tmp_path / "operator"
    ignored = shutil.ignore_patterns("__pycache__", "dist")
    shutil.copytree(ROOT / "operator", source, ignore=ignored)
    if built:
        (source / "src" / PAGE / "assets").mkdir(parents=True)
        for name in ("index.html", "assets/app-1a.js"):
            (source / "src" / PAGE / name).write_text("page")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())

    assert "streambroker_operator/rest/openapi.yaml" in names
    assert {name for name in names if name.startswith(PAGE)} == (
        {PAGE + "index.html", PAGE + "assets/app-1a.js"} if built else set()
    )
