"""The commits of releases, from which upgrades are tested."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from support.contracts import compatibility

ROOT = Path(__file__).resolve().parents[2]
RELEASES = [line.split() for line in (ROOT / "tests/fixtures/release").read_text().splitlines()]


@pytest.mark.parametrize(("version", "commit"), RELEASES)
def test_a_released_commit_has_its_version(version: str, commit: str) -> None:
    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False
        )

    if git("rev-parse", "--is-shallow-repository").stdout != "false\n":
        pytest.skip("this is no clone with its history")
    assert git("merge-base", "--is-ancestor", commit, "HEAD").returncode == 0
    assert re.search(
        rf"^## {re.escape(version)} - ", git("show", f"{commit}:CHANGELOG.md").stdout, re.M
    )
    assert f'version = "{version}"' in git("show", f"{commit}:core/pyproject.toml").stdout


def test_the_table_of_formats_is_that_of_the_tests() -> None:
    assert compatibility.PAGE.read_text() == compatibility.made(), compatibility.COMMAND
