"""Build sdists and wheels of the four packages into ``dist/``, twice: ``python packages.py``.

Each package is built in a folder of its own, which has the licence and a README that is complete
outside of the repository. The second build begins with the sdist of the first. It has to give the
same bytes, so that anyone can check a published file.

The variable ``REPOSITORY`` is the address of the repository, as ``https://host/owner/name``. With
it the metadata have addresses, and READMEs links. Without it both are left out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from version import DIST, PACKAGES, ROOT, read_version

_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?![a-z]+:)([^)\s]+)\)")


def rewrite_links(text: str, folder: Path, base: str) -> str:
    """Return a README whose relative links are absolute, or without an address plain text.

    Args:
        text: the README.
        folder: where it is in the repository.
        base: address of the repository's files, or an empty text.
    """

    def link(found: re.Match[str]) -> str:
        label, target = found.groups()
        path = (folder / target).resolve().relative_to(ROOT)
        return f"[{label}]({base}/{path})" if base else label

    return _LINK.sub(link, text)


def stage(package: str, target: Path, repository: str) -> None:
    """Write the source of a package, as its sdist has it, to a folder."""
    folder, base = ROOT / package, ""
    shutil.copytree(folder / "src", target / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "LICENSE", target)
    metadata = (folder / "pyproject.toml").read_text()
    if repository:
        base = f"{repository}/blob/v{read_version()}"
        metadata += (
            f'\n[project.urls]\nSource = "{repository}"\nDocumentation = "{base}/docs/index.md"\n'
            f'Changelog = "{base}/CHANGELOG.md"\nIssues = "{repository}/issues"\n'
        )
    (target / "pyproject.toml").write_text(metadata)
    readme = rewrite_links((folder / "README.md").read_text(), folder, base)
    (target / "README.md").write_text(readme)


def build(source: Path, target: Path) -> None:
    """Build sdist and wheel of a folder into another one."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(target)]
    built = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    if built.returncode:
        raise SystemExit(f"{source.name} cannot be built:\n{built.stderr}")


def main() -> int:
    """Build all, compare the builds, write ``dist/``; return the exit code."""
    repository = os.environ.get("REPOSITORY", "").rstrip("/")
    with tempfile.TemporaryDirectory() as name:
        first, second = Path(name, "first"), Path(name, "second")
        for package in PACKAGES:
            source = Path(name, "source", package.replace("/", "-"))
            source.mkdir(parents=True)
            stage(package, source, repository)
            build(source, first)
        for sdist in first.glob("*.tar.gz"):
            with tarfile.open(sdist) as archive:
                archive.extractall(Path(name, "again"), filter="data")
            build(Path(name, "again", sdist.name.removesuffix(".tar.gz")), second)
        files = sorted(first.iterdir())
        for file in files:
            if file.read_bytes() != (second / file.name).read_bytes():
                sys.stderr.write(f"{file.name}: a second build has other bytes.\n")
                return 1
        shutil.rmtree(DIST, ignore_errors=True)
        shutil.copytree(first, DIST)
    sys.stdout.write("".join(f"dist/{file.name}\n" for file in files))
    return 0


if __name__ == "__main__":
    sys.exit(main())
