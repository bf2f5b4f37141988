"""The plugin of kubectl as krew installs it: one file that needs nothing but Python."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import kubectl_plugin
import pytest
import yaml
from version import read_version

ADDRESS = "https://host.example/owner/name"


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Build the archive and its manifest in a folder of the test."""
    monkeypatch.setattr(kubectl_plugin, "DIST", tmp_path)
    monkeypatch.setenv("REPOSITORY", ADDRESS)
    assert kubectl_plugin.main() == 0
    return next(tmp_path.glob("*.zip"))


@pytest.mark.parametrize("words", [["version", "--client"], ["help", "apply"], ["--help"]])
def test_the_plugin_runs_without_any_package(archive: Path, words: list[str]) -> None:
    with zipfile.ZipFile(archive) as packed:
        program = packed.extract(kubectl_plugin.NAME, archive.parent)
        mode = packed.getinfo(kubectl_plugin.NAME).external_attr >> 16
    done = subprocess.run(
        [sys.executable, "-I", "-S", program, *words], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr, mode) == (0, "", 0o755)
    assert done.stdout


def test_every_command_is_in_the_plugin(archive: Path) -> None:
    """A command's module is imported when it runs, so one that is missing would be found late."""
    with zipfile.ZipFile(archive) as packed:
        program = packed.extract(kubectl_plugin.NAME, archive.parent)
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from streambroker_operator.cli.app import COMMANDS\n"
        "from importlib import import_module\n"
        "for each in COMMANDS: import_module(f'streambroker_operator.cli.{each}')\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script, program],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_the_manifest_of_krew_is_of_the_archive(archive: Path) -> None:
    text = (archive.parent / "streambroker.krew.yaml").read_text()
    platform = yaml.safe_load(text)["spec"]["platforms"][0]

    assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    assert platform["uri"] == f"{ADDRESS}/releases/download/v{read_version()}/{archive.name}"
    assert platform["bin"] == kubectl_plugin.NAME


def test_a_second_build_has_the_same_bytes(archive: Path) -> None:
    first = archive.read_bytes()
    kubectl_plugin.main()

    assert archive.read_bytes() == first
