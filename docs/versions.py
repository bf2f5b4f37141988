"""Build the sites of all releases and of this checkout, with a selector of versions.

The result is in ``.site/all``: a folder for each version, the list that the selector reads, and a
page that leads to the newest release. Releases from before this file have no site.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
RELEASES = ROOT / "tests/fixtures/release"
TARGET = ROOT / ".site/all"
NEXT = "next"
"""Name of what is not released."""
_FIRST_PAGE = (
    '<!doctype html><meta http-equiv="refresh" content="0; url={0}/"><a href="{0}/">{0}</a>\n'
)


def find_releases(text: str) -> list[tuple[str, str]]:
    """Return version and commit of the releases that have a site, the newest first."""
    releases = [(version, commit) for version, commit in map(str.split, text.splitlines())]
    return [
        one for one in reversed(releases) if _git("cat-file", "-e", f"{one[1]}:docs/versions.py")
    ]


def build_all(releases: Sequence[tuple[str, str]], target: Path) -> None:
    """Build this checkout and the releases into a folder.

    Raises:
        subprocess.CalledProcessError: a build failed; its output says why.
    """
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    _build(ROOT, NEXT, target)
    for version, commit in releases:
        with tempfile.TemporaryDirectory() as folder:
            checkout = Path(folder) / "checkout"
            subprocess.run(
                ["git", "-C", ROOT, "worktree", "add", "--quiet", "--detach", checkout, commit],
                check=True,
            )
            try:
                # The diagrams' program comes from the packages of the console.
                (checkout / "console/node_modules").symlink_to(ROOT / "console/node_modules")
                _build(checkout, version, target)
            finally:
                _git("worktree", "remove", "--force", str(checkout))
    versions = [version for version, _ in releases]
    listed = [{"version": each, "title": each, "aliases": []} for each in (*versions, NEXT)]
    (target / "versions.json").write_text(json.dumps(listed))
    (target / "index.html").write_text(_FIRST_PAGE.format(listed[0]["version"]))


def _build(checkout: Path, version: str, target: Path) -> None:
    """Build the site of a checkout with its own program."""
    environment = {**os.environ, "PYTHONPATH": str(checkout / "pe_agent/streambroker/src")}
    build = str(checkout / "docs/build.py")
    subprocess.run([sys.executable, build, "--selector"], check=True, env=environment)
    shutil.move(checkout / ".site/versioned", target / version)


def _git(*arguments: str) -> bool:
    done = subprocess.run(["git", "-C", ROOT, *arguments], check=False, capture_output=True)
    return done.returncode == 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Build the sites of all releases.")
    parser.add_argument(
        "--releases", type=Path, default=RELEASES, help="lines of version and commit"
    )
    parser.add_argument("--target", type=Path, default=TARGET, help="folder that is replaced")
    arguments = parser.parse_args()
    build_all(find_releases(arguments.releases.read_text()), arguments.target)
